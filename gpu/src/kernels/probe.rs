//! The causal probe (SPEC section 3): how much the Q values depend on each state feature. Feature j of the batch's states
//! is permuted over the batch, all others stay; the mean over samples, branches and actions of |Q - Q before| is the
//! feature's sensitivity. (Permutation importance: Breiman, "Random Forests", 2001, section 10, on the network's own
//! outputs instead of an error.)
//!
//! The permutation is a Feistel network over the next power of four, walked until it lands inside the batch (Black and
//! Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 3): a bijection that every thread computes for itself,
//! another one for every step and feature.

use cuda_std::prelude::*;

use crate::{clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Rounds of the network.
const ROUNDS: u32 = 4;

/// Where sample `i` of `batch` takes its value of a feature from.
#[inline(always)]
pub fn permuted(seed: u64, step: u64, feature: u32, batch: u32, i: u32) -> u32 {
    let keys = philox::draw(seed, step, philox::Stream::Probe, feature, 0);
    let mut half = 1;
    while (1u64 << (2 * half)) < batch as u64 {
        half += 1;
    }
    let mask = (1u32 << half) - 1;
    let mut x = i;
    loop {
        let (mut left, mut right) = (x >> half, x & mask);
        let mut round = 0;
        while round < ROUNDS {
            let key = match round {
                0 => keys[0],
                1 => keys[1],
                2 => keys[2],
                _ => keys[3],
            };
            // Any function of the right half keeps the round invertible; this one mixes all of its bits.
            let mixed = (right ^ key).wrapping_mul(0x9E37_79B1);
            let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85EB_CA77);
            (left, right) = (right, left ^ ((mixed ^ (mixed >> 13)) & mask));
            round += 1;
        }
        x = (left << half) | right;
        if x < batch {
            return x;
        }
    }
}

/// A copy of the states with one feature permuted over the batch. Four floats a thread.
#[kernel(
    block = 256,
    grid = (batch * (stride / 4)).div_ceil(256),
    requires(
        batch > 0,
        stride > 0,
        stride % 4 == 0,
        feature < stride,
        clock_words.len() >= clock::WORDS as usize,
        states.len() >= (batch as usize) * (stride as usize),
        probed.len() >= (batch as usize) * (stride as usize),
    )
)]
pub fn probe_permute(
    batch: u32,
    stride: u32,
    /// j.
    feature: u32,
    seed: u64,
    clock_words: In<u64>,
    /// [B, stride].
    states: In<f32>,
    /// [B, stride].
    probed: Out<f32>,
) {
    let i = thread::global_index();
    let vectors = stride / 4;
    if i < batch * vectors {
        let (row, column) = (i / vectors, 4 * (i % vectors));
        let mut x = states.get4(row * stride + column);
        if feature / 4 == column / 4 {
            let from = permuted(seed, clock_words.get(clock::STEP), feature, batch, row);
            let value = states.get(from * stride + feature);
            let mut e = 0;
            while e < 4 {
                x[e as usize] = if feature % 4 == e { value } else { x[e as usize] };
                e += 1;
            }
        }
        probed.set4(row * stride + column, x);
    }
}

/// Mean of |q - base|. One block, in a fixed order.
#[kernel(
    block = 1024,
    grid = 1,
    shared = 4 * 32,
    barriers = 1,
    shuffles = 10,
    requires(
        len > 0,
        base.len() >= len as usize,
        q.len() >= len as usize,
        sensitivity.len() >= 1,
    )
)]
pub fn probe_difference(
    /// Q values of the batch.
    len: u32,
    /// Before the permutation [len].
    base: In<f32>,
    /// After it [len].
    q: In<f32>,
    /// The feature's place.
    sensitivity: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, 32);
    let mut sum = 0.0;
    let mut i = thread::thread_idx();
    while i < len {
        sum += math::abs(q.get(i) - base.get(i));
        i += 1024;
    }
    let sum = warp::sum(sum);
    if thread::lane() == 0 {
        scratch.set(thread::warp(), sum);
    }
    thread::sync(); // every warp's sum is written before they are added
    let total = warp::sum(scratch.get(thread::lane()));
    if thread::thread_idx() == 0 {
        sensitivity.set(0, total / len as f32);
    }
}
