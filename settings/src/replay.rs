//! `[replay]`: how batches are drawn from the ring of transitions, and what a transition is (SPEC sections 3 and 6).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError};

/// What of the C51 loss a sample's priority measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Mean over the branches of |E_m\[z\] - Q(s, a_d)|.
    #[default]
    Td,
    /// Mean over the branches of the cross-entropy, never importance-weighted.
    CrossEntropy,
}

/// `[replay]`: prioritized sampling (Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay", 2016, section
/// 3.3, the proportional variant) and n-step returns. Off by default: uniform sampling of single steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Replay {
    /// Whether a transition is drawn in proportion to its priority instead of uniformly.
    pub prioritized: bool,
    /// alpha: a transition's share is (p + eps)^alpha; 0 is uniform.
    pub alpha: f64,
    /// beta of the importance weights (N P_i)^-beta at the first training step.
    pub beta_start: f64,
    /// beta from step `beta_steps` on; linear in between.
    pub beta_end: f64,
    /// Training steps over which beta rises; 0 for `beta_end` from the first step on.
    #[schemars(extend("unit" = "training steps"))]
    pub beta_steps: u64,
    /// Added to a priority before the power, so that none is 0.
    pub eps: f64,
    /// What the C51 loss gives to the priority p = (1 - iqn_weight) this + iqn_weight (loss of the IQN head).
    pub priority: Priority,
    /// Share of the IQN head's loss in the priority.
    pub iqn_weight: f64,
    /// n: rewards that a transition sums before it bootstraps; fewer where an episode ends.
    #[schemars(extend("unit" = "rewards"))]
    pub n_step: usize,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            prioritized: false,
            alpha: 0.6,
            beta_start: 0.4,
            beta_end: 1.0,
            beta_steps: 20_000,
            eps: 1e-6,
            priority: Priority::Td,
            iqn_weight: 0.0,
            n_step: 1,
        }
    }
}

impl Replay {
    /// Longest n-step window.
    pub const MAX_STEPS: usize = 64;

    /// beta of a training step, counted from 0: linear from `beta_start` to `beta_end`.
    pub fn beta(&self, step: u64) -> f64 {
        if step >= self.beta_steps {
            return self.beta_end;
        }
        self.beta_start + (self.beta_end - self.beta_start) * (step as f64 / self.beta_steps as f64)
    }

    /// Slots whose n-step window is not complete, in a ring that every step of `environments` environments fills by as
    /// many.
    pub fn pending(&self, environments: usize) -> usize {
        (self.n_step - 1) * environments
    }

    /// Checks values, and the combinations with the other sections.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, or both keys of an impossible combination.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        for (key, value) in [
            ("replay.alpha", self.alpha),
            ("replay.beta_start", self.beta_start),
            ("replay.beta_end", self.beta_end),
            ("replay.iqn_weight", self.iqn_weight),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return invalid(format!("{key} = {value}: expected 0 to 1"));
            }
        }
        // As f32, in which the device adds it: a smaller one would be nothing.
        if !(self.eps >= f64::from(f32::MIN_POSITIVE) && self.eps <= 1.0) {
            return invalid(format!("replay.eps = {}: expected a positive number up to 1", self.eps));
        }
        if !(1..=Self::MAX_STEPS).contains(&self.n_step) {
            return invalid(format!("replay.n_step = {}: expected 1 to {}", self.n_step, Self::MAX_STEPS));
        }
        if self.iqn_weight > 0.0 && !config.iqn.enabled {
            return invalid(format!(
                "replay.iqn_weight = {}, iqn.enabled = false: there is no IQN loss to take a priority from",
                self.iqn_weight
            ));
        }
        if config.task.is_transitions() {
            // Every window of a data set is complete.
            return Ok(());
        }
        let collect = &config.collect;
        if collect.capacity < self.n_step.saturating_mul(collect.environments) {
            return invalid(format!(
                "replay.n_step = {}, collect.capacity = {}, collect.environments = {}: the ring must hold n_step steps of \
                 all environments",
                self.n_step, collect.capacity, collect.environments
            ));
        }
        // The first window is complete after n steps.
        if self.n_step > 1 && collect.warmup.max(collect.steps) < self.n_step {
            return invalid(format!(
                "replay.n_step = {}, collect.steps = {}, collect.warmup = {}: no window is complete before the first \
                 training step",
                self.n_step, collect.steps, collect.warmup
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(sets: &[&str]) -> Result<Config, ConfigError> {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let mut config = Config::layered(&Config::default(), None, &sets)?;
        config.model.state = 80;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn everything_can_be_set_and_survives_the_round_trip() {
        let config = checked(&[
            "replay.prioritized=true",
            "replay.alpha=0.5",
            "replay.beta_start=0.3",
            "replay.beta_end=0.9",
            "replay.beta_steps=100",
            "replay.eps=1e-5",
            "replay.priority=cross_entropy",
            "replay.iqn_weight=0.25",
            "replay.n_step=3",
            "iqn.enabled=true",
        ])
        .unwrap();
        assert_eq!((config.replay.priority, config.replay.n_step), (Priority::CrossEntropy, 3));
        let again = Config::layered(&Config::default(), Some(("x", &config.to_toml())), &[]).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn beta_rises_linearly_and_stays() {
        let replay = Replay { beta_steps: 5, ..Replay::default() };
        for (step, beta) in [(0, 0.4), (1, 0.52), (4, 0.88), (5, 1.0), (1 << 40, 1.0)] {
            assert!((replay.beta(step) - beta).abs() < 1e-15, "step {step}: {}", replay.beta(step));
        }
        assert_eq!(Replay { beta_steps: 0, ..replay }.beta(0), 1.0);
    }

    #[test]
    fn values_that_cannot_work_name_their_keys() {
        for (sets, expected) in [
            (&["replay.alpha=1.5"][..], "replay.alpha = 1.5: expected 0 to 1"),
            (&["replay.beta_start=nan"], "replay.beta_start = NaN: expected 0 to 1"),
            (&["replay.eps=0.0"], "replay.eps = 0: expected a positive number up to 1"),
            (&["replay.n_step=0"], "replay.n_step = 0: expected 1 to 64"),
            (&["replay.iqn_weight=0.5"], "replay.iqn_weight = 0.5, iqn.enabled = false: "),
            (
                &["replay.n_step=5", "collect.environments=10", "collect.capacity=49"],
                "replay.n_step = 5, collect.capacity = 49, collect.environments = 10: ",
            ),
            (
                &["replay.n_step=5", "collect.steps=4", "collect.warmup=0"],
                "replay.n_step = 5, collect.steps = 4, collect.warmup = 0: ",
            ),
        ] {
            let message = checked(sets).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
        let unknown = checked(&["replay.priority=loss"]).unwrap_err().to_string();
        assert!(unknown.contains("cross_entropy"), "{unknown}");
    }
}
