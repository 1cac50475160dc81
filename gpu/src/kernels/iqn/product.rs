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
use super::tile::{AlongK, Lane, Order, Tile, WeightAlongK};
use crate::kernels::gemm::mma::{Bf16, Rounding, Tf32};
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
    /// A, as they are stored, to `sums`. Whole warps call.
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
    /// Whether [`Arithmetic::keep`] keeps anything: an operand of `depth` summed indices, by `P`, in a kernel that has
    /// registers to `SPARE` or has not.
    fn keeps<P: Part, const SPARE: bool>(depth: u32) -> bool;
    /// Reads A, stored along k, where it can be kept.
    fn keep<P: Part, const SPARE: bool>(a: Tile) -> Self::Kept;
    /// Adds A B where A is kept, for a weight B along k.
    fn multiply_kept<P: Part>(a: &Self::Kept, b: Tile, c: &mut Fragments);
    /// What of a result is stored for use as an operand. Each is read several times and stored once: if the rounding
    /// keeps it an f32, it is rounded here.
    fn stored(value: f32) -> f32;
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

/// Tensor cores; operands are rounded by `R` when they are stored or read, products exact, sums in f32.
pub struct TensorCores<R>(PhantomData<R>);

impl<R: Instruction> Arithmetic for TensorCores<R> {
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
    fn keeps<P: Part, const SPARE: bool>(depth: u32) -> bool {
        // The small size's share. In the medium size's, 2 by 2, the loss has no registers left beside its part of dWh.
        P::TM == 2 && (P::TN == 4 || SPARE) && depth == KEPT_DEPTH
    }

    #[inline(always)]
    fn keep<P: Part, const SPARE: bool>(a: Tile) -> [[R::Rows; 4]; 2] {
        let mut kept = [[R::rows([0.0; 4], [0.0; 4]); 4]; 2];
        if Self::keeps::<P, SPARE>(a.width) {
            let of = Operands::new::<P>(a, a);
            unroll4!(i < P::TM => {
                unroll4!(n < 4 => {
                    let (k, step) = (32 * (n as u32 / 2), 2 * (n as u32 % 2));
                    let rows = |step: u32| of.rows::<AlongK>(i as u32, k, step);
                    kept[i % 2][n] = R::stored_rows(rows(step), rows(step + 1));
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
                let column = |step: u32| of.column::<WeightAlongK>(j as u32, k, step);
                let column = R::column(column(step), column(step + 1));
                unroll4!(i < P::TM => {
                    c[i * P::TN + j] = R::multiply(a[i % 2][n], column, c[i * P::TN + j]);
                });
            });
        });
    }

    #[inline(always)]
    fn stored(value: f32) -> f32 {
        R::stored(value)
    }

    #[inline(always)]
    fn whole_sum(sum: f32) -> f32 {
        // Each of the four lanes has summed its own summed indices.
        let pair = sum + warp::shfl_xor(sum, 1);
        pair + warp::shfl_xor(pair, 2)
    }
}

/// How operands are stored in shared memory and read from there.
pub trait Instruction: Rounding {
    /// Summed indices of one instruction.
    #[cfg(not(target_arch = "nvptx64"))]
    const DEPTH: u32;
    /// See [`Arithmetic::stored`].
    fn stored(value: f32) -> f32;
    /// [`Rounding::rows`] of what was stored.
    fn stored_rows(first: [f32; 4], second: [f32; 4]) -> Self::Rows;
    /// [`Rounding::column`] of what was stored.
    fn stored_column(first: [f32; 2], second: [f32; 2]) -> Self::Column;
}

impl Instruction for Tf32 {
    #[cfg(not(target_arch = "nvptx64"))]
    const DEPTH: u32 = 8;

    #[inline(always)]
    fn stored(value: f32) -> f32 {
        f32::from_bits(round::tf32(value))
    }

    #[inline(always)]
    fn stored_rows(first: [f32; 4], second: [f32; 4]) -> Self::Rows {
        [first.map(f32::to_bits), second.map(f32::to_bits)]
    }

    #[inline(always)]
    fn stored_column(first: [f32; 2], second: [f32; 2]) -> Self::Column {
        [first.map(f32::to_bits), second.map(f32::to_bits)]
    }
}

/// The instruction wants pairs: packing them rounds as well, at no cost.
impl Instruction for Bf16 {
    #[cfg(not(target_arch = "nvptx64"))]
    const DEPTH: u32 = 16;

    #[inline(always)]
    fn stored(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn stored_rows(first: [f32; 4], second: [f32; 4]) -> Self::Rows {
        Bf16::rows(first, second)
    }

    #[inline(always)]
    fn stored_column(first: [f32; 2], second: [f32; 2]) -> Self::Column {
        Bf16::column(first, second)
    }
}

/// Summed indices k + 8 step .. k + 8 step + 16.
#[inline(always)]
fn sixteen<R: Instruction, P: Part, A: Order, B: Order, U: Summing>(
    of: &Operands,
    k: u32,
    step: u32,
    c: &mut Fragments,
    sum: bool,
    sums: &mut RowSums,
) {
    let mut columns = [R::column([0.0; 2], [0.0; 2]); 8];
    unroll8!(j < P::TN => {
        let (first, second) = (of.column::<B>(j as u32, k, step), of.column::<B>(j as u32, k, step + 1));
        columns[j] = if B::STORED { R::stored_column(first, second) } else { R::column(first, second) };
    });
    unroll4!(i < P::TM => {
        let (first, second) = (of.rows::<A>(i as u32, k, step), of.rows::<A>(i as u32, k, step + 1));
        let rows = if A::STORED { R::stored_rows(first, second) } else { R::rows(first, second) };
        unroll8!(j < P::TN => {
            c[i * P::TN + j] = R::multiply(rows, columns[j], c[i * P::TN + j]);
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
