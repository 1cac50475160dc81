use tempfile::tempdir;

use super::*;
use crate::compare::Comparison;
use crate::sample::{self, BARS, EPOCHS, STEPS};
use crate::{ReportError, drawn};

/// The figures of a page: name, and how many points its drawing has in each colour.
fn figures(page: &str) -> Vec<(String, [usize; 8])> {
    let part = |text: &str, from: &str, to: &str| {
        let start = text.find(from).map(|i| i + from.len())?;
        let end = text[start..].find(to)? + start;
        Some(text[start..end].to_owned())
    };
    let figure = |text: &str| {
        let id = part(text, " id=\"", "\"").expect("a name");
        let svg = format!("<svg {}</svg>", part(text, "<svg ", "</svg>").expect("a drawing"));
        let tree = roxmltree::Document::parse(&svg).unwrap_or_else(|e| panic!("{id}: {e}"));
        (id, COLOURS.map(|colour| drawn::points(tree.root_element(), colour)))
    };
    page.split("<figure").skip(1).map(figure).collect()
}

/// Every series of every plot is there with all its points.
fn assert_drawn(plots: &[Plot], found: &[(String, [usize; 8])]) {
    assert_eq!(plots.len(), found.len());
    for (plot, (id, drawn)) in plots.iter().zip(found) {
        assert_eq!(&plot.id, id);
        for series in &plot.series {
            assert!(!series.points.is_empty(), "{id}: {} has no points", series.name);
            let points = drawn[series.colour];
            assert!(points >= series.points.len(), "{id}: {} has {points} points", series.name);
        }
    }
}

#[test]
fn every_plot_is_drawn_with_all_its_series() {
    let folder = tempdir().unwrap();
    sample::write(folder.path(), 1);
    let run = RunData::read(folder.path()).unwrap();
    let page = html(&run).unwrap();
    let found = figures(&page);
    let all: Vec<Plot> =
        [plots::backtest(&run), plots::training(&run), plots::beliefs(&run)].into_iter().flatten().collect();
    let names: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(
        names,
        [
            "equity",
            "drawdown",
            "exposure",
            "costs",
            "trades",
            "fills",
            "losses",
            "gradient-norms",
            "values",
            "clipped",
            "validation",
            "step-time",
            "values-0",
            "values-1",
            "sensitivity",
        ]
    );
    assert_drawn(&all, &found);
    let points = |id: &str, name: &str| {
        let plot = all.iter().find(|plot| plot.id == id).expect("the plot");
        plot.series.iter().find(|series| series.name == name).expect("the series").points.len()
    };
    assert_eq!(points("equity", "strategy"), BARS);
    assert_eq!(points("losses", "cql"), EPOCHS * STEPS);
    assert_eq!(points("fills", "buy"), BARS / 20);
    assert_eq!(points("values-0", "epoch 5"), 11);
    assert_eq!(points("sensitivity", "mean |dQ|"), 4, "bars of the window are averaged");
}

#[test]
fn a_portfolio_has_one_equity_and_the_fills_of_each_symbol() {
    let folder = tempdir().unwrap();
    sample::write_portfolio(folder.path());
    let run = RunData::read(folder.path()).unwrap();
    let plots = plots::backtest(&run);
    let page = html(&run).unwrap();
    let found = figures(&page);
    assert_drawn(&plots, &found[..plots.len()]);
    let equity = &plots[0].series[1];
    assert_eq!((plots[0].id.as_str(), equity.name.as_str()), ("equity", "strategy"));
    let report = &run.test.as_ref().unwrap().report;
    assert_eq!(equity.points.len(), report.strategy.bars);
    let last = equity.points.last().unwrap().1;
    assert!((last - 100.0 * report.strategy.total_return).abs() < 1e-9, "{last}");
    let fills: Vec<&str> =
        plots.iter().map(|p| p.title.as_str()).filter(|t| t.starts_with("Fills")).collect();
    assert_eq!(fills, ["Fills, A", "Fills, B"]);
    assert!(page.contains("<h2>Symbols</h2>") && !page.contains("<h2>Folds</h2>"));
}

#[test]
fn a_walk_forward_has_its_folds_one_behind_the_other_and_each_alone() {
    let folder = tempdir().unwrap();
    sample::write_walk(folder.path());
    let run = RunData::read(folder.path()).unwrap();
    let page = html(&run).unwrap();
    let found = figures(&page);
    let folds = run.parts.iter().flat_map(plots::fold);
    let all: Vec<Plot> = plots::backtest(&run)
        .into_iter()
        .chain(folds)
        .chain(plots::training(&run))
        .chain(plots::beliefs(&run))
        .collect();
    assert_drawn(&all, &found);
    let last = |id: &str| {
        let plot = all.iter().find(|plot| plot.id == id).unwrap_or_else(|| panic!("{id}"));
        (plot.series[1].points.len(), plot.series[1].points.last().unwrap().1)
    };
    let test = run.test.as_ref().unwrap();
    let pooled = 100.0 * test.report.strategy.total_return;
    let (points, growth) = last("equity");
    assert!(points == 2 * BARS && (growth - pooled).abs() < 1e-9, "{points} {growth} {pooled}");
    for (fold, id) in test.folds.iter().zip(["equity-fold-01", "equity-fold-02"]) {
        let (points, growth) = last(id);
        assert!(points == BARS && (growth - 100.0 * fold.test.strategy.total_return).abs() < 1e-9, "{id}");
    }
    // The steps of the second fold lie behind those of the first.
    let loss = run.history.curve("loss");
    assert_eq!((loss.len(), loss.last().unwrap().0), (2 * EPOCHS * STEPS, (2 * EPOCHS * STEPS) as f64));
    assert!(page.contains("<h2>Folds</h2>") && page.contains("<h2>Fold 2</h2>"));
}

#[test]
fn a_page_needs_nothing_else_and_escapes_what_it_shows() {
    let folder = tempdir().unwrap();
    sample::write(folder.path(), 1);
    let page = html(&RunData::read(folder.path()).unwrap()).unwrap();
    assert!(page.contains("synthetic &lt;market&gt;") && !page.contains("<market>"));
    for outside in ["src=", "href=", "url(", "@import", "<script", "<link"] {
        assert!(!page.contains(outside), "{outside}");
    }
    // The only address is the name of SVG's language.
    assert_eq!(page.matches("http").count(), page.matches("\"http://www.w3.org/2000/svg\"").count());
    for line in ["Sharpe ratio", "Omega ratio", "alpha a year", "95% interval", "policies compared"] {
        assert!(page.contains(line), "{line}");
    }
}

#[test]
fn a_page_has_no_control_characters() {
    let parent = tempdir().unwrap();
    let folder = parent.path().join("run\u{1b}[2J\u{7f}\u{85}");
    std::fs::create_dir(&folder).unwrap();
    sample::write(&folder, 1);
    let page = html(&RunData::read(&folder).unwrap()).unwrap();
    assert!(page.contains("<title>Stepgraph run run\u{fffd}[2J\u{fffd}\u{fffd}</title>"));
    assert!(!page.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
}

#[test]
fn a_run_that_has_not_ended_has_a_page_that_says_so() {
    let folder = tempdir().unwrap();
    let path = folder.path();
    assert!(matches!(RunData::read(path), Err(ReportError::NoRun { .. })));
    std::fs::write(path.join("metrics.jsonl"), "").unwrap();
    let page = html(&RunData::read(path).unwrap()).unwrap();
    assert!(page.contains("has not been tested") && page.contains("no training step"));
    assert_eq!(figures(&page), []);
    std::fs::write(path.join("test.json"), "{\"bars_per_year\": 3}").unwrap();
    let message = RunData::read(path).unwrap_err().to_string();
    assert!(message.contains("test.json: missing field `strategy`"), "{message}");
}

#[test]
fn runs_are_compared_with_mean_and_spread() {
    let folder = tempdir().unwrap();
    let runs: Vec<RunData> = [1, 2, 3]
        .map(|seed| {
            let path = folder.path().join(format!("run{seed}"));
            std::fs::create_dir(&path).unwrap();
            sample::write(&path, seed);
            RunData::read(&path).unwrap()
        })
        .to_vec();
    let comparison = Comparison::new(&runs);
    let best = comparison.quantities.iter().find(|q| q.name == "best validation Sharpe").unwrap();
    // 0.1 (epochs + seed): 0.6, 0.7, 0.8.
    assert!((best.mean().unwrap() - 0.7).abs() < 1e-12 && (best.deviation().unwrap() - 0.1).abs() < 1e-12);
    assert_eq!(comparison.differences, [("train.seed".into(), ["1", "2", "3"].map(String::from).to_vec())]);
    let text = comparison.to_string();
    let line = text.lines().find(|line| line.starts_with("best validation")).unwrap();
    assert_eq!(
        line.split_whitespace().skip(3).collect::<Vec<_>>(),
        ["0.700", "0.100", "0.600", "0.800", "0.600", "0.700", "0.800"]
    );
    assert!(text.lines().next().unwrap().ends_with("run3"), "{text}");
    let found = figures(&comparison.html().unwrap());
    assert_eq!(found.len(), 2);
    for (id, drawn) in found {
        let least = if id == "equity" { BARS } else { EPOCHS };
        assert!(drawn[..3].iter().all(|points| *points >= least), "{id}: {drawn:?}");
    }
}
