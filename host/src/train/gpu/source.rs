//! What fills the rings of the GPU agent, and the training steps that draw from them.

use std::sync::Arc;

use anyhow::Context;

use crate::cuda::{CudaExec, Graph};
use crate::step::{Collector, Replay, StepBuffers, StepShape, record, record_pruning};
use crate::train::offline::{Rows, Staging};
use crate::train::profiler::Profiler;

/// The environments, and their step.
pub(super) struct Collection {
    pub(super) collector: Collector,
    pub(super) graph: Graph,
}

/// A ring with the training steps that draw from it.
pub(super) struct Drawn {
    pub(super) replay: Replay,
    pub(super) train_graph: Graph,
    /// The training step that begins with a pruning.
    pub(super) pruning_graph: Option<Graph>,
    /// Times the last steps of an epoch.
    pub(super) profiler: Option<Profiler>,
}

impl Drawn {
    /// Runs the steps once eagerly, so that plans and workspaces exist before the capture, and captures them.
    pub(super) fn capture(
        exec: &mut CudaExec,
        shape: &StepShape,
        buffers: &StepBuffers,
        replay: Replay,
        profile: bool,
    ) -> anyhow::Result<Self> {
        record(exec, shape, buffers, Some(&replay))?;
        let train_graph = Graph::capture(exec, |exec| record(exec, shape, buffers, Some(&replay)))
            .and_then(|graph| graph.in_known_order(exec))
            .context("capturing the training step")?;
        let pruning_graph = match shape.pruning.enabled {
            true => {
                record_pruning(exec, shape, buffers, Some(&replay))?;
                let record = |exec: &mut CudaExec| record_pruning(exec, shape, buffers, Some(&replay));
                Some(Graph::capture(exec, record).context("capturing the pruning step")?)
            }
            false => None,
        };
        let profiler = match profile {
            true => Some(Profiler::new(exec, shape, buffers, &replay)?),
            false => None,
        };
        Ok(Self { replay, train_graph, pruning_graph, profiler })
    }
}

/// What fills the ring.
pub(super) enum Source {
    /// Environments.
    Collection(Box<Collection>),
    /// A data set, once.
    Resident { rows: Arc<Rows>, learned: Arc<Vec<u32>> },
    /// A data set, shard by shard.
    Staged(Box<Staging>),
}
