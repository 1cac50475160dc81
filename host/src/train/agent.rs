//! What the training loop needs of an agent, on either device.

use gpu::market::LogRow;

use crate::train::Stop;

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
}

/// An agent with its environments and its replay.
pub trait Agent {
    /// Device and, where it has one, precision, for reports.
    fn device(&self) -> String;
    /// Moves every environment `steps` bars with exploration rate `epsilon`; transitions go to the replay.
    fn collect(&mut self, steps: usize, epsilon: f32, stop: &Stop) -> anyhow::Result<()>;
    /// Trains `steps` steps; `progress` hears how many are done. Fewer rows come back when `stop` was asked for.
    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize),
    ) -> anyhow::Result<Vec<StepRow>>;
    /// One greedy pass over a part; one row per bar, ended early by ruin.
    fn backtest(&mut self, part: PartName) -> anyhow::Result<Vec<LogRow>>;
    /// Online and target parameters in the flat layout.
    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)>;
    /// Replaces online and target parameters (optimizer state is left alone).
    fn set_parameters(&mut self, online: &[f32], target: &[f32]) -> anyhow::Result<()>;
    /// Steps skipped in a row up to now.
    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64>;
}
