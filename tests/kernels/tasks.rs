//! Environments of a control task on a back end, and Gymnasium's recorded steps: what the bodies of the tasks' kernels
//! share.

use cuda_std::Buf;
use gpu::kernels::sample_gather::ring;
use gpu::kernels::task_step::TaskStep;
use gpu::task::{COUNTERS, LOG_FIELDS, Task, WORDS};
use host::error::ExecError;
use safetensors::SafeTensors;

use super::{Backend, Outcome, filled, launch, put};

/// What slots of the ring hold before they are written.
pub const UNWRITTEN: f32 = -7.0;

/// Buffers of environments and their replay ring.
pub struct Tasks {
    /// The task.
    pub task: Task,
    /// E.
    pub environments: usize,
    /// Slots.
    pub capacity: usize,
    /// Floats of a state row: some more than are used, which must be zero.
    pub stride: usize,
    log_rows: usize,
    gamma: f64,
    seed: Buf<u64>,
    /// Packed actions `[E]`.
    pub actions: Buf<u64>,
    /// `[WORDS, E]`.
    pub words: Buf<u64>,
    /// `[COUNTERS, E]`.
    pub counters: Buf<u32>,
    /// Size and cursor.
    pub ring_words: Buf<u64>,
    /// `[E, stride]`.
    pub states: Buf<f32>,
    /// `[capacity, stride]`.
    pub ring_states: Buf<f32>,
    /// `[capacity, stride]`.
    pub ring_next_states: Buf<f32>,
    /// `[capacity]`.
    pub ring_actions: Buf<u64>,
    /// `[capacity]`.
    pub ring_rewards: Buf<f32>,
    /// `[capacity]`.
    pub ring_discounts: Buf<f32>,
    /// `[capacity]`.
    pub ring_ends: Buf<u32>,
    /// `[E]`.
    pub flags: Buf<u32>,
    /// `[E, log_rows, LOG_FIELDS]`.
    pub log: Buf<f64>,
}

impl Tasks {
    /// Environments before their first episode and an empty ring.
    pub fn new<B: Backend>(
        b: &mut B,
        task: Task,
        (environments, capacity, log_rows): (usize, usize, usize),
        (gamma, seed): (f64, u64),
    ) -> Result<Self, ExecError> {
        let stride = (task.spec().observation as usize).next_multiple_of(4) + 4;
        Ok(Self {
            task,
            environments,
            capacity,
            stride,
            log_rows,
            gamma,
            seed: put(b, "seed", &[seed])?,
            actions: b.alloc("actions", environments)?,
            words: b.alloc("words", WORDS as usize * environments)?,
            counters: b.alloc("counters", COUNTERS as usize * environments)?,
            ring_words: b.alloc("ring", ring::WORDS as usize)?,
            states: filled(b, "states", environments * stride, f32::NAN)?,
            ring_states: filled(b, "ring states", capacity * stride, UNWRITTEN)?,
            ring_next_states: filled(b, "ring next states", capacity * stride, UNWRITTEN)?,
            ring_actions: b.alloc("ring actions", capacity)?,
            ring_rewards: filled(b, "ring rewards", capacity, UNWRITTEN)?,
            ring_discounts: filled(b, "ring discounts", capacity, UNWRITTEN)?,
            ring_ends: filled(b, "ring ends", capacity, 99u32)?,
            flags: b.alloc("flags", environments)?,
            log: b.alloc("log", environments * log_rows * LOG_FIELDS as usize)?,
        })
    }

    /// The launch of a step, or with `insert` 0 of the first observation.
    pub fn kernel(&self, insert: u32) -> TaskStep {
        TaskStep {
            environments: self.environments as u32,
            stride: self.stride as u32,
            kind: self.task.kind,
            size: self.task.size,
            limit: self.task.limit,
            capacity: self.capacity as u32,
            log_rows: self.log_rows as u32,
            insert,
            gamma: self.gamma,
            seed_words: self.seed.into(),
            actions: self.actions.into(),
            words: self.words.into(),
            counters: self.counters.into(),
            ring_words: self.ring_words.into(),
            states: self.states.into(),
            ring_states: self.ring_states.into(),
            ring_next_states: self.ring_next_states.into(),
            ring_actions: self.ring_actions.into(),
            ring_rewards: self.ring_rewards.into(),
            ring_discounts: self.ring_discounts.into(),
            ring_ends: self.ring_ends.into(),
            flags: self.flags.into(),
            log: self.log.into(),
        }
    }

    /// One step with these actions, at this cursor of the ring.
    pub fn step<B: Backend>(&self, b: &mut B, actions: &[u64], cursor: usize) -> Outcome {
        b.upload(self.actions, actions)?;
        let mut counters = vec![0u64; ring::WORDS as usize];
        counters[ring::CURSOR as usize] = cursor as u64;
        b.upload(self.ring_words, &counters)?;
        launch(b, self.kernel(1))
    }
}

/// Steps that Gymnasium took (`scripts/record-gymnasium.py`).
pub struct Recorded {
    /// Numbers of a state.
    pub width: usize,
    /// The state that each step was taken from `[N, width]`.
    pub states: Vec<f32>,
    /// The state that it led to.
    pub next: Vec<f32>,
    /// Steps of its episode before it.
    pub before: Vec<u32>,
    /// Actions.
    pub actions: Vec<u64>,
    /// Rewards.
    pub rewards: Vec<f32>,
    /// The task was over.
    pub terminated: Vec<bool>,
    /// The step limit was reached.
    pub truncated: Vec<bool>,
}

impl Recorded {
    /// A file of `tests/data`.
    pub fn read(task: &str) -> Self {
        let file = format!("tests/data/gymnasium_{task}.safetensors");
        let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
        // A program that was built here and carried elsewhere finds the file from the repository's root.
        let path = if std::path::Path::new(&path).exists() { path } else { file };
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        let tensor = |name: &str| tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let words = |name: &str| -> Vec<[u8; 4]> {
            tensor(name).data().chunks_exact(4).map(|w| [w[0], w[1], w[2], w[3]]).collect()
        };
        let bools = |name: &str| tensor(name).data().iter().map(|&flag| flag != 0).collect();
        let width = tensor("states").shape()[1];
        let rows: Vec<f32> = words("states").into_iter().map(f32::from_le_bytes).collect();
        let mut recorded = Self {
            width,
            states: Vec::new(),
            next: Vec::new(),
            before: Vec::new(),
            actions: tensor("actions").data().iter().map(|&a| a.into()).collect(),
            rewards: tensor("rewards").data().iter().map(|&r| f32::from(r as i8)).collect(),
            terminated: bools("terminated"),
            truncated: bools("truncated"),
        };
        // An episode's rows are its states and the one after its last step.
        let mut row = 0;
        for length in words("lengths").into_iter().map(u32::from_le_bytes) {
            for step in 0..length {
                recorded.states.extend_from_slice(&rows[row * width..][..width]);
                recorded.next.extend_from_slice(&rows[(row + 1) * width..][..width]);
                recorded.before.push(step);
                row += 1;
            }
            row += 1;
        }
        assert_eq!(row * width, rows.len(), "{path}: episodes and states");
        assert_eq!(recorded.before.len(), recorded.actions.len(), "{path}: episodes and actions");
        recorded
    }

    /// N.
    pub fn len(&self) -> usize {
        self.actions.len()
    }
}
