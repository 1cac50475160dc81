//! The configuration a user may set: TOML sections, `--set key=value`, checks that name the key.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::checkpoints::Checkpoints;
use crate::folds::Folds;
use crate::keys;
use crate::mamba::Mamba;
use crate::market::{Data, Market, Split};
use crate::model::{MAX_WIDTH, ModelShape};
use crate::parts::{
    Attention, Budgets, Confidence, Cql, Ensemble, Iql, Iqn, Parts, Probe, Spectral, Vaccine,
};
use crate::presets;
use crate::pruning::Pruning;
use crate::replay::Replay;
use crate::report::Report;
use crate::task::{Her, Task};
use crate::training::{Collect, Optimizer, Train};
use crate::transitions::Transitions;

/// What is wrong with a configuration; the text names the key and the value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file or a `--set` text is not valid TOML, has an unknown key or a value of the wrong type.
    #[error("{place}: {message}")]
    Parse {
        /// File name or the `--set` text.
        place: String,
        /// The parser's message with line and column.
        message: String,
    },
    /// A value or a combination of values that cannot work.
    #[error("{0}")]
    Invalid(String),
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What is learned: the market, a control task, or a data set of transitions.
    pub task: Task,
    /// Where the bars come from.
    pub data: Data,
    /// A data set of transitions, in place of an environment.
    pub transitions: Transitions,
    /// Network shape.
    pub model: ModelShape,
    /// Training.
    pub train: Train,
    /// Optimizer and target.
    pub optimizer: Optimizer,
    /// Conservative term.
    pub cql: Cql,
    /// Quantile head.
    pub iqn: Iqn,
    /// Value networks by expectile regression.
    pub iql: Iql,
    /// Further value heads.
    pub ensemble: Ensemble,
    /// Confidence head.
    pub confidence: Confidence,
    /// Gradient of held-out training data.
    pub vaccine: Vaccine,
    /// Causal probe.
    pub probe: Probe,
    /// Temporal attention.
    pub attention: Attention,
    /// Mamba-2 block over the window's bars.
    pub mamba: Mamba,
    /// Spectral norm of the trunk.
    pub spectral: Spectral,
    /// Shares of the terms in the gradient.
    pub budgets: Budgets,
    /// Pruning of the main network's weights.
    pub pruning: Pruning,
    /// Collection.
    pub collect: Collect,
    /// Sampling from the replay ring, n-step returns.
    pub replay: Replay,
    /// Hindsight, for tasks with goals.
    pub her: Her,
    /// Split by time.
    pub split: Split,
    /// Walk-forward.
    pub folds: Folds,
    /// Market environment.
    pub market: Market,
    /// How the result is judged.
    pub report: Report,
    /// What a run keeps of itself.
    pub checkpoint: Checkpoints,
}

impl Config {
    /// What `train` starts from on a GPU: the defaults.
    pub fn gpu_preset() -> Self {
        Self::default()
    }

    /// What `train` starts from without a GPU: the same program at a size that two CPU cores finish in minutes.
    ///
    /// # Panics
    /// If the preset's file is no configuration: a programming error, a test reads all presets.
    pub fn cpu_preset() -> Self {
        let preset = presets::find("market-cpu").and_then(presets::Preset::config);
        preset.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The sections of the parts that may stand beside the C51 loss.
    pub fn parts(&self) -> Parts {
        Parts {
            cql: self.cql.clone(),
            iqn: self.iqn.clone(),
            iql: self.iql.clone(),
            ensemble: self.ensemble.clone(),
            confidence: self.confidence.clone(),
            vaccine: self.vaccine.clone(),
            probe: self.probe.clone(),
            attention: self.attention.clone(),
            mamba: self.mamba.clone(),
            spectral: self.spectral.clone(),
            budgets: self.budgets.clone(),
        }
    }

    /// Lays a TOML file and then `--set key=value` texts over a preset.
    ///
    /// # Errors
    /// [`ConfigError::Parse`] with the place for text that is not TOML, an unknown key or a wrong type.
    pub fn layered(
        preset: &Config,
        file: Option<(&str, &str)>,
        sets: &[String],
    ) -> Result<Self, ConfigError> {
        let parse = |place: &str, message: String| ConfigError::Parse { place: place.into(), message };
        let mut config = preset.clone();
        if let Some((name, text)) = file {
            let table: toml::Table = toml::from_str(text).map_err(|error| {
                let place = error.span().map(|span| line_and_column(text, span.start));
                let place = place.map(|(line, column)| format!("{name}, line {line}, column {column}"));
                parse(&place.unwrap_or_else(|| name.to_owned()), one_line(error.message()))
            })?;
            keys::check(&table).map_err(|(key, message)| {
                let line = keys::places(text).into_iter().find(|(_, place)| *place == key);
                let place = line.map_or(name.to_owned(), |(line, _)| format!("{name}, line {line}"));
                parse(&place, format!("{key}: {message}"))
            })?;
            config = config.with(table).map_err(|e| parse(name, e))?;
        }
        for set in sets {
            let place = format!("--set {set}");
            let table = set_table(set).map_err(|e| parse(&place, e))?;
            keys::check(&table).map_err(|(key, message)| parse(&place, format!("{key}: {message}")))?;
            config = config.with(table).map_err(|e| parse(&place, e))?;
        }
        Ok(config)
    }

    /// The configuration as TOML.
    pub fn to_toml(&self) -> String {
        // Every field is a plain value, an array or a table of them: serialisation cannot fail.
        toml::to_string_pretty(self).unwrap_or_default()
    }

    fn with(&self, over: toml::Table) -> Result<Self, String> {
        let mut base = toml::Table::try_from(self).map_err(|e| e.to_string())?;
        merge(&mut base, over);
        base.try_into().map_err(|e: toml::de::Error| one_line(&e.to_string()))
    }

    /// Checks everything that does not depend on the data, before it is loaded: with the widths that a market of
    /// `bar_features` features a bar and `portfolio` others would fill in where they are 0.
    ///
    /// # Errors
    /// As [`Config::check`].
    pub fn check_before_data(&self, bar_features: usize, portfolio: usize) -> Result<(), ConfigError> {
        let mut filled = self.clone();
        let widest = (MAX_WIDTH - portfolio.min(MAX_WIDTH)) / bar_features.max(1);
        if !(1..=widest).contains(&self.market.window) {
            let window = self.market.window;
            return Err(ConfigError::Invalid(format!("market.window = {window}: expected 1 to {widest}")));
        }
        let state = self.market.window.saturating_mul(bar_features).saturating_add(portfolio);
        let model = &mut filled.model;
        for (width, value) in [
            (&mut model.window, self.market.window),
            (&mut model.bar_features, bar_features),
            (&mut model.state, state),
        ] {
            if *width == 0 {
                *width = value;
            }
        }
        filled.check()
    }

    /// Checks values and combinations; the model's state width and window must be filled in.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, its value and what is expected.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.model.check().map_err(ConfigError::Invalid)?;
        self.parts().check(&self.model)?;
        self.optimizer.check_schedule()?;
        self.pruning.check(&self.train)?;
        let at_least = |key: &str, value: usize, low: usize, high: usize| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::Invalid(format!("{key} = {value}: expected {low} to {high}")))
            }
        };
        at_least("train.batch", self.train.batch, 1, 1 << 17)?;
        at_least("train.epochs", self.train.epochs, 1, 1 << 20)?;
        at_least("train.train_steps", self.train.train_steps, 1, 1 << 24)?;
        // What TOML has room for, in which a run keeps its configuration.
        if i64::try_from(self.train.seed).is_err() {
            return Err(ConfigError::Invalid(format!(
                "train.seed = {}: expected 0 to {}",
                self.train.seed,
                i64::MAX
            )));
        }
        at_least("train.max_nonfinite", self.train.max_nonfinite as usize, 1, 1 << 30)?;
        at_least("collect.environments", self.collect.environments, 1, 1 << 20)?;
        at_least("collect.steps", self.collect.steps, 1, 1 << 20)?;
        at_least("collect.episode", self.collect.episode, 1, 1 << 30)?;
        let warm = self.collect.environments.saturating_mul(self.collect.warmup.max(self.collect.steps));
        at_least("collect.environments * collect.warmup", warm, 1, 1 << 30)?;
        at_least("collect.capacity", self.collect.capacity, 1, 1 << 30)?;
        if self.collect.capacity < self.collect.environments {
            return Err(ConfigError::Invalid(format!(
                "collect.capacity = {}, collect.environments = {}: the ring must hold one step of all environments",
                self.collect.capacity, self.collect.environments
            )));
        }
        self.replay.check(self)?;
        self.checkpoint.check()?;
        self.report.check()?;
        self.task.check(self)?;
        self.transitions.check(self)?;
        self.her.check(self)?;
        let unit = |key: &str, value: f64| {
            if (0.0..=1.0).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::Invalid(format!("{key} = {value}: expected 0 to 1")))
            }
        };
        unit("train.gamma", self.train.gamma.into())?;
        unit("collect.epsilon_start", self.collect.epsilon_start.into())?;
        unit("collect.epsilon_end", self.collect.epsilon_end.into())?;
        self.folds.check(self.pruning.enabled)?;
        let (train, validation) = (self.split.train, self.split.validation);
        if !(train > 0.0 && validation > 0.0 && train + validation < 1.0) {
            return Err(ConfigError::Invalid(format!(
                "split.train = {train}, split.validation = {validation}: expected positive fractions whose sum is below 1"
            )));
        }
        Ok(())
    }
}

/// A parser's message, which may have several lines.
fn one_line(message: &str) -> String {
    message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Line and column of a byte, both from 1.
fn line_and_column(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// `a.b.c = value` as nested tables; a value that is not TOML is taken as a string.
fn set_table(set: &str) -> Result<toml::Table, String> {
    let (key, value) = set.split_once('=').ok_or("expected key=value, for example train.batch=512")?;
    let (key, value) = (key.trim(), value.trim());
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) && value.parse::<i64>().is_err() {
        return Err(format!("{value} is larger than the largest integer, {}", i64::MAX));
    }
    let parsed = toml::from_str::<toml::Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.into()));
    let mut parts: Vec<&str> = key.split('.').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(format!("`{key}` is not a key, for example train.batch"));
    }
    let last = parts.pop().unwrap_or_default();
    let mut table = toml::Table::from_iter([(last.to_string(), parsed)]);
    for part in parts.into_iter().rev() {
        table = toml::Table::from_iter([(part.to_string(), toml::Value::Table(table))]);
    }
    Ok(table)
}

/// Lays `over` over `base`, table by table.
fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(list: &[&str]) -> Result<Config, ConfigError> {
        let list: Vec<String> = list.iter().map(|s| s.to_string()).collect();
        Config::layered(&Config::default(), Some(("run.toml", "[train]\nbatch = 64\n")), &list)
    }

    #[test]
    fn a_file_and_sets_lie_over_the_preset() {
        let config = sets(&["model.atoms=101", "data.file=bars.csv", "model.branches=[3, 2]"]).unwrap();
        assert_eq!((config.train.batch, config.model.atoms), (64, 101));
        assert_eq!(config.data.file.as_deref(), Some("bars.csv"));
        assert_eq!(config.model.branches, [3, 2]);
        assert_eq!(config.train.gamma, 0.99);
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused_with_the_place() {
        let unknown = sets(&["model.atom=101"]).unwrap_err().to_string();
        assert!(unknown.starts_with("--set model.atom=101: ") && unknown.contains("atoms"), "{unknown}");
        let wrong = sets(&["train.batch=many"]).unwrap_err().to_string();
        assert!(wrong.contains("--set train.batch=many") && wrong.contains("batch"), "{wrong}");
        assert!(sets(&["train.batch"]).unwrap_err().to_string().contains("key=value"));
    }

    #[test]
    fn integers_beyond_those_of_toml_are_called_too_large() {
        let message = sets(&["train.seed=9223372036854775808"]).unwrap_err().to_string();
        assert_eq!(
            message,
            "--set train.seed=9223372036854775808: 9223372036854775808 is larger than the largest integer, \
             9223372036854775807"
        );
        assert_eq!(sets(&["train.seed=9223372036854775807"]).unwrap().train.seed, u64::MAX / 2);
        // As the option --seed sets it.
        let mut config = Config::default();
        (config.model.state, config.train.seed) = (80, u64::MAX);
        let message = config.check().unwrap_err().to_string();
        assert_eq!(message, "train.seed = 18446744073709551615: expected 0 to 9223372036854775807");
    }

    #[test]
    fn what_needs_no_data_is_checked_before_it_is_loaded() {
        let config = sets(&["replay.n_step=0"]).unwrap();
        let message = config.check_before_data(9, 8).unwrap_err().to_string();
        assert_eq!(message, "replay.n_step = 0: expected 1 to 64");
        for (low, high, expected) in [
            ("10", "10", "model.v_min = 10, model.v_max = 10: expected finite v_min < v_max"),
            ("-1e30", "1e30", "expected values between -1000000 and 1000000"),
            ("999999.9", "1000000", "the atoms are too close to each other"),
        ] {
            let config = sets(&[&format!("model.v_min={low}"), &format!("model.v_max={high}")]).unwrap();
            let message = config.check_before_data(9, 8).unwrap_err().to_string();
            assert!(message.starts_with("model.v_min = ") && message.contains(expected), "{message}");
        }
        sets(&["attention.enabled=true", "model.v_min=-0.5"]).unwrap().check_before_data(9, 8).unwrap();
    }

    #[test]
    fn what_errors_about_bar_files_advise_can_be_set() {
        let config = sets(&[
            "data.time_format=day-first",
            "data.repair=drop-bad-rows",
            "data.delimiter=;",
            "data.columns=[\"time\", \"-\", \"close\"]",
            "data.skip_lines=1",
            "data.numbers=1.234,5",
        ])
        .unwrap()
        .data;
        assert_eq!(config.date_format.as_deref(), Some("day-first"));
        assert_eq!((config.repair, config.delimiter), (vec!["drop-bad-rows".to_string()], Some(';')));
        assert_eq!((config.columns.map(|c| c.len()), config.skip_lines), (Some(3), 1));
        assert_eq!(config.numbers.as_deref(), Some("1.234,5"));
    }

    #[test]
    fn toml_round_trip() {
        for config in [Config::gpu_preset(), Config::cpu_preset()] {
            let again = Config::layered(&Config::default(), Some(("x", &config.to_toml())), &[]).unwrap();
            assert_eq!(again, config);
        }
    }

    #[test]
    fn a_ring_smaller_than_one_step_is_refused() {
        let mut config = Config::default();
        config.model.state = 80;
        config.collect.capacity = 100;
        assert!(config.check().unwrap_err().to_string().contains("collect.capacity = 100"));
    }
}
