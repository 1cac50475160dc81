//! What held-out transitions say of a policy.

use std::fmt;

use cpu_path::HeldOut;
use serde::Serialize;
use settings::Task;

/// Means over transitions that were not learned from (or, of the part `train`, that were).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfflineReport {
    /// `transitions`.
    pub task: &'static str,
    /// Transitions that were looked at.
    pub transitions: usize,
    /// C51 loss: cross-entropy of the targets, mean over branches.
    pub loss: f64,
    /// |E_m\[z\] - Q(s, a)|, mean over branches.
    pub td: f64,
    /// Q(s, a), mean over branches.
    pub q: f64,
    /// Share of the data set's actions that the policy would have taken too, mean over branches.
    pub agreement: f64,
}

impl OfflineReport {
    /// Before anything was looked at.
    pub(super) fn new(transitions: usize) -> Self {
        Self { task: Task::TRANSITIONS, transitions, loss: 0.0, td: 0.0, q: 0.0, agreement: 0.0 }
    }

    /// Adds the means over `rows` of the transitions.
    pub(super) fn add(&mut self, rows: usize, part: &HeldOut) {
        let share = rows as f64 / self.transitions as f64;
        self.loss += share * part.loss;
        self.td += share * part.td;
        self.q += share * part.q;
        self.agreement += share * part.agreement;
    }
}

impl fmt::Display for OfflineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "C51 loss {:.4}, |td| {:.4}, mean Q {:.4} over {} transitions; {:.1}% of their actions are the policy's too",
            self.loss,
            self.td,
            self.q,
            self.transitions,
            100.0 * self.agreement
        )
    }
}
