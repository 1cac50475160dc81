//! What a run leaves behind: tables, events, a page; and runs side by side.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::tempdir;

use crate::{host, text};

/// Trains a small run on the CPU and returns what it wrote on standard output.
fn train(run: &str, seed: u64, options: &[&str]) -> String {
    let small = "data.synthetic_bars=1200 train.batch=16 train.train_steps=12 collect.environments=4 collect.steps=8 \
                 collect.warmup=16 collect.capacity=256 train.epochs=3 probe.enabled=true probe.every=4 \
                 cql.enabled=true report.resamples=200";
    let seed = seed.to_string();
    let mut arguments = vec!["train", "--device", "cpu", "--run", run, "--seed", &seed];
    arguments.extend(options);
    arguments.extend(small.split_whitespace().flat_map(|set| ["--set", set]));
    host(&arguments).good()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

#[test]
fn a_run_says_everything_in_json_and_leaves_tables_events_and_a_page() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let said = json_lines(&train(&text(&run), 1, &["--json"]));
    let kinds: Vec<&str> = said.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    let rows: Vec<&str> = kinds.iter().copied().filter(|kind| *kind != "progress").collect();
    assert_eq!(rows, ["run", "epoch", "epoch", "epoch", "test", "control"]);

    // The same rows are in the metrics, with the steps between them.
    let metrics = json_lines(&fs::read_to_string(run.join("metrics.jsonl")).unwrap());
    let of = |kind: &str| metrics.iter().filter(|row| row["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(of("run"), said.iter().take(1).collect::<Vec<_>>());
    assert_eq!(of("epoch"), said.iter().filter(|row| row["kind"] == "epoch").collect::<Vec<_>>());
    assert_eq!((of("step").len(), of("values").len(), of("sensitivity").len()), (36, 3, 3));
    let features = of("run")[0]["features"].as_array().unwrap().len();
    assert_eq!(
        of("sensitivity")[0]["features"].as_array().unwrap().len(),
        features,
        "a name for each feature"
    );
    for values in of("values") {
        let branches = values["branches"].as_array().unwrap();
        assert_eq!(branches.len(), 3);
        for mass in branches {
            let mass: Vec<f64> = mass.as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
            let sum = mass.iter().sum::<f64>();
            assert!(mass.len() == 31 && (sum - 1.0).abs() < 1e-5 && mass.iter().all(|p| *p >= 0.0), "{sum}");
        }
        assert!(values["states"].as_u64().unwrap() > 50);
    }

    let test: Value = serde_json::from_str(&fs::read_to_string(run.join("test.json")).unwrap()).unwrap();
    assert_eq!(test["deflated"]["trials"], 3, "each validated epoch is a trial");
    assert_eq!(test["confidence"]["resamples"], 200);
    let interval = &test["confidence"]["buy_and_hold"]["sharpe"];
    let sharpe = test["buy_and_hold"]["sharpe"].as_f64().unwrap();
    assert!(interval["low"].as_f64().unwrap() < sharpe && sharpe < interval["high"].as_f64().unwrap());

    let bars = fs::read_to_string(run.join("test-bars.csv")).unwrap();
    assert!(bars.starts_with("symbol,time,bar,close,action,ordered,quantity,price,fee,"));
    assert_eq!(bars.lines().count() as u64 - 1, test["strategy"]["bars"].as_u64().unwrap());
    let trades = fs::read_to_string(run.join("test-trades.csv")).unwrap();
    assert_eq!(trades.lines().count() as u64 - 1, test["strategy"]["trades"].as_u64().unwrap());
    assert!(fs::metadata(run.join("events.out.tfevents.stepgraph")).unwrap().len() > 1000);
    let log = fs::read_to_string(run.join("run.log")).unwrap();
    assert!(log.lines().next().unwrap().contains("Stepgraph ") && log.contains("--device"), "{log}");
    assert!(log.contains("epoch 3/3  loss ") && log.contains("network: "), "{log}");
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    let hash = of("run")[0]["data"][0]["hash"].as_str().unwrap();
    assert!(config.starts_with("# Stepgraph ") && config.contains(&format!("hash {hash}\n")), "{config}");

    // A page made later of the same files is the same page.
    let page = run.join("report.html");
    let first = fs::read(&page).unwrap();
    fs::remove_file(&page).unwrap();
    assert_eq!(host(&["report", &text(&run)]).good(), format!("{}\n", text(&page)));
    assert!(fs::read(&page).unwrap() == first, "the page differs");
    let first = String::from_utf8(first).unwrap();
    for figure in
        ["equity", "drawdown", "fills", "costs", "losses", "gradient-norms", "values-2", "sensitivity"]
    {
        assert!(first.contains(&format!("<figure id=\"{figure}\"")), "{figure} is not there");
    }

    // The policy of the checkpoint gives the same result and the same tables.
    let again = folder.path().join("again");
    let said = host(&["eval", &text(&run), "--device", "cpu", "--json", "--csv", &text(&again)]).good();
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), test);
    for table in ["test-bars.csv", "test-trades.csv"] {
        assert!(
            fs::read(again.join(table)).unwrap() == fs::read(run.join(table)).unwrap(),
            "{table} differs"
        );
    }
    // Alone it does not know among how many it was chosen.
    let alone = folder.path().join("alone.safetensors");
    fs::copy(run.join("best.safetensors"), &alone).unwrap();
    let said = host(&["eval", &text(&alone), "--device", "cpu"]).good();
    assert!(said.contains("95% interval") && !said.contains("policies compared"), "{said}");
}

#[test]
fn runs_are_compared_over_seeds() {
    let folder = tempdir().unwrap();
    let runs = ["a", "b"].map(|name| text(&folder.path().join(name)));
    for (seed, run) in runs.iter().enumerate() {
        let said = train(run, seed as u64 + 1, &["--quiet"]);
        assert!(
            said.starts_with("test part, policy of epoch ") && said.contains("policies compared"),
            "{said}"
        );
    }
    let page = text(&folder.path().join("both.html"));
    let (err, _) = host(&["report", &runs[0], &runs[1], &format!("{}/.", runs[0])]).refused();
    assert!(err.contains("a run has no spread with itself"), "{err}");
    let said = host(&["report", &runs[0], &runs[1], "--html", &page]).good();
    let line = |name: &str| {
        said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {said}"))
    };
    assert!(
        line("2 runs").split_whitespace().eq(["2", "runs", "mean", "std", "lowest", "highest", "a", "b"])
    );
    assert!(line("train.seed").split_whitespace().eq(["train.seed", "1", "2"]));
    let numbers: Vec<f64> = line("total return")
        .split_whitespace()
        .skip(2)
        .map(|number| number.trim_end_matches('%').parse().expect("a number"))
        .collect();
    let [mean, _, lowest, highest, a, b] = numbers[..] else { panic!("{numbers:?}") };
    assert!((mean - 0.5 * (a + b)).abs() < 0.011 && lowest == a.min(b) && highest == a.max(b), "{numbers:?}");
    assert!(fs::read_to_string(&page).unwrap().contains("<figure id=\"equity\""));
}

#[test]
fn a_walk_forward_on_two_symbols_has_a_page_and_rows_of_all() {
    let folder = tempdir().unwrap();
    let bars = [1, 2].map(|seed| {
        let path = text(&folder.path().join(format!("{}.csv", ["one", "two"][seed - 1])));
        host(&["data", "synth", &path, "--bars", "1500", "--seed", &seed.to_string()]).good();
        path
    });
    let run = folder.path().join("walk");
    let said = json_lines(&train(
        &text(&run),
        1,
        &["--json", "--data", &bars[0], "--data", &bars[1], "--set", "folds.count=2"],
    ));
    let kinds: Vec<&str> = said.iter().map(|row| row["kind"].as_str().unwrap()).collect();
    let of = |kind: &str| kinds.iter().filter(|k| **k == kind).count();
    assert_eq!((of("run"), of("epoch"), of("test"), of("fold"), of("pooled")), (2, 6, 2, 2, 1), "{kinds:?}");
    let pooled = said.last().unwrap();
    assert!(pooled["confidence"]["strategy"]["sharpe"].is_object() && pooled["deflated"]["trials"] == 6);
    // One table for each fold with both symbols in it; as many bars as the portfolio has on its time line.
    for fold in ["fold-01", "fold-02"] {
        let table = fs::read_to_string(run.join(fold).join("test-bars.csv")).unwrap();
        let of = |symbol: &str| table.lines().filter(|line| line.starts_with(symbol)).count();
        let test: Value =
            serde_json::from_str(&fs::read_to_string(run.join(fold).join("test.json")).unwrap()).unwrap();
        assert_eq!(of("one,") as u64, test["symbols"][0]["strategy"]["bars"].as_u64().unwrap(), "{fold}");
        assert_eq!(of("two,") as u64, test["symbols"][1]["strategy"]["bars"].as_u64().unwrap(), "{fold}");
    }
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for figure in ["equity", "equity-fold-01", "equity-fold-02", "fills-1-fold-02", "losses"] {
        assert!(page.contains(&format!("<figure id=\"{figure}\"")), "{figure} is not there");
    }
    assert!(run.join("fold-02").join("report.html").is_file() && run.join("run.log").is_file());
}

#[test]
#[ignore = "needs Python's venv, PyPI's package tensorboard and Chromium"]
fn tensorboard_and_a_browser_read_what_a_run_left() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-run.sh");
    let status = Command::new(script).arg(env!("CARGO_BIN_EXE_host")).status().expect("bash");
    assert!(status.success());
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = tempdir().unwrap();
    let (err, out) = host(&["report", &text(folder.path())]).refused();
    assert!(err.contains("holds no metrics.jsonl: not the folder of a run") && out.is_empty(), "{err}");
    fs::write(folder.path().join("metrics.jsonl"), "{\"kind\":\"step\"}\nnonsense\n").unwrap();
    let (err, _) = host(&["report", &text(folder.path())]).refused();
    assert!(err.contains("metrics.jsonl line 2: "), "{err}");
    assert!(!Path::new(&folder.path().join("report.html")).exists());
    let (err, _) = host(&["report", &text(folder.path()), "--html", "x.html"]).refused();
    assert!(err.contains("there is one run"), "{err}");
}
