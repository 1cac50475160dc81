//! `[iql]`: the value networks and what they feed back.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MAX_HIDDEN, check, invalid};
use crate::config::ConfigError;

/// `[iql]`: two value networks trained by expectile regression, and what is derived from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Iql {
    /// Whether the two networks are part of the step.
    pub enabled: bool,
    /// Width of both hidden layers.
    pub hidden: usize,
    /// Expectile of V_high.
    pub tau_high: f32,
    /// Expectile of V_low.
    pub tau_low: f32,
    /// Inverse temperature of the advantage weights min(exp(beta A), 100).
    pub beta: f32,
    /// The step's importance weights are multiplied by its advantage weights, normalised to mean 1 over the batch.
    pub advantage_weighting: bool,
    /// The C51 loss of each branch is multiplied by the step's branch scale.
    pub branch_scaling: bool,
    /// The support of the value distribution follows the value networks.
    pub adaptive_support: bool,
    /// Share by which the support's ends move towards their goal in a step, 0 to 1.
    pub support_rate: f32,
    /// Distance of the goal's ends from the quantiles, as a fraction of the quantiles' distance.
    pub support_margin: f32,
    /// Smallest width of the goal, as a fraction of `model.v_max - model.v_min`.
    pub support_floor: f32,
    /// Collection explores with the step's epsilon instead of the schedule's.
    pub adaptive_epsilon: bool,
    /// Epsilon where the two value networks agree.
    pub epsilon_min: f32,
    /// Epsilon where they differ by V_high's own size or more.
    pub epsilon_max: f32,
    /// Rate of the moving averages that epsilon is made of, 0 to 1.
    pub signal_rate: f32,
}

impl Default for Iql {
    fn default() -> Self {
        Self {
            enabled: false,
            hidden: 128,
            tau_high: 0.7,
            tau_low: 0.3,
            beta: 3.0,
            advantage_weighting: false,
            branch_scaling: false,
            adaptive_support: false,
            support_rate: 0.001,
            support_margin: 0.1,
            support_floor: 0.1,
            adaptive_epsilon: false,
            epsilon_min: 0.05,
            epsilon_max: 0.5,
            signal_rate: 0.01,
        }
    }
}

impl Iql {
    /// Whether the losses of a step wait for what the value networks say of its batch.
    pub fn feeds_losses(&self) -> bool {
        self.enabled && (self.advantage_weighting || self.branch_scaling)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check(
            "iql.hidden",
            self.hidden,
            (1..=MAX_HIDDEN).contains(&self.hidden),
            &format!("1 to {MAX_HIDDEN}"),
        )?;
        for (key, tau) in [("iql.tau_high", self.tau_high), ("iql.tau_low", self.tau_low)] {
            check(key, tau, tau > 0.0 && tau < 1.0, "between 0 and 1, exclusive")?;
        }
        if self.tau_low >= self.tau_high {
            return invalid(format!(
                "iql.tau_low = {}, iql.tau_high = {}: expected tau_low < tau_high",
                self.tau_low, self.tau_high
            ));
        }
        let from_zero = |x: f32| x.is_finite() && x >= 0.0;
        check("iql.beta", self.beta, from_zero(self.beta), "a finite number, 0 or more")?;
        for (key, on) in [
            ("iql.advantage_weighting", self.advantage_weighting),
            ("iql.branch_scaling", self.branch_scaling),
            ("iql.adaptive_support", self.adaptive_support),
            ("iql.adaptive_epsilon", self.adaptive_epsilon),
        ] {
            if on && !self.enabled {
                return invalid(format!(
                    "{key} = true, iql.enabled = false: it is made of the value networks"
                ));
            }
        }
        for (key, rate) in [("iql.support_rate", self.support_rate), ("iql.signal_rate", self.signal_rate)] {
            check(key, rate, rate > 0.0 && rate <= 1.0, "above 0, at most 1")?;
        }
        let margin = self.support_margin;
        check("iql.support_margin", margin, from_zero(margin), "a finite number, 0 or more")?;
        let floor = self.support_floor;
        check("iql.support_floor", floor, floor.is_finite() && floor > 0.0, "a positive finite number")?;
        let (low, high) = (self.epsilon_min, self.epsilon_max);
        for (key, epsilon) in [("iql.epsilon_min", low), ("iql.epsilon_max", high)] {
            check(key, epsilon, (0.0..=1.0).contains(&epsilon), "0 to 1")?;
        }
        if low > high {
            return invalid(format!(
                "iql.epsilon_min = {low}, iql.epsilon_max = {high}: expected epsilon_min <= epsilon_max"
            ));
        }
        Ok(())
    }
}
