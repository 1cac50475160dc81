//! C += A B for one block's tiles in shared memory, in three kinds of arithmetic.
//!
//! All of them keep C as the tensor cores do. A warp has `TM` by `TN` tiles of 16 x 8, and lane (g, t) = (lane / 4,
//! lane % 4) has of tile (i, j) the elements C[16 i + g, 8 j + 2t + {0, 1}] and C[16 i + g + 8, 8 j + 2t + {0, 1}]: so
//! everything around the products is the same for all of them.
//!
//! Loops over registers are written out by a macro: an index that the compiler cannot resolve would put the array into
//! local memory.

use cuda_std::prelude::*;

use super::size::Part;
use super::tile::{AlongK, Lane, Order, Tile};
use crate::kernels::gemm::round;

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

/// The same, up to 16.
#[cfg(target_arch = "nvptx64")]
macro_rules! unroll16 {
    ($i:ident < $n:expr => $body:block) => {
        unroll4!(@ $i $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
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

#[cfg(not(target_arch = "nvptx64"))]
macro_rules! unroll16 {
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
    /// A, as they are stored, to `sums`. Whole warps call.
    fn multiply<P: Part, A: Order, B: Order, U: Summing>(
        a: Tile,
        b: Tile,
        depth: u32,
        c: &mut Fragments,
        sum: bool,
        sums: &mut RowSums,
    );
    /// A lane's rows of an operand, for use in several products; nothing where [`Arithmetic::keeps`] is never true.
    type Kept: Copy + Default;
    /// Whether [`Arithmetic::keep`] keeps anything: an operand of `depth` summed indices, by `P`, in a kernel that has
    /// registers to `SPARE` or has not.
    #[inline(always)]
    fn keeps<P: Part, const SPARE: bool>(_depth: u32) -> bool {
        false
    }
    /// Reads A, stored along k, where it can be kept.
    #[inline(always)]
    fn keep<P: Part, const SPARE: bool>(_a: Tile) -> Self::Kept {
        Self::Kept::default()
    }
    /// Adds A B where A is kept, for B along k.
    #[inline(always)]
    fn multiply_kept<P: Part>(_a: &Self::Kept, _b: Tile, _c: &mut Fragments) {}
    /// Adds to `sums` the lane's sums over k of A's rows, of C's from octet `first` on as the calling group has them, where
    /// warpgroups multiply. A whole group calls.
    #[inline(always)]
    fn sum_rows<P: Part, A: Order>(_a: Tile, _first: u32, _depth: u32, _sums: &mut RowSums) {}
    /// Adds A B where a lane has its rows of A in registers as `group` wants them, 64 summed indices, for B along k. A whole
    /// warpgroup calls.
    #[inline(always)]
    fn multiply_rows<P: Part>(_a: &[[u32; 4]; 4], _b: Tile, _c: &mut Fragments) {}
    /// What of a result is stored in an f32 tile for use as an operand: it is read several times, and rounded once.
    #[inline(always)]
    fn stored(value: f32) -> f32 {
        value
    }
    /// The whole sum of a row, from the sums of the four lanes with the same g. Whole warps call.
    #[inline(always)]
    fn whole_sum(sum: f32) -> f32 {
        sum
    }
    /// Whether dz and what follows from it come multiplied, as `Size::SCALED`.
    const SCALED: bool = false;
    /// As the host knows it.
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic;
    /// Summed indices of one tensor-core instruction.
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32;
    /// Whether operands are loaded as matrices, and the sums of A's rows are products: both count as such instructions.
    #[cfg(not(target_arch = "nvptx64"))]
    const MATRICES: bool;
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
pub struct Operands {
    /// A.
    pub a: Tile,
    /// B.
    pub b: Tile,
    /// The calling lane.
    pub lane: Lane,
    /// First octet of the rows of C.
    pub row: u32,
    /// First octet of its columns.
    pub column: u32,
}

impl Operands {
    /// By `P`'s division of C.
    #[inline(always)]
    pub fn new<P: Part>(a: Tile, b: Tile) -> Operands {
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

/// Tensor cores in tf32: operands are rounded when they are stored, products exact, sums in f32.
pub struct Tf32;

impl Arithmetic for Tf32 {
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = super::launch::Arithmetic::Tf32;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32 = 8;
    #[cfg(not(target_arch = "nvptx64"))]
    const MATRICES: bool = false;
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
            sixteen::<P, A, B, U>(&of, k, 0, c, sum, sums);
            sixteen::<P, A, B, U>(&of, k, 2, c, sum, sums);
            k += 32;
        }
    }

    /// Two tiles along the rows by eight times eight summed indices.
    type Kept = [[[u32; 4]; 8]; 2];

    #[inline(always)]
    fn keeps<P: Part, const SPARE: bool>(depth: u32) -> bool {
        // The small size's share. In the medium size's, 2 by 2, the loss has no registers left beside its part of dWh.
        P::TM == 2 && (P::TN == 4 || SPARE) && depth == KEPT_DEPTH
    }

    #[inline(always)]
    fn keep<P: Part, const SPARE: bool>(a: Tile) -> [[[u32; 4]; 8]; 2] {
        let mut kept = [[[0; 4]; 8]; 2];
        if Self::keeps::<P, SPARE>(a.width) {
            let of = Operands::new::<P>(a, a);
            unroll4!(i < P::TM => {
                unroll8!(n < 8 => {
                    let (k, step) = (32 * (n as u32 / 4), n as u32 % 4);
                    kept[i % 2][n] = of.rows::<AlongK>(i as u32, k, step).map(f32::to_bits);
                });
            });
        }
        kept
    }

    #[inline(always)]
    fn multiply_kept<P: Part>(a: &[[[u32; 4]; 8]; 2], b: Tile, c: &mut Fragments) {
        let of = Operands::new::<P>(b, b);
        unroll8!(n < 8 => {
            let (k, step) = (32 * (n as u32 / 4), n as u32 % 4);
            unroll8!(j < P::TN => {
                let column = of.column::<AlongK>(j as u32, k, step).map(f32::to_bits);
                unroll4!(i < P::TM => {
                    c[i * P::TN + j] = warp::mma_tf32(a[i % 2][n], column, c[i * P::TN + j]);
                });
            });
        });
    }

    #[inline(always)]
    fn stored(value: f32) -> f32 {
        f32::from_bits(round::tf32(value))
    }

    #[inline(always)]
    fn whole_sum(sum: f32) -> f32 {
        // Each of the four lanes has summed its own summed indices.
        let pair = sum + warp::shfl_xor(sum, 1);
        pair + warp::shfl_xor(pair, 2)
    }
}

/// Summed indices k + 8 step .. k + 8 step + 16.
#[inline(always)]
fn sixteen<P: Part, A: Order, B: Order, U: Summing>(
    of: &Operands,
    k: u32,
    step: u32,
    c: &mut Fragments,
    sum: bool,
    sums: &mut RowSums,
) {
    let mut columns = [[[0; 2]; 2]; 8];
    unroll8!(j < P::TN => {
        let column = |step: u32| of.column::<B>(j as u32, k, step).map(f32::to_bits);
        columns[j] = [column(step), column(step + 1)];
    });
    unroll4!(i < P::TM => {
        let (first, second) = (of.rows::<A>(i as u32, k, step), of.rows::<A>(i as u32, k, step + 1));
        let rows = [first.map(f32::to_bits), second.map(f32::to_bits)];
        unroll8!(j < P::TN => {
            let c = &mut c[i * P::TN + j];
            *c = warp::mma_tf32(rows[0], columns[j][0], *c);
            *c = warp::mma_tf32(rows[1], columns[j][1], *c);
        });
        if U::ON && sum {
            sums[2 * i] += (first[0] + first[2]) + (second[0] + second[2]);
            sums[2 * i + 1] += (first[1] + first[3]) + (second[1] + second[3]);
        }
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
            unroll16!(j < <$part>::TN => {
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
            unroll16!(j < <$part>::TN => {
                let $n = i * <$part>::TN + j;
                $body
            });
        });
    }};
}
