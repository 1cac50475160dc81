//! `[transitions]`: learning from a data set of transitions in place of an environment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError};
use crate::parts::{check, invalid};

/// `[transitions]`: a data set of transitions that is learned from in place of an environment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Transitions {
    /// Parquet, safetensors, NPZ or Minari (HDF5) data set; none for an environment. Also the option `--transitions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Share of the transitions that is held out, in whole episodes, to choose the best policy by.
    #[schemars(extend("unit" = "fraction of the transitions"))]
    pub validation: f64,
    /// Most held-out transitions that a validation looks at, evenly spaced.
    #[schemars(extend("unit" = "transitions"))]
    pub validation_rows: usize,
}

impl Default for Transitions {
    fn default() -> Self {
        Self { file: None, validation: 0.1, validation_rows: 4096 }
    }
}

impl Transitions {
    /// Checks values, and the combinations with the other sections.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, or both keys of an impossible combination.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let share = self.validation;
        check("transitions.validation", share, share > 0.0 && share <= 0.5, "above 0, at most 0.5")?;
        let rows = self.validation_rows;
        check("transitions.validation_rows", rows, (1..=1 << 20).contains(&rows), "1 to 1048576")?;
        let Some(file) = &self.file else { return Ok(()) };
        for (key, on) in [
            ("vaccine.enabled", config.vaccine.enabled),
            ("probe.enabled", config.probe.enabled),
            ("iql.adaptive_epsilon", config.iql.adaptive_epsilon),
        ] {
            if on {
                return invalid(format!(
                    "{key} = true, transitions.file = \"{file}\": it needs an environment, and a data set has none"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_names_its_keys() {
        let message = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
            let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
            config.model.state = 80;
            config.check().err().map_or("ok".into(), |e| e.to_string())
        };
        assert_eq!(message(&["transitions.file=set.npz"]), "ok");
        assert_eq!(
            message(&["transitions.validation=0.0"]),
            "transitions.validation = 0: expected above 0, at most 0.5"
        );
        assert_eq!(
            message(&["transitions.validation_rows=0"]),
            "transitions.validation_rows = 0: expected 1 to 1048576"
        );
        let probe = message(&["transitions.file=set.npz", "probe.enabled=true"]);
        assert!(probe.starts_with("probe.enabled = true, transitions.file = \"set.npz\": "), "{probe}");
    }
}
