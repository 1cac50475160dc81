//! Drawdowns of an equity curve.

use serde::{Deserialize, Serialize};

/// The deepest fall from a peak, relative to the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Drawdown {
    /// 1 - trough / peak; 0 for a curve that never falls, above 1 for one that ends in debt.
    pub relative: f64,
    /// peak - trough, in the curve's units.
    pub absolute: f64,
    /// Position of the peak; 0 is the start equity, which is the first peak.
    pub peak: usize,
    /// Position of the trough.
    pub trough: usize,
    /// First position behind the trough with the peak's equity again; `None` if the curve ends below it, or if there
    /// is no drawdown.
    pub recovery: Option<usize>,
    /// Bars from the peak to the recovery, or to the end without one.
    pub bars: usize,
}

impl Drawdown {
    /// The deepest drawdown of `equity`, whose first entry is the start equity; of equally deep ones the first.
    pub fn deepest(equity: &[f64]) -> Self {
        let mut deepest = Self::default();
        let mut peak = 0;
        for (t, &value) in equity.iter().enumerate() {
            if value > equity[peak] {
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
