//! `[transitions]`: learning from a data set of transitions in place of an environment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError};
use crate::parts::{check, invalid};
use crate::task::Task;

/// `[transitions]`: a data set of transitions that is learned from in place of an environment (`task.name = "transitions"`,
/// `docs/TRANSITIONS.md`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Transitions {
    /// Parquet, safetensors, NPZ or Minari (HDF5) files, one behind the other; none for an environment. The option
    /// `--transitions` sets it together with `task.name`.
    pub files: Vec<String>,
    /// Share of the transitions that is held out, in whole episodes, to choose the best policy by.
    #[schemars(extend("unit" = "fraction of the transitions"))]
    pub validation: f64,
    /// Share of the transitions that is held out, in whole episodes, and looked at once, at the end.
    #[schemars(extend("unit" = "fraction of the transitions"))]
    pub test: f64,
    /// Most transitions of a part that an evaluation looks at, evenly spaced.
    #[schemars(extend("unit" = "transitions"))]
    pub evaluation_rows: usize,
    /// Transitions that are drawn from at a time, for a data set larger than device memory: two halves, of which one is
    /// filled while the other is drawn from. 0: all.
    #[schemars(extend("unit" = "transitions"))]
    pub resident: usize,
    /// Steps after which the halves change places.
    #[schemars(extend("unit" = "training steps"))]
    pub shard_steps: usize,
}

impl Default for Transitions {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            validation: 0.1,
            test: 0.1,
            evaluation_rows: 4096,
            resident: 0,
            shard_steps: 1000,
        }
    }
}

impl Transitions {
    /// Checks values, and the combinations with the other sections.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, or both keys of an impossible combination.
    pub(crate) fn check(&self, config: &Config) -> Result<(), ConfigError> {
        for (key, share) in [("transitions.validation", self.validation), ("transitions.test", self.test)] {
            check(key, share, share > 0.0 && share <= 0.4, "above 0, at most 0.4")?;
        }
        let (rows, resident, steps) = (self.evaluation_rows, self.resident, self.shard_steps);
        check("transitions.evaluation_rows", rows, (1..=1 << 20).contains(&rows), "1 to 1048576")?;
        let fits = resident == 0 || (2..=1 << 30).contains(&resident);
        check("transitions.resident", resident, fits, "0, or 2 to 1073741824")?;
        check("transitions.shard_steps", steps, (1..=1 << 24).contains(&steps), "1 to 16777216")?;
        let (files, task) = (&self.files, &config.task.name);
        match (files.is_empty(), config.task.is_transitions()) {
            (true, false) => return Ok(()),
            (false, false) => {
                return invalid(format!(
                    "transitions.files = {files:?}, task.name = \"{task}\": a data set is learned from with task.name = \
                     \"{}\" (the option --transitions sets both)",
                    Task::TRANSITIONS
                ));
            }
            (true, true) => {
                return invalid(format!(
                    "transitions.files = [], task.name = \"{task}\": name the data set (the option --transitions sets both)"
                ));
            }
            (false, true) => {}
        }
        if config.her.enabled {
            return invalid(format!(
                "her.enabled = true, task.name = \"{task}\": another goal's rewards are known to an environment, and a data \
                 set has none"
            ));
        }
        if resident > 0 && config.replay.prioritized {
            return invalid(format!(
                "transitions.resident = {resident}, replay.prioritized = true: the transitions that are not on the device \
                 have no priorities; draw uniformly, or keep the whole data set on the device (transitions.resident = 0)"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
        config.model.state = 80;
        config.check().err().map_or("ok".into(), |e| e.to_string())
    }

    #[test]
    fn what_cannot_work_names_its_keys() {
        let set = ["transitions.files=[\"set.npz\"]", "task.name=transitions"];
        assert_eq!(message(&set), "ok");
        for (more, expected) in [
            (
                &["transitions.validation=0.0"][..],
                "transitions.validation = 0: expected above 0, at most 0.4",
            ),
            (&["transitions.test=0.5"], "transitions.test = 0.5: expected above 0, at most 0.4"),
            (&["transitions.evaluation_rows=0"], "transitions.evaluation_rows = 0: expected 1 to 1048576"),
            (&["transitions.resident=1"], "transitions.resident = 1: expected 0, or 2 to 1073741824"),
            (&["transitions.shard_steps=0"], "transitions.shard_steps = 0: expected 1 to 16777216"),
            (&["task.name=market"], "transitions.files = [\"set.npz\"], task.name = \"market\": "),
            (&["transitions.files=[]"], "transitions.files = [], task.name = \"transitions\": "),
            (&["her.enabled=true"], "her.enabled = true, task.name = \"transitions\": "),
            (&["vaccine.enabled=true"], "vaccine.enabled = true, task.name = \"transitions\": "),
            (&["data.file=bars.csv"], "data.file = \"bars.csv\", task.name = \"transitions\": "),
            (
                &["transitions.resident=64", "replay.prioritized=true"],
                "transitions.resident = 64, replay.prioritized = true: ",
            ),
        ] {
            let text = message(&[&set, more].concat());
            assert!(text.starts_with(expected), "{text}");
        }
    }

    /// What a window of collected steps asks of the ring and of the warm-up is no matter of a data set.
    #[test]
    fn windows_of_a_data_set_need_no_collection() {
        let windows = ["replay.n_step=5", "collect.steps=4", "collect.warmup=0"];
        assert!(message(&windows).contains("no window is complete"));
        let set = ["transitions.files=[\"set.npz\"]", "task.name=transitions"];
        assert_eq!(message(&[&set[..], &windows].concat()), "ok");
    }
}
