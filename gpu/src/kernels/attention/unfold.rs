//! From the sums over samples back through the folds to the gradients of the parameters.

use core::cmp::{max, min};

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;
use super::tile::{self, OUTER, Stage, outer, product};
use super::{Embedding, Plane, columns, context_columns, gate_parts};

/// Rows of a block of dAv or dM: few, because the summed index is long.
const ROWS: u32 = 4;

/// Blocks of dAv of one head.
const fn value_blocks(width: u32, heads: u32) -> u32 {
    (width / heads).div_ceil(ROWS)
}

/// Blocks of dAq and dAk, an element a thread.
const fn projection_blocks(width: u32, features: u32, bars: u32) -> u32 {
    (width * (features + 1 + columns(features, bars))).div_ceil(tile::THREADS)
}

/// Back through U and G: value_gradient dAv [d, E] = Wo_h^T dU_h, query_gradient dAq [d, F + 1] = Ak_h dG_h^T / sqrt(d_h),
/// key_gradient dAk [d, E] = Aq_h dG_h / sqrt(d_h), and gate_gradient [1]. `sums` and `gate_sums` are what
/// `attention_reduce` wrote, query and key the online network's folded matrices, output Wo.
///
/// The first blocks compute 4 rows of dAv each, the next an element of dAq or dAk a thread, the last one the gate's
/// gradient.
#[kernel(
    block = tile::THREADS,
    grid = heads * value_blocks(width, heads) + projection_blocks(width, features, bars) + 1,
    shared = 4 * tile::product_floats(ROWS, width, columns(features, bars)),
    barriers = 3,
    shuffles = 5,
    requires(
        shape_fits(width, features, bars, heads),
        sums.len() >= Plane::new(width, features, bars, heads).len as usize,
        gate_sums.len() >= gate_parts(Plane::new(width, features, bars, heads).len) as usize,
        query.len() >= (width * (features + 1)) as usize,
        key.len() >= (width * columns(features, bars)) as usize,
        output.len() >= (width * width) as usize,
        query_gradient.len() >= (width * (features + 1)) as usize,
        key_gradient.len() >= (width * columns(features, bars)) as usize,
        value_gradient.len() >= (width * columns(features, bars)) as usize,
        gate_gradient.len() >= 1,
    )
)]
pub fn attention_unfold_heads(
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
    sums: In<f32>,
    gate_sums: In<f32>,
    query: In<f32>,
    key: In<f32>,
    output: In<f32>,
    query_gradient: Out<f32>,
    key_gradient: Out<f32>,
    value_gradient: Out<f32>,
    gate_gradient: Out<f32>,
) {
    let plane = Plane::new(width, features, bars, heads);
    let (outputs, depth) = (columns(features, bars), width / heads);
    let per_head = value_blocks(width, heads);
    let block = thread::block_idx();
    let thread = thread::thread_idx();
    if block < heads * per_head {
        let (head, first_row) = (block / per_head, block % per_head * ROWS);
        let padded = context_columns(features, bars, heads);
        product(
            ROWS,
            width,
            outputs,
            |stage| {
                let (first, here) = (stage.first, stage.here);
                let from = |row: u32| first * width + head * depth + min(first_row + row, depth - 1);
                stage.a_across(0, here, &output, from, width);
                stage.b_rows(0, here, outputs, &sums, first * padded + head * outputs, padded);
            },
            |row, column, sum| {
                let row = first_row + row;
                if row < depth {
                    value_gradient.set((head * depth + row) * outputs + column, sum);
                }
            },
        );
        return;
    }
    let block = block - heads * per_head;
    if block == projection_blocks(width, features, bars) {
        if thread < 32 {
            let mut sum = 0.0;
            let mut i = thread;
            while i < gate_parts(plane.len) {
                sum += gate_sums.get(i);
                i += 32;
            }
            let sum = warp::sum(sum);
            if thread == 0 {
                gate_gradient.set(0, sum);
            }
        }
        return;
    }
    // dG_h before the factor: element (i, column) is element i of a token's row of sums, and of the sum of r for i = F.
    let scale = 1.0 / math::sqrt(depth as f32);
    let element = block * tile::THREADS + thread;
    let queries = width * (features + 1);
    if element < queries {
        let (row, i) = (element / (features + 1), element % (features + 1));
        let token = row / depth * outputs;
        let (from, step) = if i < features {
            (plane.scores + token * features + i, features)
        } else {
            (plane.last + token, 1)
        };
        let sum = dot(outputs, (&key, row * outputs), (&sums, from, step));
        query_gradient.set(element, scale * sum);
    } else if element - queries < width * outputs {
        let (row, column) = ((element - queries) / outputs, (element - queries) % outputs);
        let token = row / depth * outputs + column;
        let from = row * (features + 1);
        let last = (query.get(from + features), sums.get(plane.last + token));
        let sum = dot(features, (&query, from), (&sums, plane.scores + token * features, 1));
        key_gradient.set(element - queries, scale * math::fma(last.0, last.1, sum));
    }
}

/// sum over i < len (at least 1) of a\[from + i\] b\[from + i step\], in order.
#[inline(always)]
fn dot(len: u32, (a, a_from): (&In<f32>, u32), (b, b_from, step): (&In<f32>, u32, u32)) -> f32 {
    let mut sum = 0.0;
    let mut i = 0;
    while i < len {
        // Sixteen loads are in flight together; after the last element they repeat it.
        let (mut left, mut right) = ([[0.0f32; 2]; 4], [[0.0f32; 2]; 4]);
        repeat4!(j => {
            repeat2!(e => {
                let i = min(i + (2 * j + e) as u32, len - 1);
                left[j][e] = a.get(a_from + i);
                right[j][e] = b.get(b_from + step * i);
            });
        });
        repeat4!(j => {
            repeat2!(e => {
                if i + ((2 * j + e) as u32) < len {
                    sum = math::fma(left[j][e], right[j][e], sum);
                }
            });
        });
        i += 8;
    }
    sum
}

/// Tiles of 64 x 64 of the weight gradients of Wq, Wk and Wv, and of Wo, whose tiles of columns end with each head.
const fn weight_tiles(width: u32, heads: u32) -> [u32; 2] {
    let rows = width.div_ceil(OUTER);
    [rows * rows, rows * heads * (width / heads).div_ceil(OUTER)]
}

/// Blocks of `attention_unfold_weights`, and so partial sums of the group's squares.
#[cfg(not(target_arch = "nvptx64"))]
pub const fn square_parts(width: u32, heads: u32) -> u32 {
    let [square, output] = weight_tiles(width, heads);
    width.div_ceil(ROWS) + 3 * square + output + 1
}

/// Shared memory of `attention_unfold_weights` in floats.
#[cfg(not(target_arch = "nvptx64"))]
const fn weight_floats(width: u32, features: u32, bars: u32) -> u32 {
    let outputs = columns(features, bars);
    let (a, b) = (tile::product_floats(ROWS, 3 * width, outputs), tile::outer_floats(outputs));
    if a > b { a } else { b }
}

/// Back through Aq, Ak and Av, whose gradients `attention_unfold_heads` wrote, to the parameters: dWk = dAk M^T, dbk = the
/// sum of dAk's columns of the bars, the same for q and v, dWo_h = dU_h Av_h^T, and dM = Wk^T dAk + Wv^T dAv + Wq^T dAq,
/// of which dWe are the columns of the features, dpos those of the bars and dbe the bars' sum. `sums` is what
/// `attention_reduce` wrote, value the online network's folded Av [d, E]. Gradients are overwritten.
///
/// squares [`square_parts`] becomes sums of squares over parts of the whole group's gradient, that of the output's bias and the gate
/// among it, which the kernels before wrote.
///
/// The first blocks compute 4 rows of dM each, the next 64 x 64 of a weight gradient; the last one has the squares of what is there.
#[kernel(
    block = tile::THREADS,
    grid = square_parts(width, heads),
    shared = 4 * weight_floats(width, features, bars),
    barriers = 7,
    shuffles = 5,
    requires(
        shape_fits(width, features, bars, heads),
        columns(features, bars) < tile::MAX_COLUMNS,
        embedding.len() >= (width * features) as usize,
        embedding_bias.len() >= width as usize,
        positions.len() >= (bars * width) as usize,
        query_weight.len() >= (width * width) as usize,
        key_weight.len() >= (width * width) as usize,
        value_weight.len() >= (width * width) as usize,
        value.len() >= (width * columns(features, bars)) as usize,
        sums.len() >= Plane::new(width, features, bars, heads).len as usize,
        query_gradient.len() >= (width * (features + 1)) as usize,
        key_gradient.len() >= (width * columns(features, bars)) as usize,
        value_gradient.len() >= (width * columns(features, bars)) as usize,
        d_embedding.len() >= (width * features) as usize,
        d_embedding_bias.len() >= width as usize,
        d_positions.len() >= (bars * width) as usize,
        [d_query.len(), d_key.len(), d_value.len(), d_output.len()].into_iter().all(|len| len >= (width * width) as usize),
        [d_query_bias.len(), d_key_bias.len(), d_value_bias.len()].into_iter().all(|len| len >= width as usize),
        output_bias_gradient.len() >= width as usize,
        gate_gradient.len() >= 1,
        squares.len() >= square_parts(width, heads) as usize,
    )
)]
pub fn attention_unfold_weights(
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
    embedding: In<f32>,
    embedding_bias: In<f32>,
    positions: In<f32>,
    query_weight: In<f32>,
    key_weight: In<f32>,
    value_weight: In<f32>,
    value: In<f32>,
    sums: In<f32>,
    query_gradient: In<f32>,
    key_gradient: In<f32>,
    value_gradient: In<f32>,
    output_bias_gradient: In<f32>,
    gate_gradient: In<f32>,
    d_embedding: Out<f32>,
    d_embedding_bias: Out<f32>,
    d_positions: Out<f32>,
    d_query: Out<f32>,
    d_query_bias: Out<f32>,
    d_key: Out<f32>,
    d_key_bias: Out<f32>,
    d_value: Out<f32>,
    d_value_bias: Out<f32>,
    d_output: Out<f32>,
    squares: Out<f32>,
) {
    let block = thread::block_idx();
    let outputs = columns(features, bars);
    let embedding_blocks = width.div_ceil(ROWS);
    // Sum of squares of what this thread has written.
    let (mut square, mut of_bias) = (0.0f32, 0.0f32);
    if block + 1 == thread::grid_dim() {
        let mut i = thread::thread_idx();
        while i < width {
            let g = output_bias_gradient.get(i);
            square = math::fma(g, g, square);
            i += tile::THREADS;
        }
        if thread::thread_idx() == 0 {
            let g = gate_gradient.get(0);
            square = math::fma(g, g, square);
        }
    } else if block < embedding_blocks {
        let first_row = block * ROWS;
        // A projection's part of a stage: its summed indices among 3 d, and A.
        let part = |stage: &Stage, projection: u32, weight: &In<f32>| {
            let start = projection * width;
            let from = max(stage.first, start);
            let to = max(min(stage.first + stage.here, start + width), from);
            let (at, k, count) = (from - stage.first, from - start, to - from);
            stage.a_across(at, count, weight, |row| k * width + min(first_row + row, width - 1), width);
            (at, k, count)
        };
        let totals = product(
            ROWS,
            3 * width,
            outputs,
            |stage| {
                // The query sees the last bar's column only.
                let (at, k, count) = part(&stage, 0, &query_weight);
                stage.b_rows(at, count, features, &query_gradient, k * (features + 1), features + 1);
                let mut i = thread::thread_idx();
                while i < count {
                    let to = (at + i) * outputs + features;
                    let from = (k + i) * (features + 1) + features;
                    shared::copy_async4(stage.b, to + bars - 1, &query_gradient, from, 4);
                    let mut bar = 0;
                    while bar + 1 < bars {
                        stage.b.set(to + bar, 0.0);
                        bar += 1;
                    }
                    i += tile::THREADS;
                }
                let (at, k, count) = part(&stage, 1, &key_weight);
                stage.b_rows(at, count, outputs, &key_gradient, k * outputs, outputs);
                let (at, k, count) = part(&stage, 2, &value_weight);
                stage.b_rows(at, count, outputs, &value_gradient, k * outputs, outputs);
            },
            |row, column, sum| {
                let row = first_row + row;
                if row >= width {
                    return;
                }
                square = math::fma(sum, sum, square);
                if column < features {
                    d_embedding.set(row * features + column, sum);
                } else {
                    d_positions.set((column - features) * width + row, sum);
                }
            },
        );
        thread::sync(); // dM is whole before its bars are added
        let row = thread::thread_idx();
        if row < ROWS && first_row + row < width {
            let mut sum = 0.0;
            let mut bar = 0;
            while bar < bars {
                sum += totals.get(row * outputs + features + bar);
                bar += 1;
            }
            of_bias = sum;
            d_embedding_bias.set(first_row + row, sum);
        }
    } else {
        let block = block - embedding_blocks;
        let per_weight = weight_tiles(width, heads)[0];
        let row_tiles = width.div_ceil(OUTER);
        let (weight, tile) = if block < 3 * per_weight {
            (block / per_weight, block % per_weight)
        } else {
            (3, block - 3 * per_weight)
        };
        let (column_tile, first_row) = (tile / row_tiles, tile % row_tiles * OUTER);
        // Wo's columns of one head; all columns of the others.
        let head_width = width / heads;
        let (head, first_column, end) = if weight == 3 {
            let per_head = head_width.div_ceil(OUTER);
            let head = column_tile / per_head;
            (head, head * head_width + column_tile % per_head * OUTER, (head + 1) * head_width)
        } else {
            (0, column_tile * OUTER, width)
        };
        let padded = context_columns(features, bars, heads);
        let embedding =
            Embedding { weight: embedding, bias: embedding_bias, positions, width, features, bars };
        let depth = if weight == 0 { features + 1 } else { outputs };
        // Rows of the left operand: of dAq, dAk, dAv, or one head's of dU.
        let (left, left_stride, left_first) = match weight {
            0 => (query_gradient, depth, 0),
            1 => (key_gradient, depth, 0),
            2 => (value_gradient, depth, 0),
            _ => (sums, padded, head * outputs),
        };
        let (to, to_bias) = match weight {
            0 => (d_query, d_query_bias),
            1 => (d_key, d_key_bias),
            2 => (d_value, d_value_bias),
            _ => (d_output, d_output),
        };
        outer(
            depth,
            |to_left, to_right, stride| {
                tile::walk(OUTER, depth, |row, k| {
                    let from = min(first_row + row, width - 1) * left_stride + left_first + k;
                    shared::copy_async4(to_left, row * stride + k, &left, from, 4);
                });
                if weight == 3 {
                    tile::walk(OUTER, depth, |column, k| {
                        let from = min(first_column + column, width - 1) * outputs + k;
                        shared::copy_async4(to_right, column * stride + k, &value, from, 4);
                    });
                } else {
                    let first_bar = if weight == 0 { bars - 1 } else { 0 };
                    embedding.copy(to_right, stride, first_column, OUTER, first_bar);
                }
            },
            |row, column, sum| {
                let (row, column) = (first_row + row, first_column + column);
                if row < width && column < end {
                    square = math::fma(sum, sum, square);
                    to.set(row * width + column, sum);
                }
            },
            |row, tile, at| {
                let row = first_row + row;
                if row < width && column_tile == 0 && weight < 3 {
                    let mut sum = 0.0;
                    let mut k = features;
                    while k < depth {
                        sum += tile.get(at + k);
                        k += 1;
                    }
                    of_bias = sum;
                    to_bias.set(row, sum);
                }
            },
        );
    }
    let sum = warp::sum(math::fma(of_bias, of_bias, square));
    let warps = shared::array::<f32>(0, tile::THREADS / 32);
    thread::sync(); // the tiles are read before the sums are written over them
    if thread::lane() == 0 {
        warps.set(thread::warp(), sum);
    }
    thread::sync(); // all warps' sums are written before thread 0 adds them
    if thread::thread_idx() == 0 {
        let mut total = 0.0;
        let mut w = 0;
        while w < tile::THREADS / 32 {
            total += warps.get(w);
            w += 1;
        }
        squares.set(block, total);
    }
}
