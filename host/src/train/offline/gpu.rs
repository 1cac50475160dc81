//! Offline training on the GPU: the data set in the device's ring, one graph launch a step.

use anyhow::Context;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::step_signals::signal;
use gpu::{action, clock};
use settings::Config;

use crate::cuda::{CudaExec, Graph};
use crate::error::ExecError;
use crate::exec::Memory;
use crate::step::{Kept, Matmul, Replay, StepBuffers, StepShape, record, record_pruning};
use crate::train::Stop;
use crate::train::agent::StepRow;
use crate::train::gpu::part_row;
use crate::train::offline::{OfflineAgent, OfflineData, Ring};

/// Graph launches between two looks at the device.
const CHUNK: usize = 250;

/// A ring on the device that holds exactly these transitions, all of which can be drawn; new ones never come.
///
/// # Errors
/// Out of device memory.
pub fn upload(memory: &mut impl Memory, shape: &StepShape, ring: &Ring) -> Result<Replay, ExecError> {
    let (rows, state, branches) = (ring.len(), shape.model.state, shape.model.branches.len());
    let replay = Replay::alloc(memory, shape, rows)?;
    // A row's padding is zero, as collection leaves it.
    let padded = |values: &[f32]| -> Vec<f32> {
        let mut out = vec![0.0; rows * shape.stride];
        for (row, values) in out.chunks_exact_mut(shape.stride).zip(values.chunks_exact(state)) {
            row[..state].copy_from_slice(values);
        }
        out
    };
    memory.upload(replay.states, &padded(&ring.states))?;
    memory.upload(replay.next_states, &padded(&ring.next_states))?;
    let packed = |own: &[u32]| {
        own.iter().enumerate().fold(0, |packed, (d, &a)| action::with_branch(packed, d as u32, a))
    };
    let actions: Vec<u64> = ring.actions.chunks_exact(branches).map(packed).collect();
    memory.upload(replay.actions, &actions)?;
    memory.upload(replay.rewards, &ring.rewards)?;
    memory.upload(replay.discounts, &ring.discounts)?;
    let mut words = vec![0u64; replay.words.len()];
    words[0] = rows as u64;
    memory.upload(replay.words, &words)?;
    if let Some(tree) = replay.priorities {
        tree.set(memory, &vec![1.0; rows])?;
    }
    Ok(replay)
}

/// The learner with the data set on the device.
pub struct GpuOffline {
    exec: CudaExec,
    shape: StepShape,
    buffers: StepBuffers,
    train_graph: Graph,
    /// The training step that begins with a pruning.
    pruning_graph: Option<Graph>,
    steps: u64,
    description: String,
    max_nonfinite: u64,
}

impl GpuOffline {
    /// Allocates and uploads everything, runs the step once eagerly, captures it, then sets the initial parameters.
    ///
    /// # Errors
    /// A configuration that the device's step does not have, or too little device memory.
    pub fn new(
        config: &Config,
        data: &OfflineData,
        mut exec: CudaExec,
        matmul: Matmul,
    ) -> anyhow::Result<Self> {
        StepShape::check_supported(config)?;
        let shape = StepShape::new(config, matmul);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer)?;
        let replay = upload(&mut exec, &shape, &data.learned)
            .with_context(|| format!("uploading {} transitions", data.learned.len()))?;
        record(&mut exec, &shape, &buffers, Some(&replay))?;
        let train_graph = Graph::capture(&mut exec, |exec| record(exec, &shape, &buffers, Some(&replay)))
            .context("capturing the training step")?;
        let pruning_graph = match config.pruning.enabled {
            true => {
                record_pruning(&mut exec, &shape, &buffers, Some(&replay))?;
                let record = |exec: &mut CudaExec| record_pruning(exec, &shape, &buffers, Some(&replay));
                Some(Graph::capture(&mut exec, record).context("capturing the pruning step")?)
            }
            false => None,
        };
        exec.seal();
        // Undoes what the eager runs wrote.
        let initial = cpu_path::init_parameters(&shape.flat, config.train.seed);
        let p = buffers.parameters;
        let zeros = vec![0.0f32; initial.len()];
        exec.upload(p.online, &initial)?;
        exec.upload(p.target, &initial[..p.target.len()])?;
        exec.upload(p.m, &zeros)?;
        exec.upload(p.v, &zeros)?;
        buffers.start(&mut exec, &shape)?;
        buffers.start_factors(&mut exec)?;
        exec.upload(buffers.clock, &[0u64; clock::WORDS as usize])?;
        exec.upload(buffers.adam, &[0u64; clock::adam::WORDS as usize])?;
        if let Some(tree) = replay.priorities {
            tree.set(&mut exec, &vec![1.0; data.learned.len()])?;
        }
        let description = format!(
            "{} ({:?}, products by {matmul:?})",
            exec.gpu().properties().name,
            config.train.precision
        );
        Ok(Self {
            exec,
            shape,
            buffers,
            train_graph,
            pruning_graph,
            steps: 0,
            description,
            max_nonfinite: config.train.max_nonfinite.into(),
        })
    }

    /// History rows of the last `count` steps, oldest first.
    fn history(&mut self, count: usize) -> anyhow::Result<Vec<StepRow>> {
        let words = self.exec.download(self.buffers.history)?;
        let (rows, columns) = (self.shape.history as u64, signal::COLUMNS as usize);
        let row = |step: u64| {
            let row = &words[(step % rows) as usize * columns..][..columns];
            StepRow {
                loss: row[stat::WEIGHTED_LOSS as usize],
                td: row[stat::TD as usize],
                q: row[stat::Q_TAKEN as usize],
                clipped_low: row[stat::CLIPPED_LOW as usize],
                clipped_high: row[stat::CLIPPED_HIGH as usize],
                gradient_norm: row[signal::GRADIENT_NORM as usize],
                skipped: row[signal::SKIPPED as usize] != 0.0,
                parts: part_row(&self.shape, row, step),
            }
        };
        Ok((self.steps - count as u64..self.steps).map(row).collect())
    }
}

impl OfflineAgent for GpuOffline {
    fn device(&self) -> String {
        self.description.clone()
    }

    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Vec<StepRow>> {
        let mut rows = Vec::with_capacity(steps);
        while rows.len() < steps && !stop.asked() {
            let chunk = CHUNK.min(steps - rows.len());
            for step in self.steps..self.steps + chunk as u64 {
                let pruning = self.pruning_graph.as_ref().filter(|_| self.shape.pruning.due(step));
                pruning.unwrap_or(&self.train_graph).replay(&mut self.exec)?;
            }
            self.steps += chunk as u64;
            // Downloading waits for the chunk.
            rows.extend(self.history(chunk)?);
            progress(rows.len());
            if self.skipped_in_a_row()? >= self.max_nonfinite {
                break;
            }
        }
        Ok(rows)
    }

    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)> {
        let p = self.buffers.parameters;
        Ok((self.exec.download(p.online)?, self.exec.download(p.target)?))
    }

    fn kept(&mut self) -> anyhow::Result<Kept> {
        Ok(self.buffers.kept(&mut self.exec)?)
    }

    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64> {
        Ok(self.exec.download(self.buffers.clock)?[clock::SKIPPED_IN_A_ROW as usize])
    }
}
