//! A batch of transitions.

use settings::{ModelShape, NoisyLayout, Parts};

use crate::error::CpuError;
use crate::group::check_len;

/// Transitions of one training step, row-major. B samples, S state features, D branches; and the step's quantile
/// samples, which come from outside so that a step is a function of its batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct C51Batch<T> {
    /// s, [B, S].
    pub states: Vec<T>,
    /// s' after the last summed reward: the final observation of an episode that ended, never the reset one. [B, S].
    pub next_states: Vec<T>,
    /// One action index per branch, [B, D].
    pub actions: Vec<u32>,
    /// n-step returns, [B].
    pub rewards: Vec<T>,
    /// gamma^m * (1 - terminated), m the number of rewards summed ([`crate::nstep::discount`]), [B].
    pub discounts: Vec<T>,
    /// w, importance weights, [B].
    pub weights: Vec<T>,
    /// tau, quantile samples of the online IQN head in (0, 1), [B, N]; empty without that head.
    pub taus: Vec<T>,
    /// tau', quantile samples at s', [B, N']; empty without that head.
    pub target_taus: Vec<T>,
    /// Which members of the ensemble learn from a sample, [B, M]; empty without an ensemble.
    pub masks: Vec<bool>,
    /// f(e), the factors of the heads' noise in this step, the online network's and then the target's,
    /// [2, [`settings::NoisyLayout::factors`]]; empty without noisy heads.
    pub noise: Vec<T>,
}

impl<T> C51Batch<T> {
    /// B, the number of samples.
    pub fn len(&self) -> usize {
        self.rewards.len()
    }

    /// True for a batch without samples.
    pub fn is_empty(&self) -> bool {
        self.rewards.is_empty()
    }

    /// Checks the lengths against B = `rewards.len()` and the actions against their branches.
    ///
    /// Values are not looked at: a non-finite one reaches the gradient norm, where the step is refused and counted.
    ///
    /// # Errors
    /// [`CpuError::Length`] or [`CpuError::Action`] with the place and the value.
    pub fn check(&self, shape: &ModelShape, parts: &Parts) -> Result<(), CpuError> {
        let (batch, branches) = (self.len(), shape.branches.len());
        if batch == 0 {
            return Err(CpuError::Length { what: "batch.rewards [batch]".into(), got: 0, expected: 1 });
        }
        check_len("batch.states [batch, state]", self.states.len(), batch * shape.state)?;
        check_len("batch.next_states [batch, state]", self.next_states.len(), batch * shape.state)?;
        check_len("batch.actions [batch, branches]", self.actions.len(), batch * branches)?;
        check_len("batch.discounts [batch]", self.discounts.len(), batch)?;
        check_len("batch.weights [batch]", self.weights.len(), batch)?;
        let per_sample = |n: usize| if parts.iqn.enabled { batch * n } else { 0 };
        let (samples, target_samples) = (parts.iqn.samples, parts.iqn.target_samples);
        check_len("batch.taus [batch, samples]", self.taus.len(), per_sample(samples))?;
        let expected = per_sample(target_samples);
        check_len("batch.target_taus [batch, target samples]", self.target_taus.len(), expected)?;
        let members = if parts.ensemble.enabled { parts.ensemble.members } else { 0 };
        check_len("batch.masks [batch, members]", self.masks.len(), batch * members)?;
        let factors = if shape.noisy { 2 * NoisyLayout::new(shape).factors } else { 0 };
        check_len("batch.noise [2, factors]", self.noise.len(), factors)?;
        for (i, &action) in self.actions.iter().enumerate() {
            let (row, branch) = (i / branches, i % branches);
            let actions = shape.branches[branch];
            if action as usize >= actions {
                return Err(CpuError::Action { row, branch, action, actions });
            }
        }
        Ok(())
    }
}
