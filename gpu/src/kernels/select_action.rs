//! Epsilon-greedy action of every environment from its Q values.
//!
//! One thread per environment. With probability epsilon (device memory) each branch's action is uniform, otherwise
//! the branch's argmax, ties to the lowest index. Draws are keyed by (seed, collection step, environment).

use cuda_std::prelude::*;

use crate::logits::action_offset;
use crate::{action, clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Actions [rows], one byte per branch, from q [rows, sum n_d]. `epsilon` holds one value in [0, 1].
#[kernel(
    block = 128,
    grid = rows.div_ceil(128),
    requires(
        rows > 0,
        branches >= 1,
        branches <= action::MAX_BRANCHES,
        action::none_empty(sizes, branches),
        clock_words.len() >= clock::WORDS as usize,
        epsilon.len() >= 1,
        q.len() >= (rows as usize) * (action_offset(sizes, branches) as usize),
        actions.len() >= rows as usize,
    )
)]
pub fn select_action(
    rows: u32,
    branches: u32,
    sizes: u64,
    seed: u64,
    clock_words: In<u64>,
    epsilon: In<f32>,
    q: In<f32>,
    actions: Out<u64>,
) {
    let row = thread::global_index();
    if row < rows {
        let step = clock_words.get(clock::COLLECT);
        let first = philox::draw(seed, step, philox::Stream::Explore, row, 0);
        let explore = philox::uniform(first[0]) < epsilon.get(0);
        let mut at = row * action_offset(sizes, branches);
        let mut packed = 0u64;
        let mut d = 0;
        while d < branches {
            let n = action::branch(sizes, d);
            let chosen = if explore {
                let word = philox::draw(seed, step, philox::Stream::Explore, row, 1 + d)[0];
                ((word as u64 * n as u64) >> 32) as u32
            } else {
                let (mut best, mut best_q) = (0, q.get(at));
                let mut a = 1;
                while a < n {
                    let value = q.get(at + a);
                    if value > best_q {
                        (best, best_q) = (a, value);
                    }
                    a += 1;
                }
                best
            };
            packed = action::with_branch(packed, d, chosen);
            at += n;
            d += 1;
        }
        actions.set(row, packed);
    }
}
