//! The page of a run.

use backtest::{Line, Report, lines};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use crate::ReportError;
use crate::plot::{COLOURS, Plot};
use crate::plots;
use crate::run::{RunData, Tested};

/// How pages look.
const STYLE: &str = include_str!("page.css");

/// The page of a run: one HTML file with everything in it.
///
/// # Errors
/// [`ReportError::Plot`] for a plot that could not be drawn.
pub fn html(run: &RunData) -> Result<String, ReportError> {
    let test = run.test.as_ref();
    let walks = run.parts.iter().any(|part| part.fold.is_some());
    let body = html! {
        (header(run))
        @if let Some(test) = test { (cards(&test.report)) }
        (section(
            if walks { "Backtest, all folds one behind the other" } else { "Backtest" },
            &plots::backtest(run),
            if is_transitions(run) {
                "A data set of transitions has no backtest: the loss of its test part is above, and in test.json."
            } else if is_task(run) {
                "A control task has no backtest; its test is in test.json."
            } else {
                "The run has not been tested, or was tested by an earlier program: there are no test-bars.csv."
            },
        )?)
        @if let Some(test) = test { (table(&test.report)) (symbols(test)) (folds(test)) }
        @for part in run.parts.iter().filter(|_| walks) {
            (section(&format!("Fold {}", part.fold.unwrap_or(0)), &plots::fold(part), "Nothing was tested.")?)
        }
        (section("Training", &plots::training(run), "The metrics have no training step.")?)
        (section("Beliefs", &plots::beliefs(run), "The metrics have no value distribution.")?)
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

/// Whether the run is on a control task.
fn is_task(run: &RunData) -> bool {
    run.about().is_some_and(|row| row.fields.contains_key("task"))
}

/// Whether the run learned from a data set of transitions.
fn is_transitions(run: &RunData) -> bool {
    run.about().is_some_and(|row| row.fields.contains_key("transitions"))
}

/// A heading with plots under it, or what is said where there are none.
fn section(name: &str, plots: &[Plot], otherwise: &str) -> Result<Markup, ReportError> {
    let figures = plots.iter().map(figure).collect::<Result<Vec<_>, _>>()?;
    Ok(html! {
        section {
            h2 { (name) }
            @if figures.is_empty() { p.none { (otherwise) } }
            div.figures { @for figure in &figures { (figure) } }
        }
    })
}

/// A whole document around a body. Names of folders, files and symbols may hold characters that HTML has no place for.
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
    let page = page.into_string();
    let shown = |c: char| if c.is_control() && !"\n\t".contains(c) { char::REPLACEMENT_CHARACTER } else { c };
    if page.contains(char::is_control) { page.chars().map(shown).collect() } else { page }
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
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut facts: Vec<(String, String)> = Vec::new();
    let data = about.and_then(|row| row.fields.get("data")?.as_array()).map_or(&[][..], Vec::as_slice);
    for symbol in data {
        let field = |name: &str| symbol.get(name).map(text).unwrap_or_default();
        let value = format!("{}, {} bars, hash {}", field("source"), field("bars"), field("hash"));
        facts.push((format!("data, {}", field("symbol")), value));
    }
    let files =
        about.and_then(|row| row.fields.get("transitions")?.as_array()).map_or(&[][..], Vec::as_slice);
    for file in files {
        let field = |name: &str| file.get(name).map(text).unwrap_or_default();
        let [transitions, episodes, hash] = ["transitions", "episodes", "hash"].map(field);
        let value =
            format!("{}, {transitions} transitions in {episodes} episodes, hash {hash}", field("format"));
        facts.push((format!("data, {}", field("file")), value));
    }
    if let Some(row) = run.history.of("test").next_back().filter(|_| !files.is_empty()) {
        let number = |name: &str| row.number(name).map_or("undefined".into(), |x| format!("{x:.4}"));
        let value = format!("C51 loss {}, |td| {}, mean Q {}", number("loss"), number("td"), number("q"));
        facts.push(("test transitions".into(), value));
    }
    for name in ["task", "device", "parameters", "program", "kernels"] {
        let value = about.and_then(|row| row.fields.get(name)).map(text).filter(|value| !value.is_empty());
        facts.extend(value.map(|value| (name.to_owned(), value)));
    }
    facts.extend(run.config.get("train.seed").map(|seed| ("seed".to_owned(), seed.clone())));
    facts.push(("epochs".into(), run.history.of("epoch").count().to_string()));
    // What the synthetic market's truth says.
    let control = run.history.of("control").next_back().filter(|row| row.number("fold").is_none());
    for (field, name) in
        [("oracle_sharpe", "Sharpe ratio of an oracle"), ("gross_z", "return before costs, standard errors")]
    {
        let value = control.and_then(|row| row.number(field));
        facts.extend(value.map(|value| (name.to_owned(), format!("{value:.2}"))));
    }
    html! {
        header {
            h1 { "Run " (run.name()) }
            dl.facts { @for (name, value) in &facts { div { dt { (name) } dd { (value) } } } }
        }
    }
}

/// The symbols' results, where there are several.
fn symbols(test: &Tested) -> Markup {
    let rows = test.symbols.iter().map(|symbol| (vec![symbol.symbol.clone()], &symbol.report));
    short_results("Symbols", &["symbol"], rows.collect())
}

/// The folds' results, where there are some.
fn folds(test: &Tested) -> Markup {
    let rows = test.folds.iter().map(|fold| {
        let [first, last] = fold.test_ms.map(|ms| {
            Timestamp::from_millisecond(ms)
                .map_or_else(|_| String::new(), |t| t.strftime("%F %R").to_string())
        });
        (
            vec![fold.fold.to_string(), format!("{first} to {last} UTC"), fold.best_epoch.to_string()],
            &fold.test,
        )
    });
    short_results("Folds", &["fold", "test part", "epoch of the policy"], rows.collect())
}

/// A line for each result, with what it is of.
fn short_results(title: &str, names: &[&str], rows: Vec<(Vec<String>, &Report)>) -> Markup {
    let shown = ["total return", "Sharpe ratio", "max drawdown", "closed trades"];
    html! {
        @if !rows.is_empty() {
            section {
                h2 { (title) }
                div.scroll {
                    table.metrics {
                        thead {
                            tr {
                                @for name in names { th { (name) } }
                                th.number { "bars" }
                                @for name in &shown { th.number { (name) } }
                                th.number { "buy-and-hold return" } th.number { "its Sharpe ratio" }
                            }
                        }
                        tbody {
                            @for (of, report) in &rows {
                                @let lines = lines(report);
                                @let line = |name: &str| lines.iter().find(|line| line.name == name);
                                tr {
                                    @for text in of { td { (text) } }
                                    td.number { (report.strategy.bars) }
                                    @for name in &shown { td.number { @if let Some(line) = line(name) { (line.strategy) } } }
                                    @for name in &shown[..2] { td.number { @if let Some(line) = line(name) { (line.holding) } } }
                                }
                            }
                        }
                    }
                }
            }
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
