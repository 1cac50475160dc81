//! `[vaccine]` and `[probe]`: what only some steps have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MAX_EVERY, check, invalid};
use crate::config::ConfigError;

/// `[vaccine]`: the gradient of held-out training data, against which a step does not go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Vaccine {
    /// Whether some steps have it.
    pub enabled: bool,
    /// Every which step has it.
    #[schemars(extend("unit" = "training steps"))]
    pub every: usize,
    /// Fraction of the training part's decision bars that is held out: its last bars, behind a purge.
    #[schemars(extend("unit" = "fraction of the bars"))]
    pub holdout: f64,
    /// Environments that collect on the held-out bars.
    pub environments: usize,
    /// Transitions that their ring holds.
    #[schemars(extend("unit" = "transitions"))]
    pub capacity: usize,
}

impl Default for Vaccine {
    fn default() -> Self {
        Self { enabled: false, every: 10, holdout: 0.1, environments: 256, capacity: 1 << 16 }
    }
}

impl Vaccine {
    /// Whether step number `step`, from 0, has it.
    pub fn is_in(&self, step: u64) -> bool {
        self.enabled && (step + 1).is_multiple_of(self.every as u64)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check(
            "vaccine.every",
            self.every,
            (1..=MAX_EVERY).contains(&self.every),
            &format!("1 to {MAX_EVERY}"),
        )?;
        let holdout = self.holdout;
        check("vaccine.holdout", holdout, holdout > 0.0 && holdout <= 0.5, "above 0, at most 0.5")?;
        let (environments, capacity) = (self.environments, self.capacity);
        let most = 1 << 20;
        check(
            "vaccine.environments",
            environments,
            (1..=most).contains(&environments),
            &format!("1 to {most}"),
        )?;
        let most = 1 << 30;
        check("vaccine.capacity", capacity, (1..=most).contains(&capacity), &format!("1 to {most}"))?;
        if capacity < environments {
            return invalid(format!(
                "vaccine.capacity = {capacity}, vaccine.environments = {environments}: the ring must hold one step of \
                 all environments"
            ));
        }
        Ok(())
    }
}

/// `[probe]`: the causal probe, how much the Q values depend on each state feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Probe {
    /// Whether some steps end with it.
    pub enabled: bool,
    /// Every which step does.
    #[schemars(extend("unit" = "training steps"))]
    pub every: usize,
}

impl Default for Probe {
    fn default() -> Self {
        Self { enabled: false, every: 100 }
    }
}

impl Probe {
    /// Whether step number `step`, from 0, ends with it.
    pub fn is_in(&self, step: u64) -> bool {
        self.enabled && (step + 1).is_multiple_of(self.every as u64)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check("probe.every", self.every, (1..=MAX_EVERY).contains(&self.every), &format!("1 to {MAX_EVERY}"))
    }
}
