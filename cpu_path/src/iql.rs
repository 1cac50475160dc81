//! The two value networks of IQL (SPEC section 3; Kostrikov et al. 2021) and what is derived from them.

use candle_core::{Result, Tensor};

use crate::group::Weights;
use crate::real::Real;

/// Largest advantage weight before the division by their mean.
pub const MAX_WEIGHT: f64 = 100.0;

/// V(s) of the network `iql.hi` or `iql.lo`, [batch]; states are [batch, S].
pub fn value<T: Real>(weights: &Weights, network: &str, states: &Tensor, slope: f64) -> Result<Tensor> {
    let h = weights.hidden::<T>(&format!("{network}.0"), states, slope)?;
    let h = weights.hidden::<T>(&format!("{network}.1"), &h, slope)?;
    weights.linear::<T>(&format!("{network}.2"), &h)?.squeeze(1)
}

/// Expectile loss |tau - 1[u < 0]| u^2 with u = q - v, per sample: [batch].
pub fn expectile(q: &Tensor, v: &Tensor, tau: f64) -> Result<Tensor> {
    let u = (q - v)?;
    let below = u.detach().lt(0.0)?.to_dtype(u.dtype())?;
    let weight = (below.neg()? + tau)?.abs()?;
    u.sqr()? * weight
}

/// What the step derives from the value networks; reported, not fed back into the losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived<T> {
    /// A = Q - V_high, [batch].
    pub advantages: Vec<T>,
    /// Q_d - V_high, [batch, branches].
    pub advantages_per_branch: Vec<T>,
    /// min(exp(beta A), 100) over their mean, [batch].
    pub weights: Vec<T>,
    /// Batch mean of |Q_d - V_high| over the mean of these over the branches, clamped to [0.5, 2]; [branches].
    pub branch_scales: Vec<f64>,
    /// mean(V_high - V_low).
    pub gap: f64,
}

/// The derived values of a batch, formed in f64: `q` [batch, branches] of the target network at the taken actions,
/// `high` and `low` [batch].
pub fn derive<T: Real>(q: &[T], high: &[T], low: &[T], beta: f64) -> Derived<T> {
    let (batch, branches) = (high.len(), q.len() / high.len());
    let (mut advantages, mut per_branch) = (Vec::with_capacity(batch), Vec::with_capacity(q.len()));
    let (mut weights, mut sizes, mut gap) = (Vec::with_capacity(batch), vec![0.0; branches], 0.0);
    for ((q, high), low) in q.chunks_exact(branches).zip(high).zip(low) {
        let high = high.to_f64();
        gap += high - low.to_f64();
        let mut sum = 0.0;
        for (q, size) in q.iter().zip(&mut sizes) {
            let advantage = q.to_f64() - high;
            per_branch.push(T::from_f64(advantage));
            *size += advantage.abs() / batch as f64;
            sum += q.to_f64();
        }
        let advantage = sum / branches as f64 - high;
        advantages.push(T::from_f64(advantage));
        weights.push((beta * advantage).exp().min(MAX_WEIGHT));
    }
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (weight, size) = (mean(&weights), mean(&sizes));
    // Weights may all underflow and advantages all be zero: then no sample and no branch stands out.
    let over = |x: f64, mean: f64| if mean == 0.0 { 1.0 } else { x / mean };
    Derived {
        advantages,
        advantages_per_branch: per_branch,
        weights: weights.iter().map(|&w| T::from_f64(over(w, weight))).collect(),
        branch_scales: sizes.iter().map(|&s| over(s, size).clamp(0.5, 2.0)).collect(),
        gap: gap / batch as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_divided_by_zero() {
        let zeros = derive(&[2.0_f64; 4], &[2.0, 2.0], &[1.0, 1.0], 3.0);
        assert_eq!((zeros.branch_scales, zeros.weights, zeros.gap), (vec![1.0; 2], vec![1.0; 2], 1.0));
        let tiny = derive(&[-1e3_f64, -1e3], &[1.0, 1.0], &[0.0, 0.0], 3.0);
        assert_eq!(tiny.weights, [1.0, 1.0]);
    }

    #[test]
    fn weights_are_capped_before_they_are_divided_by_their_mean() {
        let derived = derive(&[10.0_f64, 0.0], &[0.0, 0.0], &[0.0, 0.0], 3.0);
        // min(e^30, 100) = 100 and 1, mean 50.5.
        assert_eq!(derived.weights, [100.0 / 50.5, 1.0 / 50.5]);
    }
}
