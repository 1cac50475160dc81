//! `[ensemble]` and `[confidence]`: heads that share the budget `budgets.aux`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MAX_MEMBERS, check};
use crate::config::ConfigError;

/// `[ensemble]`: further value heads on the trunk's features, each trained on the C51 target with a mask of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ensemble {
    /// Whether the heads are part of the step.
    pub enabled: bool,
    /// M: heads, 2 to [`MAX_MEMBERS`].
    pub members: usize,
    /// Probability that a member learns from a sample in a step.
    #[schemars(extend("unit" = "probability"))]
    pub mask: f32,
    /// lambda: weight of the members' variance, which is rewarded up to 1.
    pub lambda: f32,
    /// kappa: weight of the exploration bonus in the first collection step; 0 is none. Collection stores the reward
    /// r + kappa u, u the standard deviation over the members of the value of the state that the transition leaves.
    /// Evaluations, backtests and the held-out data of the vaccine have no bonus.
    pub explore: f32,
    /// Collection steps of all environments over which kappa falls linearly to 0; 0 if it stays.
    #[schemars(extend("unit" = "collection steps"))]
    pub explore_steps: u64,
}

impl Default for Ensemble {
    fn default() -> Self {
        Self { enabled: false, members: 5, mask: 0.8, lambda: 0.01, explore: 0.0, explore_steps: 0 }
    }
}

impl Ensemble {
    /// Whether collection adds the exploration bonus.
    pub fn explores(&self) -> bool {
        self.enabled && self.explore > 0.0
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let (members, mask, lambda, explore) = (self.members, self.mask, self.lambda, self.explore);
        check(
            "ensemble.members",
            members,
            (2..=MAX_MEMBERS).contains(&members),
            &format!("2 to {MAX_MEMBERS}"),
        )?;
        check("ensemble.mask", mask, mask > 0.0 && mask <= 1.0, "above 0, at most 1")?;
        check("ensemble.lambda", lambda, lambda.is_finite() && lambda >= 0.0, "a finite number, 0 or more")?;
        check(
            "ensemble.explore",
            explore,
            explore.is_finite() && explore >= 0.0,
            "a finite number, 0 or more",
        )
    }
}

/// `[confidence]`: a logistic head that says whether a sample's error will be above the running median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Confidence {
    /// Whether the head is part of the step.
    pub enabled: bool,
    /// Rate of the running mean of td, and of the running median relative to that mean; 0 to 1.
    pub rate: f32,
}

impl Default for Confidence {
    fn default() -> Self {
        Self { enabled: false, rate: 0.01 }
    }
}

impl Confidence {
    /// Values of the previous steps that the head reads besides the features.
    pub const SIGNALS: usize = 8;

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check("confidence.rate", self.rate, self.rate > 0.0 && self.rate <= 1.0, "above 0, at most 1")
    }
}
