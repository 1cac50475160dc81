//! Nine features per bar from this and earlier bars (docs/FEATURES.md has the formulas).
//!
//! The features of bar t are a function of bars t-L+1 ..= t alone, evaluated anew for every bar: no running
//! sums, so they do not depend on where the series starts, later bars cannot change them, and a live program
//! that holds the last L bars gets the same bits as a backtest.

use crate::error::BarError;
use crate::series::Bars;

/// F: features per bar.
pub const FEATURES: usize = 9;
/// Most bars of lookback.
pub const MAX_LOOKBACK: usize = 64;
/// Fewest bars of lookback: the return over four bars needs five, and statistics of fewer than eight say nothing.
pub const MIN_LOOKBACK: usize = 8;
/// Returns in the realised volatility, as far as the lookback has them.
pub const VOLATILITY_RETURNS: usize = 16;
/// Span of the exponential mean, alpha = 2 / (span + 1); weights beyond the lookback are cut off.
pub const EXPONENTIAL_SPAN: f64 = 32.0;
/// Added to volumes inside logarithms, as a fraction of the lookback's mean volume.
pub const VOLUME_FLOOR: f64 = 0.01;

/// Names of the features in order, for tables and sensitivity reports.
pub const NAMES: [&str; FEATURES] = [
    "log_return",
    "return_4",
    "range",
    "body",
    "volume_change",
    "volume_zscore",
    "volatility",
    "mean_distance",
    "elapsed",
];

/// Computes features for one lookback and bar interval.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureMaker {
    lookback: usize,
    interval_ms: i64,
    /// Weights of ln close_{t-k}, k = 0 .. L-1, which sum to 1.
    weights: Vec<f64>,
}

impl FeatureMaker {
    /// # Errors
    /// If the lookback is not [`MIN_LOOKBACK`] to [`MAX_LOOKBACK`] or the interval not positive.
    pub fn new(lookback: usize, interval_ms: i64) -> Result<Self, BarError> {
        if !(MIN_LOOKBACK..=MAX_LOOKBACK).contains(&lookback) {
            let expected = format!("expected {MIN_LOOKBACK} to {MAX_LOOKBACK} bars");
            return Err(BarError::option("lookback", lookback, expected));
        }
        if interval_ms <= 0 {
            return Err(BarError::option("interval_ms", interval_ms, "expected a positive number"));
        }
        let decay = 1.0 - 2.0 / (EXPONENTIAL_SPAN + 1.0);
        let mut weights = Vec::with_capacity(lookback);
        let mut weight = 1.0;
        for _ in 0..lookback {
            weights.push(weight);
            weight *= decay;
        }
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Ok(Self { lookback, interval_ms, weights })
    }

    /// L: bars that the features of one bar read, itself included.
    pub fn lookback(&self) -> usize {
        self.lookback
    }

    /// The bar interval that elapsed times are measured by.
    pub fn interval_ms(&self) -> i64 {
        self.interval_ms
    }

    /// The first bar of a segment starting at `start` whose lookback lies within the segment.
    pub fn first_usable(&self, start: usize) -> usize {
        start + self.lookback - 1
    }

    /// Features of bar t in the order of [`NAMES`]; all finite for bars that passed the checks.
    ///
    /// # Panics
    /// If bar t does not exist or has fewer than L-1 bars before it.
    pub fn at(&self, bars: &Bars, t: usize) -> [f64; FEATURES] {
        let from = t + 1 - self.lookback;
        let log_close: Vec<f64> = bars.close[from..=t].iter().map(|close| libm::log(*close)).collect();
        self.evaluate(bars, t, &log_close)
    }

    /// Features of all bars, `[bars, 9]` row-major; zeros where the lookback is incomplete (bars before
    /// [`FeatureMaker::first_usable`] of 0). Gaps are not looked at here: whether a lookback spans one is the
    /// business of [`FeatureMaker::first_usable`] of each segment.
    pub fn all(&self, bars: &Bars) -> Vec<f64> {
        let log_close: Vec<f64> = bars.close.iter().map(|close| libm::log(*close)).collect();
        let mut features = vec![0.0; bars.len() * FEATURES];
        for t in self.lookback - 1..bars.len() {
            let row = self.evaluate(bars, t, &log_close[t + 1 - self.lookback..=t]);
            features[t * FEATURES..(t + 1) * FEATURES].copy_from_slice(&row);
        }
        features
    }

    /// `log_close`: logarithms of the closes of the L bars that end at t.
    fn evaluate(&self, bars: &Bars, t: usize, log_close: &[f64]) -> [f64; FEATURES] {
        let last = self.lookback - 1;
        let (open, high, low, close) = (bars.open[t], bars.high[t], bars.low[t], bars.close[t]);
        let (volume_change, volume_zscore) = volume_features(&bars.volume[t - last..=t]);

        let returns = VOLATILITY_RETURNS.min(last);
        let squares: f64 = (last + 1 - returns..=last).map(|k| square(log_close[k] - log_close[k - 1])).sum();
        let distance: f64 =
            (1..=last).map(|k| self.weights[k] * (log_close[last] - log_close[last - k])).sum();
        let elapsed = (bars.time_ms[t] - bars.time_ms[t - 1]) as f64 / self.interval_ms as f64;
        [
            log_close[last] - log_close[last - 1],
            log_close[last] - log_close[last - 4],
            libm::log(high / low),
            if high > low { (close - open) / (high - low) } else { 0.0 },
            volume_change,
            volume_zscore,
            (squares / returns as f64).sqrt(),
            distance,
            libm::log(elapsed),
        ]
    }
}

/// Log change of the last volume against the one before, and its z-score in the lookback.
fn volume_features(volumes: &[f64]) -> (f64, f64) {
    let count = volumes.len() as f64;
    let mean = volumes.iter().sum::<f64>() / count;
    if mean == 0.0 {
        return (0.0, 0.0);
    }
    let [.., before, last] = *volumes else { return (0.0, 0.0) };
    let floor = VOLUME_FLOOR * mean;
    let change = libm::log((last + floor) / (before + floor));
    // Equal volumes have no spread, but their computed mean may be off by a rounding error.
    if volumes.iter().all(|volume| *volume == last) {
        return (change, 0.0);
    }
    let variance = volumes.iter().map(|volume| square((volume - mean) / mean)).sum::<f64>() / count;
    (change, (last - mean) / mean / variance.sqrt())
}

/// x x; `powi` does not promise the same bits everywhere.
fn square(x: f64) -> f64 {
    x * x
}
