//! A data set larger than device memory: two rings, A and B, of which one is drawn from while a copy stream fills the other
//! with the next shard, from page-locked memory that threads fill with the shard after that.
//!
//! A ring has a training graph of its own. Which one a step takes, and when a ring may be overwritten, is a matter of the
//! step's number alone ([`Shards`]): nothing of it is in a saved state.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, anyhow};
use gpu::kernels::sample_gather::ring;

use crate::cuda::{CudaExec, Lent, Pinned};
use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::{Replay, StepShape};
use crate::train::offline::ring::{Slots, words};
use crate::train::offline::{Offline, Rows, Shards};

/// Page-locked memory for a shard.
#[derive(Clone, Copy, Debug)]
struct Set {
    states: Pinned<f32>,
    next_states: Pinned<f32>,
    actions: Pinned<u64>,
    rewards: Pinned<f32>,
    discounts: Pinned<f32>,
    words: Pinned<u64>,
}

/// The same while a thread writes it.
struct LentSet {
    states: Lent<f32>,
    next_states: Lent<f32>,
    actions: Lent<u64>,
    rewards: Lent<f32>,
    discounts: Lent<f32>,
}

/// The rings of a staged data set.
pub struct Staging {
    shards: Shards,
    all: Arc<Rows>,
    learned: Arc<Vec<u32>>,
    stride: usize,
    rings: [Replay; 2],
    sets: [Set; 2],
    /// The shard that is drawn from; the one behind it is on the device or on its way.
    shard: u64,
    /// Gathers the shard after that.
    gathering: Option<JoinHandle<LentSet>>,
}

impl Staging {
    /// Allocates the rings and the page-locked memory; [`Staging::begin`] fills them.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc(
        exec: &mut CudaExec,
        shape: &StepShape,
        data: &Offline,
        shards: Shards,
    ) -> Result<Self, ExecError> {
        let (slots, stride) = (shards.capacity(), shape.stride);
        let mut set = || -> Result<Set, ExecError> {
            Ok(Set {
                states: exec.alloc_pinned("staging.states", slots * stride)?,
                next_states: exec.alloc_pinned("staging.next_states", slots * stride)?,
                actions: exec.alloc_pinned("staging.actions", slots)?,
                rewards: exec.alloc_pinned("staging.rewards", slots)?,
                discounts: exec.alloc_pinned("staging.discounts", slots)?,
                words: exec.alloc_pinned("staging.words", ring::WORDS as usize)?,
            })
        };
        let sets = [set()?, set()?];
        Ok(Self {
            shards,
            all: data.rows.clone(),
            learned: data.learned.clone(),
            stride,
            rings: [Replay::alloc(exec, shape, slots)?, Replay::alloc(exec, shape, slots)?],
            sets,
            shard: 0,
            gathering: None,
        })
    }

    /// Both rings, for the capture of a graph on each.
    pub fn rings(&self) -> [Replay; 2] {
        self.rings
    }

    /// Which of the rings a training step draws from.
    pub fn ring_of(&self, step: u64) -> usize {
        place(self.shards.of_step(step))
    }

    /// Puts everything where it is before training step `step`, whatever it was.
    ///
    /// # Errors
    /// What the device said.
    pub fn begin(&mut self, exec: &mut CudaExec, step: u64) -> anyhow::Result<()> {
        if let Some(set) = self.gathered()? {
            set.give_back(exec)?;
        }
        exec.synchronize()?;
        self.shard = self.shards.of_step(step);
        for shard in [self.shard, self.shard + 1] {
            self.gather(exec, shard)?;
            self.copy(exec, shard)?;
        }
        exec.after(Lane::MAIN, Lane::COPY)?;
        self.gather(exec, self.shard + 2)
    }

    /// Before training step `step`, whose number never goes back: the rings change places where it begins a shard.
    ///
    /// # Errors
    /// What the device said.
    pub fn advance(&mut self, exec: &mut CudaExec, step: u64) -> anyhow::Result<()> {
        while self.shard < self.shards.of_step(step) {
            // The next steps wait until their shard is there; the ring of the steps before them is free behind them.
            exec.after(Lane::MAIN, Lane::COPY)?;
            exec.after(Lane::COPY, Lane::MAIN)?;
            self.shard += 1;
            self.copy(exec, self.shard + 1)?;
            self.gather(exec, self.shard + 2)?;
        }
        Ok(())
    }

    /// Has a shard gathered, once its page-locked memory is not copied any more.
    fn gather(&mut self, exec: &mut CudaExec, shard: u64) -> anyhow::Result<()> {
        let set = &self.sets[place(shard)];
        let rows: Vec<u32> = self.shards.rows(shard).map(|i| self.learned[i]).collect();
        exec.write_pinned(set.words, &words(rows.len()))?;
        let mut lent = LentSet {
            states: exec.lend_pinned(set.states)?,
            next_states: exec.lend_pinned(set.next_states)?,
            actions: exec.lend_pinned(set.actions)?,
            rewards: exec.lend_pinned(set.rewards)?,
            discounts: exec.lend_pinned(set.discounts)?,
        };
        let (all, stride) = (self.all.clone(), self.stride);
        let work = move || {
            lent.slots().gather_on_threads(&all, &rows, stride);
            lent
        };
        let thread = Builder::new().name("staging".into()).spawn(work);
        self.gathering = Some(thread.context("starting the thread that gathers transitions")?);
        Ok(())
    }

    /// Begins the copy of the shard that was gathered last.
    fn copy(&mut self, exec: &mut CudaExec, shard: u64) -> anyhow::Result<()> {
        let gathered = self.gathered()?.context("no shard was gathered")?;
        gathered.give_back(exec)?;
        let (set, ring) = (&self.sets[place(shard)], &self.rings[place(shard)]);
        exec.copy_in(Lane::COPY, ring.states, set.states)?;
        exec.copy_in(Lane::COPY, ring.next_states, set.next_states)?;
        exec.copy_in(Lane::COPY, ring.actions, set.actions)?;
        exec.copy_in(Lane::COPY, ring.rewards, set.rewards)?;
        exec.copy_in(Lane::COPY, ring.discounts, set.discounts)?;
        exec.copy_in(Lane::COPY, ring.words, set.words)?;
        Ok(())
    }

    fn gathered(&mut self) -> anyhow::Result<Option<LentSet>> {
        let ended = self.gathering.take().map(JoinHandle::join).transpose();
        ended.map_err(|_| anyhow!("the thread that gathers transitions has panicked"))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The memory that its thread writes goes with the executor.
        if let Some(thread) = self.gathering.take() {
            drop(thread.join());
        }
    }
}

/// Ring and page-locked memory of a shard.
fn place(shard: u64) -> usize {
    (shard % 2) as usize
}

impl LentSet {
    fn slots(&mut self) -> Slots<'_> {
        Slots {
            states: self.states.as_mut_slice(),
            next_states: self.next_states.as_mut_slice(),
            actions: self.actions.as_mut_slice(),
            rewards: self.rewards.as_mut_slice(),
            discounts: self.discounts.as_mut_slice(),
        }
    }

    fn give_back(self, exec: &mut CudaExec) -> Result<(), ExecError> {
        exec.return_pinned(self.states)?;
        exec.return_pinned(self.next_states)?;
        exec.return_pinned(self.actions)?;
        exec.return_pinned(self.rewards)?;
        exec.return_pinned(self.discounts)
    }
}
