//! What multiplies the panels: the vector units in IEEE fp32, or the tensor cores, a warp at a time or (`warpgroups`) four.
//!
//! The two of warps read the two panels of a stage and keep a warp's part of C in registers.
//! Every loop over registers is written out by a macro: an index that the compiler cannot resolve would put the
//! array into local memory.

use cuda_std::prelude::*;

#[cfg(doc)]
use super::block::Plan;
use super::block::{Size, Work};
use super::panel::{AlongK, AlongRows, Order, Panel};

/// Repeats a block with the index 0, 1, 2, 3.
macro_rules! unroll4 {
    ($i:ident => $body:block) => {{
        {
            let $i = 0usize;
            $body
        }
        {
            let $i = 1usize;
            $body
        }
        {
            let $i = 2usize;
            $body
        }
        {
            let $i = 3usize;
            $body
        }
    }};
}

/// Repeats a block with the index 0, 1, a `u32`.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
macro_rules! unroll2 {
    ($i:ident => $body:block) => {{
        {
            let $i = 0u32;
            $body
        }
        {
            let $i = 1u32;
            $body
        }
    }};
}

/// Repeats a block with the index 0 to 7.
macro_rules! unroll8 {
    ($i:ident => $body:block) => {{
        unroll4!($i => $body);
        { let $i = 4usize; $body }
        { let $i = 5usize; $body }
        { let $i = 6usize; $body }
        { let $i = 7usize; $body }
    }};
}

/// How a product's operands lie in memory, and whether the rows of A are summed up too.
pub trait Form {
    /// A.
    type A: Order;
    /// B.
    type B: Order;
    /// The kernel also sums A over k: the bias gradient.
    const ROW_SUMS: bool;
}

/// C[m, n] = sum_k A[m, k] B[n, k].
pub struct Nt;
/// C[m, n] = sum_k A[m, k] B[k, n].
pub struct Nn;
/// C[m, n] = sum_k A[k, m] B[k, n], and s[m] = sum_k A[k, m].
pub struct Tn;

impl Form for Nt {
    type A = AlongK;
    type B = AlongK;
    const ROW_SUMS: bool = false;
}

impl Form for Nn {
    type A = AlongK;
    type B = AlongRows;
    const ROW_SUMS: bool = false;
}

impl Form for Tn {
    type A = AlongRows;
    type B = AlongRows;
    const ROW_SUMS: bool = true;
}

/// Tiles of C that one launch may use; the choice is made by shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tile {
    /// 128 rows by 128 columns a block.
    Huge,
    /// 128 by 64.
    Large,
    /// 64 by 64.
    Medium,
    /// 64 by 32.
    Small,
}

impl Tile {
    /// Number of tiles.
    pub const COUNT: usize = 4;
}

/// How a block's warps share a tile: along its rows, along its columns, along the summed index of each stage.
#[derive(Clone, Copy)]
pub struct Warps {
    /// Warps along the rows.
    pub m: u32,
    /// Warps along the columns.
    pub n: u32,
    /// Groups of warps that each sum a part of every stage; their sums are added in order at the end.
    pub k: u32,
}

/// One warp's part of the two panels of a stage.
#[derive(Clone, Copy)]
pub struct Panels {
    /// The panel of A.
    pub a: Panel,
    /// The panel of B.
    pub b: Panel,
    /// The warp's first row of C.
    pub row: u32,
    /// The warp's first column of C.
    pub column: u32,
}

/// Sums over k of the rows of A that a lane reads: the bias gradient when A is dY.
pub type RowSums = [f32; 8];

/// Arithmetic of a product.
pub trait Engine: Sized {
    /// Rows of C that a warp computes.
    const ROWS: u32;
    /// Columns of C that a warp computes.
    const COLUMNS: u32;
    /// Warps of a block for each [`Tile`].
    const WARPS: [Warps; Tile::COUNT];
    /// Whether registers are left to hold what the epilogue reads while the panels are multiplied.
    const EARLY_READS: bool;
    /// Whether A and B lie in memory as bf16, two a float.
    #[cfg(not(target_arch = "nvptx64"))]
    const HALVES: bool = false;
    /// Blocks that are to share a multiprocessor; 0 leaves it to the assembler.
    #[cfg(not(target_arch = "nvptx64"))]
    const RESIDENT: u32 = 0;
    /// Most tensor-core instructions in a kernel.
    #[cfg(not(target_arch = "nvptx64"))]
    const MMAS: u32;
    /// Most shuffles in a kernel with row sums.
    #[cfg(not(target_arch = "nvptx64"))]
    const SUM_SHUFFLES: u32;
    /// Most barriers in a kernel.
    #[cfg(not(target_arch = "nvptx64"))]
    const BARRIERS: u32;
    /// Sums a block's tile, see [`Plan::multiply`].
    fn tile<F: Form, S: Size, T>(work: &Work, meanwhile: impl FnOnce() -> T) -> T;
}

/// Arithmetic of which every warp reads its part of the panels of a stage.
pub trait WarpEngine: Engine {
    /// A lane's part of C.
    type Accumulator: Copy;
    /// C = 0.
    fn zero() -> Self::Accumulator;
    /// Adds the products of summed indices `k .. k + depth` (multiples of 8), and where the form has row sums and `sum`
    /// is set the rows of A to `sums`. Whole warps call.
    fn multiply<F: Form>(
        panels: &Panels,
        k: u32,
        depth: u32,
        accumulator: &mut Self::Accumulator,
        sum: bool,
        sums: &mut RowSums,
    );
    /// Writes the lane's part of C to shared memory; `place(row, column)` is where an element of the warp's part is, with
    /// columns 4 c .. 4 c + 4 side by side.
    fn put<F: Form>(accumulator: &Self::Accumulator, memory: Shared<f32>, place: impl Fn(u32, u32) -> u32);
    /// Calls `store(row, sum)` once per row of the warp's part, by one lane. Whole warps call.
    fn each_sum<F: Form>(sums: &RowSums, store: impl FnMut(u32, f32));
}
