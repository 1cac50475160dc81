//! Tensor cores: a warp computes 32 or 64 rows by 32 columns as two or four by four tiles of 16 x 8 (`mma.sync`).
//!
//! With g = lane / 4 and t = lane % 4 a lane's operands for eight summed indices of a tile are A[g, t], A[g + 8, t],
//! A[g, t + 4], A[g + 8, t + 4] and B[t, g], B[t + 4, g] (PTX manual, "Matrix fragments for mma.m16n8k8"); for sixteen
//! in bf16 each register holds two. Each float is read by itself, so that it arrives in the register where the
//! instruction wants it: wider reads bring together what the instruction wants apart, and cost more moves than they
//! save reads. Only in an operand stored along rows are A[g, ..] and A[g + 8, ..] made neighbours (rows 2g, 2g + 1).

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::engine::{Engine, Form, Panels, RowSums, Tile, WarpEngine, Warps};
use super::panel::{Order, Panel};
use super::round;

/// How f32 operands are rounded for the tensor cores, and the instructions for sixteen summed indices.
pub trait Rounding {
    /// A lane's rows of A for sixteen summed indices.
    type Rows: Copy;
    /// A lane's column of B for sixteen summed indices.
    type Column: Copy;
    /// Rounds A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4] of the first and the second eight summed indices.
    fn rows(first: [f32; 4], second: [f32; 4]) -> Self::Rows;
    /// Rounds B[t, g], B[t + 4, g] of both.
    fn column(first: [f32; 2], second: [f32; 2]) -> Self::Column;
    /// C + A B.
    fn multiply(a: Self::Rows, b: Self::Column, c: [f32; 4]) -> [f32; 4];
}

/// 10-bit mantissas.
pub struct Tf32;

impl Rounding for Tf32 {
    type Rows = [[u32; 4]; 2];
    type Column = [[u32; 2]; 2];

    #[inline(always)]
    fn rows(first: [f32; 4], second: [f32; 4]) -> [[u32; 4]; 2] {
        [first.map(round::tf32), second.map(round::tf32)]
    }

    #[inline(always)]
    fn column(first: [f32; 2], second: [f32; 2]) -> [[u32; 2]; 2] {
        [first.map(round::tf32), second.map(round::tf32)]
    }

    #[inline(always)]
    fn multiply(a: [[u32; 4]; 2], b: [[u32; 2]; 2], c: [f32; 4]) -> [f32; 4] {
        let c = warp::mma_tf32(a[0], b[0], c);
        warp::mma_tf32(a[1], b[1], c)
    }
}

/// 7-bit mantissas.
pub struct Bf16;

/// The instruction's summed indices 2t, 2t + 1 and 2t + 8, 2t + 9 are t, t + 4 and t + 8, t + 12 of the panel: any
/// numbering will do that is the same for both operands.
impl Rounding for Bf16 {
    type Rows = [u32; 4];
    type Column = [u32; 2];

    #[inline(always)]
    fn rows(first: [f32; 4], second: [f32; 4]) -> [u32; 4] {
        let pair = round::bf16_pair;
        [
            pair(first[0], first[2]),
            pair(first[1], first[3]),
            pair(second[0], second[2]),
            pair(second[1], second[3]),
        ]
    }

    #[inline(always)]
    fn column(first: [f32; 2], second: [f32; 2]) -> [u32; 2] {
        [round::bf16_pair(first[0], first[1]), round::bf16_pair(second[0], second[1])]
    }

    #[inline(always)]
    fn multiply(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        warp::mma_bf16(a, b, c)
    }
}

/// Products on the tensor cores: operands rounded by `R`, products exact, sums in f32.
/// A warp computes `T` (2 or 4) tiles along its rows: more rows a warp is fewer reads of shared memory a product, and more
/// registers.
pub struct TensorCores<R, const T: usize>(PhantomData<R>);

/// The row of a warp's part that stands at row g (`high` 0) or g + 8 (1) of tile i.
#[inline(always)]
fn row_of<O: Order>(i: u32, g: u32, high: u32) -> u32 {
    16 * i + if O::ALONG_K { 8 * high + g } else { 2 * g + high }
}

/// A lane's operands of A for eight summed indices of tile i.
#[inline(always)]
fn rows<O: Order>(panel: &Panel, row: u32, i: u32, k: u32) -> [f32; 4] {
    let lane = (thread::lane() / 4, thread::lane() % 4);
    if O::ALONG_K {
        let (low, high) = (2 * i, 2 * i + 1);
        [
            panel.one::<O>(row, lane, low, k, 0),
            panel.one::<O>(row, lane, high, k, 0),
            panel.one::<O>(row, lane, low, k, 1),
            panel.one::<O>(row, lane, high, k, 1),
        ]
    } else {
        let (near, far) = (panel.two_rows(row, lane, i, k, 0), panel.two_rows(row, lane, i, k, 1));
        [near[0], near[1], far[0], far[1]]
    }
}

/// A lane's operands of B for eight summed indices of tile j.
#[inline(always)]
fn column<O: Order>(panel: &Panel, first: u32, j: u32, k: u32) -> [f32; 2] {
    let lane = (thread::lane() / 4, thread::lane() % 4);
    [panel.one::<O>(first, lane, j, k, 0), panel.one::<O>(first, lane, j, k, 1)]
}

/// `[tile along rows][tile along columns]`, each C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1].
type Accumulator<const T: usize> = [[[f32; 4]; 4]; T];

/// Sixteen summed indices.
#[inline(always)]
fn multiply_sixteen<R: Rounding, F: Form, const T: usize>(
    panels: &Panels,
    k: u32,
    accumulator: &mut Accumulator<T>,
    sum: bool,
    sums: &mut RowSums,
) {
    let mut b = [R::column([0.0; 2], [0.0; 2]); 4];
    unroll4!(j => {
        b[j] = R::column(
            column::<F::B>(&panels.b, panels.column, j as u32, k),
            column::<F::B>(&panels.b, panels.column, j as u32, k + 8),
        );
    });
    unroll4!(i => {
        if i < T {
            // Two tiles, 32 rows, are one round of the panel's pattern of exclusive ors.
            let (row, tile) = (panels.row + 32 * (i as u32 / 2), i as u32 % 2);
            let first = rows::<F::A>(&panels.a, row, tile, k);
            let second = rows::<F::A>(&panels.a, row, tile, k + 8);
            let a = R::rows(first, second);
            unroll4!(j => {
                accumulator[i][j] = R::multiply(a, b[j], accumulator[i][j]);
            });
            if F::ROW_SUMS && sum {
                sums[2 * i] += (first[0] + first[2]) + (second[0] + second[2]);
                sums[2 * i + 1] += (first[1] + first[3]) + (second[1] + second[3]);
            }
        }
    });
}

impl<R: Rounding, const T: usize> Engine for TensorCores<R, T> {
    const ROWS: u32 = 16 * T as u32;
    const COLUMNS: u32 = 32;
    /// The two larger tiles are meant for T = 4, the smaller for T = 2.
    const WARPS: [Warps; Tile::COUNT] = [
        Warps { m: 2, n: 4, k: 1 },
        Warps { m: 2, n: 2, k: 1 },
        Warps { m: 2, n: 2, k: 1 },
        Warps { m: 2, n: 1, k: 2 },
    ];
    const EARLY_READS: bool = true;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMAS: u32 = 2 * 8 * T as u32; // for each of the two sixteens of summed indices of a stage
    #[cfg(not(target_arch = "nvptx64"))]
    const SUM_SHUFFLES: u32 = 4 * T as u32;
    #[cfg(not(target_arch = "nvptx64"))]
    const BARRIERS: u32 = 3; // one in the loop, two around the hand-over of C

    #[inline(always)]
    fn tile<F: Form, S: Size, V>(work: &Work, meanwhile: impl FnOnce() -> V) -> V {
        Plan::<Self, F, S>::by_warps(work, meanwhile)
    }
}

impl<R: Rounding, const T: usize> WarpEngine for TensorCores<R, T> {
    type Accumulator = Accumulator<T>;

    #[inline(always)]
    fn zero() -> Accumulator<T> {
        [[[0.0; 4]; 4]; T]
    }

    #[inline(always)]
    fn multiply<F: Form>(
        panels: &Panels,
        k: u32,
        depth: u32,
        accumulator: &mut Accumulator<T>,
        sum: bool,
        sums: &mut RowSums,
    ) {
        multiply_sixteen::<R, F, T>(panels, k, accumulator, sum, sums);
        if depth > 16 {
            multiply_sixteen::<R, F, T>(panels, k + 16, accumulator, sum, sums);
        }
    }

    #[inline(always)]
    fn put<F: Form>(accumulator: &Accumulator<T>, memory: Shared<f32>, place: impl Fn(u32, u32) -> u32) {
        let (g, t) = (thread::lane() / 4, thread::lane() % 4);
        unroll4!(i => {
            if i < T {
                unroll4!(j => {
                    let (c, column) = (accumulator[i][j], 8 * j as u32 + 2 * t);
                    memory.set2(place(row_of::<F::A>(i as u32, g, 0), column), [c[0], c[1]]);
                    memory.set2(place(row_of::<F::A>(i as u32, g, 1), column), [c[2], c[3]]);
                });
            }
        });
    }

    #[inline(always)]
    fn each_sum<F: Form>(sums: &RowSums, mut store: impl FnMut(u32, f32)) {
        let (g, t) = (thread::lane() / 4, thread::lane() % 4);
        unroll8!(i => {
            if i < 2 * T {
                // Each of the four lanes t has summed its own summed indices.
                let pair = sums[i] + warp::shfl_xor(sums[i], 1);
                let sum = pair + warp::shfl_xor(pair, 2);
                if t == 0 {
                    store(row_of::<F::A>(i as u32 / 2, g, i as u32 % 2), sum);
                }
            }
        });
    }
}
