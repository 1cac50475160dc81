//! Greedy episodes of a control task on the GPU: an environment for each, one graph launch for a step of all of them.

use anyhow::{Context, bail};
use cuda_std::Buf;
use gpu::task::Finished;
use settings::{Config, Precision};

use crate::cuda::{CudaExec, Graph};
use crate::exec::Memory;
use crate::step::{Collector, CollectorInput, EnvironmentInput, Environments, Matmul, Replay, StepShape};
use crate::train::Stop;
use crate::train::task::TaskRun;

/// Graph launches between two looks at whether all episodes have ended.
const CHUNK: usize = 50;

/// The environments of an evaluation, with a ring that holds one step of theirs.
pub struct GreedyEpisodes {
    shape: StepShape,
    collector: Collector,
    graph: Graph,
    limit: usize,
}

impl GreedyEpisodes {
    /// Allocates and captures. As in a backtest the products are the Rust kernels' in fp32: the same checkpoint gives the
    /// same decisions whatever cuBLASLt is installed.
    pub fn new(
        exec: &mut CudaExec,
        config: &Config,
        run: &TaskRun,
        (online, support): (Buf<f32>, Buf<f32>),
    ) -> anyhow::Result<Self> {
        let mut shape = StepShape::new(config, Matmul::Rust);
        shape.precision = Precision::Fp32;
        // Nothing is drawn from an evaluation's ring.
        shape.replay = settings::Replay::default();
        let input = CollectorInput {
            environment: EnvironmentInput::Task {
                task: run.task,
                gamma: run.gamma,
                seed: run.seed,
                greedy: true,
            },
            environments: run.episodes,
            log_rows: 1,
            clock: None,
            support: Some(support),
            epsilon: None,
            explores: false,
        };
        let ring = Replay::alloc(exec, &shape, run.episodes)?.for_task(exec, None)?;
        let collector = Collector::alloc(exec, &shape, input, ring, "evaluation")?;
        collector.record(exec, &shape, online)?;
        let graph = Graph::capture(exec, |exec| collector.record(exec, &shape, online))
            .context("capturing the evaluation")?;
        Ok(Self { shape, collector, graph, limit: run.task.limit as usize })
    }

    /// One episode of every environment, with the starts of `seed`.
    pub fn run(&self, exec: &mut CudaExec, seed: u64, stop: &Stop) -> anyhow::Result<Vec<Finished>> {
        let Environments::Task(task) = self.collector.environment else {
            bail!("the evaluation's environments are not a task's");
        };
        self.collector.reset(exec)?;
        exec.upload(task.seed, &[seed])?;
        self.collector.record_first(exec, &self.shape)?;
        let mut done = 0;
        while done < self.limit {
            stop.check()?;
            let chunk = CHUNK.min(self.limit - done);
            for _ in 0..chunk {
                self.graph.replay(exec)?;
            }
            done += chunk;
            let finished = task.finished(exec)?;
            if finished.iter().all(Option::is_some) {
                return Ok(finished.into_iter().flatten().collect());
            }
        }
        bail!("an episode was longer than task.limit = {}", self.limit)
    }
}
