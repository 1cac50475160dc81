//! What the training loop needs of an agent, on either device.

use std::ops::ControlFlow;

use gpu::market::LogRow;
use gpu::task::Finished;
use serde::{Deserialize, Serialize};

use crate::cublaslt::cache::PlanTable;
use crate::step::Kept;
use crate::tensors::Tensors;
use crate::train::Stop;
use crate::train::profiler::StepProfile;

/// Which part of the bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PartName {
    /// Bars the agent learns from.
    Train,
    /// Bars that choose the best checkpoint.
    Validation,
    /// Bars that are looked at once, at the end.
    Test,
}

impl PartName {
    /// Place among the three parts.
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Train => 0,
            Self::Validation => 1,
            Self::Test => 2,
        }
    }
}

/// Networks and optimizer of an agent, with which another fold may go on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    /// Online parameters, flat.
    pub online: Vec<f32>,
    /// Target parameters, flat.
    pub target: Vec<f32>,
    /// Adam's first moments.
    pub m: Vec<f32>,
    /// Adam's second moments.
    pub v: Vec<f32>,
    /// Adam's updates so far.
    pub updates: u64,
    /// What the spectral norm keeps, as the agent's device has it; empty without it.
    pub spectral: Vec<f32>,
    /// What the value networks and the confidence head keep.
    pub kept: Kept,
}

/// One training step's numbers; the same columns on both devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct StepRow {
    /// Importance-weighted C51 loss, batch mean.
    pub loss: f32,
    /// |E_m[z] - Q|, mean over branches and batch.
    pub td: f32,
    /// Q(s, a), mean over branches and batch.
    pub q: f32,
    /// Target mass below the support.
    pub clipped_low: f32,
    /// Target mass above the support.
    pub clipped_high: f32,
    /// Gradient norm before the clip.
    pub gradient_norm: f32,
    /// The step was skipped because the norm is not finite.
    pub skipped: bool,
    /// The parts beside C51.
    #[serde(flatten)]
    pub parts: PartRow,
}

/// Losses (batch means) and unclipped gradient norms of the parts beside C51; absent where a part is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct PartRow {
    /// Conservative term, alpha included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_cql: Option<f32>,
    /// Quantile loss, importance-weighted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_iqn: Option<f32>,
    /// Expectile loss of V_high.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_iql_high: Option<f32>,
    /// Expectile loss of V_low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_iql_low: Option<f32>,
    /// Ensemble's weighted cross-entropy less its bonus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_ensemble: Option<f32>,
    /// Variance over the ensemble's members of their expected values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<f32>,
    /// Confidence head's cross-entropy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_confidence: Option<f32>,
    /// V_high - V_low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iql_gap: Option<f32>,
    /// Exploration by the value networks, after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iql_epsilon: Option<f32>,
    /// Lower end of the support after the step, where it adapts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_min: Option<f32>,
    /// Upper end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_max: Option<f32>,
    /// Cosine of the step's gradient and that of held-out data, in the steps that have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vaccine_cosine: Option<f32>,
    /// Running median of td after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub td_median: Option<f32>,
    /// C51's gradient on the main parameters, before its budget; only where there are budgets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_c51: Option<f32>,
    /// The conservative term's on the main parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_cql: Option<f32>,
    /// The quantile loss's on the trunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_iqn_trunk: Option<f32>,
    /// The ensemble's and the confidence head's together on the trunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_aux_trunk: Option<f32>,
    /// The quantile head's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_iqn: Option<f32>,
    /// The attention's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_attention: Option<f32>,
    /// The Mamba-2 block's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_mamba: Option<f32>,
    /// V_high's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_iql_high: Option<f32>,
    /// V_low's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_iql_low: Option<f32>,
    /// The ensemble's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_ensemble: Option<f32>,
    /// The confidence head's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_confidence: Option<f32>,
}

/// An agent with its environments and its replay.
pub trait Agent {
    /// Device and, where it has one, precision, for reports.
    fn device(&self) -> String;
    /// Moves every environment `steps` steps with exploration rate `epsilon`; transitions go to the replay. Returns how
    /// many steps that were: fewer when `stop` was asked for.
    fn collect(&mut self, steps: usize, epsilon: f32, stop: &Stop) -> anyhow::Result<usize>;
    /// Trains `steps` steps; `progress` hears how many are done and may break off. Fewer rows come back then, and when
    /// `stop` was asked for; calling it again for the rest gives the bits of one call for all.
    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<StepRow>>;
    /// One greedy pass over a symbol's bars of a part; one row per bar, ended early by ruin. An error where the agent
    /// learns a control task; [`Stopped`](crate::train::Stopped) when a stop was asked for, with the agent as it was.
    fn backtest(&mut self, part: PartName, symbol: usize, stop: &Stop) -> anyhow::Result<Vec<LogRow>>;
    /// One pass for each of the market's symbols.
    fn passes(&mut self, part: PartName, symbols: usize, stop: &Stop) -> anyhow::Result<Vec<Vec<LogRow>>> {
        (0..symbols).map(|symbol| self.backtest(part, symbol, stop)).collect()
    }
    /// Greedy episodes of a control task, whose starts are a function of `seed`. An error where the agent learns the market,
    /// and as for [`Agent::backtest`].
    fn episodes(&mut self, seed: u64, stop: &Stop) -> anyhow::Result<Vec<Finished>>;
    /// Networks and optimizer as they are.
    fn learned(&mut self) -> anyhow::Result<Learned>;
    /// Goes on with the networks and the optimizer of an agent of the same kind.
    fn set_learned(&mut self, learned: &Learned) -> anyhow::Result<()>;
    /// Online and target parameters in the flat layout.
    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)>;
    /// Replaces online and target parameters (optimizer state is left alone).
    fn set_parameters(&mut self, online: &[f32], target: &[f32]) -> anyhow::Result<()>;
    /// Mean |dQ| of every state feature by the latest causal probe; empty before the first one and without it.
    fn sensitivity(&mut self) -> anyhow::Result<Vec<f32>>;
    /// What the value networks and the confidence head keep from step to step.
    fn kept(&mut self) -> anyhow::Result<Kept>;
    /// Goes on from what was kept.
    fn set_kept(&mut self, kept: &Kept) -> anyhow::Result<()>;
    /// Copies everything that the next steps depend on: after `load_state` of it another agent of the same configuration
    /// goes on bit for bit.
    fn save_state(&mut self) -> anyhow::Result<Tensors>;
    /// Goes on from a saved state, of which it takes its own tensors. After an error the agent is of no use.
    fn load_state(&mut self, state: &mut Tensors) -> anyhow::Result<()>;
    /// The algorithms of cuBLASLt that the steps use, where they use any: others would change the last bits.
    fn plans(&self) -> Option<PlanTable> {
        None
    }
    /// Fraction of pruned weights of each matrix, by name; empty without pruning.
    fn sparsity(&mut self) -> anyhow::Result<Vec<(String, f64)>>;
    /// Times of the last training steps' sections, where the agent was made to take them.
    fn profile(&mut self) -> anyhow::Result<Option<StepProfile>> {
        Ok(None)
    }
    /// Steps skipped in a row up to now.
    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64>;
}
