//! The saved state of a learner.

use settings::Layout;

use crate::error::CpuError;
use crate::group::check_len;
use crate::real::Real;

/// Everything a checkpoint needs to go on bit for bit; flat vectors are in the layout of the main network.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerState<T> {
    /// Online parameters.
    pub online: Vec<T>,
    /// Target parameters.
    pub target: Vec<T>,
    /// Adam's first moments.
    pub m: Vec<T>,
    /// Adam's second moments.
    pub v: Vec<T>,
    /// Adam steps taken; skipped ones do not count.
    pub step: u64,
    /// Steps skipped for a non-finite gradient norm.
    pub skipped: u64,
    /// How many of them were the latest steps in a row.
    pub skipped_in_row: u32,
}

impl<T: Real> LearnerState<T> {
    /// Checks lengths, that every value is finite, that second moments are not negative and that padding is zero.
    pub(crate) fn check(&self, layout: &Layout) -> Result<(), CpuError> {
        let mut is_parameter = vec![false; layout.len];
        for t in &layout.tensors {
            is_parameter[t.offset..t.offset + t.len()].fill(true);
        }
        let vectors = [("online", &self.online), ("target", &self.target), ("m", &self.m), ("v", &self.v)];
        for (what, values) in vectors {
            check_len(&format!("learner state: {what}"), values.len(), layout.len)?;
            for (index, (&x, &parameter)) in values.iter().zip(&is_parameter).enumerate() {
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
