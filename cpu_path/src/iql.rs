//! The two value networks of IQL (SPEC section 3; Kostrikov et al. 2021) and what is derived from them.

use candle_core::{Result, Tensor};
use settings::Iql;

use crate::group::Weights;
use crate::hyper::decimal;
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

/// What a step derives from the value networks of its batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived<T> {
    /// A = Q - V_high, [batch].
    pub advantages: Vec<T>,
    /// Q_d - V_high, [batch, branches].
    pub advantages_per_branch: Vec<T>,
    /// min(exp(beta A), 100) over their mean, [batch]; they multiply the losses' weights where that is on.
    pub weights: Vec<T>,
    /// Batch mean of |Q_d - V_high| over the mean of these over the branches, clamped to [0.5, 2]; [branches].
    pub branch_scales: Vec<f64>,
    /// mean(V_high - V_low).
    pub gap: f64,
    /// mean |V_high|.
    pub size: f64,
    /// The floor(0.01 (B - 1))-th smallest V_low and the ceil(0.99 (B - 1))-th smallest V_high, from 0.
    pub quantiles: [f64; 2],
}

/// What is kept from step to step: averages, exploration, and the support's ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept<T> {
    /// Moving average of the gap.
    pub gap: T,
    /// Moving average of |V_high|.
    pub size: T,
    /// Whether a step has been accepted.
    pub started: bool,
    /// Exploration rate of the collection steps to come.
    pub epsilon: T,
}

impl<T: Real> Kept<T> {
    /// Before the first step.
    pub fn new(settings: &Iql) -> Self {
        let zero = T::default();
        Self { gap: zero, size: zero, started: false, epsilon: T::from_f64(decimal(settings.epsilon_max)) }
    }

    /// After an accepted step.
    pub fn advance(&mut self, settings: &Iql, derived: &Derived<T>) {
        let rate = decimal(settings.signal_rate);
        let average = |old: T, x: f64| {
            let old = old.to_f64();
            T::from_f64(if self.started { old + rate * (x - old) } else { x })
        };
        (self.gap, self.size) = (average(self.gap, derived.gap), average(self.size, derived.size));
        self.started = true;
        let share = (self.gap.to_f64() / (self.size.to_f64() + 1e-6)).clamp(0.0, 1.0);
        let (low, high) = (decimal(settings.epsilon_min), decimal(settings.epsilon_max));
        self.epsilon = T::from_f64(low + (high - low) * share);
    }
}

/// The support's ends after an accepted step, from those before it; `width` is that of the configured support.
///
/// The ends move by `support_rate` towards the quantiles, widened about their middle by `support_margin` of their distance
/// on each side and to no less than `support_floor * width`.
pub fn moved_support(
    settings: &Iql,
    [v_min, v_max]: [f64; 2],
    [low, high]: [f64; 2],
    width: f64,
) -> [f64; 2] {
    let rate = decimal(settings.support_rate);
    let wide = (high - low) * (1.0 + 2.0 * decimal(settings.support_margin));
    let (centre, half) = ((low + high) / 2.0, wide.max(decimal(settings.support_floor) * width) / 2.0);
    [v_min + rate * (centre - half - v_min), v_max + rate * (centre + half - v_max)]
}

/// The derived values of a batch, formed in f64: `q` [batch, branches] of the target network at the taken actions,
/// `high` and `low` [batch].
pub fn derive<T: Real>(q: &[T], high: &[T], low: &[T], beta: f64) -> Derived<T> {
    let (batch, branches) = (high.len(), q.len() / high.len());
    let (mut advantages, mut per_branch) = (Vec::with_capacity(batch), Vec::with_capacity(q.len()));
    let (mut exponents, mut sizes) = (Vec::with_capacity(batch), vec![0.0; branches]);
    let (mut gap, mut value) = (0.0, 0.0);
    for ((q, high), low) in q.chunks_exact(branches).zip(high).zip(low) {
        let high = high.to_f64();
        value += high.abs();
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
        let (exponent, cap) = (beta * advantage, MAX_WEIGHT.ln());
        // Not the minimum, which would drop a NaN.
        exponents.push(if exponent > cap { cap } else { exponent });
    }
    // All exponents shifted alike give the same weights, and their mean cannot underflow.
    let top = exponents.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = exponents.iter().map(|e| (e - top).exp()).collect();
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let (weight, size) = (mean(&weights), mean(&sizes));
    // Advantages may all be zero: then no branch stands out.
    let share = |x: f64| if size == 0.0 { 1.0 } else { x / size };
    Derived {
        advantages,
        advantages_per_branch: per_branch,
        weights: weights.iter().map(|&w| T::from_f64(w / weight)).collect(),
        branch_scales: sizes.iter().map(|&s| share(s).clamp(0.5, 2.0)).collect(),
        gap: gap / batch as f64,
        size: value / batch as f64,
        quantiles: quantiles(high, low),
    }
}

/// The low quantile of `low` and the high one of `high`, each an element.
fn quantiles<T: Real>(high: &[T], low: &[T]) -> [f64; 2] {
    let sorted = |x: &[T]| {
        let mut x: Vec<f64> = x.iter().map(|x| x.to_f64()).collect();
        x.sort_by(f64::total_cmp);
        x
    };
    let outside = (high.len() - 1) / 100;
    [sorted(low)[outside], sorted(high)[high.len() - 1 - outside]]
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
        for (got, want) in derived.weights.iter().zip([100.0 / 50.5, 1.0 / 50.5]) {
            // The exponential of -ln 100: some roundings of 1.1e-16.
            assert!((got - want).abs() < 1e-14, "{got}, want {want}");
        }
        let nan = derive(&[f64::NAN, 0.0], &[0.0, 0.0], &[0.0, 0.0], 3.0);
        assert!(nan.weights.iter().all(|w| w.is_nan()) && nan.branch_scales[0].is_nan());
    }

    #[test]
    fn quantiles_are_elements() {
        let ramp: Vec<f64> = (0..201).rev().map(f64::from).collect();
        assert_eq!(quantiles(&ramp, &ramp), [2.0, 198.0]);
        assert_eq!(quantiles(&[3.0], &[-1.0]), [-1.0, 3.0]);
        assert_eq!(quantiles(&[1.0, 0.0], &[1.0, 0.0]), [0.0, 1.0]);
    }

    #[test]
    fn averages_start_with_the_first_batch_and_epsilon_stays_in_its_range() {
        let settings = Iql { signal_rate: 0.5, ..Iql::default() };
        let mut kept = Kept::<f64>::new(&settings);
        assert_eq!(kept.epsilon, 0.5);
        let batch = |high: f64, low: f64| derive(&[0.0], &[high], &[low], 3.0);
        kept.advance(&settings, &batch(2.0, 1.5));
        assert_eq!((kept.gap, kept.size), (0.5, 2.0));
        // A quarter of the way, but for the 1e-6.
        assert!((kept.epsilon - (0.05 + 0.45 * 0.25)).abs() < 1e-6);
        kept.advance(&settings, &batch(0.0, -8.5));
        assert_eq!((kept.gap, kept.size, kept.epsilon), (4.5, 1.0, 0.5));
        kept.advance(&settings, &batch(1.0, 15.0));
        assert!(kept.gap < 0.0 && kept.epsilon == 0.05);
    }

    #[test]
    fn the_support_follows_slowly_and_keeps_a_width() {
        let settings = Iql { support_rate: 0.1, ..Iql::default() };
        // Goal: -1 to 3 with a tenth on each side.
        let [low, high] = moved_support(&settings, [-10.0, 10.0], [-1.0, 3.0], 20.0);
        assert!((low - (-10.0 + 0.1 * 8.6)).abs() < 1e-12 && (high - (10.0 - 0.1 * 6.6)).abs() < 1e-12);
        // Quantiles that cross: the floor, 2 wide, about their middle.
        let mut ends = [-10.0, 10.0];
        for _ in 0..500 {
            ends = moved_support(&settings, ends, [3.0, 1.0], 20.0);
        }
        assert!((ends[0] - 1.0).abs() < 1e-9 && (ends[1] - 3.0).abs() < 1e-9, "{ends:?}");
    }
}
