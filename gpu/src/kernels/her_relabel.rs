//! Hindsight (`crate::task::hindsight`): gives samples of a batch that `sample_gather` drew another goal, before the
//! networks see them.
//!
//! One warp per sample: finds the last step of the transition's episode in the ring, 32 slots at a time, draws one of the
//! steps up to there, copies what the state after it achieved into the goal of both s and s', and has the environment
//! judge s' by that goal. A transition that then reaches its goal has discount 0 where the task ends by that.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::clock;
use crate::task::hindsight::{Choice, newer, slot_ahead};
use crate::task::{self, Environment, Outcome, Task, Visitor};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Samples per block: one warp each.
pub const SAMPLES_PER_BLOCK: u32 = 8;

/// Relabels a batch of single steps in place. The ring is one that every step of E environments filled by E transitions.
#[kernel(
    block = 32 * SAMPLES_PER_BLOCK,
    grid = batch.div_ceil(SAMPLES_PER_BLOCK),
    votes = 1,
    requires(
        batch > 0,
        environments > 0,
        environments <= capacity,
        capacity <= 1 << 30,
        (capacity as u64) * (stride as u64) <= 1 << 32,
        kind < task::NAMES.len() as u32,
        (Task { kind, size, limit: 1 }).spec().goal.len > 0,
        stride >= (Task { kind, size, limit: 1 }).spec().observation,
        clock_words.len() >= clock::WORDS as usize,
        ring_words.len() >= ring::WORDS as usize,
        indices.len() >= batch as usize,
        ring_next_states.len() >= (capacity as usize) * (stride as usize),
        ring_ends.len() >= capacity as usize,
        x.len() >= 2 * (batch as usize) * (stride as usize),
        rewards.len() >= batch as usize,
        discounts.len() >= batch as usize,
    )
)]
pub fn her_relabel(
    batch: u32,
    /// Floats of a state row.
    stride: u32,
    /// E.
    environments: u32,
    /// Slots of the ring.
    capacity: u32,
    /// Number of the environment in `task::NAMES`.
    kind: u32,
    /// Its size.
    size: u32,
    /// k / (k + 1).
    share: f32,
    /// Discount of one step.
    gamma: f64,
    seed: u64,
    clock_words: In<u64>,
    ring_words: In<u64>,
    /// Slots of the batch `[B]`.
    indices: In<u32>,
    /// s', `[capacity, stride]`.
    ring_next_states: In<f32>,
    /// End bits of every step, `[capacity]`.
    ring_ends: In<u32>,
    /// s, then s', `[2B, stride]`: only goals change.
    x: Out<f32>,
    /// Changed where a sample is relabelled, `[B]`.
    rewards: Out<f32>,
    /// The same.
    discounts: Out<f32>,
) {
    let sample = thread::block_idx() * SAMPLES_PER_BLOCK + thread::warp();
    if sample < batch {
        let lane = thread::lane();
        let choice = Choice::new(seed, clock_words.get(clock::STEP), sample, share);
        if choice.relabel {
            let slot = indices.get(sample);
            let newer = newer(slot, ring_words.get(ring::CURSOR) as u32, capacity, environments);
            // The first step from this one on that ended its episode, or the newest one.
            let (mut later, mut found) = (0, false);
            while !found {
                let ahead = later + lane;
                let ends =
                    ahead >= newer || ring_ends.get(slot_ahead(slot, ahead, capacity, environments)) != 0;
                let lanes = warp::ballot(ends);
                found = lanes != 0;
                later += if found { lanes.trailing_zeros() } else { 32 };
            }
            let goal = slot_ahead(slot, choice.ahead(later), capacity, environments);
            let task = Task { kind, size, limit: 1 };
            let body = Body { batch, stride, sample, lane, slot, goal, ring_next_states, x };
            if let Some(outcome) = task.visit(body)
                && lane == 0
            {
                rewards.set(sample, outcome.reward as f32);
                discounts.set(sample, if outcome.terminated { 0.0 } else { gamma as f32 });
            }
        }
    }
}

/// One lane's work, for whichever environment it is.
struct Body {
    batch: u32,
    stride: u32,
    sample: u32,
    lane: u32,
    slot: u32,
    goal: u32,
    ring_next_states: In<f32>,
    x: Out<f32>,
}

impl Visitor for Body {
    type Out = Outcome;

    #[inline(always)]
    fn visit<E: Environment>(self, environment: &E) -> Outcome {
        let goal = environment.spec().goal;
        let achieved = |slot: u32, i: u32| self.ring_next_states.get(slot * self.stride + goal.achieved + i);
        let mut i = self.lane;
        while i < goal.len {
            let value = achieved(self.goal, i);
            self.x.set(self.sample * self.stride + goal.desired + i, value);
            self.x.set((self.batch + self.sample) * self.stride + goal.desired + i, value);
            i += 32;
        }
        // Every lane computes it: they read the same words at once.
        environment.judge(|i| achieved(self.slot, i), |i| achieved(self.goal, i))
    }
}
