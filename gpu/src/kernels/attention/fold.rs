//! The folded matrices, from the parameters of the online and the target network in the same launches.

use core::cmp::min;

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;
#[cfg(not(target_arch = "nvptx64"))]
use super::tile;
use super::tile::product;
use super::{Embedding, columns, context_columns};

/// Rows of a block.
const ROWS: u32 = 8;

/// Which projection: the order of blocks and of the stored matrices.
const QUERY: u32 = 0;
const KEY: u32 = 1;

/// Aq, Ak, Av of `networks` networks (1 or 2; with 1 the target's views are not read, and the online network's do for them):
/// query [networks, d, F + 1], key and value [networks, d, E]. A block computes 8 rows of one projection of one network.
#[kernel(
    block = tile::THREADS,
    grid = (3 * width.div_ceil(ROWS), networks),
    shared = 4 * tile::product_floats(ROWS, width, columns(features, bars)),
    barriers = 3,
    requires(
        networks == 1 || networks == 2,
        shape_fits(width, features, bars, 1),
        [online_embedding.len(), target_embedding.len()].into_iter().all(|len| len >= (width * features) as usize),
        [online_positions.len(), target_positions.len()].into_iter().all(|len| len >= (bars * width) as usize),
        [online_query.len(), online_key.len(), online_value.len()].into_iter().all(|len| len >= (width * width) as usize),
        [target_query.len(), target_key.len(), target_value.len()].into_iter().all(|len| len >= (width * width) as usize),
        [online_embedding_bias.len(), online_query_bias.len(), online_key_bias.len(), online_value_bias.len()]
            .into_iter()
            .all(|len| len >= width as usize),
        [target_embedding_bias.len(), target_query_bias.len(), target_key_bias.len(), target_value_bias.len()]
            .into_iter()
            .all(|len| len >= width as usize),
        query.len() >= (networks as usize) * ((width * (features + 1)) as usize),
        key.len() >= (networks as usize) * ((width * columns(features, bars)) as usize),
        value.len() >= (networks as usize) * ((width * columns(features, bars)) as usize),
    )
)]
pub fn attention_fold_projections(
    networks: u32,
    width: u32,
    features: u32,
    bars: u32,
    online_embedding: In<f32>,
    online_embedding_bias: In<f32>,
    online_positions: In<f32>,
    online_query: In<f32>,
    online_query_bias: In<f32>,
    online_key: In<f32>,
    online_key_bias: In<f32>,
    online_value: In<f32>,
    online_value_bias: In<f32>,
    target_embedding: In<f32>,
    target_embedding_bias: In<f32>,
    target_positions: In<f32>,
    target_query: In<f32>,
    target_query_bias: In<f32>,
    target_key: In<f32>,
    target_key_bias: In<f32>,
    target_value: In<f32>,
    target_value_bias: In<f32>,
    query: Out<f32>,
    key: Out<f32>,
    value: Out<f32>,
) {
    let _ = networks; // only the grid needs it
    let tiles = width.div_ceil(ROWS);
    let (projection, first_row) = (thread::block_idx() / tiles, thread::block_idx() % tiles * ROWS);
    let network = thread::block_idx_y();
    let (embedding, embedding_bias, positions) = if network == 0 {
        (online_embedding, online_embedding_bias, online_positions)
    } else {
        (target_embedding, target_embedding_bias, target_positions)
    };
    let (weight, bias) = match (network, projection) {
        (0, QUERY) => (online_query, online_query_bias),
        (0, KEY) => (online_key, online_key_bias),
        (0, _) => (online_value, online_value_bias),
        (_, QUERY) => (target_query, target_query_bias),
        (_, KEY) => (target_key, target_key_bias),
        (_, _) => (target_value, target_value_bias),
    };
    let embedding = Embedding { weight: embedding, bias: embedding_bias, positions, width, features, bars };
    let (outputs, first_bar, to) = match projection {
        QUERY => (features + 1, bars - 1, query),
        KEY => (columns(features, bars), 0, key),
        _ => (columns(features, bars), 0, value),
    };
    product(
        ROWS,
        width,
        outputs,
        |stage| {
            stage.a_along(&weight, |row| min(first_row + row, width - 1) * width);
            embedding.copy(stage.b, outputs, stage.first, stage.here, first_bar);
        },
        |row, column, sum| {
            let row = first_row + row;
            if row < width {
                let bias = if column < features { 0.0 } else { bias.get(row) };
                to.set((network * width + row) * outputs + column, sum + bias);
            }
        },
    );
}

/// Blocks of one head: those of G_h, then those of U_h.
const fn head_blocks(width: u32, features: u32) -> u32 {
    (features + 1).div_ceil(ROWS) + width.div_ceil(ROWS)
}

/// G [networks, heads, F + 1, E] and U [networks, d, C] from what `attention_fold_projections` wrote and Wo [d, d]. A
/// block computes 8 rows of G_h or U_h of one head.
#[kernel(
    block = tile::THREADS,
    grid = (heads * head_blocks(width, features), networks),
    shared = 4 * tile::product_floats(ROWS, width / heads, columns(features, bars)),
    barriers = 3,
    requires(
        networks == 1 || networks == 2,
        shape_fits(width, features, bars, heads),
        query.len() >= (networks as usize) * ((width * (features + 1)) as usize),
        key.len() >= (networks as usize) * ((width * columns(features, bars)) as usize),
        value.len() >= (networks as usize) * ((width * columns(features, bars)) as usize),
        online_output.len() >= (width * width) as usize,
        target_output.len() >= (width * width) as usize,
        scores.len() >= (networks as usize) * ((heads * (features + 1) * columns(features, bars)) as usize),
        mix.len() >= (networks as usize) * ((width * context_columns(features, bars, heads)) as usize),
    )
)]
pub fn attention_fold_heads(
    networks: u32,
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
    query: In<f32>,
    key: In<f32>,
    value: In<f32>,
    online_output: In<f32>,
    target_output: In<f32>,
    scores: Out<f32>,
    mix: Out<f32>,
) {
    let _ = networks; // only the grid needs it
    let blocks = head_blocks(width, features);
    let (head, part) = (thread::block_idx() / blocks, thread::block_idx() % blocks);
    let score_blocks = (features + 1).div_ceil(ROWS);
    let network = thread::block_idx_y();
    let (outputs, depth) = (columns(features, bars), width / heads);
    // First row of the head in Aq, Ak, Av; its first column in Wo.
    let first = head * depth;
    let is_score = part < score_blocks;
    let first_row = if is_score { part * ROWS } else { (part - score_blocks) * ROWS };
    let rows = if is_score { features + 1 } else { width };
    let output = if network == 0 { online_output } else { target_output };
    let right = if is_score { key } else { value };
    let mix_columns = context_columns(features, bars, heads);
    let scale = 1.0 / math::sqrt(depth as f32);
    product(
        ROWS,
        depth,
        outputs,
        |stage| {
            let existing = |row: u32| min(first_row + row, rows - 1);
            let from = network * width + first + stage.first;
            if is_score {
                let step = features + 1;
                stage.a_across(0, stage.here, &query, |row| from * step + existing(row), step);
            } else {
                stage.a_along(&output, |row| existing(row) * width + first);
            }
            stage.b_rows(0, stage.here, outputs, &right, from * outputs, outputs);
        },
        |row, column, sum| {
            let row = first_row + row;
            if row < rows && is_score {
                scores.set(((network * heads + head) * (features + 1) + row) * outputs + column, scale * sum);
            } else if row < rows {
                mix.set((network * width + row) * mix_columns + head * outputs + column, sum);
            }
        },
    );
    // The last head's blocks also write the padding of their rows.
    if !is_score && head + 1 == heads {
        let padding = mix_columns - heads * outputs;
        let i = thread::thread_idx();
        if i < ROWS * padding && first_row + i / padding < width {
            mix.set((network * width + first_row + i / padding + 1) * mix_columns - 1 - i % padding, 0.0);
        }
    }
}
