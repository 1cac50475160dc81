//! The page of a run.

use backtest::{Line, Report, lines};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::ReportError;
use crate::plot::{COLOURS, Plot};
use crate::plots;
use crate::run::RunData;

/// How pages look.
const STYLE: &str = include_str!("page.css");

/// The page of a run: one HTML file with everything in it.
///
/// # Errors
/// [`ReportError::Plot`] for a plot that could not be drawn.
pub fn html(run: &RunData) -> Result<String, ReportError> {
    let sections = [
        (
            "Backtest",
            plots::backtest(run),
            "The run has not been tested, or was tested by an earlier program: there are no test-bars.csv.",
        ),
        ("Training", plots::training(run), "The metrics have no training step."),
        ("Beliefs", plots::beliefs(run), "The metrics have no value distribution."),
    ];
    let mut drawn = Vec::new();
    for (name, plots, otherwise) in &sections {
        let figures = plots.iter().map(figure).collect::<Result<Vec<_>, _>>()?;
        drawn.push((*name, figures, *otherwise));
    }
    let body = html! {
        (header(run))
        @if let Some(test) = &run.test {
            (cards(test))
        }
        @for (name, figures, otherwise) in &drawn {
            section {
                h2 { (name) }
                @if figures.is_empty() { p.none { (otherwise) } }
                div.figures { @for figure in figures { (figure) } }
            }
            @if *name == "Backtest" {
                @if let Some(test) = &run.test { (table(test)) }
            }
        }
        section {
            h2 { "Configuration" }
            details {
                summary { (run.config.len()) " keys" }
                table.plain { @for (key, value) in &run.config { tr { td { code { (key) } } td { code { (value) } } } } }
            }
        }
    };
    Ok(document(&format!("Stepgraph run {}", run.name()), &body))
}

/// A whole document around a body.
pub(crate) fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { main { (body) } footer { "Made by Stepgraph. docs/METRICS.md has every formula." } }
        }
    };
    page.into_string()
}

/// A plot with its heading, legend and note.
pub(crate) fn figure(plot: &Plot) -> Result<Markup, ReportError> {
    let svg = plot.svg()?;
    // The page gives it the width of its column.
    let svg = svg.replacen("<svg ", "<svg role=\"img\" preserveAspectRatio=\"xMidYMid meet\" ", 1);
    Ok(html! {
        figure id=(plot.id) data-series=(plot.series.len()) data-points=(plot.points()) {
            figcaption {
                h3 { (plot.title) }
                @if plot.series.len() > 1 {
                    ul.legend {
                        @for series in &plot.series {
                            li { i style=(format!("background:{}", COLOURS[series.colour % COLOURS.len()])) {} (series.name) }
                        }
                    }
                }
            }
            (PreEscaped(svg))
            p.note { (plot.note) }
        }
    })
}

fn header(run: &RunData) -> Markup {
    let about = run.about();
    let fact = |name: &str, field: &str| {
        let value = about.and_then(|row| row.fields.get(field)).map(|value| match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        value.filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value))
    };
    let mut facts: Vec<(String, String)> = [
        ("data", "source"),
        ("bars", "bars"),
        ("data hash", "bars_hash"),
        ("device", "device"),
        ("parameters", "parameters"),
        ("program", "program"),
        ("kernels", "kernels"),
        ("started", "started"),
    ]
    .into_iter()
    .filter_map(|(name, field)| fact(name, field))
    .collect();
    if let Some(seed) = run.config.get("train.seed") {
        facts.push(("seed".into(), seed.clone()));
    }
    let epochs = run.rows.iter().filter(|row| row.kind == "epoch").count();
    facts.push(("epochs".into(), epochs.to_string()));
    html! {
        header {
            h1 { "Run " (run.name()) }
            dl.facts { @for (name, value) in &facts { div { dt { (name) } dd { (value) } } } }
        }
    }
}

/// The numbers that are looked at first.
fn cards(test: &Report) -> Markup {
    let all = lines(test);
    let card = |name: &str| all.iter().find(|line| line.name == name);
    let shown = ["total return", "Sharpe ratio", "max drawdown", "win rate", "turnover per year"];
    html! {
        section.cards {
            @for line in shown.iter().filter_map(|name| card(name)) {
                div.card {
                    div.name { (line.name) }
                    div.value { (line.strategy) }
                    @if !line.strategy_interval.is_empty() {
                        div.interval { (percent(test)) " " (line.strategy_interval) }
                    }
                    div.beside { "buy-and-hold " (line.holding) }
                }
            }
        }
    }
}

fn percent(test: &Report) -> String {
    test.confidence.as_ref().map_or_else(String::new, |c| format!("{:.0}%", 100.0 * c.level))
}

fn table(test: &Report) -> Markup {
    let interval = |text: &str, value: &str| {
        if !text.is_empty() || value.is_empty() { text.to_owned() } else { "\u{2013}".to_owned() }
    };
    let row = |line: &Line| {
        html! {
            tr.sub[line.name.starts_with(' ')] {
                td { (line.name.trim_start()) }
                td.number { (line.strategy) }
                td.number.interval { (interval(&line.strategy_interval, &line.strategy)) }
                td.number { (line.holding) }
                td.number.interval { (interval(&line.holding_interval, &line.holding)) }
            }
        }
    };
    html! {
        section {
            h2 { "All metrics of the test part" }
            table.metrics {
                thead {
                    tr {
                        th { (test.strategy.bars) " bars, " (format!("{:.0}", test.bars_per_year)) " a year" }
                        th.number { "strategy" }
                        th.number { (percent(test)) " interval" }
                        th.number { "buy-and-hold" }
                        th.number { (percent(test)) " interval" }
                    }
                }
                tbody { @for line in &lines(test) { (row(line)) } }
            }
            @if let Some(c) = &test.confidence {
                p.note {
                    "Intervals by the stationary bootstrap: " (c.resamples) " resamples, blocks of "
                    (format!("{:.1}", c.block)) " bars and " (format!("{:.1}", c.trade_block)) " trades on average."
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
