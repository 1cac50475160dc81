//! Drawdowns of an equity curve.

use serde::{Deserialize, Serialize};

/// The deepest fall from a peak, relative to the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawdown {
    /// 1 - trough / peak; 0 for a curve that never falls, above 1 for one that ends in debt.
    pub relative: f64,
    /// peak - trough, in the curve's units.
    pub absolute: f64,
    /// Position of the last bar at the peak's equity; 0 is the start equity, which is the first peak.
    pub peak: usize,
    /// Position of the trough.
    pub trough: usize,
    /// First position behind the trough with the peak's equity again; `None` if the curve ends below it, or if there
    /// is no drawdown.
    pub recovery: Option<usize>,
    /// Bars from the peak to the recovery, or to the end without one.
    pub bars: usize,
}

/// All drawdowns of a curve, summed up. One lasts from a peak to the first bar with its equity again, or to the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawdowns {
    /// How many.
    pub count: usize,
    /// Mean of their depths, relative to the peak; `None` without one.
    pub average: Option<f64>,
    /// Mean of their lengths in bars.
    pub average_bars: Option<f64>,
    /// Length of the longest in bars, 0 without one.
    pub longest: usize,
}

impl Drawdowns {
    /// Of `equity`, whose first entry is the start equity.
    pub fn of(equity: &[f64]) -> Self {
        let Some(&start) = equity.first() else { return Self::default() };
        let (mut peak, mut peak_at, mut depth) = (start, 0, 0.0f64);
        let (mut count, mut depths, mut bars, mut longest) = (0, 0.0, 0, 0);
        // A value behind the end that ends what is open.
        for (t, value) in equity.iter().copied().enumerate().chain([(equity.len() - 1, f64::INFINITY)]) {
            if value < peak {
                depth = depth.max(1.0 - value / peak);
                continue;
            }
            if depth > 0.0 {
                count += 1;
                depths += depth;
                bars += t - peak_at;
                longest = longest.max(t - peak_at);
            }
            (peak, peak_at, depth) = (value, t, 0.0);
        }
        let mean = |sum: f64| (count > 0).then(|| sum / count as f64);
        Self { count, average: mean(depths), average_bars: mean(bars as f64), longest }
    }
}

impl Drawdown {
    /// The deepest drawdown of `equity`, whose first entry is the start equity; of equally deep ones the first.
    pub fn deepest(equity: &[f64]) -> Self {
        let mut deepest = Self::default();
        let mut peak = 0;
        for (t, &value) in equity.iter().enumerate() {
            if value >= equity[peak] {
                peak = t;
            }
            let relative = 1.0 - value / equity[peak];
            if relative > deepest.relative {
                let absolute = equity[peak] - value;
                deepest = Self { relative, absolute, peak, trough: t, ..Self::default() };
            }
        }
        if deepest.relative > 0.0 {
            let level = equity[deepest.peak];
            let behind = deepest.trough + 1;
            deepest.recovery = equity[behind..].iter().position(|&value| value >= level).map(|i| behind + i);
            deepest.bars = deepest.recovery.unwrap_or(equity.len() - 1) - deepest.peak;
        }
        deepest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn peak_trough_and_recovery() {
        let d = Drawdown::deepest(&[100.0, 110.0, 99.0, 105.0, 88.0, 100.0, 110.0, 120.0, 118.0]);
        assert_eq!((d.peak, d.trough, d.recovery, d.bars), (1, 4, Some(6), 5));
        assert!((d.relative - 0.2).abs() < 1e-15 && d.absolute == 22.0);
        let open = Drawdown::deepest(&[100.0, 80.0, 90.0]);
        assert_eq!((open.peak, open.trough, open.recovery, open.bars), (0, 1, None, 2));
    }

    #[test]
    fn every_drawdown_counts_from_its_last_peak_to_its_recovery() {
        // 110 to 88 and back (5 bars), 120 to 118 and open at the end (1 bar); the plateau at 110 is no drawdown.
        let d = Drawdowns::of(&[100.0, 110.0, 99.0, 105.0, 88.0, 100.0, 110.0, 110.0, 120.0, 118.0]);
        assert_eq!((d.count, d.longest, d.average_bars), (2, 5, Some(3.0)));
        assert!((d.average.unwrap() - 0.5 * (0.2 + 2.0 / 120.0)).abs() < 1e-15);
        // A drawdown's first bar counts from the last bar at the peak, not from the first.
        assert_eq!(Drawdowns::of(&[5.0, 5.0, 5.0, 4.0, 5.0]).longest, 2);
        for curve in [vec![], vec![5.0; 4], vec![1.0, 2.0]] {
            assert_eq!(Drawdowns::of(&curve), Drawdowns::default());
        }
    }

    #[test]
    fn no_fall_is_no_drawdown() {
        for curve in [vec![], vec![5.0], vec![5.0; 4], vec![1.0, 2.0, 3.0]] {
            assert_eq!(Drawdown::deepest(&curve), Drawdown::default());
        }
    }

    proptest! {
        /// The maximum over all pairs, peak before trough.
        #[test]
        fn equals_the_maximum_over_pairs(curve in prop::collection::vec(0.1f64..10.0, 1..60)) {
            let mut expected = 0.0f64;
            for (i, &high) in curve.iter().enumerate() {
                for &low in &curve[i..] {
                    expected = expected.max(1.0 - low / high);
                }
            }
            let d = Drawdown::deepest(&curve);
            prop_assert_eq!(d.relative, expected);
            prop_assert!(d.peak <= d.trough && d.trough < curve.len());
            if let Some(recovery) = d.recovery {
                prop_assert!(curve[recovery] >= curve[d.peak] && recovery > d.trough);
            }
        }
    }
}
