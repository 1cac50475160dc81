//! `[report]`: how a backtest's result is judged (`docs/METRICS.md`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// Confidence intervals, and the luck of having compared several policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Report {
    /// Share of the resamples inside an interval.
    pub level: f64,
    /// Resamples of the bootstrap; 0 for no intervals.
    pub resamples: usize,
    /// Expected length of a block of bars; 0 to find it from the returns.
    #[schemars(extend("unit" = "bars"))]
    pub block: f64,
    /// Seed of the resamples.
    pub seed: u64,
    /// Policies compared elsewhere, in other runs for example; this run's epochs are counted by themselves.
    pub trials: usize,
    /// Value distributions are written every so many epochs; 0 for none.
    #[schemars(extend("unit" = "epochs"))]
    pub values_every: usize,
}

impl Default for Report {
    fn default() -> Self {
        Self { level: 0.95, resamples: 1000, block: 0.0, seed: 1, trials: 0, values_every: 1 }
    }
}

impl Report {
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, its value and what is expected.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |text: String| Err(ConfigError::Invalid(text));
        if !(self.level > 0.0 && self.level < 1.0) {
            return invalid(format!("report.level = {}: expected a share between 0 and 1", self.level));
        }
        if self.resamples != 0 && !(100..=1_000_000).contains(&self.resamples) {
            return invalid(format!("report.resamples = {}: expected 0, or 100 to 1000000", self.resamples));
        }
        if !(self.block == 0.0 || (1.0..=1e9).contains(&self.block)) {
            return invalid(format!("report.block = {}: expected 0, or 1 to 1e9 bars", self.block));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_named() {
        Report::default().check().unwrap();
        Report { resamples: 0, block: 24.0, ..Report::default() }.check().unwrap();
        for (report, key) in [
            (Report { level: 1.0, ..Report::default() }, "report.level = 1"),
            (Report { level: f64::NAN, ..Report::default() }, "report.level = NaN"),
            (Report { resamples: 7, ..Report::default() }, "report.resamples = 7"),
            (Report { block: 0.5, ..Report::default() }, "report.block = 0.5"),
        ] {
            let message = report.check().unwrap_err().to_string();
            assert!(message.starts_with(key), "{message}");
        }
    }
}
