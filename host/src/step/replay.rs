//! The replay ring's part of a step: sampling and gather, importance weights, priorities; and of a collection step:
//! n-step windows and the insertion into the tree.

use cuda_std::Buf;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::her_relabel::HerRelabel;
use gpu::kernels::learner_signals::sample;
use gpu::kernels::n_step::NStepWindow;
use gpu::kernels::priority;
use gpu::kernels::priority_sample::{ImportanceWeights, PrioritySample};
use gpu::kernels::priority_tree::{PriorityInsert, PriorityUpdate};
use gpu::kernels::sample_gather::SampleGather;
use gpu::kernels::update_scales::scale;
use gpu::task::Task;
use settings::Priority;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::shape::StepShape;

/// The largest leaf before any was set.
const FIRST_LEAF: f32 = 1.0;

/// The tree of prioritized replay (`gpu::kernels::priority`).
#[derive(Clone, Copy, Debug)]
pub struct Priorities {
    /// Slots of the ring.
    pub capacity: usize,
    /// Groups of leaves.
    pub groups: u32,
    /// Leaves in a group.
    pub width: u32,
    /// (p + eps)^alpha of every slot, 0 where it must not be drawn `[groups, width]`.
    pub leaves: Buf<f32>,
    /// Sum of every group `[groups]`.
    pub sums: Buf<f64>,
    /// Bits of the largest leaf that was ever set, which new transitions get `[1]`.
    pub highest: Buf<u32>,
    /// Leaf of every sample of the batch `[B]`; written by sampling.
    pub chosen: Buf<f32>,
}

impl Priorities {
    /// Allocates the tree of an empty ring.
    pub fn alloc(memory: &mut impl Memory, capacity: usize, batch: usize) -> Result<Self, ExecError> {
        let (groups, width) = (priority::groups(capacity as u32), priority::width(capacity as u32));
        let tree = Self {
            capacity,
            groups,
            width,
            leaves: memory.alloc("replay.leaves", groups as usize * width as usize)?,
            sums: memory.alloc("replay.sums", groups as usize)?,
            highest: memory.alloc("replay.highest", 1)?,
            chosen: memory.alloc("replay.chosen", batch)?,
        };
        memory.upload(tree.highest, &[FIRST_LEAF.to_bits()])?;
        Ok(tree)
    }

    /// Sets the leaves of the first slots, and 0 in all others.
    pub fn set(&self, memory: &mut impl Memory, first: &[f32]) -> Result<(), ExecError> {
        let mut leaves = vec![0.0; self.leaves.len()];
        leaves[..first.len()].copy_from_slice(first);
        let sum = |group: &[f32]| group.iter().map(|&leaf| f64::from(leaf)).sum();
        let sums: Vec<f64> = leaves.chunks_exact(self.width as usize).map(sum).collect();
        memory.upload(self.leaves, &leaves)?;
        memory.upload(self.sums, &sums)?;
        let highest = first.iter().copied().fold(FIRST_LEAF, f32::max);
        memory.upload(self.highest, &[highest.to_bits()])
    }
}

/// Hindsight on a ring (`gpu::task::hindsight`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hindsight {
    /// The task that judges the new goals.
    pub task: Task,
    /// E of the collector that fills the ring.
    pub environments: usize,
    /// Share of the samples that are relabelled.
    pub share: f32,
    /// Discount of one step.
    pub gamma: f64,
}

impl Replay {
    /// The same ring for a control task, with hindsight where that is given.
    pub fn for_task(self, memory: &mut impl Memory, hindsight: Option<Hindsight>) -> Result<Self, ExecError> {
        Ok(Self { ends: memory.alloc("replay.ends", self.capacity)?, hindsight, ..self })
    }

    /// The same ring where the newest `slots` slots have windows that are not complete.
    pub fn with_pending(self, slots: usize) -> Self {
        Self { pending: slots, ..self }
    }

    /// Empties the ring.
    pub fn clear(&self, memory: &mut impl Memory) -> Result<(), ExecError> {
        memory.upload(self.words, &vec![0u64; self.words.len()])?;
        self.priorities.map_or(Ok(()), |tree| tree.set(memory, &[]))
    }
}

/// Draws a batch and gathers it, on the main lane; with priorities the importance weights follow on [`Lane::REPLAY`],
/// which the losses' lanes wait for ([`join_weights`]).
pub fn sample_batch<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: &Replay,
) -> Result<(), ExecError> {
    let (batch, stride, capacity) = (shape.batch as u32, shape.stride as u32, replay.capacity as u32);
    let Some(tree) = &replay.priorities else {
        let uniform = SampleGather {
            batch,
            stride,
            capacity,
            pending: replay.pending as u32,
            seed: shape.seed,
            clock_words: b.clock.into(),
            ring_words: replay.words.into(),
            states: replay.states.into(),
            next_states: replay.next_states.into(),
            ring_actions: replay.actions.into(),
            ring_rewards: replay.rewards.into(),
            ring_discounts: replay.discounts.into(),
            x: b.batch.x.into(),
            actions: b.batch.actions.into(),
            rewards: b.batch.rewards.into(),
            discounts: b.batch.discounts.into(),
            weights: b.batch.weights.into(),
            indices: b.batch.indices.into(),
        };
        exec.launch(Lane::MAIN, &uniform)?;
        return relabel(exec, shape, b, replay);
    };
    let draw = PrioritySample {
        batch,
        stride,
        capacity,
        groups: tree.groups,
        width: tree.width,
        share: 1.0 / shape.batch as f64,
        seed: shape.seed,
        clock_words: b.clock.into(),
        sums: tree.sums.into(),
        leaves: tree.leaves.into(),
        states: replay.states.into(),
        next_states: replay.next_states.into(),
        ring_actions: replay.actions.into(),
        ring_rewards: replay.rewards.into(),
        ring_discounts: replay.discounts.into(),
        x: b.batch.x.into(),
        actions: b.batch.actions.into(),
        rewards: b.batch.rewards.into(),
        discounts: b.batch.discounts.into(),
        indices: b.batch.indices.into(),
        chosen: tree.chosen.into(),
    };
    exec.launch(Lane::MAIN, &draw)?;
    exec.after(Lane::REPLAY, Lane::MAIN)?;
    let weights = ImportanceWeights {
        batch,
        beta_steps: shape.replay.beta_steps,
        beta_start: shape.replay.beta_start,
        beta_end: shape.replay.beta_end,
        clock_words: b.clock.into(),
        chosen: tree.chosen.into(),
        weights: b.batch.weights.into(),
    };
    exec.launch(Lane::REPLAY, &weights)
}

/// Gives samples that were just gathered another goal, where hindsight is on.
fn relabel<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: &Replay,
) -> Result<(), ExecError> {
    let Some(hindsight) = &replay.hindsight else { return Ok(()) };
    let relabel = HerRelabel {
        batch: shape.batch as u32,
        stride: shape.stride as u32,
        environments: hindsight.environments as u32,
        capacity: replay.capacity as u32,
        kind: hindsight.task.kind,
        size: hindsight.task.size,
        share: hindsight.share,
        gamma: hindsight.gamma,
        seed: shape.seed,
        clock_words: b.clock.into(),
        ring_words: replay.words.into(),
        indices: b.batch.indices.into(),
        ring_next_states: replay.next_states.into(),
        ring_ends: replay.ends.into(),
        x: b.batch.x.into(),
        rewards: b.batch.rewards.into(),
        discounts: b.batch.discounts.into(),
    };
    exec.launch(Lane::MAIN, &relabel)
}

/// The main lane waits for the importance weights.
pub fn join_weights<E: Exec>(exec: &mut E, replay: Option<&Replay>) -> Result<(), ExecError> {
    match replay.and_then(|replay| replay.priorities) {
        Some(_) => exec.after(Lane::MAIN, Lane::REPLAY),
        None => Ok(()),
    }
}

/// Forks [`Lane::REPLAY`] for the new priorities of the batch, once the norms are there; false without priorities. Beside
/// the optimizer and the signals, which touch nothing of the tree.
pub fn update_priorities<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
) -> Result<bool, ExecError> {
    let Some(tree) = replay.and_then(|replay| replay.priorities) else { return Ok(false) };
    let settings = &shape.replay;
    // What decides whether the step is skipped: all norms, or the partial sums of squares of the only one.
    let norms = match &b.parts {
        Some(parts) => {
            parts.scales.slice(scale::TERM_NORM as usize, (scale::WORDS - scale::TERM_NORM) as usize)
        }
        None => b.sums,
    };
    let update = PriorityUpdate {
        batch: shape.batch as u32,
        groups: tree.groups,
        width: tree.width,
        column: match settings.priority {
            Priority::Td => stat::TD,
            Priority::CrossEntropy => stat::LOSS,
        },
        count: norms.len() as u32,
        iqn_weight: settings.iqn_weight as f32,
        eps: settings.eps as f32,
        alpha: settings.alpha as f32,
        norms: norms.into(),
        indices: b.batch.indices.into(),
        stats: b.stats.into(),
        iqn: b.parts.as_ref().map_or(Buf::NULL, |parts| parts.sample(shape, sample::IQN, 1)).into(),
        leaves: tree.leaves.into(),
        sums: tree.sums.into(),
        highest: tree.highest.into(),
    };
    exec.after(Lane::REPLAY, Lane::MAIN)?;
    exec.launch(Lane::REPLAY, &update)?;
    Ok(true)
}

/// What a collection step's insertion reads besides the ring.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// E.
    pub environments: usize,
    /// n.
    pub steps: usize,
    /// Discount of one step.
    pub gamma: f64,
    /// End flags of the step `[E]`.
    pub flags: Buf<u32>,
    /// Steps of each running episode, counted up to n `[E]`.
    pub ages: Buf<u32>,
}

/// Completes the transitions that a collection step wrote, before the cursor moves.
pub fn insert<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    replay: &Replay,
    w: &Windows,
) -> Result<(), ExecError> {
    let (environments, capacity) = (w.environments as u32, replay.capacity as u32);
    if w.steps > 1 {
        let window = NStepWindow {
            environments,
            steps: w.steps as u32,
            capacity,
            stride: shape.stride as u32,
            gamma: w.gamma,
            ring_words: replay.words.into(),
            flags: w.flags.into(),
            ages: w.ages.into(),
            ring_rewards: replay.rewards.into(),
            ring_discounts: replay.discounts.into(),
            ring_next_states: replay.next_states.into(),
        };
        exec.launch(Lane::MAIN, &window)?;
    }
    let Some(tree) = &replay.priorities else { return Ok(()) };
    let insert = PriorityInsert {
        inserted: environments,
        pending: replay.pending as u32,
        capacity,
        groups: tree.groups,
        width: tree.width,
        ring_words: replay.words.into(),
        highest: tree.highest.into(),
        leaves: tree.leaves.into(),
        sums: tree.sums.into(),
    };
    exec.launch(Lane::MAIN, &insert)
}
