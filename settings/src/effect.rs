//! Keys that were set and change nothing, because another key keeps what they belong to switched off.

use crate::config::Config;
use crate::schedule::Schedule;

impl Config {
    /// Keys whose value differs from the preset's and that have no effect, each with the key that keeps it so:
    /// `iqn.hidden = 64 has no effect: iqn.enabled = false`.
    pub fn without_effect(&self, preset: &Config) -> Vec<String> {
        let reason = |key: &str| self.switched_off_by(key).map(|by| format!("has no effect: {by}"));
        let differences = preset.differences(self).into_iter();
        differences
            .filter_map(|d| {
                let value = d.after.unwrap_or_else(|| "unset".into());
                Some(format!("{} = {value} {}", d.key, reason(&d.key)?))
            })
            .collect()
    }

    /// What keeps a key without effect, if something does.
    fn switched_off_by(&self, key: &str) -> Option<String> {
        let (section, name) = key.split_once('.')?;
        let enabled = match section {
            "cql" => self.cql.enabled,
            "iqn" => self.iqn.enabled,
            "iql" => self.iql.enabled,
            "ensemble" => self.ensemble.enabled,
            "confidence" => self.confidence.enabled,
            "vaccine" => self.vaccine.enabled,
            "probe" => self.probe.enabled,
            "attention" => self.attention.enabled,
            "mamba" => self.mamba.enabled,
            "spectral" => self.spectral.enabled,
            "pruning" => self.pruning.enabled,
            "her" => self.her.enabled,
            _ => true,
        };
        if !enabled && name != "enabled" {
            return Some(format!("{section}.enabled = false"));
        }
        // A data set comes without environments.
        let of_an_environment = ["collect", "task"].contains(&section) && key != "task.name"
            || ["iql.adaptive_epsilon", "ensemble.explore", "ensemble.explore_steps"].contains(&key);
        if of_an_environment && self.task.is_transitions() {
            return Some(format!("task.name = \"{}\"", self.task.name));
        }
        // A control task reads no bars.
        let of_the_market =
            ["data", "split", "market", "folds"].contains(&section) || key == "collect.episode";
        if of_the_market && !self.task.is_market() {
            return Some(format!("task.name = \"{}\"", self.task.name));
        }
        let prioritized = ["alpha", "beta_start", "beta_end", "beta_steps", "eps", "priority", "iqn_weight"]
            .contains(&name);
        let of_a_file = [
            "date_format",
            "delimiter",
            "header",
            "skip_lines",
            "columns",
            "numbers",
            "price",
            "repair",
            "gaps",
        ]
        .into_iter()
        .chain(["zero_volume", "symbol_column"])
        .any(|of_a_file| of_a_file == name);
        let has_file = self.data.file.is_some() || !self.data.files.is_empty();
        let off = match section {
            "replay" if prioritized && !self.replay.prioritized => "replay.prioritized = false",
            "optimizer"
                if ["total_steps", "lr_end"].contains(&name)
                    && self.optimizer.schedule == Schedule::Constant =>
            {
                "optimizer.schedule = \"constant\""
            }
            "budgets" if !self.parts().budgeted() => {
                "there is one term on the main parameters, so nothing is shared"
            }
            "task" if name != "name" && self.task.is_market() => "task.name = \"market\"",
            "ensemble" if name == "explore_steps" && self.ensemble.explore == 0.0 => "ensemble.explore = 0.0",
            "transitions" if !self.task.is_transitions() => "transitions.files is not set",
            "transitions" if name == "shard_steps" && self.transitions.resident == 0 => {
                "transitions.resident = 0"
            }
            "data" if name.starts_with("synthetic") && has_file => match self.data.file {
                Some(_) => "data.file is set",
                None => "data.files is set",
            },
            "data" if of_a_file && !has_file => "data.file is not set",
            "checkpoint" if name == "interval_minutes" && self.checkpoint.states == 0 => {
                "checkpoint.states = 0"
            }
            _ => return None,
        };
        Some(off.into())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn without_effect(sets: &[&str]) -> Vec<String> {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let preset = Config::cpu_preset();
        Config::layered(&preset, None, &sets).unwrap().without_effect(&preset)
    }

    #[test]
    fn keys_of_what_is_off_are_named_with_what_keeps_it_off() {
        assert_eq!(
            without_effect(&[
                "iqn.hidden=64",
                "replay.alpha=0.5",
                "budgets.c51=0.5",
                "checkpoint.states=0",
                "checkpoint.interval_minutes=1",
                "data.delimiter=;",
                "data.gaps=fill:3",
                "train.batch=7",
            ]),
            [
                "budgets.c51 = 0.5 has no effect: there is one term on the main parameters, so nothing is shared",
                "checkpoint.interval_minutes = 1.0 has no effect: checkpoint.states = 0",
                "data.delimiter = \";\" has no effect: data.file is not set",
                "data.gaps = \"fill:3\" has no effect: data.file is not set",
                "iqn.hidden = 64 has no effect: iqn.enabled = false",
                "replay.alpha = 0.5 has no effect: replay.prioritized = false",
            ]
        );
    }

    #[test]
    fn several_files_are_files() {
        let files = "data.files=[\"a.csv\", \"b.csv\"]";
        assert_eq!(
            without_effect(&[files, "data.delimiter=;", "data.gaps=error", "data.synthetic_seed=3"]),
            ["data.synthetic_seed = 3 has no effect: data.files is set"]
        );
    }

    #[test]
    fn a_control_task_has_no_bars_and_the_market_no_episodes_to_evaluate() {
        assert_eq!(
            without_effect(&["task.name=cartpole", "market.window=4", "collect.episode=9", "task.limit=50"]),
            [
                "collect.episode = 9 has no effect: task.name = \"cartpole\"",
                "market.window = 4 has no effect: task.name = \"cartpole\"",
            ]
        );
        assert_eq!(
            without_effect(&["task.limit=50", "her.future=2"]),
            [
                "her.future = 2 has no effect: her.enabled = false",
                "task.limit = 50 has no effect: task.name = \"market\"",
            ]
        );
    }

    #[test]
    fn a_data_set_has_no_environment() {
        assert_eq!(
            without_effect(&[
                "task.name=transitions",
                "transitions.files=[\"a.npz\"]",
                "collect.steps=3",
                "ensemble.enabled=true",
                "ensemble.explore=0.5",
                "transitions.shard_steps=5",
                "market.window=4",
            ]),
            [
                "collect.steps = 3 has no effect: task.name = \"transitions\"",
                "ensemble.explore = 0.5 has no effect: task.name = \"transitions\"",
                "market.window = 4 has no effect: task.name = \"transitions\"",
                "transitions.shard_steps = 5 has no effect: transitions.resident = 0",
            ]
        );
        assert_eq!(
            without_effect(&["ensemble.enabled=true", "ensemble.explore_steps=5"]),
            ["ensemble.explore_steps = 5 has no effect: ensemble.explore = 0.0"]
        );
        assert_eq!(
            without_effect(&["transitions.test=0.2"]),
            ["transitions.test = 0.2 has no effect: transitions.files is not set"]
        );
    }

    #[test]
    fn what_is_on_or_as_it_was_is_not_mentioned() {
        let none: [String; 0] = [];
        assert_eq!(without_effect(&["iqn.enabled=true", "iqn.hidden=64", "budgets.c51=0.5"]), none);
        assert_eq!(without_effect(&["iqn.enabled=false", "replay.alpha=0.6"]), none);
    }

    /// A section with a switch that is missing above would pass silently.
    #[test]
    fn every_section_with_a_switch_is_known() {
        let text = Config::default().to_toml();
        let sections: Vec<&str> = text.split("\n[").filter(|s| s.contains("enabled = false")).collect();
        assert!(sections.len() >= 11);
        for section in sections {
            let (name, body) = section.split_once("]\n").unwrap();
            let other = body.lines().find(|line| !line.starts_with("enabled") && line.contains(" = "));
            let Some((key, _)) = other.and_then(|line| line.split_once(" = ")) else { continue };
            let found = Config::default().switched_off_by(&format!("{name}.{key}"));
            assert_eq!(found, Some(format!("{name}.enabled = false")), "{name}.{key}");
        }
    }
}
