//! The synthetic market: reproducible, consistent, predictable only where it says so.

use bars::synthetic::Kind;
use bars::{Bars, LoadOptions, Synthetic, from_bars, load_bytes, write_csv, write_parquet};

fn make(seed: u64, bars: usize, kind: Kind) -> Bars {
    Synthetic { seed, bars, kind }.generate().unwrap()
}

#[test]
fn a_seed_gives_the_same_bits_everywhere() {
    // Recorded once; a change of these is a change of every run on synthetic data.
    let hash = |seed, kind| make(seed, 1000, kind).content_hash();
    assert_eq!(hash(1, Kind::Regimes), 18_328_020_038_265_365_478);
    assert_eq!(hash(1, Kind::Martingale), 8_512_695_982_354_745_043);
    assert_ne!(hash(2, Kind::Regimes), hash(1, Kind::Regimes));
    // Fewer bars are a prefix.
    assert_eq!(make(1, 500, Kind::Regimes).close[..], make(1, 1000, Kind::Regimes).close[..500]);
    assert!(Synthetic { seed: 1, bars: 0, kind: Kind::Regimes }.generate().is_err());
}

#[test]
fn bars_pass_every_check_and_have_weekends() {
    let loaded = from_bars("synthetic", make(7, 5000, Kind::Regimes), &LoadOptions::default()).unwrap();
    assert!(loaded.calendar.gaps.is_empty());
    assert_eq!((loaded.calendar.interval_ms, loaded.calendar.closures.len()), (3_600_000, 41));
    assert_eq!(loaded.report.zero_volume, 0);
    assert_eq!(loaded.report.repaired, Default::default());
}

/// Simple returns close to close, and the signal that the documentation defines, computed from prices alone
/// with one volatility for all regimes.
fn returns_and_signal(bars: &Bars) -> (Vec<f64>, Vec<f64>) {
    let returns: Vec<f64> = (1..bars.len()).map(|t| bars.close[t] / bars.close[t - 1] - 1.0).collect();
    let mut signal = vec![0.0; returns.len()];
    for t in 1..returns.len() {
        signal[t] = 0.9 * signal[t - 1] + returns[t - 1] / 0.0012;
    }
    (returns, signal)
}

/// Mean over its standard error.
fn t_statistic(x: impl Iterator<Item = f64> + Clone) -> f64 {
    let n = x.clone().count() as f64;
    let mean = x.clone().sum::<f64>() / n;
    let variance = x.map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    mean / (variance / n).sqrt()
}

/// Profit per bar of following the signal after calm bars and opposing it after wild ones: the regime is
/// read off the last bar's range, nothing else is known.
fn strategy(bars: &Bars) -> Vec<f64> {
    let (returns, signal) = returns_and_signal(bars);
    (1..returns.len())
        .map(|t| {
            let range = (bars.high[t] / bars.low[t]).ln();
            let side = if range > 0.0025 {
                -1.0
            } else if range > 0.0012 {
                1.0
            } else {
                0.0
            };
            side * signal[t].clamp(-1.0, 1.0) * returns[t]
        })
        .collect()
}

#[test]
fn the_martingale_has_nothing_to_learn() {
    for seed in [1, 2, 3] {
        let bars = make(seed, 100_000, Kind::Martingale);
        let (returns, signal) = returns_and_signal(&bars);
        // Under the martingale all three are sums of martingale differences: |t| > 4 has probability 6e-5.
        let mean = t_statistic(returns.iter().copied());
        let trend = t_statistic(returns.iter().zip(&signal).map(|(r, x)| r * x));
        let profit = t_statistic(strategy(&bars).iter().copied());
        assert!(
            mean.abs() < 4.0 && trend.abs() < 4.0 && profit.abs() < 4.0,
            "{seed}: {mean} {trend} {profit}"
        );
    }
}

#[test]
fn the_regimes_have_a_small_predictable_component() {
    for seed in [1, 2, 3] {
        let bars = make(seed, 100_000, Kind::Regimes);
        let profit = strategy(&bars);
        let t = t_statistic(profit.iter().copied());
        assert!(t > 6.0, "seed {seed}: t = {t}");
        // Small: what is predicted is a few percent of what moves.
        let (returns, _) = returns_and_signal(&bars);
        let variance = returns.iter().map(|r| r * r).sum::<f64>() / returns.len() as f64;
        let mean = profit.iter().sum::<f64>() / profit.len() as f64;
        assert!(mean * mean / variance < 0.05, "seed {seed}");
    }
}

#[test]
fn written_files_read_back_equal() {
    let bars = make(11, 700, Kind::Regimes);
    let (mut csv, mut parquet) = (Vec::new(), Vec::new());
    write_csv("w.csv", &bars, &mut csv).unwrap();
    write_parquet("w.parquet", &bars, &mut parquet).unwrap();
    for (name, bytes) in [("w.csv", &csv), ("w.parquet", &parquet)] {
        let loaded = load_bytes(name, bytes, &LoadOptions::default()).unwrap();
        assert_eq!(loaded.bars, bars, "{name}");
        assert_eq!(loaded.report.content_hash, bars.content_hash());
    }
    let without = Bars { has_volume: false, volume: vec![0.0; bars.len()], ..bars };
    let mut csv = Vec::new();
    write_csv("w.csv", &without, &mut csv).unwrap();
    assert!(csv.starts_with(b"timestamp,open,high,low,close\n"));
    assert_eq!(load_bytes("w.csv", &csv, &LoadOptions::default()).unwrap().bars, without);
}
