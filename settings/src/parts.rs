//! Sections of the parts that may stand beside the C51 loss (SPEC sections 2 and 3). All are off by default.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::mamba::Mamba;
use crate::model::ModelShape;

mod auxiliary;
mod iql;
mod variants;

pub use auxiliary::{Confidence, Ensemble};
pub use iql::Iql;
pub use variants::{Probe, Vaccine};

/// Most cosine features of the IQN head.
pub const MAX_COSINES: usize = 256;
/// Most quantile samples of the IQN head, online and target each.
pub const MAX_SAMPLES: usize = 64;
/// Widest hidden layer of the IQN head and of the IQL networks.
pub const MAX_HIDDEN: usize = 1 << 14;
/// Longest interval of the steps that have the vaccine or the probe.
pub const MAX_EVERY: usize = 1 << 24;
/// Most members of the ensemble: a sample's members are warps of one block.
pub const MAX_MEMBERS: usize = 8;

/// `[cql]`: the conservative term, (alpha/D) sum_d ( logsumexp_a Q_d(s,a) - Q_d(s,a_d) ).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cql {
    /// Whether the term is part of the step.
    pub enabled: bool,
    /// Weight of the term.
    pub alpha: f32,
}

impl Default for Cql {
    fn default() -> Self {
        Self { enabled: false, alpha: 0.1 }
    }
}

/// `[iqn]`: the implicit quantile head on the trunk's features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Iqn {
    /// Whether the head is part of the step.
    pub enabled: bool,
    /// E: cosine features cos(pi j tau), j = 1 to E.
    pub cosines: usize,
    /// N: quantile samples of the online head.
    pub samples: usize,
    /// N': quantile samples of the target head.
    pub target_samples: usize,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// Where the Huber loss turns from a square to a line.
    pub kappa: f32,
    /// Next actions by the online head on the same target samples; by the target head when off.
    pub double: bool,
}

impl Default for Iqn {
    fn default() -> Self {
        Self {
            enabled: false,
            cosines: 64,
            samples: 32,
            target_samples: 32,
            hidden: 128,
            kappa: 1.0,
            double: false,
        }
    }
}

/// `[attention]`: temporal attention over the window's bars; d_model is `model.trunk2`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Attention {
    /// Whether the heads read h2 + gate * attention instead of h2.
    pub enabled: bool,
    /// Heads; d_model is a multiple of it.
    pub heads: usize,
}

impl Default for Attention {
    fn default() -> Self {
        Self { enabled: false, heads: 4 }
    }
}

/// `[spectral]`: spectral norm of the online trunk, one power iteration a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spectral {
    /// Whether the trunk's weights are scaled before the forward passes.
    pub enabled: bool,
    /// W *= min(1, sigma_max / sigma).
    pub sigma_max: f32,
}

impl Default for Spectral {
    fn default() -> Self {
        Self { enabled: false, sigma_max: 3.0 }
    }
}

/// `[budgets]`: fractions f of `optimizer.max_grad_norm` that the terms' gradients on the main parameters may have:
/// each is scaled by min(1, f max_grad_norm / (norm + 1e-6)) before they are summed and clipped.
///
/// They apply only where more than one term reaches the main parameters (CQL, IQN, the ensemble or the confidence head is
/// on). With C51 alone there is one clip to `max_grad_norm` and no budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    /// Of the C51 term.
    pub c51: f32,
    /// Of the CQL term.
    pub cql: f32,
    /// Of the IQN term's gradient on the trunk.
    pub iqn: f32,
    /// Of the gradient on the trunk that the ensemble and the confidence head have together.
    pub aux: f32,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { c51: 0.60, cql: 0.25, iqn: 0.10, aux: 0.05 }
    }
}

/// All of these sections together: what decides which networks and which terms a step has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    /// `[cql]`.
    pub cql: Cql,
    /// `[iqn]`.
    pub iqn: Iqn,
    /// `[iql]`.
    pub iql: Iql,
    /// `[ensemble]`.
    pub ensemble: Ensemble,
    /// `[confidence]`.
    pub confidence: Confidence,
    /// `[vaccine]`.
    pub vaccine: Vaccine,
    /// `[probe]`.
    pub probe: Probe,
    /// `[attention]`.
    pub attention: Attention,
    /// `[mamba]`.
    pub mamba: Mamba,
    /// `[spectral]`.
    pub spectral: Spectral,
    /// `[budgets]`.
    pub budgets: Budgets,
}

impl Parts {
    /// Names of the sections that are switched on.
    pub fn enabled(&self) -> Vec<&'static str> {
        let all = [
            ("cql", self.cql.enabled),
            ("iqn", self.iqn.enabled),
            ("iql", self.iql.enabled),
            ("ensemble", self.ensemble.enabled),
            ("confidence", self.confidence.enabled),
            ("vaccine", self.vaccine.enabled),
            ("probe", self.probe.enabled),
            ("attention", self.attention.enabled),
            ("mamba", self.mamba.enabled),
            ("spectral", self.spectral.enabled),
        ];
        all.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect()
    }

    /// Whether more than one term reaches the main parameters, so that [`Budgets`] apply.
    pub fn budgeted(&self) -> bool {
        self.cql.enabled || self.iqn.enabled || self.auxiliary()
    }

    /// Whether heads beside the main ones reach the trunk under the budget `budgets.aux`.
    pub fn auxiliary(&self) -> bool {
        self.ensemble.enabled || self.confidence.enabled
    }

    /// Checks values, and the combinations with a checked shape.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, or both keys of an impossible combination.
    pub fn check(&self, shape: &ModelShape) -> Result<(), ConfigError> {
        let within = |key: &str, value: usize, high: usize| {
            check(key, value, (1..=high).contains(&value), &format!("1 to {high}"))
        };
        let positive = |key: &str, value: f32| {
            check(key, value, value.is_finite() && value > 0.0, "a positive finite number")
        };
        let from_zero = |key: &str, value: f32| {
            check(key, value, value.is_finite() && value >= 0.0, "a finite number, 0 or more")
        };
        from_zero("cql.alpha", self.cql.alpha)?;
        within("iqn.cosines", self.iqn.cosines, MAX_COSINES)?;
        within("iqn.samples", self.iqn.samples, MAX_SAMPLES)?;
        within("iqn.target_samples", self.iqn.target_samples, MAX_SAMPLES)?;
        within("iqn.hidden", self.iqn.hidden, MAX_HIDDEN)?;
        positive("iqn.kappa", self.iqn.kappa)?;
        self.iql.check()?;
        self.ensemble.check()?;
        self.confidence.check()?;
        self.vaccine.check()?;
        self.probe.check()?;
        positive("spectral.sigma_max", self.spectral.sigma_max)?;
        for (key, fraction) in [
            ("budgets.c51", self.budgets.c51),
            ("budgets.cql", self.budgets.cql),
            ("budgets.iqn", self.budgets.iqn),
            ("budgets.aux", self.budgets.aux),
        ] {
            positive(key, fraction)?;
        }
        self.mamba.check(shape)?;
        self.check_attention(shape)
    }

    fn check_attention(&self, shape: &ModelShape) -> Result<(), ConfigError> {
        let heads = self.attention.heads;
        if !self.attention.enabled {
            return check("attention.heads", heads, heads > 0, "1 or more");
        }
        for (key, value) in [("model.window", shape.window), ("model.bar_features", shape.bar_features)] {
            if value == 0 {
                return invalid(format!(
                    "attention.enabled = true, {key} = 0: attention needs states that begin with a window of bars"
                ));
            }
        }
        if heads == 0 || !shape.trunk2.is_multiple_of(heads) {
            return invalid(format!(
                "attention.heads = {heads}, model.trunk2 = {}: the width is split into the heads, so it must be a multiple",
                shape.trunk2
            ));
        }
        Ok(())
    }
}

pub(crate) fn check(
    key: &str,
    value: impl std::fmt::Display,
    ok: bool,
    expected: &str,
) -> Result<(), ConfigError> {
    if ok { Ok(()) } else { invalid(format!("{key} = {value}: expected {expected}")) }
}

pub(crate) fn invalid(message: String) -> Result<(), ConfigError> {
    Err(ConfigError::Invalid(message))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn message(sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
        config.model.state = 80;
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn everything_is_off_by_default_and_passes_the_check() {
        let mut config = Config::default();
        config.model.state = 80;
        assert!(config.parts().enabled().is_empty() && !config.parts().budgeted());
        config.check().unwrap();
    }

    #[test]
    fn everything_on_passes_with_a_window() {
        let names = [
            "cql",
            "iqn",
            "iql",
            "ensemble",
            "confidence",
            "vaccine",
            "probe",
            "attention",
            "mamba",
            "spectral",
        ];
        let sets = names.map(|s| format!("{s}.enabled=true"));
        let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
        (config.model.state, config.model.window, config.model.bar_features) = (80, 8, 9);
        config.check().unwrap();
        assert_eq!(config.parts().enabled(), names);
        assert!(config.parts().budgeted());
        let again = Config::layered(&Config::default(), Some(("x", &config.to_toml())), &[]).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn combinations_that_cannot_work_name_both_keys() {
        let no_window = message(&["attention.enabled=true"]);
        assert!(no_window.starts_with("attention.enabled = true, model.window = 0: "), "{no_window}");
        let heads = message(&[
            "attention.enabled=true",
            "attention.heads=3",
            "model.window=8",
            "model.bar_features=9",
        ]);
        assert!(heads.starts_with("attention.heads = 3, model.trunk2 = 256: "), "{heads}");
        let wide = message(&["model.window=9", "model.bar_features=9"]);
        assert!(wide.starts_with("model.window = 9, model.bar_features = 9, model.state = 80: "), "{wide}");
        let half = message(&["model.window=9"]);
        assert!(half.starts_with("model.window = 9, model.bar_features = 0: "), "{half}");
        let taus = message(&["iql.tau_high=0.3"]);
        assert!(taus.starts_with("iql.tau_low = 0.3, iql.tau_high = 0.3: "), "{taus}");
        for key in ["advantage_weighting", "branch_scaling", "adaptive_support", "adaptive_epsilon"] {
            let off = message(&[&format!("iql.{key}=true")]);
            assert!(off.starts_with(&format!("iql.{key} = true, iql.enabled = false: ")), "{off}");
        }
        let ring = message(&["vaccine.capacity=100"]);
        assert!(ring.starts_with("vaccine.capacity = 100, vaccine.environments = 256: "), "{ring}");
        let epsilons = message(&["iql.epsilon_min=0.6"]);
        assert!(epsilons.starts_with("iql.epsilon_min = 0.6, iql.epsilon_max = 0.5: "), "{epsilons}");
    }

    #[test]
    fn the_last_step_of_each_interval_has_the_vaccine() {
        let on = crate::Vaccine { enabled: true, every: 3, ..Default::default() };
        let steps: Vec<u64> = (0..9).filter(|&step| on.is_in(step)).collect();
        assert_eq!(steps, [2, 5, 8]);
        assert!(!crate::Probe { enabled: false, every: 1 }.is_in(0));
    }

    #[test]
    fn values_out_of_range_name_the_key() {
        for (set, expected) in [
            ("iqn.cosines=257", "iqn.cosines = 257: expected 1 to 256"),
            ("iqn.samples=0", "iqn.samples = 0: expected 1 to 64"),
            ("iqn.target_samples=65", "iqn.target_samples = 65: expected 1 to 64"),
            ("iqn.kappa=0", "iqn.kappa = 0: expected a positive finite number"),
            ("iqn.hidden=0", "iqn.hidden = 0: expected 1 to 16384"),
            ("iql.tau_high=1.0", "iql.tau_high = 1: expected between 0 and 1, exclusive"),
            ("iql.beta=-1.0", "iql.beta = -1: expected a finite number, 0 or more"),
            ("iql.support_rate=0", "iql.support_rate = 0: expected above 0, at most 1"),
            ("iql.signal_rate=1.5", "iql.signal_rate = 1.5: expected above 0, at most 1"),
            ("iql.support_margin=-0.1", "iql.support_margin = -0.1: expected a finite number, 0 or more"),
            ("iql.support_floor=0.0", "iql.support_floor = 0: expected a positive finite number"),
            ("iql.epsilon_max=2", "iql.epsilon_max = 2: expected 0 to 1"),
            ("ensemble.members=1", "ensemble.members = 1: expected 2 to 8"),
            ("ensemble.mask=0.0", "ensemble.mask = 0: expected above 0, at most 1"),
            ("ensemble.lambda=-1", "ensemble.lambda = -1: expected a finite number, 0 or more"),
            ("confidence.rate=nan", "confidence.rate = NaN: expected above 0, at most 1"),
            ("vaccine.every=0", "vaccine.every = 0: expected 1 to 16777216"),
            ("vaccine.holdout=0.6", "vaccine.holdout = 0.6: expected above 0, at most 0.5"),
            ("vaccine.environments=0", "vaccine.environments = 0: expected 1 to 1048576"),
            ("probe.every=0", "probe.every = 0: expected 1 to 16777216"),
            ("budgets.aux=0.0", "budgets.aux = 0: expected a positive finite number"),
            ("cql.alpha=nan", "cql.alpha = NaN: expected a finite number, 0 or more"),
            ("spectral.sigma_max=inf", "spectral.sigma_max = inf: expected a positive finite number"),
            ("budgets.cql=0.0", "budgets.cql = 0: expected a positive finite number"),
            ("attention.heads=0", "attention.heads = 0: expected 1 or more"),
        ] {
            assert_eq!(message(&[set]), expected);
        }
    }
}
