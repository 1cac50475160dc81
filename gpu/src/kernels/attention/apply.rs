//! h2' = h2 + g (U c + bo): IEEE fp32, or the product on the tensor cores with both factors rounded to tf32.

use cuda_std::prelude::*;

use super::context_columns;
#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;

/// Rows and columns that a block computes, four by four a thread.
const TILE: u32 = 64;

/// Row stride of the tiles in shared memory: an odd number of 16-byte groups, so that eight neighbouring rows are in
/// different banks.
const fn tile_stride(context_columns: u32) -> u32 {
    context_columns | 4
}

/// applied [rows, d] = h2 + gate (context U^T + bo), from hidden h2 [rows, d], context [rows, C], mix U [d, C] of one
/// network, output_bias bo [d] and gate [1]. IEEE fp32; a gate of 0 gives h2 for every finite o.
#[kernel(
    block = 256,
    grid = (width.div_ceil(TILE), rows.div_ceil(TILE)),
    shared = 4 * 2 * TILE * tile_stride(context_columns(features, bars, heads)),
    barriers = 1,
    requires(
        rows > 0,
        shape_fits(width, features, bars, heads),
        hidden.len() >= (rows as usize) * (width as usize),
        context.len() >= (rows as usize) * (context_columns(features, bars, heads) as usize),
        mix.len() >= (width as usize) * (context_columns(features, bars, heads) as usize),
        output_bias.len() >= width as usize,
        gate.len() >= 1,
        applied.len() >= (rows as usize) * (width as usize),
        (rows as usize + 64) * (context_columns(features, bars, heads).max(width) as usize) <= u32::MAX as usize,
    )
)]
pub fn attention_apply(
    rows: u32,
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
    hidden: In<f32>,
    context: In<f32>,
    mix: In<f32>,
    output_bias: In<f32>,
    gate: In<f32>,
    applied: Out<f32>,
) {
    let depth = context_columns(features, bars, heads);
    let stride = tile_stride(depth);
    let left = shared::array::<f32>(0, TILE * stride);
    let right = shared::array::<f32>(4 * TILE * stride, TILE * stride);
    let (first_row, first_column) = (thread::block_idx_y() * TILE, thread::block_idx() * TILE);
    let thread = thread::thread_idx();
    let quads = depth / 4;
    let mut i = thread;
    while i < TILE * quads {
        let (row, k) = (i / quads, 4 * (i % quads));
        let (mut c, mut u) = ([0.0f32; 4], [0.0f32; 4]);
        if first_row + row < rows {
            c = context.get4((first_row + row) * depth + k);
        }
        if first_column + row < width {
            u = mix.get4((first_column + row) * depth + k);
        }
        left.set4(row * stride + k, c);
        right.set4(row * stride + k, u);
        i += 256;
    }
    let (row, column) = (thread / 16, thread % 16);
    let gate = gate.get(0);
    // In flight while the tiles arrive.
    let (mut h2, mut bias) = ([[0.0f32; 4]; 4], [0.0f32; 4]);
    repeat4!(j => {
        let column = first_column + column + 16 * j as u32;
        if column < width {
            bias[j] = output_bias.get(column);
            repeat4!(i => {
                let row = first_row + row + 16 * i as u32;
                if row < rows {
                    h2[i][j] = hidden.get(row * width + column);
                }
            });
        }
    });
    thread::sync(); // both tiles are written before they are multiplied
    let mut o = [[0.0f32; 4]; 4];
    let mut k = 0;
    while k < depth {
        let mut u = [[0.0f32; 4]; 4];
        repeat4!(j => {
            u[j] = right.get4((column + 16 * j as u32) * stride + k);
        });
        repeat4!(i => {
            let c = left.get4((row + 16 * i as u32) * stride + k);
            repeat4!(j => {
                repeat4!(e => {
                    o[i][j] = math::fma(c[e], u[j][e], o[i][j]);
                });
            });
        });
        k += 4;
    }
    repeat4!(i => {
        repeat4!(j => {
            let (row, column) = (first_row + row + 16 * i as u32, first_column + column + 16 * j as u32);
            if row < rows && column < width {
                applied.set(row * width + column, math::fma(gate, o[i][j] + bias[j], h2[i][j]));
            }
        });
    });
}

/// Row stride of the tensor-core kernel's tiles: eights of summed indices, and an odd number of 16-byte groups.
const fn tf32_stride(context_columns: u32) -> u32 {
    context_columns.next_multiple_of(8) + 4
}

/// [`attention_apply`] with context and U rounded to tf32 (10 bits of mantissa, ties away from zero) and their exact
/// products summed in f32 by the tensor cores; bias, gate and h2 as there. A warp computes 32 x 32.
#[kernel(
    block = 128,
    grid = (width.div_ceil(TILE), rows.div_ceil(TILE)),
    shared = 4 * 2 * TILE * tf32_stride(context_columns(features, bars, heads)),
    barriers = 1,
    mmas = 8,
    requires(
        rows > 0,
        shape_fits(width, features, bars, heads),
        hidden.len() >= (rows as usize) * (width as usize),
        context.len() >= (rows as usize) * (context_columns(features, bars, heads) as usize),
        mix.len() >= (width as usize) * (context_columns(features, bars, heads) as usize),
        output_bias.len() >= width as usize,
        gate.len() >= 1,
        applied.len() >= (rows as usize) * (width as usize),
        (rows as usize + 64) * (context_columns(features, bars, heads).max(width) as usize) <= u32::MAX as usize,
    )
)]
pub fn attention_apply_tf32(
    rows: u32,
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
    hidden: In<f32>,
    context: In<f32>,
    mix: In<f32>,
    output_bias: In<f32>,
    gate: In<f32>,
    applied: Out<f32>,
) {
    let depth = context_columns(features, bars, heads);
    let stride = tf32_stride(depth);
    let left = shared::array::<u32>(0, TILE * stride);
    let right = shared::array::<u32>(4 * TILE * stride, TILE * stride);
    let (first_row, first_column) = (thread::block_idx_y() * TILE, thread::block_idx() * TILE);
    let quads = depth.next_multiple_of(8) / 4;
    let mut i = thread::thread_idx();
    while i < TILE * quads {
        let (row, k) = (i / quads, 4 * (i % quads));
        let (mut c, mut u) = ([0.0f32; 4], [0.0f32; 4]);
        if k < depth && first_row + row < rows {
            c = context.get4((first_row + row) * depth + k);
        }
        if k < depth && first_column + row < width {
            u = mix.get4((first_column + row) * depth + k);
        }
        left.set4(row * stride + k, c.map(math::tf32_round));
        right.set4(row * stride + k, u.map(math::tf32_round));
        i += 128;
    }
    // Fragments of mma.m16n8k8: with g = lane / 4 and t = lane % 4 a lane holds rows g, g + 8 and columns 2t, 2t + 1 of
    // each result tile (PTX manual).
    let (g, t) = (thread::lane() / 4, thread::lane() % 4);
    let (warp_row, warp_column) = (thread::warp() / 2 * 32, thread::warp() % 2 * 32);
    let place = |i: usize, j: usize, e: usize| {
        let row = first_row + warp_row + 16 * i as u32 + 8 * (e as u32 / 2) + g;
        (row, first_column + warp_column + 8 * j as u32 + 2 * t + e as u32 % 2)
    };
    let gate = gate.get(0);
    // In flight while the tiles arrive.
    let mut h2 = [[[0.0f32; 4]; 4]; 2];
    repeat2!(i => {
        repeat4!(j => {
            repeat4!(e => {
                let (row, column) = place(i, j, e);
                if row < rows && column < width {
                    h2[i][j][e] = hidden.get(row * width + column);
                }
            });
        });
    });
    thread::sync(); // both tiles are written before they are multiplied
    let mut o = [[[0.0f32; 4]; 4]; 2];
    let mut k = t;
    // Warp-uniform: depth is a multiple of 4, so lanes of one eight see the same side of it.
    while k - t < depth {
        let (mut a, mut b) = ([[0u32; 4]; 2], [[0u32; 2]; 4]);
        repeat2!(i => {
            let row = (warp_row + 16 * i as u32 + g) * stride + k;
            a[i] = [left.get(row), left.get(row + 8 * stride), left.get(row + 4), left.get(row + 8 * stride + 4)];
        });
        repeat4!(j => {
            let row = (warp_column + 8 * j as u32 + g) * stride + k;
            b[j] = [right.get(row), right.get(row + 4)];
        });
        repeat2!(i => {
            repeat4!(j => {
                o[i][j] = warp::mma_tf32(a[i], b[j], o[i][j]);
            });
        });
        k += 8;
    }
    repeat2!(i => {
        repeat4!(j => {
            repeat4!(e => {
                let (row, column) = place(i, j, e);
                if row < rows && column < width {
                    let with_bias = o[i][j][e] + output_bias.get(column);
                    applied.set(row * width + column, math::fma(gate, with_bias, h2[i][j][e]));
                }
            });
        });
    });
}
