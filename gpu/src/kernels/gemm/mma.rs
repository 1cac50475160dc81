//! Tensor cores: a warp computes 32 rows by 32 columns as two by four tiles of 16 x 8 (`mma.sync`).
//!
//! With g = lane / 4 and t = lane % 4 a lane's fragments are rows g, g + 8 and summed indices t, t + 4 (tf32) or
//! 2t, 2t + 1, 2t + 8, 2t + 9 (bf16) of each tile (PTX manual, "Matrix fragments for mma.m16n8k8 / m16n8k16").
//! Which row or summed index of the panel stands at a place of the tile is free as long as both operands agree, so
//! the lane takes whole quads: its four rows (two tiles, g and g + 8) are quad q(g) = 4 (g % 2) + g / 2 of the warp's
//! rows, its four columns of B (four tiles, n = g) quad q(g) of the warp's columns, its four summed indices of every
//! sixteen chunk t. Column n of the four tiles is then columns 4 q(n) + {0..4} of C: a lane, which holds n = 2t and
//! 2t + 1, stores two times four neighbours.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::engine::{Engine, Form, Panels, RowSums, Tile, Warps};
use super::panel::quad;

/// How f32 operands are rounded for the tensor cores, and the instruction for sixteen summed indices.
pub trait Rounding {
    /// Four summed indices of one row.
    type Row: Copy;
    /// Rounds.
    fn round(values: [f32; 4]) -> Self::Row;
    /// C + A B for the 16 x 8 tile with rows `low` (g) and `high` (g + 8) of A and column `b` of B.
    fn multiply(low: Self::Row, high: Self::Row, b: Self::Row, c: [f32; 4]) -> [f32; 4];
}

/// 10-bit mantissas, rounded to nearest with ties away from zero (`cvt.rna.tf32.f32`).
pub struct Tf32;

impl Rounding for Tf32 {
    type Row = [u32; 4];

    #[inline(always)]
    fn round(v: [f32; 4]) -> [u32; 4] {
        [math::tf32_round(v[0]), math::tf32_round(v[1]), math::tf32_round(v[2]), math::tf32_round(v[3])]
    }

    #[inline(always)]
    fn multiply(low: [u32; 4], high: [u32; 4], b: [u32; 4], c: [f32; 4]) -> [f32; 4] {
        let c = warp::mma_tf32([low[0], high[0], low[1], high[1]], [b[0], b[1]], c);
        warp::mma_tf32([low[2], high[2], low[3], high[3]], [b[2], b[3]], c)
    }
}

/// 7-bit mantissas, rounded to nearest even.
pub struct Bf16;

impl Rounding for Bf16 {
    type Row = [u32; 2];

    #[inline(always)]
    fn round(v: [f32; 4]) -> [u32; 2] {
        [bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3])]
    }

    #[inline(always)]
    fn multiply(low: [u32; 2], high: [u32; 2], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
        warp::mma_bf16([low[0], high[0], low[1], high[1]], b, c)
    }
}

/// Two bf16 in a word, the first in the lower half. NaN stays NaN (its top mantissa bit is set).
#[inline(always)]
fn bf16_pair(low: f32, high: f32) -> u32 {
    bf16(low) >> 16 | bf16(high) & 0xffff_0000
}

/// The bf16 in the upper half of a word; the lower half is undefined.
#[inline(always)]
fn bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    if value.is_nan() { bits | 0x0040_0000 } else { bits.wrapping_add(0x7fff + (bits >> 16 & 1)) }
}

/// Products on the tensor cores: operands rounded by `R`, products exact, sums in f32.
pub struct TensorCores<R>(PhantomData<R>);

/// The quad that lane group g reads.
#[inline(always)]
fn quad_of(g: u32) -> u32 {
    4 * (g % 2) + g / 2
}

impl<R: Rounding> Engine for TensorCores<R> {
    /// `[tile along rows][tile along columns]`, each C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1].
    type Accumulator = [[[f32; 4]; 4]; 2];
    const ROWS: u32 = 32;
    const COLUMNS: u32 = 32;
    const WARPS: [Warps; Tile::COUNT] =
        [Warps { m: 4, n: 2, k: 1 }, Warps { m: 2, n: 2, k: 1 }, Warps { m: 2, n: 1, k: 2 }];
    const MMAS: u32 = 2 * 16; // sixteen for each of the two sixteens of summed indices of a stage
    const SUM_SHUFFLES: u32 = 8;

    #[inline(always)]
    fn zero() -> [[[f32; 4]; 4]; 2] {
        [[[0.0; 4]; 4]; 2]
    }

    #[inline(always)]
    fn multiply<F: Form>(
        panels: &Panels,
        chunk: u32,
        chunks: u32,
        accumulator: &mut [[[f32; 4]; 4]; 2],
        sum: bool,
        sums: &mut RowSums,
    ) {
        let (g, t) = (thread::lane() / 4, thread::lane() % 4);
        let Panels { shared, a, b, .. } = *panels;
        let mut c = chunk;
        while c < chunk + chunks {
            let rows = quad::<F::A>(shared, a.0, a.1, panels.a_quad + quad_of(g), c + t);
            let columns = quad::<F::B>(shared, b.0, b.1, panels.b_quad + quad_of(g), c + t);
            let low = [R::round(rows[0]), R::round(rows[2])];
            let high = [R::round(rows[1]), R::round(rows[3])];
            unroll4!(j => {
                let b = R::round(columns[j]);
                accumulator[0][j] = R::multiply(low[0], high[0], b, accumulator[0][j]);
                accumulator[1][j] = R::multiply(low[1], high[1], b, accumulator[1][j]);
            });
            if F::ROW_SUMS && sum {
                unroll4!(i => {
                    sums[i] += (rows[i][0] + rows[i][1]) + (rows[i][2] + rows[i][3]);
                });
            }
            c += 4;
        }
    }

    #[inline(always)]
    fn each(accumulator: &[[[f32; 4]; 4]; 2], mut store: impl FnMut(u32, u32, [f32; 4])) {
        let (g, t) = (thread::lane() / 4, thread::lane() % 4);
        unroll4!(i => {
            let (row, c, half) = (4 * quad_of(g) + i as u32, &accumulator[i / 2], 2 * (i % 2));
            store(row, 4 * quad_of(2 * t), [c[0][half], c[1][half], c[2][half], c[3][half]]);
            let half = half + 1;
            store(row, 4 * quad_of(2 * t + 1), [c[0][half], c[1][half], c[2][half], c[3][half]]);
        });
    }

    #[inline(always)]
    fn each_sum(sums: &RowSums, mut store: impl FnMut(u32, f32)) {
        let (g, t) = (thread::lane() / 4, thread::lane() % 4);
        unroll4!(i => {
            // Each of the four lanes t has summed its own chunks.
            let pair = sums[i] + warp::shfl_xor(sums[i], 1);
            let sum = pair + warp::shfl_xor(pair, 2);
            if t == 0 {
                store(4 * quad_of(g) + i as u32, sum);
            }
        });
    }
}
