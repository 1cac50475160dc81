//! C += A B for one block's tiles in shared memory, in three kinds of arithmetic.
//!
//! All of them keep C as the tensor cores do. A warp has `TM` by `TN` tiles of 16 x 8, and lane (g, t) = (lane / 4,
//! lane % 4) has of tile (i, j) the elements C[16 i + g, 8 j + 2t + {0, 1}] and C[16 i + g + 8, 8 j + 2t + {0, 1}]: so
//! everything around the products is the same for all of them.
//!
//! Loops over registers are written out by a macro: an index that the compiler cannot resolve would put the array into
//! local memory.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::size::Part;
use super::tile::{AlongK, Lane, Order, Tile};
use crate::kernels::gemm::mma::Rounding;

/// Repeats a block with the index 0 to n - 1, n a constant up to 4. Written out only where it matters: elsewhere it
/// would make the build long.
#[cfg(target_arch = "nvptx64")]
macro_rules! unroll4 {
    ($i:ident < $n:expr => $body:block) => {
        unroll4!(@ $i $n, $body, 0 1 2 3)
    };
    (@ $i:ident $n:expr, $body:block, $($k:literal)*) => {{
        $(if $k < $n {
            let $i: usize = $k;
            $body
        })*
    }};
}

/// The same, up to 8.
#[cfg(target_arch = "nvptx64")]
macro_rules! unroll8 {
    ($i:ident < $n:expr => $body:block) => {
        unroll4!(@ $i $n, $body, 0 1 2 3 4 5 6 7)
    };
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! unroll4 {
    ($i:ident < $n:expr => $body:block) => {{
        #[allow(clippy::needless_range_loop)] // as on the device
        for $i in 0..$n {
            $body
        }
    }};
}

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! unroll8 {
    ($i:ident < $n:expr => $body:block) => {
        unroll4!($i < $n => $body)
    };
}

/// A lane's part of C: tile (i, j) at i * TN + j.
pub type Fragments = [[f32; 4]; 16];

/// C = 0.
pub const ZERO: Fragments = [[0.0; 4]; 16];

/// A lane's sums over k of rows of A: of 16 i + g at 2i, of 16 i + g + 8 at 2i + 1.
pub type RowSums = [f32; 8];

/// Rows of the sums that a warp collects while it multiplies.
pub trait Summing {
    /// Whether there are any.
    const ON: bool;
}

/// A's rows are summed as well: the bias gradient beside a weight gradient.
pub struct WithSums;
/// The product alone.
pub struct Plain;

impl Summing for WithSums {
    const ON: bool = true;
}

impl Summing for Plain {
    const ON: bool = false;
}

/// Arithmetic of the products.
pub trait Arithmetic {
    /// Adds A B, over `depth` (a multiple of 32) summed indices. Where `U` says so and `sum` is set, also adds the rows of
    /// A, unrounded, to `sums`. Whole warps call.
    fn multiply<P: Part, A: Order, B: Order, U: Summing>(
        a: Tile,
        b: Tile,
        depth: u32,
        c: &mut Fragments,
        sum: bool,
        sums: &mut RowSums,
    );
    /// A lane's rows of an operand, for use in several products.
    type Kept: Copy;
    /// Whether [`Arithmetic::keep`] keeps anything: an operand of `depth` summed indices, by `P`.
    fn keeps<P: Part>(depth: u32) -> bool;
    /// Reads A, stored along k, where it can be kept.
    fn keep<P: Part>(a: Tile) -> Self::Kept;
    /// Adds A B where A is kept, for B stored along k.
    fn multiply_kept<P: Part>(a: &Self::Kept, b: Tile, c: &mut Fragments);
    /// The whole sum of a row, from the sums of the four lanes with the same g. Whole warps call.
    fn whole_sum(sum: f32) -> f32;
    /// Most tensor-core instructions for a product of this depth, and shuffles in [`Arithmetic::whole_sum`].
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32;
    /// Shuffles in [`Arithmetic::whole_sum`].
    #[cfg(not(target_arch = "nvptx64"))]
    const SHUFFLES: u32;
}

/// A B without sums.
#[inline(always)]
pub fn multiply<E: Arithmetic, P: Part, A: Order, B: Order>(a: Tile, b: Tile, depth: u32, c: &mut Fragments) {
    E::multiply::<P, A, B, Plain>(a, b, depth, c, false, &mut [0.0; 8]);
}

/// Summed indices of an operand that can be kept.
const KEPT_DEPTH: u32 = 64;

/// What a warp multiplies.
#[derive(Clone, Copy)]
struct Operands {
    a: Tile,
    b: Tile,
    lane: Lane,
    /// First octet of the rows of C.
    row: u32,
    /// First octet of its columns.
    column: u32,
}

impl Operands {
    #[inline(always)]
    fn new<P: Part>(a: Tile, b: Tile) -> Operands {
        let (row, column) = P::octets();
        Operands { a, b, lane: Lane::new(), row, column }
    }

    /// A lane's column of B in tile j, for eight summed indices.
    #[inline(always)]
    fn column<B: Order>(&self, j: u32, k: u32, step: u32) -> [f32; 2] {
        let get = |e: u32| self.b.one::<B>(self.lane, self.column, j, k, step, e);
        [get(0), get(1)]
    }

    /// A lane's rows of A in tile i, for eight summed indices.
    #[inline(always)]
    fn rows<A: Order>(&self, i: u32, k: u32, step: u32) -> [f32; 4] {
        let get = |high: u32, e: u32| self.a.one::<A>(self.lane, self.row, 2 * i + high, k, step, e);
        [get(0, 0), get(1, 0), get(0, 1), get(1, 1)]
    }
}

/// Tensor cores; operands are rounded by `R` when they are read, products exact, sums in f32.
pub struct TensorCores<R>(PhantomData<R>);

impl<R: Rounding + Instruction> Arithmetic for TensorCores<R> {
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32 = R::DEPTH;
    #[cfg(not(target_arch = "nvptx64"))]
    const SHUFFLES: u32 = 2;

    #[inline(always)]
    fn multiply<P: Part, A: Order, B: Order, U: Summing>(
        a: Tile,
        b: Tile,
        depth: u32,
        c: &mut Fragments,
        sum: bool,
        sums: &mut RowSums,
    ) {
        let of = Operands::new::<P>(a, b);
        let mut k = 0;
        while k < depth {
            sixteen::<R, P, A, B, U>(&of, k, 0, c, sum, sums);
            sixteen::<R, P, A, B, U>(&of, k, 2, c, sum, sums);
            k += 32;
        }
    }

    /// Two tiles along the rows by four times sixteen summed indices.
    type Kept = [[R::Rows; 4]; 2];

    #[inline(always)]
    fn keeps<P: Part>(depth: u32) -> bool {
        // The small size's share. The medium size has a larger part of dWh, and no registers left beside it.
        P::TM == 2 && P::TN == 4 && depth == KEPT_DEPTH
    }

    #[inline(always)]
    fn keep<P: Part>(a: Tile) -> [[R::Rows; 4]; 2] {
        let mut kept = [[R::rows([0.0; 4], [0.0; 4]); 4]; 2];
        if Self::keeps::<P>(a.width) {
            let of = Operands::new::<P>(a, a);
            unroll4!(i < P::TM => {
                unroll4!(n < 4 => {
                    let (k, step) = (32 * (n as u32 / 2), 2 * (n as u32 % 2));
                    let rows = |step: u32| of.rows::<AlongK>(i as u32, k, step);
                    kept[i % 2][n] = R::rows(rows(step), rows(step + 1));
                });
            });
        }
        kept
    }

    #[inline(always)]
    fn multiply_kept<P: Part>(a: &[[R::Rows; 4]; 2], b: Tile, c: &mut Fragments) {
        let of = Operands::new::<P>(b, b);
        unroll4!(n < 4 => {
            let (k, step) = (32 * (n as u32 / 2), 2 * (n as u32 % 2));
            unroll8!(j < P::TN => {
                let column = |step: u32| of.column::<AlongK>(j as u32, k, step);
                let column = R::column(column(step), column(step + 1));
                unroll4!(i < P::TM => {
                    c[i * P::TN + j] = R::multiply(a[i % 2][n], column, c[i * P::TN + j]);
                });
            });
        });
    }

    #[inline(always)]
    fn whole_sum(sum: f32) -> f32 {
        // Each of the four lanes has summed its own summed indices.
        let pair = sum + warp::shfl_xor(sum, 1);
        pair + warp::shfl_xor(pair, 2)
    }
}

/// Summed indices of one instruction.
pub trait Instruction {
    /// How many.
    #[cfg(not(target_arch = "nvptx64"))]
    const DEPTH: u32;
}

impl Instruction for crate::kernels::gemm::mma::Tf32 {
    #[cfg(not(target_arch = "nvptx64"))]
    const DEPTH: u32 = 8;
}

impl Instruction for crate::kernels::gemm::mma::Bf16 {
    #[cfg(not(target_arch = "nvptx64"))]
    const DEPTH: u32 = 16;
}

/// Summed indices k + 8 step .. k + 8 step + 16.
#[inline(always)]
fn sixteen<R: Rounding, P: Part, A: Order, B: Order, U: Summing>(
    of: &Operands,
    k: u32,
    step: u32,
    c: &mut Fragments,
    sum: bool,
    sums: &mut RowSums,
) {
    let mut columns = [R::column([0.0; 2], [0.0; 2]); 8];
    unroll8!(j < P::TN => {
        columns[j] = R::column(of.column::<B>(j as u32, k, step), of.column::<B>(j as u32, k, step + 1));
    });
    unroll4!(i < P::TM => {
        let (first, second) = (of.rows::<A>(i as u32, k, step), of.rows::<A>(i as u32, k, step + 1));
        let rows = R::rows(first, second);
        unroll8!(j < P::TN => {
            c[i * P::TN + j] = R::multiply(rows, columns[j], c[i * P::TN + j]);
        });
        if U::ON && sum {
            sums[2 * i] += (first[0] + first[2]) + (second[0] + second[2]);
            sums[2 * i + 1] += (first[1] + first[3]) + (second[1] + second[3]);
        }
    });
}

/// IEEE fp32 on the vector units: each product and sum is rounded once, to nearest (fused multiply-add), in the order of
/// the summed index.
pub struct Fp32;

impl Arithmetic for Fp32 {
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32 = u32::MAX;
    #[cfg(not(target_arch = "nvptx64"))]
    const SHUFFLES: u32 = 0;

    #[inline(always)]
    fn multiply<P: Part, A: Order, B: Order, U: Summing>(
        a: Tile,
        b: Tile,
        depth: u32,
        c: &mut Fragments,
        sum: bool,
        sums: &mut RowSums,
    ) {
        let of = Operands::new::<P>(a, b);
        let mut k = 0;
        while k < depth {
            four::<P, A, B, U>(&of, k, 0, c, sum, sums);
            four::<P, A, B, U>(&of, k, 1, c, sum, sums);
            k += 8;
        }
    }

    type Kept = ();

    #[inline(always)]
    fn keeps<P: Part>(_depth: u32) -> bool {
        false
    }

    #[inline(always)]
    fn keep<P: Part>(_a: Tile) {}

    #[inline(always)]
    fn multiply_kept<P: Part>(_a: &(), _b: Tile, _c: &mut Fragments) {}

    #[inline(always)]
    fn whole_sum(sum: f32) -> f32 {
        sum
    }
}

/// Summed indices k + 4 e .. k + 4 e + 4.
#[inline(always)]
fn four<P: Part, A: Order, B: Order, U: Summing>(
    &Operands { a, b, lane, row, column }: &Operands,
    k: u32,
    e: u32,
    c: &mut Fragments,
    sum: bool,
    sums: &mut RowSums,
) {
    let Lane { g, t } = lane;
    let mut rows = [[0.0; 4]; 8];
    unroll8!(i < 2 * P::TM => {
        rows[i] = if A::ALONG_K {
            a.four(row, i as u32, g, k, e)
        } else {
            let get = |n: u32| a.across(row, i as u32, g, k, 4 * e + n);
            [get(0), get(1), get(2), get(3)]
        };
        if U::ON && sum {
            sums[i] += (rows[i][0] + rows[i][1]) + (rows[i][2] + rows[i][3]);
        }
    });
    unroll8!(j < P::TN => {
        let (left, right) = if B::ALONG_K {
            (b.four(column, j as u32, 2 * t, k, e), b.four(column, j as u32, 2 * t + 1, k, e))
        } else {
            let get = |n: u32| b.across2(column, j as u32, 2 * t, k, 4 * e + n);
            let pairs = [get(0), get(1), get(2), get(3)];
            (pairs.map(|p| p[0]), pairs.map(|p| p[1]))
        };
        unroll4!(i < P::TM => {
            let at = i * P::TN + j;
            unroll4!(n < 4 => {
                c[at][0] = math::fma(rows[2 * i][n], left[n], c[at][0]);
                c[at][1] = math::fma(rows[2 * i][n], right[n], c[at][1]);
                c[at][2] = math::fma(rows[2 * i + 1][n], left[n], c[at][2]);
                c[at][3] = math::fma(rows[2 * i + 1][n], right[n], c[at][3]);
            });
        });
    });
}

/// Repeats a block for the lane's tensor-core tiles (i, j), `at` being their index in [`Fragments`], with the calling
/// lane and the octets of the warp's first row and column: their elements are `Tile::get_pair` and `set_pair` of octets 2i
/// and 2i + 1 of the rows, and octet j of the columns.
macro_rules! each_tile {
    ($part:ty, ($lane:ident, $corner:ident, $at:ident, $i:ident, $j:ident) => $body:block) => {{
        let $lane = $crate::kernels::iqn::tile::Lane::new();
        let $corner = <$part>::octets();
        unroll4!(i < <$part>::TM => {
            unroll8!(j < <$part>::TN => {
                let $at = i * <$part>::TN + j;
                let ($i, $j) = (i as u32, j as u32);
                $body
            });
        });
    }};
}

/// Repeats a block for the indices of the lane's tiles in [`Fragments`].
macro_rules! unroll_fragments {
    ($part:ty, $n:ident => $body:block) => {{
        unroll4!(i < <$part>::TM => {
            unroll8!(j < <$part>::TN => {
                let $n = i * <$part>::TN + j;
                $body
            });
        });
    }};
}
