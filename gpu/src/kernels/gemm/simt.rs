//! IEEE fp32 on the vector units: 8 by 8 of C a lane, a warp 64 rows by 32 columns.
//!
//! Lane (y, x), y in 0..8, x in 0..4, holds rows 4y + {0..4} and 32 + 4y + {0..4}, columns 4x + {0..4} and
//! 16 + 4x + {0..4}: 64 fused multiply-adds for each 16 floats read from shared memory. The lanes of half a warp
//! read all eight y with two x (and so on), so that one 16-byte read of half a warp touches at most 128 bytes.

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::engine::{Engine, Form, Panels, RowSums, Tile, WarpEngine, Warps};

/// fp32 products: every product and sum is rounded once, to nearest (fused multiply-add).
pub struct Fp32;

/// The lane's (y, x).
#[inline(always)]
fn place() -> (u32, u32) {
    let lane = thread::lane();
    (lane / 2 % 8, lane / 16 * 2 + lane % 2)
}

impl Engine for Fp32 {
    const ROWS: u32 = 64;
    const COLUMNS: u32 = 32;
    const WARPS: [Warps; Tile::COUNT] = [
        Warps { m: 2, n: 4, k: 1 },
        Warps { m: 2, n: 2, k: 1 },
        Warps { m: 1, n: 2, k: 2 },
        Warps { m: 1, n: 1, k: 4 },
    ];
    const EARLY_READS: bool = false;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMAS: u32 = 0;
    #[cfg(not(target_arch = "nvptx64"))]
    const SUM_SHUFFLES: u32 = 0;
    #[cfg(not(target_arch = "nvptx64"))]
    const BARRIERS: u32 = 3; // one in the loop, two around the hand-over of C

    #[inline(always)]
    fn tile<F: Form, S: Size, T>(work: &Work, meanwhile: impl FnOnce() -> T) -> T {
        Plan::<Self, F, S>::by_warps(work, meanwhile)
    }
}

impl WarpEngine for Fp32 {
    type Accumulator = [[f32; 8]; 8];

    #[inline(always)]
    fn zero() -> [[f32; 8]; 8] {
        [[0.0; 8]; 8]
    }

    #[inline(always)]
    fn multiply<F: Form>(
        panels: &Panels,
        k: u32,
        depth: u32,
        accumulator: &mut [[f32; 8]; 8],
        sum: bool,
        sums: &mut RowSums,
    ) {
        // Written out, so that the reads of the next chunk are on their way during the products of this one.
        let mut done = 0;
        while done < depth {
            let c = (k + done) / 4;
            multiply_chunk::<F>(panels, c, 0, accumulator, sum, sums);
            multiply_chunk::<F>(panels, c, 1, accumulator, sum, sums);
            if depth > 8 {
                multiply_chunk::<F>(panels, c, 2, accumulator, sum, sums);
                multiply_chunk::<F>(panels, c, 3, accumulator, sum, sums);
            }
            done += 16;
        }
    }

    #[inline(always)]
    fn put<F: Form>(accumulator: &[[f32; 8]; 8], memory: Shared<f32>, place_of: impl Fn(u32, u32) -> u32) {
        let (y, x) = place();
        unroll8!(i => {
            let (row, c) = (row_of(y, i), &accumulator[i]);
            memory.set4(place_of(row, 4 * x), [c[0], c[1], c[2], c[3]]);
            memory.set4(place_of(row, 4 * x + 16), [c[4], c[5], c[6], c[7]]);
        });
    }

    #[inline(always)]
    fn each_sum<F: Form>(sums: &RowSums, mut store: impl FnMut(u32, f32)) {
        let (y, x) = place();
        if x == 0 {
            unroll8!(i => {
                store(row_of(y, i), sums[i]);
            });
        }
    }
}

/// The lane's i-th row.
#[inline(always)]
fn row_of(y: u32, i: usize) -> u32 {
    4 * y + (i as u32) % 4 + 32 * (i as u32 / 4)
}

/// Four summed indices: chunk e of those from chunk c on.
#[inline(always)]
fn multiply_chunk<F: Form>(
    panels: &Panels,
    c: u32,
    e: u32,
    accumulator: &mut [[f32; 8]; 8],
    sum: bool,
    sums: &mut RowSums,
) {
    let (y, x) = place();
    let a_low = panels.a.quad::<F::A>(panels.row, 8, y, 0, c, e);
    let a_high = panels.a.quad::<F::A>(panels.row, 8, y, 1, c, e);
    let b_low = panels.b.quad::<F::B>(panels.column, 4, x, 0, c, e);
    let b_high = panels.b.quad::<F::B>(panels.column, 4, x, 1, c, e);
    unroll4!(k => {
        unroll4!(i => {
            unroll4!(j => {
                accumulator[i][j] = math::fma(a_low[i][k], b_low[j][k], accumulator[i][j]);
                accumulator[i][j + 4] = math::fma(a_low[i][k], b_high[j][k], accumulator[i][j + 4]);
                accumulator[i + 4][j] = math::fma(a_high[i][k], b_low[j][k], accumulator[i + 4][j]);
                accumulator[i + 4][j + 4] = math::fma(a_high[i][k], b_high[j][k], accumulator[i + 4][j + 4]);
            });
        });
    });
    if F::ROW_SUMS && sum {
        unroll4!(i => {
            sums[i] += (a_low[i][0] + a_low[i][1]) + (a_low[i][2] + a_low[i][3]);
            sums[i + 4] += (a_high[i][0] + a_high[i][1]) + (a_high[i][2] + a_high[i][3]);
        });
    }
}
