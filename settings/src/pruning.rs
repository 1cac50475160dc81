//! `[pruning]`: a magnitude mask on the main network's weight matrices whose sparsity grows (SPEC section 3).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::model::{Layout, Tensor};
use crate::training::Train;

/// Zhu and Gupta 2017, "To prune, or not to prune", equation 1: with x = (step - begin) / (end - begin) cut to [0, 1], the
/// fraction `sparsity` (1 - (1 - x)^3) of every weight matrix of trunk and heads is zero, the smallest magnitudes.
///
/// Pruning comes before the forward pass of a step. A pruned weight stays exactly zero: its gradient, in every term and
/// before norms and budgets, is multiplied with its mask 0, and its moments are set to zero with it. The target network
/// is not masked: its copy of a pruned weight shrinks by 1 - `optimizer.tau` a step, as the moving average of zeros
/// does. Biases and the sigma of noisy heads are not pruned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pruning {
    /// Whether weights are pruned.
    pub enabled: bool,
    /// Fraction of every matrix that is zero at the end.
    #[schemars(extend("unit" = "fraction of the weights"))]
    pub sparsity: f64,
    /// Training step at which the sparsity begins to grow, counted from 0.
    #[schemars(extend("unit" = "training steps"))]
    pub begin: u64,
    /// Training step from which it is `sparsity`.
    #[schemars(extend("unit" = "training steps"))]
    pub end: u64,
    /// Steps between two prunings.
    #[schemars(extend("unit" = "training steps"))]
    pub every: u64,
}

impl Default for Pruning {
    fn default() -> Self {
        Self { enabled: false, sparsity: 0.5, begin: 2_000, end: 16_000, every: 100 }
    }
}

impl Pruning {
    /// Whether step `step` (from 0) begins with a pruning: every `every` steps from `begin` on, the last time at `end` or
    /// as soon as it has passed.
    pub fn due(&self, step: u64) -> bool {
        self.enabled
            && step >= self.begin
            && (step - self.begin).is_multiple_of(self.every)
            && step < self.end.saturating_add(self.every)
    }

    /// How many of `len` weights are zero after a pruning at step `step`: the nearest integer.
    pub fn zeros(&self, step: u64, len: usize) -> usize {
        let left = if step >= self.end {
            0.0
        } else if step <= self.begin {
            1.0
        } else {
            (self.end - step) as f64 / (self.end - self.begin) as f64
        };
        (self.sparsity * (1.0 - left * left * left) * len as f64 + 0.5) as usize
    }

    /// The matrices that are pruned.
    pub fn matrices(main: &Layout) -> impl Iterator<Item = &Tensor> {
        main.tensors.iter().filter(|t| t.name.ends_with(".weight"))
    }

    /// Checks the values, and that a run of `train` reaches the end.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key, or both keys of an impossible combination.
    pub fn check(&self, train: &Train) -> Result<(), ConfigError> {
        let invalid = |message: String| Err(ConfigError::Invalid(message));
        if !(self.sparsity > 0.0 && self.sparsity < 1.0) {
            return invalid(format!(
                "pruning.sparsity = {}: expected between 0 and 1, exclusive",
                self.sparsity
            ));
        }
        if self.begin >= self.end {
            return invalid(format!(
                "pruning.begin = {}, pruning.end = {}: expected begin < end",
                self.begin, self.end
            ));
        }
        if self.every == 0 {
            return invalid("pruning.every = 0: expected 1 step or more".into());
        }
        // Both have their limits checked later; what overflows is far beyond them.
        let steps = (train.epochs as u64).saturating_mul(train.train_steps as u64);
        if self.enabled && self.end > steps {
            return invalid(format!(
                "pruning.end = {}, train.epochs * train.train_steps = {steps}: the run ends before the sparsity is \
                 reached; set pruning.begin and pruning.end below it",
                self.end
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::model::ModelShape;

    #[test]
    fn the_share_grows_as_a_cubic_and_ends_at_the_sparsity() {
        let p = Pruning { enabled: true, sparsity: 0.8, begin: 10, end: 25, every: 4 };
        let due: Vec<u64> = (0..100).filter(|&step| p.due(step)).collect();
        assert_eq!(due, [10, 14, 18, 22, 26]);
        let zeros: Vec<usize> = due.iter().map(|&step| p.zeros(step, 1000)).collect();
        // 800 (1 - (11/15)^3) = 484.504, 800 (1 - (7/15)^3) = 718.696, 800 (1 - (3/15)^3) = 793.6.
        assert_eq!(zeros, [0, 485, 719, 794, 800]);
        assert_eq!((p.zeros(0, 7), p.zeros(u64::MAX, 7)), (0, 6));
        assert!(!Pruning { enabled: false, ..p }.due(10));
    }

    #[test]
    fn matrices_are_the_weights_alone() {
        let shape = ModelShape { state: 5, branches: vec![2, 3], noisy: true, ..ModelShape::default() };
        let layout = Layout::main(&shape);
        let names: Vec<&str> = Pruning::matrices(&layout).map(|t| t.name.as_str()).collect();
        let weights =
            ["trunk1", "trunk2", "v1", "a1.0", "a1.1", "v2", "a2.0", "a2.1"].map(|n| format!("{n}.weight"));
        assert_eq!(names, weights);
    }

    #[test]
    fn what_cannot_work_names_the_keys() {
        let message = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|s| s.to_string()).collect();
            let mut config = Config::layered(&Config::default(), None, &sets).unwrap();
            config.model.state = 80;
            config.check().err().map_or("ok".into(), |e| e.to_string())
        };
        assert_eq!(message(&["pruning.enabled=true"]), "ok");
        for (sets, start) in [
            (&["pruning.sparsity=1.0"][..], "pruning.sparsity = 1: "),
            (&["pruning.sparsity=nan"], "pruning.sparsity = NaN: "),
            (&["pruning.begin=16000"], "pruning.begin = 16000, pruning.end = 16000: "),
            (&["pruning.every=0"], "pruning.every = 0: "),
            (
                &["pruning.enabled=true", "train.epochs=2"],
                "pruning.end = 16000, train.epochs * train.train_steps = 4000: ",
            ),
        ] {
            let text = message(sets);
            assert!(text.starts_with(start), "{text}");
        }
    }
}
