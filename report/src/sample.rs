//! A made-up run in a folder: for tests.

use std::path::Path;

use backtest::{Bootstrap, Fill, Report, Track, Trials};
use gpu::action::pack;
use gpu::market::{LogRow, StepOutcome};
use serde_json::{Value, json};

use crate::tables::Pass;

/// Bars of the backtest.
pub const BARS: usize = 300;
/// Epochs, and steps of each.
pub const EPOCHS: usize = 5;
/// Steps of an epoch.
pub const STEPS: usize = 40;
/// Names of the state's features: two bars of two features, two of the portfolio.
pub const FEATURES: [&str; 6] = ["log_return", "range", "log_return", "range", "exposure", "drawdown"];

/// Rows of a backtest that is in and out of the market every ten bars, with buy-and-hold.
pub fn pass() -> (Vec<LogRow>, Track, Track) {
    let close = |t: usize| 100.0 + 8.0 * (t as f64 * 0.05).sin() + 0.02 * t as f64;
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
        rows.push(LogRow { bar: t as u32 + 50, action, decided: t != 7, exposure, close: close(t), outcome });
    }
    let strategy = Track::new(&rows, 100_000.0, BARS).unwrap();
    let bought = 100_000.0 / close(0);
    let holding = Track {
        equity: (0..=BARS).map(|t| bought * close(t)).collect(),
        exposure: vec![1.0; BARS],
        fills: vec![Fill { bar: 1, quantity: bought, price: close(0), fee: 0.0 }],
        ..Track::default()
    };
    (rows, strategy, holding)
}

/// Hourly opening times of all bars of the file.
pub fn times() -> Vec<i64> {
    (0..BARS as i64 + 60).map(|t| 1_700_000_000_000 + t * 3_600_000).collect()
}

/// The metrics' rows; `seed` shifts the numbers.
pub fn rows(seed: usize) -> Vec<Value> {
    let mut rows = vec![json!({
        "kind": "run", "device": "a test", "source": "synthetic <market>", "bars": 360, "features": FEATURES,
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

/// Writes a run that has ended.
pub fn write(folder: &Path, seed: usize) {
    let text: String = rows(seed).iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(folder.join("metrics.jsonl"), text).unwrap();
    let config = format!("[train]\nseed = {seed}\nbatch = 16\n[model]\nbranches = [9, 3, 3]\n");
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let (rows, strategy, holding) = pass();
    let bootstrap = Bootstrap { resamples: 200, ..Bootstrap::default() };
    let report = Report::of_tracks(&strategy, &holding, 8766.0).unwrap();
    let report =
        report.judged(&strategy, &holding, &bootstrap, Some(Trials { count: EPOCHS, variance: None }));
    std::fs::write(folder.join("test.json"), serde_json::to_string(&report).unwrap()).unwrap();
    let time_ms = times();
    let pass = Pass { rows: &rows, strategy: &strategy, holding: &holding, time_ms: &time_ms, branches: 3 };
    for (path, bytes) in pass.files(folder, "test").unwrap() {
        std::fs::write(path, bytes).unwrap();
    }
}
