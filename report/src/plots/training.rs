//! Plots of the training and of what its policy believes.

use serde_json::Value;

use crate::events::averaged as by_name;
use crate::plot::{Plot, Scale, Series, Style};
use crate::rows::Row;
use crate::run::RunData;

/// Plots of the training.
pub fn training(run: &RunData) -> Vec<Plot> {
    let mut plots = Vec::new();
    let stepped = |id: &str, title: &str, note: &str, y: &str, fields: &[(String, String)], scale: Scale| {
        let series: Vec<Series> = fields
            .iter()
            .enumerate()
            .map(|(i, (field, name))| {
                let points = run.history.curve(field);
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
                let points = run.history.by_epoch(field).into_iter().map(|(x, y)| (x, y * factor)).collect();
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
    if run.about().is_some_and(|row| row.fields.contains_key("task")) {
        plots.push(epochs(
            "mean-return",
            "Mean return",
            "Of each epoch's policy over its validation episodes; the best one is tested.",
            "undiscounted return",
            &[("validation_return", "mean return", 1.0)],
        ));
    }
    plots.push(epochs(
        "held-out-loss",
        "Held-out loss",
        "C51 loss and |td| of the validation transitions by each epoch's policy; the one with the lowest loss is tested.",
        "loss; |td| in discounted reward",
        &[("validation_loss", "C51 loss", 1.0), ("validation_td", "|td|", 1.0)],
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
    // Of a walk-forward those of the last fold: each fold's policy begins anew.
    let fold = run.history.of("values").next_back().and_then(|row| row.number("fold"));
    let rows: Vec<&Row> = run.history.of("values").filter(|row| row.number("fold") == fold).collect();
    let of_fold = fold.map_or_else(String::new, |fold| format!(", fold {fold}"));
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
            title: format!("Value distribution, branch {branch}{of_fold}"),
            note: "C51 distribution of the chosen action, mean over states of the validation part.".into(),
            x: "value (discounted reward)".into(),
            y: "probability of an atom".into(),
            series,
            ..Plot::default()
        });
    }
    if let Some(row) = run.history.of("sensitivity").next_back() {
        let mut averages = by_name(&row.numbers("features"), &run.features());
        averages.sort_by(|a, b| a.1.total_cmp(&b.1));
        let first = averages.len().saturating_sub(24);
        let shown = &averages[first..];
        plots.push(Plot {
            id: "sensitivity".into(),
            title: format!("Feature sensitivity{of_fold}"),
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
    for field in run.history.steps.keys() {
        if let Some(rest) = field.strip_prefix(prefix) {
            found.push((field.clone(), rest.replace('_', " ")));
        }
    }
    found
}
