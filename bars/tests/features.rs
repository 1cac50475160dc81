//! Features against formulas written out a second time, and against look-ahead.

use bars::features::{NAMES, VOLATILITY_RETURNS};
use bars::synthetic::Kind;
use bars::{Bar, Bars, FEATURES, FeatureMaker, Synthetic};
use proptest::prelude::*;

const HOUR: i64 = 3_600_000;

fn market(bars: usize) -> Bars {
    Synthetic { seed: 3, bars, kind: Kind::Regimes }.generate().unwrap()
}

/// The formulas of docs/FEATURES.md, straight from the bars.
fn reference(bars: &Bars, t: usize, lookback: usize, interval: f64) -> [f64; FEATURES] {
    let c = |k: usize| bars.close[t - k];
    let window: Vec<f64> = (0..lookback).map(|k| bars.volume[t - k]).collect();
    let mean = window.iter().sum::<f64>() / lookback as f64;
    let variance = window.iter().map(|v| v * v).sum::<f64>() / lookback as f64 - mean * mean;
    let alpha = 2.0 / 33.0;
    let weight = |k: usize| (1.0_f64 - alpha).powi(k as i32);
    let total: f64 = (0..lookback).map(weight).sum();
    let ema: f64 = (0..lookback).map(|k| weight(k) * c(k).ln()).sum::<f64>() / total;
    let m = VOLATILITY_RETURNS.min(lookback - 1);
    let squares: f64 = (0..m).map(|k| (c(k) / c(k + 1)).ln().powi(2)).sum();
    let range = bars.high[t] - bars.low[t];
    [
        (c(0) / c(1)).ln(),
        (c(0) / c(4)).ln(),
        (bars.high[t] / bars.low[t]).ln(),
        if range > 0.0 { (bars.close[t] - bars.open[t]) / range } else { 0.0 },
        if mean > 0.0 { ((window[0] + 0.01 * mean) / (window[1] + 0.01 * mean)).ln() } else { 0.0 },
        if variance > 0.0 { (window[0] - mean) / variance.sqrt() } else { 0.0 },
        (squares / m as f64).sqrt(),
        c(0).ln() - ema,
        ((bars.time_ms[t] - bars.time_ms[t - 1]) as f64 / interval).ln(),
    ]
}

#[test]
fn features_equal_the_documented_formulas() {
    let bars = market(400);
    for lookback in [8, 33, 64] {
        let maker = FeatureMaker::new(lookback, HOUR).unwrap();
        let all = maker.all(&bars);
        assert!(all[..(lookback - 1) * FEATURES].iter().all(|x| *x == 0.0));
        for t in lookback - 1..bars.len() {
            let expected = reference(&bars, t, lookback, HOUR as f64);
            for j in 0..FEATURES {
                let (x, y) = (all[t * FEATURES + j], expected[j]);
                // Logarithms of prices near 100 (4.6) carry an error of eps * 4.6 each; a volatility or a
                // distance sums at most 64 of them. The reference's one-pass variance loses eps * mean^2 /
                // variance, about 20 eps. Both stay far below 1e-12 absolute.
                assert!((x - y).abs() <= 1e-12 + 1e-11 * y.abs(), "{} at {t}: {x} or {y}", NAMES[j]);
            }
        }
    }
}

#[test]
fn a_weekend_shows_in_elapsed_time_only() {
    let bars = market(400);
    let maker = FeatureMaker::new(8, HOUR).unwrap();
    let all = maker.all(&bars);
    let monday = (1..400).find(|&t| bars.time_ms[t] - bars.time_ms[t - 1] > HOUR && t > 8).unwrap();
    // Friday 21:00 to Sunday 22:00.
    assert_eq!(all[monday * FEATURES + 8], libm::log(49.0));
    assert_eq!(all[(monday - 1) * FEATURES + 8], 0.0);
}

/// Bars that do not move, of any volume.
fn flat(volumes: impl Iterator<Item = f64>) -> Bars {
    let mut bars = Bars { has_volume: true, ..Bars::default() };
    for (i, volume) in volumes.enumerate() {
        let time_ms = i as i64 * HOUR;
        bars.push(Bar { time_ms, open: 3.0, high: 3.0, low: 3.0, close: 3.0, volume });
    }
    bars
}

#[test]
fn degenerate_bars_have_defined_features() {
    let maker = FeatureMaker::new(8, HOUR).unwrap();
    // No range, no volume; and a constant volume whose mean does not round to itself.
    for volume in [0.0, 0.1, 1e30, 1e-30] {
        let bars = flat(std::iter::repeat_n(volume, 20));
        assert_eq!(maker.at(&bars, 19), [0.0; FEATURES], "volume {volume}");
    }
    // A single trade among zeros: the change is from the floor, the z-score its maximum sqrt(L - 1).
    let bars = flat((0..20).map(|i| if i == 19 { 5.0 } else { 0.0 }));
    let row = maker.at(&bars, 19);
    assert!((row[4] - f64::ln(801.0)).abs() < 1e-12, "{row:?}");
    assert!((row[5] - f64::sqrt(7.0)).abs() < 1e-12, "{row:?}");
}

#[test]
fn lookbacks_out_of_range_are_refused() {
    for lookback in [0, 7, 65] {
        let error = FeatureMaker::new(lookback, HOUR).unwrap_err().to_string();
        assert_eq!(error, format!("lookback = {lookback}: expected 8 to 64 bars"));
    }
    assert_eq!(FeatureMaker::new(64, HOUR).unwrap().first_usable(100), 163);
}

prop_compose! {
    fn any_bar()(
        low in 1e-6..1e6_f64,
        open in 0.0..1.0_f64,
        close in 0.0..1.0_f64,
        range in prop_oneof![Just(0.0), 0.0..1.0_f64],
        volume in prop_oneof![Just(0.0), 1e-9..1e12_f64],
        step in 1..50_000_000_i64,
    ) -> (Bar, i64) {
        let high = low * (1.0 + range);
        let within = |part: f64| (low + part * (high - low)).clamp(low, high);
        (Bar { time_ms: 0, open: within(open), high, low, close: within(close), volume }, step)
    }
}

fn series(rows: &[(Bar, i64)]) -> Bars {
    let mut bars = Bars { has_volume: true, ..Bars::default() };
    let mut time_ms = 0;
    for (bar, step) in rows {
        time_ms += step;
        bars.push(Bar { time_ms, ..*bar });
    }
    bars
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever comes after bar T (other prices, other times, nothing at all), features up to T are the same
    /// bit for bit; and they are finite for any bars that pass the checks.
    #[test]
    fn later_bars_do_not_change_earlier_features(
        past in prop::collection::vec(any_bar(), 12..60),
        future in prop::collection::vec(any_bar(), 1..30),
        other in prop::collection::vec(any_bar(), 1..30),
        lookback in 8..12_usize,
    ) {
        let maker = FeatureMaker::new(lookback, HOUR).unwrap();
        let until = past.len() * FEATURES;
        let bits = |rows: &[(Bar, i64)]| -> Vec<u64> {
            maker.all(&series(rows))[..until].iter().map(|x| x.to_bits()).collect()
        };
        let alone = bits(&past);
        prop_assert_eq!(&alone, &bits(&[&past[..], &future[..]].concat()));
        prop_assert_eq!(&alone, &bits(&[&past[..], &other[..]].concat()));
        prop_assert!(alone.iter().all(|x| f64::from_bits(*x).is_finite()));
    }

    /// A live program that holds only the last L bars gets the same bits as a backtest over all of them.
    #[test]
    fn the_last_bars_suffice(rows in prop::collection::vec(any_bar(), 20..60), lookback in 8..20_usize) {
        let maker = FeatureMaker::new(lookback, HOUR).unwrap();
        let bars = series(&rows);
        let all = maker.all(&bars);
        for t in lookback - 1..bars.len() {
            let mut held = Bars { has_volume: true, ..Bars::default() };
            (t + 1 - lookback..=t).for_each(|i| held.push(bars.bar(i)));
            let live = maker.at(&held, lookback - 1).map(f64::to_bits);
            let stored: Vec<u64> = all[t * FEATURES..(t + 1) * FEATURES].iter().map(|x| x.to_bits()).collect();
            prop_assert_eq!(&live[..], &stored[..]);
        }
    }
}
