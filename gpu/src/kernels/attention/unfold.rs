//! From the sums over samples back through the folds to the gradients of the parameters.

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;
use super::tile::{self, OUTER, ROWS, outer, product};
use super::{Embedding, Plane, columns, context_columns, gate_parts};

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
/// The first blocks compute 16 rows of dAv each, the next an element of dAq or dAk a thread, the last one the gate's
/// gradient.
#[kernel(
    block = tile::THREADS,
    grid = heads * value_blocks(width, heads) + projection_blocks(width, features, bars) + 1,
    shared = 4 * tile::product_floats(columns(features, bars)),
    barriers = 2,
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
            width,
            outputs,
            false,
            |row, k| {
                let row = first_row + row;
                if row < depth { output.get(k * width + head * depth + row) } else { 0.0 }
            },
            |k, column| sums.get(k * padded + head * outputs + column),
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
    // dG_h[i, column] before the factor: the last row i = F is the sum of r itself.
    let score_gradient = |head: u32, i: u32, column: u32| {
        let token = head * outputs + column;
        if i < features {
            sums.get(plane.scores + token * features + i)
        } else {
            sums.get(plane.last + token)
        }
    };
    let scale = 1.0 / math::sqrt(depth as f32);
    let element = block * tile::THREADS + thread;
    let queries = width * (features + 1);
    if element < queries {
        let (row, i) = (element / (features + 1), element % (features + 1));
        let mut sum = 0.0;
        let mut column = 0;
        while column < outputs {
            sum = math::fma(key.get(row * outputs + column), score_gradient(row / depth, i, column), sum);
            column += 1;
        }
        query_gradient.set(element, scale * sum);
    } else if element - queries < width * outputs {
        let (row, column) = ((element - queries) / outputs, (element - queries) % outputs);
        let mut sum = 0.0;
        let mut i = 0;
        while i <= features {
            sum = math::fma(query.get(row * (features + 1) + i), score_gradient(row / depth, i, column), sum);
            i += 1;
        }
        key_gradient.set(element - queries, scale * sum);
    }
}

/// Tiles of 64 x 64 of the weight gradients of Wq, Wk and Wv, and of Wo, whose tiles of columns end with each head.
const fn weight_tiles(width: u32, heads: u32) -> [u32; 2] {
    let rows = width.div_ceil(OUTER);
    [rows * rows, rows * heads * (width / heads).div_ceil(OUTER)]
}

/// Blocks of `attention_unfold_weights`.
#[cfg(not(target_arch = "nvptx64"))]
const fn weight_blocks(width: u32, heads: u32) -> u32 {
    let [square, output] = weight_tiles(width, heads);
    width.div_ceil(ROWS) + 3 * square + output
}

/// Shared memory of `attention_unfold_weights` in floats.
#[cfg(not(target_arch = "nvptx64"))]
const fn weight_floats(features: u32, bars: u32) -> u32 {
    let (a, b) =
        (tile::product_floats(columns(features, bars) + 1), tile::outer_floats(columns(features, bars)));
    if a > b { a } else { b }
}

/// Back through Aq, Ak and Av, whose gradients `attention_unfold_heads` wrote, to the parameters: dWk = dAk M^T, dbk = the
/// sum of dAk's columns of the bars, the same for q and v, dWo_h = dU_h Av_h^T, and dM = Wk^T dAk + Wv^T dAv + Wq^T dAq,
/// of which dWe are the columns of the features, dpos those of the bars and dbe the bars' sum. `sums` is what
/// `attention_reduce` wrote, value the online network's folded Av [d, E]. Gradients are overwritten.
///
/// The first blocks compute 16 rows of dM each, the others 64 x 64 of a weight gradient.
#[kernel(
    block = tile::THREADS,
    grid = weight_blocks(width, heads),
    shared = 4 * weight_floats(features, bars),
    barriers = 3,
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
) {
    let block = thread::block_idx();
    let outputs = columns(features, bars);
    let embedding_blocks = width.div_ceil(ROWS);
    if block < embedding_blocks {
        let first_row = block * ROWS;
        // dAk and dAv at a row and column; column E stands for the sum over the bars.
        let wide = |gradient: In<f32>, row: u32, column: u32| {
            if column < outputs {
                return gradient.get(row * outputs + column);
            }
            let mut sum = 0.0;
            let mut bar = 0;
            while bar < bars {
                sum += gradient.get(row * outputs + features + bar);
                bar += 1;
            }
            sum
        };
        product(
            3 * width,
            outputs + 1,
            false,
            |row, k| {
                let (row, k, projection) = (first_row + row, k % width, k / width);
                if row >= width {
                    return 0.0;
                }
                // Copied before one is chosen: a choice among a closure's variables would put them into local memory.
                let [query, key, value] = [query_weight, key_weight, value_weight];
                let weight = if projection == 0 {
                    query
                } else if projection == 1 {
                    key
                } else {
                    value
                };
                weight.get(k * width + row)
            },
            |k, column| {
                let (k, projection) = (k % width, k / width);
                let [key, value] = [key_gradient, value_gradient];
                if projection > 0 {
                    wide(if projection == 1 { key } else { value }, k, column)
                } else if column < features {
                    query_gradient.get(k * (features + 1) + column)
                } else if column + 1 >= outputs {
                    // The query sees the last bar's column only.
                    query_gradient.get(k * (features + 1) + features)
                } else {
                    0.0
                }
            },
            |row, column, sum| {
                let row = first_row + row;
                if row >= width {
                } else if column < features {
                    d_embedding.set(row * features + column, sum);
                } else if column < outputs {
                    d_positions.set((column - features) * width + row, sum);
                } else {
                    d_embedding_bias.set(row, sum);
                }
            },
        );
        return;
    }
    let block = block - embedding_blocks;
    let square = weight_tiles(width, heads)[0];
    let row_tiles = width.div_ceil(OUTER);
    let (weight, tile) =
        if block < 3 * square { (block / square, block % square) } else { (3, block - 3 * square) };
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
    let embedding = Embedding { weight: embedding, bias: embedding_bias, positions, width, features };
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
        |row, k| {
            let row = first_row + row;
            if row < width { left.get(row * left_stride + left_first + k) } else { 0.0 }
        },
        |column, k| {
            let column = first_column + column;
            if column >= end {
                0.0
            } else if weight == 3 {
                value.get(column * outputs + k)
            } else {
                embedding.get(column, k, if weight == 0 { bars - 1 } else { 0 })
            }
        },
        |row, column, sum| {
            let (row, column) = (first_row + row, first_column + column);
            if row < width && column < end {
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
                to_bias.set(row, sum);
            }
        },
    );
}
