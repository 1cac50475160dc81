//! `[folds]`: walk-forward over the bars, one training after the other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// Most folds of a run.
const MOST: usize = 1000;

/// Which bars a fold learns from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// All bars before the fold's validation part.
    #[default]
    Expanding,
    /// The latest of them, as many as the first fold has.
    Rolling,
}

/// `[folds]`. Fractions are of the data's time line: all distinct times of all symbols.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Folds {
    /// k: trainings, each tested on the bars behind its own; 1 means one split by `[split]`.
    #[schemars(extend("unit" = "trainings"))]
    pub count: usize,
    /// Whether training parts grow or move.
    pub scheme: Scheme,
    /// Fraction of the first fold's training part; of every fold's where they move.
    pub train: f64,
    /// Fraction of a fold's validation part. What `train` and `validation` leave is divided into k test parts.
    pub validation: f64,
    /// Extra bars dropped between the parts, on top of the purge of L + W - 1 + n bars.
    #[schemars(extend("unit" = "bars"))]
    pub embargo: usize,
    /// Each fold goes on with the networks and the optimizer of the one before; replay, normaliser and exploration are
    /// new all the same.
    pub warm_start: bool,
}

impl Default for Folds {
    fn default() -> Self {
        Self {
            count: 1,
            scheme: Scheme::Expanding,
            train: 0.4,
            validation: 0.1,
            embargo: 0,
            warm_start: false,
        }
    }
}

impl Folds {
    /// Whether there is more than one split.
    pub fn walks(&self) -> bool {
        self.count > 1
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// Names the key and its value.
    pub(crate) fn check(&self, pruning: bool) -> Result<(), ConfigError> {
        if !(1..=MOST).contains(&self.count) {
            return Err(ConfigError::Invalid(format!(
                "folds.count = {}: expected 1 (one split) to {MOST}",
                self.count
            )));
        }
        let (train, validation) = (self.train, self.validation);
        if !(train > 0.0 && validation > 0.0 && train + validation < 1.0) {
            return Err(ConfigError::Invalid(format!(
                "folds.train = {train}, folds.validation = {validation}: expected positive fractions whose sum is below \
                 1"
            )));
        }
        if self.warm_start && !self.walks() {
            return Err(ConfigError::Invalid(
                "folds.warm_start = true with folds.count = 1: there is no fold before the first".into(),
            ));
        }
        if self.warm_start && pruning {
            return Err(ConfigError::Invalid(
                "folds.warm_start = true with pruning.enabled = true: masks of pruned weights are not carried over".into(),
            ));
        }
        Ok(())
    }
}
