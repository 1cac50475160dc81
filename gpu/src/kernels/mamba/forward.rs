//! The block forward: o of every row, beside a copy of the row's state.

use core::cmp::min;

use cuda_std::prelude::*;

use super::sample::Sample;
use super::{Shape, THREADS, WARPS, silu};

/// Samples that a warp takes one after the other: more than one where a wave of blocks has done before the last begin, so
/// that the parameters are copied less often.
const fn rows_of_warp(rows: u32) -> u32 {
    if rows >= 1 << 14 { 4 } else { 1 }
}

/// Rows of a block of `mamba_forward`.
const fn rows_of_block(rows: u32) -> u32 {
    WARPS * rows_of_warp(rows)
}

/// Shared memory in floats.
#[cfg(not(target_arch = "nvptx64"))]
fn forward_floats(shape: &Shape) -> u32 {
    shape.folded().len + WARPS * Sample::forward_floats(shape) + WARPS
}

/// The rows \[o, s\] [rows + second, width + `stride`] of two networks: `rows` rows of states [.., `stride`] by the first
/// network, then `second` rows from row `second_from` on by the second. folded [networks, `Folded::len`].
#[kernel(
    block = THREADS,
    grid = rows.div_ceil(rows_of_block(rows)) + second.div_ceil(rows_of_block(rows)),
    shared = 4 * forward_floats(&Shape { features, bars, width, state, heads }),
    barriers = 1,
    shuffles = 5,
    votes = 5, // warp barriers
    requires(
        rows > 0,
        Shape { features, bars, width, state, heads }.fits(),
        stride % 4 == 0,
        stride >= bars * features,
        folded.len() >= (if second > 0 { 2 } else { 1 }) * (Shape { features, bars, width, state, heads }.folded().len as usize),
        states.len() >= (rows as usize) * (stride as usize),
        second == 0 || states.len() >= (second_from as usize + second as usize) * (stride as usize),
        joined.len() >= (rows as usize + second as usize) * (width as usize + stride as usize),
        (rows as usize + second as usize) * (width as usize + stride as usize) <= u32::MAX as usize,
        (second_from as usize + second as usize) * (stride as usize) <= u32::MAX as usize,
    )
)]
pub fn mamba_forward(
    /// Rows of the first network.
    rows: u32,
    /// Rows of the second one; 0 where there is one network.
    second: u32,
    /// Their first row in states.
    second_from: u32,
    stride: u32,
    features: u32,
    bars: u32,
    width: u32,
    state: u32,
    heads: u32,
    folded: In<f32>,
    states: In<f32>,
    joined: Out<f32>,
) {
    let shape = Shape { features, bars, width, state, heads };
    let (len, floats) = (shape.folded().len, Sample::forward_floats(&shape));
    let of_block = rows_of_block(rows);
    let blocks = rows.div_ceil(of_block);
    let is_second = thread::block_idx() >= blocks;
    let block = if is_second { thread::block_idx() - blocks } else { thread::block_idx() };
    let (here, from, to) = if is_second { (second, second_from, rows) } else { (rows, 0, 0) };
    let first = if is_second { len } else { 0 };
    let memory = shared::array::<f32>(0, len + WARPS * floats);
    let starts = shared::array::<u32>(4 * (len + WARPS * floats), WARPS);
    let mut i = 4 * thread::thread_idx();
    while i < len {
        shared::copy_async16(memory, i, &folded, first + i, 16);
        i += 4 * THREADS;
    }
    shared::copy_commit();
    let mut i = thread::thread_idx();
    while i < WARPS * floats {
        memory.set(len + i, 0.0); // of which the columns behind the last bar stay zero
        i += THREADS;
    }
    let lane = thread::lane();
    if lane == 0 {
        starts.set(thread::warp(), len + thread::warp() * floats);
    }
    shared::copy_wait::<0>();
    thread::sync(); // parameters and zeros are in shared memory
    let mut row = block * of_block + thread::warp();
    let end = min(here, (block + 1) * of_block);
    while row < end {
        // Read anew for each sample, so that no address of it is kept in a register from sample to sample.
        let sample = Sample::new(memory, shape, starts.get(thread::warp()));
        let (read, write) = ((from + row) * stride, (to + row) * (width + stride));
        let mut i = 4 * lane;
        while i < stride {
            let x = states.get4(read + i);
            joined.set4(write + width + i, x);
            sample.place4(i, x);
            i += 128;
        }
        warp::sync(); // the window is whole
        sample.channels::<false>();
        warp::sync(); // channels and D are whole
        sample.scores::<false>();
        warp::sync(); // scores are whole
        sample.weights::<false>();
        warp::sync(); // weights are whole
        let mut squares = 0.0;
        let mut c = lane;
        while c < width {
            let gated = sample.output(c) * silu(sample.bar(c, bars - 1));
            memory.set(sample.gated + c, gated);
            squares = math::fma(gated, gated, squares);
            c += 32;
        }
        let inverse = sample.inverse_norm(squares);
        let mut c = lane;
        while c < width {
            let o = memory.get(sample.gated + c) * inverse * memory.get(sample.folded.norm + c);
            joined.set(write + c, o);
            c += 32;
        }
        row += WARPS;
        warp::sync(); // everything is read before the next sample overwrites it
    }
}
