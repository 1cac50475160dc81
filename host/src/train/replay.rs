//! The replay of the CPU agent: the device's ring, draws, windows and priorities in host memory.

mod state;

use cpu_path::C51Batch;
use cpu_path::replay::PriorityTree;
use gpu::market::{TERMINATED, Transitions};
use gpu::{action, philox};
use settings::Replay;

use crate::step::Hindsight;
use crate::train::hindsight::relabel;
use crate::train::offline::Rows;

/// A ring of transitions in host memory.
pub struct HostReplay {
    settings: Replay,
    capacity: usize,
    state: usize,
    gamma: f64,
    /// s, `[capacity, S]`.
    pub states: Vec<f32>,
    /// s' of the window so far, `[capacity, S]`.
    pub next_states: Vec<f32>,
    /// One byte per branch, `[capacity]`.
    pub actions: Vec<u64>,
    /// r_n of the window so far, `[capacity]`.
    pub rewards: Vec<f32>,
    /// gamma^m (1 - terminated), `[capacity]`.
    pub discounts: Vec<f32>,
    size: usize,
    cursor: usize,
    /// Steps of each environment's running episode.
    ages: Vec<usize>,
    tree: Option<PriorityTree>,
    /// End bits of every step, `[capacity]`, for hindsight.
    ends: Vec<u32>,
    hindsight: Option<Hindsight>,
}

/// A batch and where it is from.
pub struct Draw {
    /// The batch, without quantile samples.
    pub batch: C51Batch<f32>,
    /// Its slots.
    pub slots: Vec<usize>,
}

impl HostReplay {
    /// An empty ring for `environments` environments, which one step fills by as many slots.
    pub fn new(settings: &Replay, capacity: usize, state: usize, environments: usize, gamma: f64) -> Self {
        Self {
            settings: settings.clone(),
            capacity,
            state,
            gamma,
            states: vec![0.0; capacity * state],
            next_states: vec![0.0; capacity * state],
            actions: vec![0; capacity],
            rewards: vec![0.0; capacity],
            discounts: vec![0.0; capacity],
            size: 0,
            cursor: 0,
            ages: vec![0; environments],
            tree: settings.prioritized.then(|| PriorityTree::new(capacity)),
            ends: vec![0; capacity],
            hindsight: None,
        }
    }

    /// A ring of `capacity` slots for the transitions of a data set, which come all at once ([`HostReplay::fill`]).
    pub fn of_data_set(settings: &Replay, capacity: usize, state: usize, gamma: f64) -> Self {
        Self::new(settings, capacity, state, 0, gamma)
    }

    /// Replaces what the ring holds by rows of a data set, all of which can be drawn: their windows are complete.
    pub fn fill(&mut self, all: &Rows, rows: &[u32]) {
        let s = self.state;
        for (slot, row) in rows.iter().map(|&row| row as usize).enumerate() {
            self.states[slot * s..][..s].copy_from_slice(all.state(row));
            self.next_states[slot * s..][..s].copy_from_slice(all.next_state(row));
            self.actions[slot] = all.actions[row];
            self.rewards[slot] = all.rewards[row];
            self.discounts[slot] = all.discounts[row];
            if let Some(tree) = &mut self.tree {
                tree.insert(slot);
            }
        }
        (self.size, self.cursor) = (rows.len(), 0);
    }

    /// The same ring, some of whose samples get another goal.
    pub fn with_hindsight(self, hindsight: Option<Hindsight>) -> Self {
        Self { hindsight, ..self }
    }

    /// The tree, where sampling is prioritized.
    pub fn tree(&self) -> Option<&PriorityTree> {
        self.tree.as_ref()
    }

    /// Transitions that may be drawn: all but the newest ones, whose windows are not complete.
    pub fn complete(&self) -> usize {
        self.size.saturating_sub(self.settings.pending(self.ages.len()))
    }

    /// One step of all environments, as `market_step`, `market_observe`, `n_step_window`, `priority_insert` and
    /// `market_count` insert it.
    pub fn insert(&mut self, states: &[f32], actions: &[u64], step: &Transitions) {
        let (s, environments) = (self.state, self.ages.len());
        for e in 0..environments {
            let at = (self.cursor + e) % self.capacity;
            self.states[at * s..][..s].copy_from_slice(&states[e * s..][..s]);
            self.next_states[at * s..][..s].copy_from_slice(&step.next_states[e * s..][..s]);
            self.actions[at] = actions[e];
            self.rewards[at] = step.rewards[e];
            self.discounts[at] = step.discounts[e];
            self.ends[at] = step.flags[e];
            self.extend_windows(e, at, step.flags[e]);
        }
        if let Some(tree) = &mut self.tree {
            let pending = self.settings.pending(environments);
            for e in 0..environments {
                tree.set((self.cursor + e) % self.capacity, 0.0);
            }
            if self.size >= pending {
                for e in 0..environments {
                    tree.insert((self.cursor + self.capacity - pending + e) % self.capacity);
                }
            }
        }
        self.cursor = (self.cursor + environments) % self.capacity;
        self.size = (self.size + environments).min(self.capacity);
    }

    /// Adds the step of environment `e` in slot `newest` to the windows before it in the same episode.
    fn extend_windows(&mut self, e: usize, newest: usize, flags: u32) {
        let (s, environments) = (self.state, self.ages.len());
        let (reward, mut weight, mut at) = (f64::from(self.rewards[newest]), self.gamma, newest);
        for _ in 0..self.ages[e].min(self.settings.n_step - 1) {
            at = (at + self.capacity - environments) % self.capacity;
            self.rewards[at] = (f64::from(self.rewards[at]) + weight * reward) as f32;
            weight *= self.gamma;
            self.discounts[at] = if flags & TERMINATED != 0 { 0.0 } else { weight as f32 };
            self.next_states.copy_within(newest * s..(newest + 1) * s, at * s);
        }
        self.ages[e] = if flags != 0 { 0 } else { self.ages[e] + 1 };
    }

    /// The slots that the device draws for this seed, step and content, and their transitions.
    pub fn sample(&self, batch: usize, branches: usize, seed: u64, step: u64) -> Draw {
        let draw = |i: usize| philox::draw(seed, step, philox::Stream::Sample, i as u32, 0);
        let (slots, weights) = match &self.tree {
            Some(tree) => {
                let slots: Vec<usize> = (0..batch)
                    .map(|i| {
                        let word = draw(i);
                        let bits = u64::from(word[0]) << 21 | u64::from(word[1]) >> 11;
                        let fraction = bits as f64 / (1u64 << 53) as f64;
                        tree.find(tree.place(i, batch, fraction)).unwrap_or(0)
                    })
                    .collect();
                let weights = tree.weights(&slots, self.settings.beta(step));
                // Without a usable total no transition was drawn: the step is to be refused, as on the device.
                let usable = tree.total() > 0.0 && tree.total().is_finite();
                let weights = weights.iter().map(|&w| if usable { w as f32 } else { f32::NAN }).collect();
                (slots, weights)
            }
            None => {
                let (pending, complete) = (self.settings.pending(self.ages.len()), self.complete() as u64);
                // Counted from the oldest slot, which is where the next step writes, once the ring is full.
                let oldest = if pending > 0 && self.size == self.capacity { self.cursor } else { 0 };
                let slot = |i: usize| {
                    let word = draw(i);
                    (oldest + philox::below(word[0], word[1], complete) as usize) % self.capacity
                };
                ((0..batch).map(slot).collect::<Vec<usize>>(), vec![1.0; batch])
            }
        };
        let s = self.state;
        let mut out = C51Batch {
            states: Vec::with_capacity(batch * s),
            next_states: Vec::with_capacity(batch * s),
            actions: Vec::with_capacity(batch * branches),
            rewards: Vec::with_capacity(batch),
            discounts: Vec::with_capacity(batch),
            weights,
            ..C51Batch::default()
        };
        for &slot in &slots {
            out.states.extend_from_slice(&self.states[slot * s..][..s]);
            out.next_states.extend_from_slice(&self.next_states[slot * s..][..s]);
            out.actions.extend((0..branches).map(|d| action::branch(self.actions[slot], d as u32)));
            out.rewards.push(self.rewards[slot]);
            out.discounts.push(self.discounts[slot]);
        }
        let mut draw = Draw { batch: out, slots };
        if let Some(hindsight) = &self.hindsight {
            relabel(hindsight, self, (self.cursor, &self.ends), (seed, step), &mut draw);
        }
        draw
    }

    /// Priorities of a batch after its losses: p = (1 - w) `c51` + w `iqn`, the latter not looked at where w is 0. Call it
    /// for steps that were not skipped.
    pub fn update(&mut self, slots: &[usize], c51: &[f32], iqn: &[f32]) {
        let Some(tree) = &mut self.tree else { return };
        let w = self.settings.iqn_weight;
        let p = |i: usize| match w > 0.0 {
            true => (1.0 - w) * f64::from(c51[i]) + w * f64::from(iqn[i]),
            false => c51[i].into(),
        };
        let priorities: Vec<f64> = (0..slots.len()).map(p).collect();
        tree.update(slots, &priorities, &self.settings);
    }
}
