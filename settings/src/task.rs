//! `[task]` and `[her]`: what the agent learns, and hindsight for tasks with goals.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError};

/// `[task]`: the market, a control task, or a data set of transitions (`[transitions]`). Which names of control tasks there
/// are, and which sizes they take, is known to the program's list of environments (`gpu::task`), which also checks them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Task {
    /// `market`; the name of a control task: `cartpole`, `acrobot`, `bit_flip`, `mountain_car`; or `transitions`, a data set.
    pub name: String,
    /// Size of the task, in its own unit (`bit_flip`: bits); 0 for the task's default.
    pub size: usize,
    /// Steps after which an episode is truncated; 0 for the task's default.
    #[schemars(extend("unit" = "steps"))]
    pub limit: usize,
    /// Greedy episodes of an evaluation.
    #[schemars(extend("unit" = "episodes"))]
    pub evaluation_episodes: usize,
}

impl Default for Task {
    fn default() -> Self {
        Self { name: Self::MARKET.into(), size: 0, limit: 0, evaluation_episodes: 100 }
    }
}

impl Task {
    /// Name of the market.
    pub const MARKET: &'static str = "market";
    /// Name of what is learned from a data set alone.
    pub const TRANSITIONS: &'static str = "transitions";

    /// Whether it is the market.
    pub fn is_market(&self) -> bool {
        self.name == Self::MARKET
    }

    /// Whether it is a data set of transitions, without an environment.
    pub fn is_transitions(&self) -> bool {
        self.name == Self::TRANSITIONS
    }

    /// Checks values, and the combinations with the other sections.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, or both keys of an impossible combination.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        for (key, value, low, high) in [
            ("task.size", self.size, 0, 1 << 30),
            ("task.limit", self.limit, 0, 1 << 30),
            ("task.evaluation_episodes", self.evaluation_episodes, 1, 1 << 20),
        ] {
            if !(low..=high).contains(&value) {
                return invalid(format!("{key} = {value}: expected {low} to {high}"));
            }
        }
        if self.is_market() {
            return Ok(());
        }
        if config.vaccine.enabled {
            return invalid(format!(
                "vaccine.enabled = true, task.name = \"{}\": only the market has bars to hold out",
                self.name
            ));
        }
        let no_bars = |key: &str, value: String| {
            invalid(format!("{key} = {value}, task.name = \"{}\": this task reads no bars", self.name))
        };
        if let Some(file) = &config.data.file {
            return no_bars("data.file", format!("{file:?}"));
        }
        if !config.data.files.is_empty() {
            return no_bars("data.files", format!("{:?}", config.data.files));
        }
        if config.folds.walks() {
            return no_bars("folds.count", config.folds.count.to_string());
        }
        Ok(())
    }
}

/// `[her]`: hindsight experience replay, "future" strategy (Andrychowicz et al., "Hindsight Experience Replay", 2017,
/// section 4.5), for tasks with goals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Her {
    /// Whether drawn transitions get goals that their own episode achieved later.
    pub enabled: bool,
    /// k: of k + 1 drawn transitions, k are relabelled on average.
    pub future: u32,
}

impl Default for Her {
    fn default() -> Self {
        Self { enabled: false, future: 4 }
    }
}

impl Her {
    /// k / (k + 1).
    pub fn share(&self) -> f32 {
        self.future as f32 / (self.future as f32 + 1.0)
    }

    /// Checks the value, and the combinations with the other sections.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming both keys of an impossible combination.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        if !(1..=1000).contains(&self.future) {
            return invalid(format!("her.future = {}: expected 1 to 1000", self.future));
        }
        if !self.enabled {
            return Ok(());
        }
        if config.task.is_market() {
            return invalid("her.enabled = true, task.name = \"market\": the market has no goals".into());
        }
        if config.replay.n_step != 1 {
            return invalid(format!(
                "her.enabled = true, replay.n_step = {}: the rewards that a window has summed were for the old goal; \
                 hindsight takes single steps",
                config.replay.n_step
            ));
        }
        if config.replay.prioritized {
            return invalid(
                "her.enabled = true, replay.prioritized = true: a priority would be of another goal than the one that the \
                 transition is drawn with next; hindsight draws uniformly"
                    .into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
        config.model.state = 4;
        (config.model.window, config.model.bar_features) = (0, 0);
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn impossible_combinations_name_both_keys() {
        let goals = ["task.name=bit_flip", "her.enabled=true"];
        for (more, expected) in [
            (&["replay.n_step=3"][..], "her.enabled = true, replay.n_step = 3: "),
            (&["replay.prioritized=true"], "her.enabled = true, replay.prioritized = true: "),
            (&["task.name=market"], "her.enabled = true, task.name = \"market\": "),
            (&["her.future=0"], "her.future = 0: expected 1 to 1000"),
            (&["vaccine.enabled=true"], "vaccine.enabled = true, task.name = \"bit_flip\": "),
            (&["data.file=bars.csv"], "data.file = \"bars.csv\", task.name = \"bit_flip\": "),
            (&["data.files=[\"a.csv\"]"], "data.files = [\"a.csv\"], task.name = \"bit_flip\": "),
            (&["folds.count=3"], "folds.count = 3, task.name = \"bit_flip\": this task reads no bars"),
            (&["task.evaluation_episodes=0"], "task.evaluation_episodes = 0: "),
        ] {
            let message = refusal(&[&goals, more].concat());
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn four_of_five_are_relabelled_by_default() {
        assert_eq!(Her::default().share(), 0.8);
    }

    /// The shipped settings of every task are configurations that can work, within a million steps of the environments.
    #[test]
    fn the_shipped_settings_are_valid() {
        for (name, text, (state, actions)) in [
            ("cartpole", include_str!("presets/cartpole.toml"), (4, 2)),
            ("acrobot", include_str!("presets/acrobot.toml"), (6, 3)),
            ("bit_flip", include_str!("presets/bit_flip.toml"), (60, 30)),
        ] {
            let mut config = Config::layered(&Config::default(), Some((name, text)), &[]).unwrap();
            config.model.state = state;
            assert_eq!((config.task.name.as_str(), &config.model.branches[..]), (name, &[actions][..]));
            config.check().unwrap_or_else(|error| panic!("{name}: {error}"));
            let collect = &config.collect;
            let warm = collect.warmup.saturating_sub(collect.steps);
            let steps = (warm + config.train.epochs * collect.steps) * collect.environments;
            assert!(steps <= 1_000_000, "{name} takes {steps} steps of the environments");
        }
    }
}
