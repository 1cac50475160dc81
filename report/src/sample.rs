//! A made-up run in a folder: for tests.

use std::path::Path;

use backtest::{Bootstrap, Fill, Report, Track, Trials};
use gpu::action::pack;
use gpu::market::{LogRow, StepOutcome};
use serde_json::{Value, json};

use crate::tables::{Pass, files};

/// Bars of the backtest.
pub const BARS: usize = 300;
/// Epochs, and steps of each.
pub const EPOCHS: usize = 5;
/// Steps of an epoch.
pub const STEPS: usize = 40;
/// Names of the state's features: two bars of two features, two of the portfolio.
pub const FEATURES: [&str; 6] = ["log_return", "range", "log_return", "range", "exposure", "drawdown"];

/// A backtest that is in and out of the market every ten bars, with buy-and-hold.
pub struct Passed {
    symbol: &'static str,
    rows: Vec<LogRow>,
    time_ms: Vec<i64>,
    /// The strategy.
    pub strategy: Track,
    /// Buy-and-hold.
    pub holding: Track,
}

impl Passed {
    /// Of a symbol whose first bar is the `first` one after 2023-11-14.
    pub fn new(symbol: &'static str, first: usize) -> Self {
        let close = |t: usize| 100.0 + 8.0 * ((t + first) as f64 * 0.05).sin() + 0.02 * t as f64;
        let (mut units, mut cash) = (0.0, 100_000.0);
        let mut rows = Vec::new();
        for t in 1..=BARS {
            let quantity = match t % 20 {
                5 => 500.0,
                15 => -units,
                _ => 0.0,
            };
            let (price, fee) = (close(t) + 0.01, 0.2 * f64::from(u8::from(quantity != 0.0)));
            cash -= quantity * price + fee;
            units += quantity;
            let equity = cash + units * close(t);
            let outcome = StepOutcome {
                ordered: quantity != 0.0,
                quantity,
                price: if quantity == 0.0 { 0.0 } else { price },
                fee,
                equity,
                ..StepOutcome::default()
            };
            let action = pack(&[8, 0, 2]);
            let exposure = units * close(t) / equity;
            rows.push(LogRow {
                bar: t as u32 + 50,
                action,
                decided: t != 7,
                exposure,
                close: close(t),
                outcome,
            });
        }
        let strategy = Track::new(&rows, 100_000.0, BARS).unwrap();
        let bought = 100_000.0 / close(0);
        let holding = Track {
            equity: (0..=BARS).map(|t| bought * close(t)).collect(),
            exposure: vec![1.0; BARS],
            fills: vec![Fill { bar: 1, quantity: bought, price: close(0), fee: 0.0 }],
            ..Track::default()
        };
        let hour = |t: usize| 1_700_000_000_000 + (first + t) as i64 * 3_600_000;
        Self { symbol, rows, time_ms: (0..BARS + 60).map(hour).collect(), strategy, holding }
    }

    /// What its tables are made of.
    pub fn pass(&self) -> Pass<'_> {
        Pass {
            symbol: self.symbol,
            rows: &self.rows,
            strategy: &self.strategy,
            holding: &self.holding,
            time_ms: &self.time_ms,
            first: 0,
            branches: 3,
        }
    }
}

/// The report of a strategy beside buy-and-hold.
fn judged(strategy: &Track, holding: &Track) -> Report {
    let bootstrap = Bootstrap { resamples: 200, ..Bootstrap::default() };
    let report = Report::of_tracks(strategy, holding, 8766.0).unwrap();
    report.judged(strategy, holding, &bootstrap, Some(Trials { count: EPOCHS, variance: None }))
}

/// The metrics' rows; `seed` shifts the numbers.
pub fn rows(seed: usize) -> Vec<Value> {
    let mut rows = vec![json!({
        "kind": "run", "device": "a test", "features": FEATURES,
        "data": [{"symbol": "A", "source": "synthetic <market>", "bars": 360, "hash": "00ff"}],
    })];
    for epoch in 1..=EPOCHS {
        for i in 0..STEPS {
            let step = (epoch - 1) * STEPS + i + 1;
            let fall = (-(step as f64) / 60.0).exp();
            rows.push(json!({
                "kind": "step", "step": step, "loss": 2.0 + fall, "loss_cql": 0.1 * fall + 0.01, "td": fall,
                "q": 1.0 - fall, "gradient_norm": 3.0 * fall + 0.1, "norm_c51": 2.0 * fall + 0.1,
                "clipped_low": 0.001 * fall, "clipped_high": 0.0, "skipped": false,
            }));
        }
        let step = epoch * STEPS;
        let mass: Vec<f64> = (0..11).map(|k| 1.0 / 11.0 + 0.001 * (k as f64 - 5.0) * epoch as f64).collect();
        rows.push(json!({
            "kind": "values", "epoch": epoch, "step": step, "states": 64, "v_min": -5.0, "v_max": 5.0,
            "branches": [mass, mass],
        }));
        rows.push(json!({
            "kind": "sensitivity", "epoch": epoch, "step": step, "features": [0.1, 0.2, 0.3, 0.4, 0.5, 0.05],
        }));
        rows.push(json!({
            "kind": "epoch", "epoch": epoch, "step": step, "loss": 2.0, "microseconds_per_step": 120.0,
            "validation_return": 0.01, "validation_sharpe": 0.1 * (epoch + seed) as f64, "best": true,
        }));
    }
    rows
}

/// Writes a run that has ended, on one symbol.
pub fn write(folder: &Path, seed: usize) {
    let sample = Passed::new("A", 0);
    write_run(folder, seed, &[sample.pass()], &judged(&sample.strategy, &sample.holding));
}

/// Writes a run that has ended, on two symbols, the second of which begins a hundred bars later.
pub fn write_portfolio(folder: &Path) {
    let samples = [Passed::new("A", 0), Passed::new("B", 100)];
    let side_by_side = |track: fn(&Passed) -> &Track| {
        let tracks = samples.each_ref().map(|s| (&s.time_ms[51..51 + BARS], track(s)));
        Track::side_by_side(&tracks).1
    };
    let report = judged(&side_by_side(|s| &s.strategy), &side_by_side(|s| &s.holding));
    write_run(folder, 1, &samples.each_ref().map(Passed::pass), &report);
    let mut test = serde_json::to_value(&report).unwrap();
    let of_symbol = |s: &Passed| {
        let mut test = serde_json::to_value(judged(&s.strategy, &s.holding)).unwrap();
        test["symbol"] = json!(s.symbol);
        test
    };
    test["symbols"] = samples.iter().map(of_symbol).collect();
    std::fs::write(folder.join("test.json"), test.to_string()).unwrap();
}

/// Writes a walk-forward of two folds that has ended.
pub fn write_walk(folder: &Path) {
    let samples = [Passed::new("A", 0), Passed::new("A", BARS)];
    let mut folds = Vec::new();
    let mut rows = String::new();
    for (i, sample) in samples.iter().enumerate() {
        let own = folder.join(format!("fold-{:02}", i + 1));
        std::fs::create_dir(&own).unwrap();
        let report = judged(&sample.strategy, &sample.holding);
        write_run(&own, i + 1, &[sample.pass()], &report);
        let test_ms = [sample.time_ms[51], sample.time_ms[50 + BARS]];
        folds.push(json!({"fold": i + 1, "test_ms": test_ms, "best_epoch": 2, "test": report}));
        rows += &format!("{}\n", json!({"kind": "fold", "fold": i + 1}));
    }
    let chain = |track: fn(&Passed) -> &Track| Track::chained(&samples.each_ref().map(|s| track(s).clone()));
    let pooled = judged(&chain(|s| &s.strategy), &chain(|s| &s.holding));
    let test = json!({"folds": folds, "pooled": pooled});
    std::fs::write(folder.join("test.json"), test.to_string()).unwrap();
    std::fs::write(folder.join("metrics.jsonl"), rows).unwrap();
    std::fs::write(folder.join("config.toml"), "[folds]\ncount = 2\n").unwrap();
}

fn write_run(folder: &Path, seed: usize, passes: &[Pass<'_>], report: &Report) {
    let text: String = rows(seed).iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(folder.join("metrics.jsonl"), text).unwrap();
    let config = format!("[train]\nseed = {seed}\nbatch = 16\n[model]\nbranches = [9, 3, 3]\n");
    std::fs::write(folder.join("config.toml"), config).unwrap();
    std::fs::write(folder.join("test.json"), serde_json::to_string(report).unwrap()).unwrap();
    for (path, bytes) in files(passes, folder, "test").unwrap() {
        std::fs::write(path, bytes).unwrap();
    }
}
