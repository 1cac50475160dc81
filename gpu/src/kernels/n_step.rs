//! n-step returns in the replay ring, one collection step at a time (SPEC sections 3 and 6; Sutton and Barto,
//! "Reinforcement Learning", second edition, equation 7.1).
//!
//! After `market_step` and `market_observe` have written each environment's single-step transition, its reward is added
//! to the n - 1 transitions before it that belong to the same episode: r_n += gamma^j r, the discount becomes
//! gamma^(j + 1), or 0 where the episode terminated, and s' becomes the new next observation (the final one of an
//! episode that ended, never that after the restart). So a transition always sums the m <= n rewards that there are, and
//! an episode's end leaves its last windows short. Environment e's transition of j steps ago is in slot
//! (cursor + e - j E) mod capacity. A slot may be drawn when n steps have been written since it, itself included: then
//! its window is complete, whether by its length or by the episode's end (`priority_insert`, `sample_gather`).

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::market::{TERMINATED, TRUNCATED, ring_slot};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Environments per block: one warp each.
pub const ENVIRONMENTS_PER_BLOCK: u32 = 8;

/// Extends the windows of all environments by the step just written, before `market_count` moves the cursor. Rows of
/// states have `stride` floats, a multiple of 4.
#[kernel(
    block = 32 * ENVIRONMENTS_PER_BLOCK,
    grid = environments.div_ceil(ENVIRONMENTS_PER_BLOCK),
    shuffles = 2,
    requires(
        environments > 0,
        steps > 0,
        (steps as u64) * (environments as u64) <= capacity as u64,
        capacity <= 1 << 30,
        stride % 4 == 0,
        (capacity as u64) * (stride as u64) <= u32::MAX as u64,
        ring_words.len() >= ring::WORDS as usize,
        flags.len() >= environments as usize,
        ages.len() >= environments as usize,
        ring_rewards.len() >= capacity as usize,
        ring_discounts.len() >= capacity as usize,
        ring_next_states.len() >= (capacity as usize) * (stride as usize),
    )
)]
pub fn n_step_window(
    /// E.
    environments: u32,
    /// n.
    steps: u32,
    /// Slots of the replay ring.
    capacity: u32,
    /// Floats of a state row.
    stride: u32,
    gamma: f64,
    /// Size and cursor of the ring.
    ring_words: In<u64>,
    /// `TERMINATED` and `TRUNCATED` bits of this step, `[E]`.
    flags: In<u32>,
    /// Steps of the running episode before this one, counted up to n, `[E]`; zeroed memory starts episodes.
    ages: InOut<u32>,
    /// `[capacity]`
    ring_rewards: InOut<f32>,
    /// `[capacity]`
    ring_discounts: InOut<f32>,
    /// `[capacity, stride]`
    ring_next_states: InOut<f32>,
) {
    let e = thread::block_idx() * ENVIRONMENTS_PER_BLOCK + thread::warp();
    if e < environments {
        let lane = thread::lane();
        let slot = ring_slot(ring_words.get(ring::CURSOR), e, capacity);
        let flags = flags.get(e);
        // Only lane 0 reads what it writes below.
        let age = warp::shfl_idx(if lane == 0 { ages.get(e) } else { 0 }, 0);
        let back = if age < steps - 1 { age } else { steps - 1 };
        let reward = if lane == 0 { ring_rewards.get(slot) as f64 } else { 0.0 };
        let mut weight = gamma;
        let (mut at, mut j) = (slot, 0);
        while j < back {
            at = if at >= environments { at - environments } else { at + (capacity - environments) };
            if lane == 0 {
                ring_rewards.set(at, (ring_rewards.get(at) as f64 + weight * reward) as f32);
                weight *= gamma;
                ring_discounts.set(at, if flags & TERMINATED != 0 { 0.0 } else { weight as f32 });
            }
            let mut v = 4 * lane;
            while v < stride {
                ring_next_states.set4(at * stride + v, ring_next_states.get4(slot * stride + v));
                v += TILE;
            }
            j += 1;
        }
        if lane == 0 {
            let ended = flags & (TERMINATED | TRUNCATED) != 0;
            ages.set(
                e,
                if ended {
                    0
                } else if age < steps {
                    age + 1
                } else {
                    steps
                },
            );
        }
    }
}

/// Floats that a warp copies at once.
const TILE: u32 = 128;
