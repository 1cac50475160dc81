//! What a step leaves in device memory for the next one, by name: saved and restored, a run goes on bit for bit.
//!
//! Every buffer of a step is one of three: constant (written when it is allocated, the same in every process), scratch
//! (written before it is read in every step), or state, which is listed here. The structs are taken apart field by
//! field, so that a new buffer does not compile before somebody has said which of the three it is; and
//! `tests/cpu/resumed.rs` compares every buffer of steps after a restoration with those of a run that was not
//! interrupted.

use cuda_std::Buf;
use gpu::kernels::sample_gather::ring;

use crate::error::ExecError;
use crate::exec::Memory;
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::collect::Collector;
use crate::step::parts::{PartBuffers, SpectralBuffers};
use crate::step::replay::Priorities;
use crate::tensors::{TensorError, Tensors};

/// Device memory of any element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// Single precision.
    F32(Buf<f32>),
    /// Double precision.
    F64(Buf<f64>),
    /// Counters of one environment, flags.
    U32(Buf<u32>),
    /// Counters, packed actions.
    U64(Buf<u64>),
}

macro_rules! from {
    ($($variant:ident $element:ident),*) => { $(
        impl From<Buf<$element>> for Words {
            fn from(buffer: Buf<$element>) -> Words {
                Words::$variant(buffer)
            }
        }
    )* };
}

from!(F32 f32, F64 f64, U32 u32, U64 u64);

/// A named piece of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateBlock {
    /// Unique in a run.
    pub name: String,
    /// Where it is.
    pub words: Words,
}

impl StateBlock {
    /// Names a buffer.
    pub fn new(name: impl Into<String>, words: impl Into<Words>) -> Self {
        Self { name: name.into(), words: words.into() }
    }
}

/// Why a state cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The copy to the device failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A tensor is missing or of another type or length.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An account that stands behind the last bar.
    #[error(transparent)]
    Account(#[from] gpu::market::MarketError),
    /// An episode that no run of the task can be in.
    #[error(transparent)]
    Episode(#[from] gpu::task::TaskError),
    /// A counter that no run of this shape can have.
    #[error("`{name}` is {found}, expected {expected}")]
    Count {
        /// The counter.
        name: String,
        /// Its value.
        found: u64,
        /// What it should be.
        expected: String,
    },
}

/// Copies the blocks to the host.
///
/// # Errors
/// What the copy said.
pub fn save(memory: &mut impl Memory, blocks: &[StateBlock], to: &mut Tensors) -> Result<(), ExecError> {
    for StateBlock { name, words } in blocks {
        match *words {
            Words::F32(buffer) => to.put(name, memory.download(buffer)?),
            Words::F64(buffer) => to.put(name, memory.download(buffer)?),
            Words::U32(buffer) => to.put(name, memory.download(buffer)?),
            Words::U64(buffer) => to.put(name, memory.download(buffer)?),
        }
    }
    Ok(())
}

/// Copies the blocks' tensors to the device.
///
/// # Errors
/// [`StateError`] at the first one that is missing or of another type or length.
pub fn load(memory: &mut impl Memory, blocks: &[StateBlock], from: &mut Tensors) -> Result<(), StateError> {
    for StateBlock { name, words } in blocks {
        match *words {
            Words::F32(buffer) => memory.upload(buffer, &from.take(name, buffer.len())?)?,
            Words::F64(buffer) => memory.upload(buffer, &from.take(name, buffer.len())?)?,
            Words::U32(buffer) => memory.upload(buffer, &from.take(name, buffer.len())?)?,
            Words::U64(buffer) => memory.upload(buffer, &from.take(name, buffer.len())?)?,
        }
    }
    Ok(())
}

impl StepBuffers {
    /// What a training step leaves for the next one.
    pub fn state(&self) -> Vec<StateBlock> {
        let Self {
            parameters,
            batch: _,
            online: _,
            target: _,
            c51: _,
            stats: _,
            cross_entropy: _,
            td_error: _,
            sums: _,
            support,
            branch_scales: _,
            hyper: _,
            clock,
            adam,
            history,
            parts,
            spectral,
            probe,
            factors,
            noise: _,
            pruning,
            copies: _,
        } = self;
        let mut state = vec![
            StateBlock::new("online", parameters.online),
            StateBlock::new("target", parameters.target),
            StateBlock::new("adam.m", parameters.m),
            StateBlock::new("adam.v", parameters.v),
            StateBlock::new("support", *support),
            StateBlock::new("clock", *clock),
            StateBlock::new("adam.clock", *adam),
            // The rows of the steps that have not been reported, and the vaccine's cosine of the latest ones.
            StateBlock::new("history", *history),
            // The masks of pruned weights; the noise beside them is made anew in every step.
            StateBlock::new("factors", *factors),
        ];
        if let Some(parts) = parts {
            state.extend(part_state(parts));
        }
        if let Some(SpectralBuffers { stride: _, matrices: _, u, v: _, y: _, z: _, sigma: _ }) = spectral {
            state.push(StateBlock::new("spectral.u", *u));
        }
        if let Some(probe) = probe {
            state.push(StateBlock::new("probe.sensitivity", probe.sensitivity));
        }
        if let Some(pruning) = pruning {
            state.push(StateBlock::new("prune.zeros", pruning.zeros));
        }
        state
    }
}

fn part_state(parts: &PartBuffers) -> Vec<StateBlock> {
    let PartBuffers {
        cql: _,
        cql_excess: _,
        iqn: _,
        iql,
        auxiliary,
        vaccine: _,
        attention: _,
        mamba: _,
        partial: _,
        grads: _,
        trunk_parts: _,
        trunk_grads: _,
        sums: _,
        squares: _,
        ranges: _,
        ends: _,
        budgets: _,
        scales: _,
        samples: _,
    } = parts;
    let mut state = Vec::new();
    if let Some(iql) = iql {
        state.push(StateBlock::new("iql.averages", iql.averages));
        state.push(StateBlock::new("iql.epsilon", iql.epsilon));
    }
    if let Some(confidence) = auxiliary.and_then(|auxiliary| auxiliary.confidence) {
        state.push(StateBlock::new("confidence.kept", confidence.kept));
    }
    state
}

impl Replay {
    /// The ring's first `filled` slots, its counters and its tree.
    pub fn state(&self, name: &str, filled: usize) -> Vec<StateBlock> {
        let Self {
            capacity,
            states,
            next_states,
            actions,
            rewards,
            discounts,
            words,
            pending: _,
            priorities,
            ends,
            hindsight: _,
        } = self;
        let rows = |buffer: &Buf<f32>| buffer.slice(0, filled * (buffer.len() / capacity));
        let mut state = vec![
            StateBlock::new(format!("{name}.states"), rows(states)),
            StateBlock::new(format!("{name}.next_states"), rows(next_states)),
            StateBlock::new(format!("{name}.actions"), actions.slice(0, filled)),
            StateBlock::new(format!("{name}.rewards"), rewards.slice(0, filled)),
            StateBlock::new(format!("{name}.discounts"), discounts.slice(0, filled)),
            StateBlock::new(format!("{name}.words"), *words),
        ];
        if !ends.is_empty() {
            state.push(StateBlock::new(format!("{name}.ends"), ends.slice(0, filled)));
        }
        state.extend(priorities.iter().flat_map(|tree| tree.state(name)));
        state
    }
}

impl Priorities {
    /// The tree: all that changes in a ring that holds a data set.
    pub fn state(&self, name: &str) -> [StateBlock; 3] {
        let Priorities { capacity: _, groups: _, width: _, leaves, sums, highest, chosen: _ } = self;
        [
            StateBlock::new(format!("{name}.leaves"), *leaves),
            StateBlock::new(format!("{name}.sums"), *sums),
            StateBlock::new(format!("{name}.highest"), *highest),
        ]
    }
}

impl Collector {
    /// Copies the state to the host: of the ring only the slots that hold a transition.
    ///
    /// # Errors
    /// What the copy said.
    pub fn save(&self, memory: &mut impl Memory, name: &str, to: &mut Tensors) -> Result<(), ExecError> {
        let filled = memory.download(self.replay.words)?[ring::SIZE as usize] as usize;
        save(memory, &self.state(name, filled.min(self.replay.capacity)), to)
    }

    /// Goes on from a saved state.
    ///
    /// # Errors
    /// [`StateError`] if it is not one of these environments and this ring.
    pub fn load(&self, memory: &mut impl Memory, name: &str, from: &mut Tensors) -> Result<(), StateError> {
        let words = format!("{name}.ring.words");
        let (capacity, counters) = (self.replay.capacity, from.get::<u64>(&words)?);
        let count = |word: u32, most: usize| match counters.get(word as usize) {
            Some(&count) if count <= most as u64 => Ok(count as usize),
            other => Err(StateError::Count {
                name: words.clone(),
                found: other.copied().unwrap_or_default(),
                expected: format!("at most {most}"),
            }),
        };
        let filled = count(ring::SIZE, capacity)?;
        count(ring::CURSOR, capacity.saturating_sub(1))?;
        let counters = from.get::<u32>(&format!("{name}.counters"))?;
        self.environment.check_counters(counters, self.environments)?;
        load(memory, &self.state(name, filled), from)
    }
}
