//! The saved state of a learner.

use settings::{Confidence, Flat, Group};

use crate::error::CpuError;
use crate::group::check_len;
use crate::real::Real;

/// Values that the value networks keep.
pub(crate) const IQL: usize = 6;
/// Values that the confidence head keeps.
pub(crate) const CONFIDENCE: usize = 3 + Confidence::SIGNALS;

/// Everything a checkpoint needs to go on bit for bit; flat vectors are in the layout of all networks.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerState<T> {
    /// Online parameters.
    pub online: Vec<T>,
    /// Target parameters, up to the end of the last network that has a target copy.
    pub target: Vec<T>,
    /// Adam's first moments.
    pub m: Vec<T>,
    /// Adam's second moments.
    pub v: Vec<T>,
    /// Kept vectors of the spectral norm, trunk1's [H1] then trunk2's [H2]; empty without it.
    pub spectral: Vec<T>,
    /// What the value networks keep: averages of gap and |V_high|, 1 once they have started, epsilon, then the support's
    /// ends; empty without them.
    pub iql: Vec<T>,
    /// What the confidence head keeps: median, mean, 1 once they have started, signals; empty without it.
    pub confidence: Vec<T>,
    /// Whether each parameter of the main group is pruned; empty without pruning.
    pub pruned: Vec<bool>,
    /// Adam steps taken; skipped ones do not count.
    pub step: u64,
    /// Steps skipped for a non-finite gradient norm.
    pub skipped: u64,
    /// How many of them were the latest steps in a row.
    pub skipped_in_row: u32,
}

impl<T: Real> LearnerState<T> {
    /// Checks lengths, that every value is finite, that second moments are not negative and that padding is zero.
    pub(crate) fn check(&self, flat: &Flat, spectral: usize) -> Result<(), CpuError> {
        let has = |group: Group| flat.segment(group).is_some();
        let (iql, confidence) = (has(Group::IqlHigh), has(Group::Confidence));
        let (iql, confidence) =
            (vec![true; usize::from(iql) * IQL], vec![true; usize::from(confidence) * CONFIDENCE]);
        let mut is_parameter = vec![false; flat.len];
        for t in flat.tensors() {
            is_parameter[t.offset..t.offset + t.len()].fill(true);
        }
        let is_element = vec![true; spectral];
        let vectors = [
            ("online", &self.online, &is_parameter[..]),
            ("target", &self.target, &is_parameter[..flat.target_len()]),
            ("m", &self.m, &is_parameter[..]),
            ("v", &self.v, &is_parameter[..]),
            ("spectral", &self.spectral, &is_element[..]),
            ("iql", &self.iql, &iql[..]),
            ("confidence", &self.confidence, &confidence[..]),
        ];
        for (what, values, is_parameter) in vectors {
            check_len(&format!("learner state: {what}"), values.len(), is_parameter.len())?;
            for (index, (&x, &parameter)) in values.iter().zip(is_parameter).enumerate() {
                let value = x.to_f64();
                let expected = if !x.is_finite() {
                    "a finite number"
                } else if !parameter && value != 0.0 {
                    "0, it is padding"
                } else if what == "v" && value < 0.0 {
                    "0 or more, it is a mean of squares"
                } else {
                    continue;
                };
                return Err(CpuError::State { what, index, value, expected });
            }
        }
        Ok(())
    }
}
