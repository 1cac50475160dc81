//! Schedule of the learning rate (SPEC section 4), counted in updates: skipped steps do not count.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::training::Optimizer;

/// How the learning rate goes on after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Schedule {
    /// It stays.
    #[default]
    Constant,
    /// It falls to the end rate as half a cosine (Loshchilov and Hutter 2017, "SGDR", equation 5, without restarts).
    Cosine,
    /// It falls to the end rate on a line.
    Linear,
}

impl Schedule {
    /// Name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Cosine => "cosine",
            Self::Linear => "linear",
        }
    }
}

impl Optimizer {
    /// Checks the schedule's keys against one another.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the keys and their values.
    pub fn check_schedule(&self) -> Result<(), ConfigError> {
        let (schedule, warmup, total) = (self.schedule.name(), self.warmup_steps, self.total_steps);
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        if !(self.lr_end.is_finite() && self.lr_end >= 0.0) {
            return invalid(format!(
                "optimizer.lr_end = {}: expected a finite number, 0 or more",
                self.lr_end
            ));
        }
        if self.schedule == Schedule::Constant {
            if total > 0 {
                return invalid(format!(
                    "optimizer.total_steps = {total}, optimizer.schedule = \"constant\": a constant rate has no end; set \
                     optimizer.schedule to \"cosine\" or \"linear\", or leave total_steps at 0"
                ));
            }
            if self.lr_end > 0.0 {
                return invalid(format!(
                    "optimizer.lr_end = {}, optimizer.schedule = \"constant\": a constant rate has no end rate",
                    self.lr_end
                ));
            }
            return Ok(());
        }
        if total <= warmup {
            return invalid(format!(
                "optimizer.total_steps = {total}, optimizer.warmup_steps = {warmup}, optimizer.schedule = \
                 \"{schedule}\": the schedule needs more steps than its warm-up, usually train.epochs * \
                 train.train_steps"
            ));
        }
        if self.lr_end > self.lr {
            return invalid(format!(
                "optimizer.lr_end = {}, optimizer.lr = {}: the rate falls, so its end is not above its beginning",
                self.lr_end, self.lr
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn message(sets: &[&str]) -> String {
        let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
        let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
        config.model.state = 80;
        config.check().err().map_or("ok".into(), |e| e.to_string())
    }

    #[test]
    fn schedules_that_work_pass() {
        let cosine = ["optimizer.schedule=cosine", "optimizer.total_steps=100", "optimizer.warmup_steps=99"];
        assert_eq!(message(&cosine), "ok");
        assert_eq!(message(&["optimizer.warmup_steps=10"]), "ok");
        let linear = ["optimizer.schedule=linear", "optimizer.total_steps=1", "optimizer.lr_end=0.0001"];
        assert_eq!(message(&linear), "ok");
    }

    #[test]
    fn schedules_that_cannot_work_name_both_keys() {
        for (sets, start) in [
            (&["optimizer.schedule=cosine"][..], "optimizer.total_steps = 0, optimizer.warmup_steps = 0, "),
            (
                &["optimizer.schedule=linear", "optimizer.total_steps=5", "optimizer.warmup_steps=5"],
                "optimizer.total_steps = 5, optimizer.warmup_steps = 5, optimizer.schedule = \"linear\": ",
            ),
            (&["optimizer.total_steps=5"], "optimizer.total_steps = 5, optimizer.schedule = \"constant\": "),
            (&["optimizer.lr_end=1e-5"], "optimizer.lr_end = 0.00001, optimizer.schedule = \"constant\": "),
            (
                &["optimizer.schedule=linear", "optimizer.total_steps=5", "optimizer.lr_end=0.5"],
                "optimizer.lr_end = 0.5, optimizer.lr = 0.0001: ",
            ),
            (&["optimizer.lr_end=-1.0"], "optimizer.lr_end = -1: expected"),
        ] {
            let text = message(sets);
            assert!(text.starts_with(start), "{text}");
        }
    }
}
