//! IEEE fp32 on the vector units: 8 by 8 of C a lane, a warp 64 rows by 32 columns.
//!
//! Lane (y, x), y in 0..8, x in 0..4, holds rows 4y + {0..4} and 32 + 4y + {0..4}, columns 4x + {0..4} and
//! 16 + 4x + {0..4}: 64 fused multiply-adds for each 16 floats read from shared memory. The lanes of half a warp
//! read all eight y with two x (and so on), so that one 16-byte read of half a warp touches at most 128 bytes.

use cuda_std::prelude::*;

use super::engine::{Engine, Form, Panels, RowSums, Tile, Warps};
use super::panel::quad;

/// fp32 products: every product and sum is rounded once, to nearest (fused multiply-add).
pub struct Fp32;

/// The lane's (y, x).
#[inline(always)]
fn place() -> (u32, u32) {
    let lane = thread::lane();
    (lane / 2 % 8, lane / 16 * 2 + lane % 2)
}

impl Engine for Fp32 {
    type Accumulator = [[f32; 8]; 8];
    const ROWS: u32 = 64;
    const COLUMNS: u32 = 32;
    const WARPS: [Warps; Tile::COUNT] =
        [Warps { m: 2, n: 2, k: 2 }, Warps { m: 1, n: 2, k: 2 }, Warps { m: 1, n: 1, k: 4 }];
    const MMAS: u32 = 0;
    const SUM_SHUFFLES: u32 = 0;

    #[inline(always)]
    fn zero() -> [[f32; 8]; 8] {
        [[0.0; 8]; 8]
    }

    #[inline(always)]
    fn multiply<F: Form>(
        panels: &Panels,
        chunk: u32,
        chunks: u32,
        accumulator: &mut [[f32; 8]; 8],
        sum: bool,
        sums: &mut RowSums,
    ) {
        let (y, x) = place();
        let Panels { shared, a, b, .. } = *panels;
        let mut c = chunk;
        while c < chunk + chunks {
            let a_low = quad::<F::A>(shared, a.0, a.1, panels.a_quad + y, c);
            let a_high = quad::<F::A>(shared, a.0, a.1, panels.a_quad + y + 8, c);
            let b_low = quad::<F::B>(shared, b.0, b.1, panels.b_quad + x, c);
            let b_high = quad::<F::B>(shared, b.0, b.1, panels.b_quad + x + 4, c);
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
            c += 1;
        }
    }

    #[inline(always)]
    fn each(accumulator: &[[f32; 8]; 8], mut store: impl FnMut(u32, u32, [f32; 4])) {
        let (y, x) = place();
        unroll8!(i => {
            let row = 4 * y + (i as u32) % 4 + 32 * (i as u32 / 4);
            let c = &accumulator[i];
            store(row, 4 * x, [c[0], c[1], c[2], c[3]]);
            store(row, 4 * x + 16, [c[4], c[5], c[6], c[7]]);
        });
    }

    #[inline(always)]
    fn each_sum(sums: &RowSums, mut store: impl FnMut(u32, f32)) {
        let (y, x) = place();
        if x == 0 {
            unroll8!(i => {
                store(4 * y + (i as u32) % 4 + 32 * (i as u32 / 4), sums[i]);
            });
        }
    }
}
