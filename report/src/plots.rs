//! The plots of a run, each from what its files hold.

use jiff::Timestamp;
use serde_json::Value;

use crate::events::averaged as by_name;
use crate::plot::{Plot, Scale, Series, Style, averaged, thinned};
use crate::rows::{Row, column};
use crate::run::RunData;
use crate::tables::BarLine;

/// Points of a curve: more cannot be told apart on a page.
const POINTS: usize = 1200;

/// Points of a curve of training steps, each the mean of its stretch.
const STEP_POINTS: usize = 300;

/// Markers of fills: with more of them a price cannot be seen.
const MARKERS: usize = 240;

/// Plots of the backtest of the test part.
pub fn backtest(run: &RunData) -> Vec<Plot> {
    let Some(bars) = run.bars.as_deref().filter(|bars| bars.len() > 1) else { return Vec::new() };
    let start = run.test.as_ref().map_or(bars[0].equity, |test| test.strategy.start_equity);
    let curve = |value: &dyn Fn(&BarLine) -> f64| -> Vec<(f64, f64)> {
        let points: Vec<_> = bars.iter().map(|bar| (seconds(&bar.time), value(bar))).collect();
        thinned(&points, POINTS)
    };
    let growth = |equity: f64| 100.0 * (equity / start - 1.0);
    let peaks = |equity: &dyn Fn(&BarLine) -> f64| {
        let mut peak = start;
        let under_water = |bar: &BarLine| {
            peak = equity(bar).max(peak);
            (seconds(&bar.time), -100.0 * (1.0 - equity(bar) / peak))
        };
        let points: Vec<_> = bars.iter().map(under_water).collect();
        thinned(&points, POINTS)
    };
    let timed = |id: &str, title: &str, note: &str, y: &str, series: Vec<Series>| Plot {
        id: id.into(),
        title: title.into(),
        note: note.into(),
        x: "time (UTC)".into(),
        x_scale: Scale::Time,
        y: y.into(),
        series,
        ..Plot::default()
    };
    let (strategy, holding) = ("strategy", "buy-and-hold");
    let mut plots = vec![
        timed(
            "equity",
            "Equity",
            "Growth since the start of the test part, all costs paid, marked at the closes.",
            "growth, %",
            vec![
                Series::line(holding, 7, curve(&|bar| growth(bar.buy_and_hold))),
                Series::line(strategy, 0, curve(&|bar| growth(bar.equity))),
            ],
        ),
        timed(
            "drawdown",
            "Drawdown",
            "Distance from the highest equity so far; the start equity is the first peak.",
            "below the peak, %",
            vec![
                Series::line(holding, 7, peaks(&|bar| bar.buy_and_hold)),
                Series { style: Style::Area, ..Series::line(strategy, 0, peaks(&|bar| bar.equity)) },
            ],
        ),
        timed(
            "exposure",
            "Exposure",
            "Position over equity at the closes: 100% is all of it, below zero is short.",
            "exposure, %",
            vec![Series {
                style: Style::Thin,
                ..Series::line("exposure", 0, curve(&|bar| 100.0 * bar.exposure))
            }],
        ),
    ];
    let side = |sign: f64| -> Vec<(f64, f64)> {
        let filled: Vec<_> = bars.iter().filter(|bar| bar.quantity * sign > 0.0).collect();
        let every = filled.len().div_ceil(MARKERS).max(1);
        filled.iter().step_by(every).map(|bar| (seconds(&bar.time), bar.price.unwrap_or(bar.close))).collect()
    };
    let fills = bars.iter().filter(|bar| bar.quantity != 0.0).count();
    let shown = if fills > 2 * MARKERS { format!(", some of {fills} shown") } else { String::new() };
    plots.push(timed(
        "fills",
        "Fills",
        &format!("Mid close, and the price of each fill with its price costs{shown}."),
        "price",
        vec![
            Series { style: Style::Thin, ..Series::line("close", 7, curve(&|bar| bar.close)) },
            Series { style: Style::Up, ..Series::line("buy", 2, side(1.0)) },
            Series { style: Style::Down, ..Series::line("sell", 3, side(-1.0)) },
        ],
    ));
    let costs = |cost: fn(&BarLine) -> f64| {
        let mut sum = 0.0;
        let add = |bar: &BarLine| {
            sum += cost(bar);
            (seconds(&bar.time), 100.0 * sum / start)
        };
        let points: Vec<_> = bars.iter().map(add).collect();
        thinned(&points, POINTS)
    };
    plots.push(timed(
        "costs",
        "Costs",
        "Paid so far, in percent of the start equity; spread, slippage and impact are in the fill prices and not here.",
        "paid so far, %",
        vec![
            Series::line("fees", 0, costs(|bar| bar.fee)),
            Series::line("financing", 1, costs(|bar| bar.financing)),
            Series::line("borrow", 3, costs(|bar| bar.borrow)),
        ],
    ));
    if let Some(trades) = run.trades.as_deref().filter(|trades| trades.len() > 1) {
        let mut sum = 0.0;
        let mut add = |profit: f64| {
            sum += profit;
            100.0 * sum / start
        };
        let points: Vec<_> =
            trades.iter().enumerate().map(|(i, t)| ((i + 1) as f64, add(t.profit))).collect();
        plots.push(Plot {
            id: "trades".into(),
            title: "Closed trades".into(),
            note: "Profits after fees, added up in the order of closing.".into(),
            x: "closed trade".into(),
            y: "profit so far, % of start".into(),
            series: vec![Series::line("profit", 0, thinned(&points, POINTS))],
            ..Plot::default()
        });
    }
    plots
}

/// Plots of the training.
pub fn training(run: &RunData) -> Vec<Plot> {
    let mut plots = Vec::new();
    let stepped = |id: &str, title: &str, note: &str, y: &str, fields: &[(String, String)], scale: Scale| {
        let series: Vec<Series> = fields
            .iter()
            .enumerate()
            .map(|(i, (field, name))| {
                let points = averaged(&column(&run.rows, "step", field), STEP_POINTS);
                let shown = |p: &(f64, f64)| scale != Scale::Log || p.1 > 0.0;
                Series::line(name.clone(), i, points.into_iter().filter(shown).collect())
            })
            .filter(|series| series.points.len() > 1)
            .collect();
        Plot {
            id: id.into(),
            title: title.into(),
            note: note.into(),
            x: "training step".into(),
            y: y.into(),
            y_scale: scale,
            series,
            ..Plot::default()
        }
    };
    let losses = fields(run, "loss", "c51", "loss_");
    // The ensemble's loss, with its bonus, may be below zero.
    plots.push(stepped(
        "losses",
        "Loss terms",
        "Batch means, averaged over neighbouring steps.",
        "loss, log scale",
        &losses,
        Scale::Log,
    ));
    let norms = fields(run, "gradient_norm", "total", "norm_");
    plots.push(stepped(
        "gradient-norms",
        "Gradient norms",
        "Of each term and of each group of parameters, before budgets and clips.",
        "norm, log scale",
        &norms,
        Scale::Log,
    ));
    let named = |list: &[(&str, &str)]| -> Vec<(String, String)> {
        list.iter().map(|(field, name)| ((*field).to_owned(), (*name).to_owned())).collect()
    };
    plots.push(stepped(
        "values",
        "Values",
        "Mean Q of the taken actions, and mean distance of its target (td).",
        "discounted reward",
        &named(&[("q", "Q"), ("td", "td")]),
        Scale::Linear,
    ));
    plots.push(stepped(
        "clipped",
        "Clipped target mass",
        "Share of the target distribution that falls outside the support: with much of it, widen model.v_min and v_max.",
        "share",
        &named(&[("clipped_low", "below"), ("clipped_high", "above")]),
        Scale::Linear,
    ));
    let epochs = |id: &str, title: &str, note: &str, y: &str, list: &[(&str, &str, f64)]| Plot {
        id: id.into(),
        title: title.into(),
        note: note.into(),
        x: "epoch".into(),
        y: y.into(),
        series: list
            .iter()
            .enumerate()
            .map(|(i, (field, name, factor))| {
                let points = by_epoch(&run.rows, field).into_iter().map(|(x, y)| (x, y * factor)).collect();
                Series::line(*name, i, points)
            })
            .filter(|series| series.points.len() > 1)
            .collect(),
        ..Plot::default()
    };
    plots.push(epochs(
        "validation",
        "Validation",
        "Sharpe ratio of each epoch's policy on the validation part; the best one is tested.",
        "Sharpe ratio, annualised",
        &[("validation_sharpe", "Sharpe ratio", 1.0)],
    ));
    plots.push(epochs(
        "step-time",
        "Time of a training step",
        "Mean of each epoch, waiting and reading back included.",
        "microseconds",
        &[("microseconds_per_step", "step", 1.0)],
    ));
    plots.retain(|plot| !plot.series.is_empty());
    plots
}

/// What the policy believes: distributions of values by branch, and what they depend on.
pub fn beliefs(run: &RunData) -> Vec<Plot> {
    let rows: Vec<&Row> = run.rows.iter().filter(|row| row.kind == "values").collect();
    let mut plots = Vec::new();
    let branches = rows.last().and_then(|row| row.fields.get("branches")?.as_array()).map_or(0, Vec::len);
    for branch in 0..branches {
        // Up to four epochs, evenly chosen, the last one among them.
        let count = rows.len().min(4);
        let chosen = (0..count).map(|i| (i + 1) * rows.len() / count - 1);
        let series: Vec<Series> = chosen
            .enumerate()
            .map(|(i, place)| {
                let row = rows[place];
                let last = i + 1 == count;
                Series {
                    name: format!("epoch {}", row.number("epoch").unwrap_or(0.0)),
                    colour: if last { 0 } else { [7, 5, 1][i] },
                    style: if last { Style::Area } else { Style::Thin },
                    points: mass(row, branch),
                }
            })
            .collect();
        plots.push(Plot {
            id: format!("values-{branch}"),
            title: format!("Value distribution, branch {branch}"),
            note: "C51 distribution of the chosen action, mean over states of the validation part.".into(),
            x: "value (discounted reward)".into(),
            y: "probability of an atom".into(),
            series,
            ..Plot::default()
        });
    }
    if let Some(row) = run.last("sensitivity") {
        let mut averages = by_name(&row.numbers("features"), &run.features());
        averages.sort_by(|a, b| a.1.total_cmp(&b.1));
        let first = averages.len().saturating_sub(24);
        let shown = &averages[first..];
        plots.push(Plot {
            id: "sensitivity".into(),
            title: "Feature sensitivity".into(),
            note: "Mean change of Q when one feature is exchanged between states (causal probe); bars of the window averaged."
                .into(),
            x: "mean |dQ|".into(),
            series: vec![Series {
                name: "mean |dQ|".into(),
                colour: 0,
                style: Style::Bars,
                points: shown.iter().enumerate().map(|(i, (_, value))| (*value, i as f64)).collect(),
            }],
            rows: shown.iter().map(|(name, _)| name.clone()).collect(),
            ..Plot::default()
        });
    }
    plots
}

/// (atom, probability) of a branch.
fn mass(row: &Row, branch: usize) -> Vec<(f64, f64)> {
    let list = row.fields.get("branches").and_then(|b| b.get(branch)).and_then(Value::as_array);
    let mass: Vec<f64> = list.map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_f64).collect();
    let (low, high) = (row.number("v_min").unwrap_or(0.0), row.number("v_max").unwrap_or(1.0));
    let width = (high - low) / (mass.len().max(2) - 1) as f64;
    mass.into_iter().enumerate().map(|(k, p)| (low + k as f64 * width, p)).collect()
}

/// Fields of the steps that begin with `prefix`, with the names after it; before them `whole` under its own name.
fn fields(run: &RunData, whole: &str, name: &str, prefix: &str) -> Vec<(String, String)> {
    let mut found = vec![(whole.to_owned(), name.to_owned())];
    for row in run.rows.iter().filter(|row| row.kind == "step").take(2000) {
        for field in row.fields.keys() {
            let Some(rest) = field.strip_prefix(prefix) else { continue };
            if !found.iter().any(|(known, _)| known == field) {
                found.push((field.clone(), rest.replace('_', " ")));
            }
        }
    }
    found
}

/// A field of the epochs by their number.
pub fn by_epoch(rows: &[Row], field: &str) -> Vec<(f64, f64)> {
    let epochs = rows.iter().filter(|row| row.kind == "epoch");
    epochs.enumerate().filter_map(|(i, row)| Some(((i + 1) as f64, row.number(field)?))).collect()
}

fn seconds(time: &str) -> f64 {
    time.parse::<Timestamp>().map_or(f64::NAN, |t| t.as_millisecond() as f64 / 1000.0)
}
