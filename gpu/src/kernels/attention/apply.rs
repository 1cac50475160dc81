//! h2' = h2 + g (U c + bo): IEEE fp32, or the product on the tensor cores with both factors rounded to tf32.

use core::cmp::min;

use cuda_std::prelude::*;

use super::context_columns;
#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;
#[cfg(not(target_arch = "nvptx64"))]
use super::tile;
use super::tile::walk;
use crate::kernels::gemm::round;

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

/// Tiles of rows of a block of the tensor-core kernel: more than one where there are more tiles than the multiprocessors
/// hold blocks.
const fn tiles_of_block(rows: u32, width: u32) -> u32 {
    let blocks = rows.div_ceil(TILE).saturating_mul(width.div_ceil(TILE));
    // Not more than four, so that the last wave of blocks is short.
    let tiles = blocks / 512;
    if tiles > 4 {
        4
    } else if tiles < 1 {
        1
    } else {
        tiles
    }
}

/// [`attention_apply`] with context and U rounded to tf32 (10 bits of mantissa, ties away from zero) and their exact
/// products summed in f32 by the tensor cores; bias, gate and h2 as there. A warp computes 16 x 32 of a tile; with
/// many rows a block keeps its part of U for several tiles. With `copied` = 1 h2' is stored in `copy` [rows, d] too, rounded to
/// bf16, two numbers a float (`gemm`, module `stored`).
#[kernel(
    block = tile::THREADS,
    grid = (width.div_ceil(TILE), rows.div_ceil(TILE * tiles_of_block(rows, width))),
    shared = 4 * 2 * TILE * tf32_stride(context_columns(features, bars, heads)),
    barriers = 2,
    mmas = 4,
    requires(
        rows > 0,
        shape_fits(width, features, bars, heads),
        hidden.len() >= (rows as usize) * (width as usize),
        context.len() >= (rows as usize) * (context_columns(features, bars, heads) as usize),
        mix.len() >= (width as usize) * (context_columns(features, bars, heads) as usize),
        output_bias.len() >= width as usize,
        gate.len() >= 1,
        applied.len() >= (rows as usize) * (width as usize),
        copied <= 1,
        copied == 0 || (width % 4 == 0 && 2 * copy.len() >= (rows as usize) * (width as usize)),
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
    copied: u32,
    copy: Out<f32>,
) {
    let depth = context_columns(features, bars, heads);
    let stride = tf32_stride(depth);
    let left = shared::array::<f32>(0, TILE * stride);
    let right = shared::array::<f32>(4 * TILE * stride, TILE * stride);
    let first_column = thread::block_idx() * TILE;
    let quads = depth.next_multiple_of(8) / 4;
    // Bytes of a quad: the context's columns end before an eight does.
    let bytes = |quad: u32| if 4 * quad < depth { 16 } else { 0 };
    // Fragments of mma.m16n8k8: with g = lane / 4 and t = lane % 4 a lane holds rows g, g + 8 and columns 2t, 2t + 1 of
    // each result tile (PTX manual). U's rows lie in shared memory such that those of two neighbouring tiles are four
    // neighbouring columns of h2', which move as one access.
    let place = |column: u32| {
        let (sixteen, column) = (column / 16 * 16, column % 16);
        sixteen + column / 2 % 2 * 8 + column / 4 * 2 + column % 2
    };
    walk(TILE, quads, |column, quad| {
        let from =
            if 4 * quad < depth { min(first_column + column, width - 1) * depth + 4 * quad } else { 0 };
        shared::copy_async16(right, place(column) * stride + 4 * quad, &mix, from, bytes(quad));
    });
    let (g, t) = (thread::lane() / 4, thread::lane() % 4);
    let (warp_row, warp_column) = (thread::warp() / 2 * 16, thread::warp() % 2 * 32);
    // First column of the lane's four in the first of the warp's two sixteens.
    let column = first_column + warp_column + 4 * t;
    let vectors = width.is_multiple_of(4);
    let gate = gate.get(0);
    let mut bias = [[0.0f32; 4]; 2];
    repeat2!(q => {
        repeat4!(e => {
            bias[q][e] = output_bias.get(min(column + 16 * q as u32 + e as u32, width - 1));
        });
    });
    let tiles = tiles_of_block(rows, width);
    let mut tile = thread::block_idx_y() * tiles;
    let end = min(tile + tiles, rows.div_ceil(TILE));
    let mut first = true;
    while tile < end {
        let first_row = tile * TILE;
        walk(TILE, quads, |row, quad| {
            let from = if 4 * quad < depth { min(first_row + row, rows - 1) * depth + 4 * quad } else { 0 };
            shared::copy_async16(left, row * stride + 4 * quad, &context, from, bytes(quad));
        });
        shared::copy_commit();
        // In flight while the tiles arrive.
        let mut h2 = [[[0.0f32; 4]; 2]; 2];
        repeat2!(q => {
            repeat2!(half => {
                let row = first_row + warp_row + 8 * half as u32 + g;
                let column = column + 16 * q as u32;
                if row < rows && column < width {
                    if vectors {
                        h2[q][half] = hidden.get4(row * width + column);
                    } else {
                        repeat4!(e => {
                            let column = min(column + e as u32, width - 1);
                            h2[q][half][e] = hidden.get(row * width + column);
                        });
                    }
                }
            });
        });
        shared::copy_wait::<0>();
        // A thread rounds what it has copied itself.
        let round = |x: f32| f32::from_bits(math::tf32_round(x));
        if first {
            walk(TILE, quads, |column, quad| {
                let at = place(column) * stride + 4 * quad;
                right.set4(at, right.get4(at).map(round));
            });
        }
        first = false;
        walk(TILE, quads, |row, quad| {
            let at = row * stride + 4 * quad;
            left.set4(at, left.get4(at).map(round));
        });
        thread::sync(); // both tiles are written before they are multiplied
        let mut o = [[0.0f32; 4]; 4];
        let mut k = t;
        // Warp-uniform: depth is a multiple of 4, so lanes of one eight see the same side of it.
        while k - t < depth {
            let mut b = [[0u32; 2]; 4];
            let row = (warp_row + g) * stride + k;
            let a = [
                left.get(row),
                left.get(row + 8 * stride),
                left.get(row + 4),
                left.get(row + 8 * stride + 4),
            ]
            .map(f32::to_bits);
            repeat4!(j => {
                let row = (warp_column + 8 * j as u32 + g) * stride + k;
                b[j] = [right.get(row).to_bits(), right.get(row + 4).to_bits()];
            });
            repeat4!(j => {
                o[j] = warp::mma_tf32(a, b[j], o[j]);
            });
            k += 8;
        }
        repeat2!(q => {
            repeat2!(half => {
                let row = first_row + warp_row + 8 * half as u32 + g;
                let column = column + 16 * q as u32;
                let sums = [o[2 * q][2 * half], o[2 * q][2 * half + 1], o[2 * q + 1][2 * half], o[2 * q + 1][2 * half + 1]];
                let mut result = [0.0f32; 4];
                repeat4!(e => {
                    result[e] = math::fma(gate, sums[e] + bias[q][e], h2[q][half][e]);
                });
                if row < rows && column < width {
                    if vectors {
                        let at = row * width + column;
                        applied.set4(at, result);
                        if copied != 0 {
                            copy.set2(at / 2, round::bf16_floats(result));
                        }
                    } else {
                        repeat4!(e => {
                            if column + (e as u32) < width {
                                applied.set(row * width + column + e as u32, result[e]);
                            }
                        });
                    }
                }
            });
        });
        thread::sync(); // the context is read before the next tile's overwrites it
        tile += 1;
    }
}
