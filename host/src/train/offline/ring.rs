//! A device's ring filled with transitions of a data set.

use std::thread;

use gpu::kernels::sample_gather::ring;

use crate::error::ExecError;
use crate::exec::Memory;
use crate::step::Replay;
use crate::train::offline::Rows;

/// Rows that are copied to the device at a time.
const CHUNK: usize = 1 << 16;
/// Threads that gather a shard.
const THREADS: usize = 4;

/// Host memory for transitions as a ring's buffers have them; slots of the states are `stride` apart.
#[derive(Debug)]
pub struct Slots<'a> {
    /// s, `[slots, stride]`; what is behind the S numbers of a row is left as it is.
    pub states: &'a mut [f32],
    /// s', `[slots, stride]`.
    pub next_states: &'a mut [f32],
    /// `[slots]`.
    pub actions: &'a mut [u64],
    /// `[slots]`.
    pub rewards: &'a mut [f32],
    /// `[slots]`.
    pub discounts: &'a mut [f32],
}

impl Slots<'_> {
    /// Writes `rows` of `all` into the first slots.
    pub fn gather(self, all: &Rows, rows: &[u32], stride: usize) {
        let slots = self.states.chunks_exact_mut(stride).zip(self.next_states.chunks_exact_mut(stride));
        for ((row, (s, next)), ((a, r), d)) in
            rows.iter().zip(slots).zip(self.actions.iter_mut().zip(self.rewards).zip(self.discounts))
        {
            let row = *row as usize;
            let (state, next_state) = (all.state(row), all.next_state(row));
            s[..state.len()].copy_from_slice(state);
            next[..state.len()].copy_from_slice(next_state);
            (*a, *r, *d) = (all.actions[row], all.rewards[row], all.discounts[row]);
        }
    }

    /// The same on several threads.
    pub fn gather_on_threads(self, all: &Rows, rows: &[u32], stride: usize) {
        let each = rows.len().div_ceil(THREADS).max(1);
        thread::scope(|scope| {
            let states =
                self.states.chunks_mut(each * stride).zip(self.next_states.chunks_mut(each * stride));
            let numbers = self.actions.chunks_mut(each).zip(self.rewards.chunks_mut(each));
            let numbers = numbers.zip(self.discounts.chunks_mut(each));
            for ((rows, (states, next_states)), ((actions, rewards), discounts)) in
                rows.chunks(each).zip(states).zip(numbers)
            {
                let slots = Slots { states, next_states, actions, rewards, discounts };
                scope.spawn(move || slots.gather(all, rows, stride));
            }
        });
    }
}

/// Fills a ring with `rows` of `all`, all of which can be drawn, by equal priorities where there are any.
///
/// # Errors
/// What the copy said.
pub fn fill(
    memory: &mut impl Memory,
    stride: usize,
    replay: &Replay,
    all: &Rows,
    rows: &[u32],
) -> Result<(), ExecError> {
    for (chunk, rows) in rows.chunks(CHUNK).enumerate() {
        let (at, n) = (chunk * CHUNK, rows.len());
        let (mut states, mut next_states) = (vec![0.0; n * stride], vec![0.0; n * stride]);
        let (mut actions, mut rewards, mut discounts) = (vec![0; n], vec![0.0; n], vec![0.0; n]);
        Slots {
            states: &mut states,
            next_states: &mut next_states,
            actions: &mut actions,
            rewards: &mut rewards,
            discounts: &mut discounts,
        }
        .gather(all, rows, stride);
        memory.upload(replay.states.slice(at * stride, n * stride), &states)?;
        memory.upload(replay.next_states.slice(at * stride, n * stride), &next_states)?;
        memory.upload(replay.actions.slice(at, n), &actions)?;
        memory.upload(replay.rewards.slice(at, n), &rewards)?;
        memory.upload(replay.discounts.slice(at, n), &discounts)?;
    }
    memory.upload(replay.words, &words(rows.len()))?;
    match replay.priorities {
        Some(tree) => tree.set(memory, &vec![1.0; rows.len()]),
        None => Ok(()),
    }
}

/// A ring's counters with so many transitions in it.
pub fn words(rows: usize) -> [u64; ring::WORDS as usize] {
    let mut words = [0; ring::WORDS as usize];
    words[ring::SIZE as usize] = rows as u64;
    words
}
