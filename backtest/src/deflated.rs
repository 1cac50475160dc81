//! The Sharpe ratio deflated for the number of policies that were compared before one was reported.
//!
//! Bailey and Lopez de Prado, The deflated Sharpe ratio (Journal of Portfolio Management, 2014): the best of N policies
//! without any skill shows a Sharpe ratio above 0 by luck alone. What is reported is the probability that the true ratio
//! is above what luck would have shown, with the skewness and the kurtosis of the returns taken into account.

use serde::{Deserialize, Serialize};

use crate::normal;
use crate::returns::{deviation, mean, sharpe};

/// Euler and Mascheroni's constant.
const GAMMA: f64 = 0.577_215_664_901_532_9;

/// The policies among which the reported one was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trials {
    /// N: how many, at least 1.
    pub count: usize,
    /// Variance (ddof 1) over the policies of their Sharpe ratios per bar; `None` where it is not known, with fewer than
    /// two of them for example.
    pub variance: Option<f64>,
}

impl Trials {
    /// From the annualised Sharpe ratios of the policies; an undefined one (a policy that never traded) counts as a
    /// policy but has no ratio to vary. `further` policies were compared elsewhere.
    pub fn of(annualised: &[Option<f64>], bars_per_year: f64, further: usize) -> Self {
        let per_bar: Vec<f64> =
            annualised.iter().flatten().map(|ratio| ratio / bars_per_year.sqrt()).collect();
        Self { count: (annualised.len() + further).max(1), variance: deviation(&per_bar).map(|d| d * d) }
    }
}

/// The deflated Sharpe ratio and what it was made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deflated {
    /// Policies compared.
    pub trials: usize,
    /// SR_0: the Sharpe ratio that the best of that many policies without skill shows on average, annualised.
    pub threshold: Option<f64>,
    /// Probability that the true Sharpe ratio is above SR_0.
    pub probability: Option<f64>,
}

impl Deflated {
    /// Of the returns of the chosen policy.
    ///
    /// Where the variance over the trials is not known, it is 1 / (n - 1), that of the estimator for a ratio of 0.
    pub fn new(returns: &[f64], bars_per_year: f64, trials: Trials) -> Self {
        let n = returns.len() as f64;
        let spread = trials.variance.or((n > 1.0).then(|| 1.0 / (n - 1.0))).map(f64::sqrt);
        let threshold = spread.and_then(|spread| Some(spread * luck(trials.count)?));
        let probability = threshold.and_then(|threshold| {
            let ratio = sharpe(returns, 1.0)?;
            let (skewness, kurtosis) = shape(returns)?;
            let variance = 1.0 - skewness * ratio + (kurtosis - 1.0) / 4.0 * ratio * ratio;
            (variance > 0.0).then(|| normal::cdf((ratio - threshold) * ((n - 1.0) / variance).sqrt()))
        });
        let threshold = threshold.map(|threshold| threshold * bars_per_year.sqrt());
        Self { trials: trials.count, threshold, probability }
    }
}

/// Expected maximum of N standard normal draws, as in the paper; 0 for one.
fn luck(trials: usize) -> Option<f64> {
    if trials < 2 {
        return Some(0.0);
    }
    let n = trials as f64;
    let first = normal::quantile(1.0 - 1.0 / n)?;
    let second = normal::quantile(1.0 - 1.0 / (n * std::f64::consts::E))?;
    Some((1.0 - GAMMA) * first + GAMMA * second)
}

/// Skewness m3 / m2^1.5 and kurtosis m4 / m2^2 (3 for a normal distribution), of the central moments with divisor n;
/// `None` when nothing varies.
fn shape(returns: &[f64]) -> Option<(f64, f64)> {
    let mean = mean(returns)?;
    let moment =
        |power: i32| returns.iter().map(|r| (r - mean).powi(power)).sum::<f64>() / returns.len() as f64;
    let variance = moment(2);
    (variance > 0.0).then(|| (moment(3) / variance.powf(1.5), moment(4) / (variance * variance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's numerical example: an annual Sharpe ratio of 2.5 on 1250 daily returns (250 a year), skewness -3,
    /// kurtosis 10, the best of 100 trials whose annual ratios have variance 1/2: SR_0 = 0.1132 a day, probability 0.9004.
    #[test]
    fn the_example_of_the_paper() {
        let (ratio, n, skewness, kurtosis): (f64, f64, f64, f64) = (2.5 / 250f64.sqrt(), 1250.0, -3.0, 10.0);
        let threshold = (0.5f64 / 250.0).sqrt() * luck(100).unwrap();
        assert!((threshold - 0.1132).abs() < 5e-5, "{threshold}");
        let variance: f64 = 1.0 - skewness * ratio + (kurtosis - 1.0) / 4.0 * ratio * ratio;
        let probability = normal::cdf((ratio - threshold) * (n - 1.0).sqrt() / variance.sqrt());
        assert!((probability - 0.9004).abs() < 5e-5, "{probability}");
    }

    #[test]
    fn more_trials_deflate_more_and_one_trial_does_not() {
        let returns: Vec<f64> = (0..500).map(|i| 0.001 + 0.01 * ((i * 7919) as f64).sin()).collect();
        let of = |count| Deflated::new(&returns, 252.0, Trials { count, variance: None });
        assert_eq!(of(1).threshold, Some(0.0));
        let chances: Vec<f64> = [1, 2, 10, 100, 10_000].map(|n| of(n).probability.unwrap()).to_vec();
        assert!(chances.windows(2).all(|pair| pair[1] < pair[0]), "{chances:?}");
        assert!(chances[0] < 1.0 && chances[4] > 0.0);
    }

    #[test]
    fn a_policy_that_never_trades_is_a_trial_without_a_ratio() {
        let trials = Trials::of(&[Some(1.0), None, Some(3.0)], 4.0, 7);
        assert_eq!(trials.count, 10);
        // Per bar 0.5 and 1.5.
        assert!((trials.variance.unwrap() - 0.5).abs() < 1e-15);
        assert_eq!(Trials::of(&[], 4.0, 0), Trials { count: 1, variance: None });
        let flat = Deflated::new(&[0.0; 30], 252.0, trials);
        assert!(flat.probability.is_none() && flat.threshold.is_some());
    }
}
