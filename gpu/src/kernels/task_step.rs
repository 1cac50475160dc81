//! One step of every environment of a control task (SPEC section 6; the environments are in `crate::task`).
//!
//! One thread per environment: takes its packed action, advances the episode, writes the whole transition into its slot
//! of the replay ring, (cursor + e) mod capacity, and begins the next episode where this one has ended. s' in the ring is
//! the state that the step led to; `states` gets the one that the next decision sees, of the new episode where there is
//! one. The cursor is moved by `market_count`, at the end of the collection step.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::market::{TERMINATED, ring_slot};
use crate::task::{self, Environment, Episode, Task, Visitor};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// The step of all environments. Zeroed `words` and `counters` start all of them; `insert = 0` only writes the first
/// observation: no step, no ring. Rows of all states have `stride` floats, S of them used and the rest written as 0.
///
/// `log` `[E, log_rows, LOG_FIELDS]` keeps each environment's first `log_rows` finished episodes; `log_rows = 0` keeps
/// nothing.
#[kernel(
    block = 64,
    grid = environments.div_ceil(64),
    requires(
        environments > 0,
        environments <= capacity,
        capacity <= 1 << 30,
        kind < task::NAMES.len() as u32,
        limit > 0,
        stride >= (Task { kind, size, limit }).spec().observation,
        (capacity as u64) * (stride as u64) <= 1 << 32,
        (environments as u64) * (log_rows as u64) * (task::LOG_FIELDS as u64) <= u32::MAX as u64,
        seed_words.len() >= 1,
        actions.len() >= environments as usize,
        words.len() >= (task::WORDS as usize) * (environments as usize),
        counters.len() >= (task::COUNTERS as usize) * (environments as usize),
        ring_words.len() >= ring::WORDS as usize,
        states.len() >= (environments as usize) * (stride as usize),
        insert == 0 || ring_states.len() >= (capacity as usize) * (stride as usize),
        insert == 0 || ring_next_states.len() >= (capacity as usize) * (stride as usize),
        insert == 0 || ring_actions.len() >= capacity as usize,
        insert == 0 || ring_rewards.len() >= capacity as usize,
        insert == 0 || ring_discounts.len() >= capacity as usize,
        insert == 0 || ring_ends.len() >= capacity as usize,
        flags.len() >= environments as usize,
        log.len() >= (environments as usize) * (log_rows as usize) * (task::LOG_FIELDS as usize),
    )
)]
pub fn task_step(
    /// E.
    environments: u32,
    /// Floats of a state row.
    stride: u32,
    /// Number of the environment in `task::NAMES`.
    kind: u32,
    /// Its size.
    size: u32,
    /// Steps after which an episode is truncated.
    limit: u32,
    /// Slots of the replay ring.
    capacity: u32,
    /// Rows of the log of one environment, 0 for none.
    log_rows: u32,
    /// 1 for a step, 0 for the first observation.
    insert: u32,
    /// Discount of one step.
    gamma: f64,
    /// Seed of the episodes' starts, one word.
    seed_words: In<u64>,
    /// One byte per branch, `[E]`, from `select_action`.
    actions: In<u64>,
    /// Returns and states, `[WORDS, E]`.
    words: InOut<u64>,
    /// `[COUNTERS, E]`
    counters: InOut<u32>,
    /// Size and cursor of the ring.
    ring_words: In<u64>,
    /// In: s of this step. Out: s of the next decision. `[E, stride]`.
    states: InOut<f32>,
    /// s, `[capacity, stride]`.
    ring_states: Out<f32>,
    /// s', `[capacity, stride]`.
    ring_next_states: Out<f32>,
    /// `[capacity]`
    ring_actions: Out<u64>,
    /// r, `[capacity]`.
    ring_rewards: Out<f32>,
    /// gamma (1 - terminated), `[capacity]`.
    ring_discounts: Out<f32>,
    /// End bits of the step, 0 where the episode goes on, `[capacity]`: what hindsight finds an episode's end by.
    ring_ends: Out<u32>,
    /// `TERMINATED` and `TRUNCATED` bits of this step, `[E]`.
    flags: Out<u32>,
    /// Return, steps and end bits of finished episodes, `[E, log_rows, LOG_FIELDS]`.
    log: Out<f64>,
) {
    let e = thread::global_index();
    if e < environments {
        let task = Task { kind, size, limit };
        let slot = ring_slot(ring_words.get(ring::CURSOR), e, capacity);
        let body = Body {
            e,
            environments,
            stride,
            limit,
            log_rows,
            insert: insert != 0,
            gamma,
            seed: seed_words.get(0),
            action: actions.get(e),
            slot,
            words,
            counters,
            states,
            ring_states,
            ring_next_states,
            ring_rewards,
            ring_discounts,
            ring_ends,
            flags,
            log,
        };
        if insert != 0 {
            ring_actions.set(slot, body.action);
        }
        // A number that is not in the list is refused by the contract.
        let _ = task.visit(body);
    }
}

/// One thread's work, for whichever environment it is.
struct Body {
    e: u32,
    environments: u32,
    stride: u32,
    limit: u32,
    log_rows: u32,
    insert: bool,
    gamma: f64,
    seed: u64,
    action: u64,
    slot: u32,
    words: InOut<u64>,
    counters: InOut<u32>,
    states: InOut<f32>,
    ring_states: Out<f32>,
    ring_next_states: Out<f32>,
    ring_rewards: Out<f32>,
    ring_discounts: Out<f32>,
    ring_ends: Out<u32>,
    flags: Out<u32>,
    log: Out<f64>,
}

impl Visitor for Body {
    type Out = ();

    #[inline(always)]
    fn visit<E: Environment>(self, environment: &E) {
        let (e, n, observation) = (self.e, self.environments, environment.spec().observation);
        let (mut episode, mut state): (Episode, E::State) =
            Episode::load(|i| self.words.get(i * n + e), |i| self.counters.get(i * n + e));
        if !episode.runs() {
            (episode, state) = task::begin(environment, self.seed, e, episode);
        }
        if self.insert {
            let reward = task::advance(environment, self.limit, &mut episode, &mut state, self.action);
            let flags = episode.end_flags();
            let mut i = 0;
            while i < self.stride {
                let next = if i < observation { environment.observe(&state, i) } else { 0.0 };
                self.ring_states.set(self.slot * self.stride + i, self.states.get(e * self.stride + i));
                self.ring_next_states.set(self.slot * self.stride + i, next);
                i += 1;
            }
            self.ring_rewards.set(self.slot, reward as f32);
            let discount = if flags & TERMINATED != 0 { 0.0 } else { self.gamma };
            self.ring_discounts.set(self.slot, discount as f32);
            self.ring_ends.set(self.slot, flags);
            self.flags.set(e, flags);
            if flags != 0 {
                let row = episode.episodes - 1;
                if row < self.log_rows {
                    let first = (e * self.log_rows + row) * task::LOG_FIELDS;
                    self.log.set(first, episode.total);
                    self.log.set(first + 1, episode.steps as f64);
                    self.log.set(first + 2, flags as f64);
                }
                (episode, state) = task::begin(environment, self.seed, e, episode);
            }
        }
        let mut i = 0;
        while i < self.stride {
            let now = if i < observation { environment.observe(&state, i) } else { 0.0 };
            self.states.set(e * self.stride + i, now);
            i += 1;
        }
        episode.store(&state, |i, v| self.words.set(i * n + e, v), |i, v| self.counters.set(i * n + e, v));
    }
}
