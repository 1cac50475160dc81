//! `[checkpoint]`: which policies a run keeps, and how often it saves everything that it needs to go on.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError};

/// `[checkpoint]`. The best policy and the last epoch's are always kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoints {
    /// Minutes between two saved states (`docs/RESUME.md`); 0 for one at every place where a run can be saved. A state is
    /// saved at the end of a run and when it is stopped in any case.
    #[schemars(extend("unit" = "minutes"))]
    pub interval_minutes: f64,
    /// Saved states that are kept, the newest ones; 0 for none, and then a run cannot be resumed.
    pub states: usize,
    /// Every how many epochs the policy is kept under a name of its own; 0 for never.
    #[schemars(extend("unit" = "epochs"))]
    pub every: usize,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { interval_minutes: 5.0, states: 2, every: 0 }
    }
}

impl Checkpoints {
    /// Most states that may be kept.
    pub const MAX_STATES: usize = 1000;

    /// Checks values.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        // A year: an interval beyond is a mistake, and no clock overflows below it.
        if !(0.0..=525_600.0).contains(&self.interval_minutes) {
            return invalid(format!(
                "checkpoint.interval_minutes = {}: expected 0 to 525600",
                self.interval_minutes
            ));
        }
        if self.states > Self::MAX_STATES {
            return invalid(format!(
                "checkpoint.states = {}: expected 0 to {}",
                self.states,
                Self::MAX_STATES
            ));
        }
        Ok(())
    }
}

/// A key whose value differs between two configurations, with both values as TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `section.key`.
    pub key: String,
    /// Value in the first one; none where it is not set.
    pub before: Option<String>,
    /// Value in the second one.
    pub after: Option<String>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".into());
        write!(f, "{} was {} and is {}", self.key, value(&self.before), value(&self.after))
    }
}

impl Config {
    /// Every key that another configuration has another value of, in the order of their names.
    pub fn differences(&self, other: &Config) -> Vec<Difference> {
        let (before, after) = (self.entries(), other.entries());
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let differences = keys.into_iter().map(|key| Difference {
            key: key.clone(),
            before: before.get(key).cloned(),
            after: after.get(key).cloned(),
        });
        differences.filter(|d| d.before != d.after).collect()
    }

    /// Keys with their values as TOML.
    fn entries(&self) -> BTreeMap<String, String> {
        let sections = toml::Table::try_from(self).unwrap_or_default();
        let mut entries = BTreeMap::new();
        for (section, value) in sections {
            match value {
                toml::Value::Table(keys) => {
                    entries.extend(
                        keys.iter().map(|(key, value)| (format!("{section}.{key}"), value.to_string())),
                    );
                }
                value => drop(entries.insert(section, value.to_string())),
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_cannot_work_name_their_keys() {
        for (set, expected) in [
            ("checkpoint.interval_minutes=-1", "checkpoint.interval_minutes = -1: expected 0 to 525600"),
            ("checkpoint.interval_minutes=nan", "checkpoint.interval_minutes = NaN: expected 0 to 525600"),
            ("checkpoint.states=1001", "checkpoint.states = 1001: expected 0 to 1000"),
        ] {
            let mut config = Config::layered(&Config::default(), None, &[set.into()]).unwrap();
            config.model.state = 80;
            assert_eq!(config.check().unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn differences_name_keys_and_values() {
        let (one, mut other) = (Config::default(), Config::default());
        assert_eq!(one.differences(&other), []);
        other.train.batch = 7;
        other.data.file = Some("bars.csv".into());
        let texts: Vec<String> = one.differences(&other).iter().map(Difference::to_string).collect();
        assert_eq!(texts, ["data.file was not set and is \"bars.csv\"", "train.batch was 1024 and is 7"]);
    }
}
