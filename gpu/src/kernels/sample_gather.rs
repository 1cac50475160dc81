//! Draws a uniform batch from the replay ring and gathers it, in one launch.
//!
//! One warp per sample. index_i = floor(u_i * size), u_i from 64 Philox bits keyed by (seed, step, i), with
//! replacement. The newest `pending` slots, whose n-step windows are not complete, are left out. Rows are copied 16 bytes a lane: the online network reads x as [2B, stride] (states, then next
//! states), the target network its second half.

use cuda_std::prelude::*;

use crate::market::ring_slot;
use crate::{clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Words of the ring's own counters.
pub mod ring {
    /// Transitions written so far, at most the capacity.
    pub const SIZE: u32 = 0;
    /// Slot that the next collection step writes first.
    pub const CURSOR: u32 = 1;
    /// Words of the buffer.
    pub const WORDS: u32 = 2;
}

/// Samples per block: one warp each.
pub const SAMPLES_PER_BLOCK: u32 = 8;

/// Uniform sampling and gather. `stride` (floats) is the row stride of states, next_states and x, a multiple of 4;
/// the ring must hold more than `pending` transitions. Weights are 1: uniform sampling needs no correction.
#[kernel(
    block = 256,
    grid = batch.div_ceil(8),
    requires(
        batch > 0,
        stride % 4 == 0,
        capacity > 0,
        pending < capacity,
        // Elements have 32-bit indices: a larger ring would be read from its beginning again.
        (capacity as u64) * (stride as u64) <= 0x1_0000_0000,
        clock_words.len() >= clock::WORDS as usize,
        ring_words.len() >= ring::WORDS as usize,
        states.len() >= (capacity as usize) * (stride as usize),
        next_states.len() >= (capacity as usize) * (stride as usize),
        ring_actions.len() >= capacity as usize,
        ring_rewards.len() >= capacity as usize,
        ring_discounts.len() >= capacity as usize,
        x.len() >= 2 * (batch as usize) * (stride as usize),
        actions.len() >= batch as usize,
        rewards.len() >= batch as usize,
        discounts.len() >= batch as usize,
        weights.len() >= batch as usize,
        indices.len() >= batch as usize,
    )
)]
pub fn sample_gather(
    batch: u32,
    stride: u32,
    capacity: u32,
    /// Newest slots that must not be drawn.
    pending: u32,
    seed: u64,
    clock_words: In<u64>,
    ring_words: In<u64>,
    states: In<f32>,
    next_states: In<f32>,
    ring_actions: In<u64>,
    ring_rewards: In<f32>,
    ring_discounts: In<f32>,
    x: Out<f32>,
    actions: Out<u64>,
    rewards: Out<f32>,
    discounts: Out<f32>,
    weights: Out<f32>,
    indices: Out<u32>,
) {
    let sample = thread::block_idx() * SAMPLES_PER_BLOCK + thread::warp();
    let lane = thread::lane();
    if sample < batch {
        let word = philox::draw(seed, clock_words.get(clock::STEP), philox::Stream::Sample, sample, 0);
        let size = ring_words.get(ring::SIZE);
        // A damaged counter must not read beyond the ring: the bound is exact for every valid one.
        let written = if size < capacity as u64 { size as u32 } else { capacity };
        let complete = written.saturating_sub(pending);
        let mut slot = philox::below(word[0], word[1], complete as u64) as u32;
        if pending > 0 && written == capacity {
            // Counted from the oldest slot, which is where the next step writes.
            slot = ring_slot(ring_words.get(ring::CURSOR), slot, capacity);
        }
        // On their way beside the rows.
        let (action, reward) = (ring_actions.get(slot), ring_rewards.get(slot));
        let discount = ring_discounts.get(slot);
        gather_rows(stride, (&states, &next_states), slot, &x, sample, batch + sample);
        if lane == 0 {
            actions.set(sample, action);
            rewards.set(sample, reward);
            discounts.set(sample, discount);
            weights.set(sample, 1.0);
            indices.set(sample, slot);
        }
    }
}

/// A warp copies s and s' of a slot into two rows of x.
///
/// Element by element: an array that moves as a whole becomes a copy from memory to memory in pieces of 8 bytes, each of
/// which waits for the store before it.
#[inline(always)]
pub(super) fn gather_rows(
    stride: u32,
    (states, next_states): (&In<f32>, &In<f32>),
    slot: u32,
    x: &Out<f32>,
    row: u32,
    next_row: u32,
) {
    let mut v = 4 * thread::lane();
    while v < stride {
        let [a, b, c, d] = states.get4(slot * stride + v);
        let [e, f, g, h] = next_states.get4(slot * stride + v);
        x.set4(row * stride + v, [a, b, c, d]);
        x.set4(next_row * stride + v, [e, f, g, h]);
        v += 128;
    }
}
