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
            "fills",
            "costs",
            "trades",
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
    for (plot, (id, drawn)) in all.iter().zip(&found) {
        for series in &plot.series {
            assert!(!series.points.is_empty(), "{id}: {} has no points", series.name);
            let points = drawn[series.colour];
            assert!(points >= series.points.len(), "{id}: {} has {points} points", series.name);
        }
    }
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
