//! Rows of a run's metrics and files.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::train::agent::StepRow;
use crate::train::profiler::StepProfile;
use crate::train::task::TaskReport;
use crate::train::world::Evaluation;

/// An epoch's row in the metrics.
#[derive(Debug, Serialize)]
pub(super) struct EpochRow {
    pub(super) epoch: usize,
    /// Training steps done at its end.
    pub(super) step: usize,
    /// Absent where nothing is collected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) epsilon: Option<f32>,
    pub(super) steps: usize,
    pub(super) loss: f32,
    pub(super) td: f32,
    pub(super) q: f32,
    pub(super) gradient_norm: f32,
    pub(super) clipped_low: f32,
    pub(super) clipped_high: f32,
    pub(super) skipped: usize,
    pub(super) collect_seconds: f64,
    pub(super) train_seconds: f64,
    pub(super) microseconds_per_step: f64,
    /// A market's total return (a fraction), a control task's mean return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) validation_return: Option<f64>,
    /// Of a market.
    pub(super) validation_sharpe: Option<f64>,
    /// Of a data set: the C51 loss of its validation transitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) validation_loss: Option<f64>,
    /// Their |td|.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) validation_td: Option<f64>,
    /// Share of their actions that are greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) validation_agreement: Option<f64>,
    /// Of a control task: all of its evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) validation: Option<TaskReport>,
    pub(super) best: bool,
}

/// Fraction of pruned weights of each matrix after an epoch.
#[derive(Debug, Serialize)]
pub(super) struct SparsityRow {
    pub(super) epoch: usize,
    pub(super) tensors: BTreeMap<String, f64>,
}

/// Times of an epoch's last training steps.
#[derive(Debug, Serialize)]
pub(super) struct ProfileRow<'a> {
    pub(super) epoch: usize,
    #[serde(flatten)]
    pub(super) profile: &'a StepProfile,
}

/// A control task's test, in `test.json`.
#[derive(Serialize)]
pub(super) struct BestAndLast<'a> {
    pub(super) best: &'a Evaluation,
    pub(super) last: &'a Evaluation,
}

/// The latest causal probe of an epoch: mean |dQ| of every state feature.
#[derive(Serialize)]
pub(super) struct Sensitivity<'a> {
    pub(super) epoch: usize,
    pub(super) step: usize,
    pub(super) features: &'a [f32],
}

/// A step's row with its number.
#[derive(Serialize)]
pub(super) struct Numbered<'a> {
    pub(super) step: usize,
    #[serde(flatten)]
    pub(super) row: &'a StepRow,
}

impl EpochRow {
    /// What is looked at to choose the best policy.
    pub(super) fn validation_text(&self) -> String {
        if let Some(loss) = self.validation_loss {
            return format!("held-out loss {loss:.4}");
        }
        match (&self.validation, self.validation_sharpe) {
            (Some(report), _) => format!("mean return {:.2}", report.mean_return),
            (None, Some(sharpe)) => format!("validation Sharpe {sharpe:.2}"),
            (None, None) => "validation Sharpe undefined".into(),
        }
    }

    pub(super) fn text(&self, epochs: usize) -> String {
        let validation = match &self.validation {
            None if self.validation_loss.is_some() => self.validation_text(),
            Some(report) => format!(
                "mean return {:.2}  ended {:.0}%  {:.0} steps",
                report.mean_return,
                100.0 * report.terminated,
                report.mean_steps
            ),
            None => {
                let sharpe = self.validation_sharpe.map_or("undefined".into(), |s| format!("{s:.2}"));
                let gain = 100.0 * self.validation_return.unwrap_or(f64::NAN);
                format!("validation return {gain:+.2}%  Sharpe {sharpe}")
            }
        };
        format!(
            "epoch {}/{epochs}  loss {:.4}  td {:.3}  |g| {:.3}  {:.0} us a step  {validation}{}",
            self.epoch,
            self.loss,
            self.td,
            self.gradient_norm,
            self.microseconds_per_step,
            if self.best { "  best" } else { "" }
        )
    }
}
