//! Walk-forward runs, runs on several symbols, and the market's other layout, from the command line.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;

use crate::{host, names, text};

/// A training that takes a second.
const SMALL: &str = "train.batch=16 train.train_steps=3 collect.environments=4 collect.steps=8 collect.warmup=16 \
                     collect.capacity=256 train.epochs=2 model.trunk1=16 model.trunk2=16 model.value_hidden=16 \
                     model.branch_hidden=16";

fn train(run: &Path, options: &[&str], sets: &str) -> crate::Done {
    let run = text(run);
    let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", &run];
    arguments.extend(options);
    arguments.extend(SMALL.split_whitespace().chain(sets.split_whitespace()).flat_map(|set| ["--set", set]));
    host(&arguments)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Rows of a metrics file.
fn rows(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// What `eval` prints of a policy's test part.
fn eval(policy: &Path, options: &[&str]) -> Value {
    let policy = text(policy);
    let mut arguments = vec!["eval", &policy, "--device", "cpu", "--json"];
    arguments.extend(options);
    serde_json::from_str(&host(&arguments).good()).unwrap()
}

const WALK: &str = "data.synthetic_bars=1800 folds.count=2 folds.train=0.4 folds.validation=0.2";

#[test]
fn a_walk_forward_has_a_run_for_each_fold_and_a_pooled_result() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("walk");
    let out = train(&run, &[], WALK).good();
    assert!(out.contains("fold 1: test ") && out.contains("fold 2: test "), "{out}");
    assert!(out.contains("pooled out-of-sample result of 2 fold(s)"), "{out}");
    assert!(out.contains("an oracle that knows the regime has a Sharpe ratio of "), "{out}");
    assert_eq!(
        names(&run),
        [
            "config.toml",
            "events.out.tfevents.stepgraph",
            "fold-01",
            "fold-02",
            "metrics.jsonl",
            "report.html",
            "run.log",
            "state",
            "test.json"
        ]
    );
    let result = json(&run.join("test.json"));
    let folds = result["folds"].as_array().unwrap();
    let (mut bars, mut growth) = (0.0, 1.0);
    for (i, fold) in folds.iter().enumerate() {
        let own = run.join(format!("fold-{:02}", i + 1));
        assert_eq!(fold["fold"], i + 1);
        assert!(own.join("last.safetensors").is_file());
        // The fold's own result, that of the whole run, and what its policy gives again are one and the same.
        assert_eq!(json(&own.join("test.json")), fold["test"]);
        assert_eq!(eval(&own, &[]), fold["test"]);
        let rows = rows(&own);
        assert!(rows.len() >= 2 * 4 && rows.iter().all(|row| row["fold"] == i + 1), "{rows:?}");
        bars += number(&fold["test"]["strategy"]["bars"]);
        growth *= 1.0 + number(&fold["test"]["strategy"]["total_return"]);
    }
    // The test parts lie one behind the other: the rest of the bars, of which each is tested once.
    assert_eq!(folds[0]["test_ms"][1], folds[1]["test_ms"][0]);
    let pooled = &result["pooled"]["strategy"];
    assert_eq!(number(&pooled["bars"]), bars);
    assert!(bars > 0.39 * 1800.0, "{bars} bars");
    assert!((1.0 + number(&pooled["total_return"]) - growth).abs() < 1e-12);
    let kinds: Vec<Value> = rows(&run).iter().map(|row| row["kind"].clone()).collect();
    assert_eq!(kinds, ["fold", "fold", "pooled"]);

    let (err, _) = host(&["eval", &text(&run), "--device", "cpu"]).refused();
    assert!(err.contains("name one of fold-01 to fold-02"), "{err}");
    let inspected = host(&["inspect", &text(&run.join("fold-02"))]).good();
    assert!(inspected.contains("fold        2 of 2"), "{inspected}");
}

#[test]
fn a_fold_begins_anew_unless_it_is_to_go_on() {
    let folder = tempdir().unwrap();
    let first_loss = |name: &str, sets: &str| -> [f64; 2] {
        let run = folder.path().join(name);
        train(&run, &[], &format!("{WALK} {sets}")).good();
        ["fold-01", "fold-02"].map(|fold| {
            let rows = rows(&run.join(fold));
            number(&rows.iter().find(|row| row["kind"] == "step").unwrap()["loss"])
        })
    };
    // With a high rate six steps move the networks far from where they began.
    let cold = first_loss("cold", "optimizer.lr=0.05 train.gamma=0");
    let warm = first_loss("warm", "optimizer.lr=0.05 train.gamma=0 folds.warm_start=true");
    assert_eq!(cold[0], warm[0], "the first fold has nothing to go on with");
    // A network as the seed makes it is at a loss of about ln(atoms).
    let fresh = 31.0_f64.ln();
    assert!((cold[1] - fresh).abs() < 0.3 && (cold[0] - fresh).abs() < 0.3, "{cold:?}");
    assert!((warm[1] - fresh).abs() > 0.3, "{warm:?}");
}

#[test]
fn folds_that_cannot_be_are_refused_before_anything_is_written() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("walk");
    for (sets, reason) in [
        ("folds.count=80 data.synthetic_bars=1800", "fold 1 of 80: the test part is too short"),
        ("folds.count=0", "folds.count = 0: expected 1"),
        ("folds.count=3 folds.train=0.8 folds.validation=0.3", "folds.train = 0.8, folds.validation = 0.3"),
        ("folds.warm_start=true", "folds.warm_start = true with folds.count = 1"),
        ("folds.count=2 folds.scheme=sideways", "sideways"),
    ] {
        let (err, _) = train(&run, &[], sets).refused();
        assert!(err.contains(reason), "{err}");
        assert!(!run.exists());
    }
}

/// Two bar files of one clock, `EUR.csv` and `GBP.csv`; the second lacks its first bars.
fn two_files(folder: &Path) -> [String; 2] {
    [("EUR", 3, 0), ("GBP", 4, 100)].map(|(name, seed, skip)| {
        let whole = folder.join(format!("{name}.whole.csv"));
        host(&["data", "synth", &text(&whole), "--seed", &seed.to_string(), "--bars", "1300"]).good();
        let lines: Vec<String> = fs::read_to_string(&whole).unwrap().lines().map(str::to_owned).collect();
        let kept = lines.iter().enumerate().filter(|(i, _)| *i == 0 || *i > skip);
        let file = folder.join(format!("{name}.csv"));
        fs::write(&file, kept.map(|(_, line)| format!("{line}\n")).collect::<String>()).unwrap();
        text(&file)
    })
}

#[test]
fn several_files_are_one_portfolio_and_each_symbol() {
    let folder = tempdir().unwrap();
    let [eur, gbp] = two_files(folder.path());
    let run = folder.path().join("run");
    let out = train(&run, &["--data", &eur, "--data", &gbp], "").good();
    assert!(out.contains("\nEUR  return ") && out.contains("\nGBP  return "), "{out}");
    let result = json(&run.join("test.json"));
    let symbols = result["symbols"].as_array().unwrap();
    assert_eq!(symbols.iter().map(|s| s["symbol"].as_str().unwrap()).collect::<Vec<_>>(), ["EUR", "GBP"]);
    for (column, key) in [("strategy", "end_equity"), ("strategy", "fees"), ("buy_and_hold", "end_equity")] {
        let sum: f64 = symbols.iter().map(|symbol| number(&symbol[column][key])).sum();
        assert!((number(&result[column][key]) - sum).abs() < 1e-6, "{column}.{key}");
    }
    // Files of one clock end together: the parts are the same times.
    assert_eq!(symbols[0]["strategy"]["bars"], symbols[1]["strategy"]["bars"]);
    assert_eq!(eval(&run, &[]), result);
    assert_eq!(eval(&run, &["--data", &eur, "--data", &gbp]), result);
    for (files, reason) in
        [(vec![&gbp, &eur], "the policy was trained on"), (vec![&eur], "1 symbol(s) to trade")]
    {
        let policy = text(&run);
        let mut arguments = vec!["eval", &policy, "--device", "cpu"];
        files.iter().for_each(|file| arguments.extend(["--data", file.as_str()]));
        let (err, _) = host(&arguments).refused();
        assert!(err.contains(reason), "{err}");
    }

    // The same rows in one file with a column of symbols give the same result.
    let mut rows: Vec<String> = Vec::new();
    for (name, file) in [("GBP", &gbp), ("EUR", &eur)] {
        rows.extend(fs::read_to_string(file).unwrap().lines().skip(1).map(|line| format!("{line},{name}")));
    }
    let header = fs::read_to_string(&eur).unwrap().lines().next().unwrap().to_owned();
    rows.sort();
    let all = folder.path().join("all.csv");
    fs::write(&all, format!("{header},Symbol\n{}\n", rows.join("\n"))).unwrap();
    let again = folder.path().join("again");
    train(&again, &["--data", &text(&all), "--symbol-column", "symbol"], "").good();
    assert_eq!(json(&again.join("test.json")), result);
}

#[test]
fn what_is_wrong_with_one_of_several_files_names_it() {
    let folder = tempdir().unwrap();
    let [eur, gbp] = two_files(folder.path());
    let run = folder.path().join("run");
    let refused = |options: &[&str], sets: &str| {
        let (err, _) = train(&run, options, sets).refused();
        assert!(!run.exists());
        err
    };
    let err = refused(&["--data", &eur, "--data", &eur], "");
    assert!(err.contains("symbol \"EUR\" is also that of") && err.contains(&eur), "{err}");
    let absent = text(&folder.path().join("absent.csv"));
    assert!(refused(&["--data", &eur, "--data", &absent], "").contains(&absent));
    let err = refused(&["--data", &eur, "--symbol-column", "ticker"], "");
    assert!(err.contains("no column \"ticker\"") && err.contains(&eur), "{err}");
    // Too few bars of one symbol in a part.
    let text = fs::read_to_string(&gbp).unwrap();
    let late: String = text
        .lines()
        .enumerate()
        .filter(|(i, _)| *i == 0 || *i > 1000)
        .map(|(_, l)| format!("{l}\n"))
        .collect();
    fs::write(&gbp, late).unwrap();
    let err = refused(&["--data", &eur, "--data", &gbp], "");
    assert!(err.contains("symbol GBP: the train part is too short"), "{err}");
}

#[test]
fn a_walk_forward_on_several_symbols_with_four_branches() {
    let folder = tempdir().unwrap();
    let [eur, gbp] = two_files(folder.path());
    let run = folder.path().join("run");
    let sets =
        "market.layout=direction folds.count=2 folds.scheme=rolling folds.train=0.4 folds.validation=0.2";
    train(&run, &["--data", &eur, "--data", &gbp], sets).good();
    let result = json(&run.join("test.json"));
    for fold in result["folds"].as_array().unwrap() {
        assert_eq!(fold["test"]["symbols"].as_array().unwrap().len(), 2);
    }
    let growth: f64 = result["folds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fold| 1.0 + number(&fold["test"]["strategy"]["total_return"]))
        .product();
    assert!((1.0 + number(&result["pooled"]["strategy"]["total_return"]) - growth).abs() < 1e-12);
    assert_eq!(eval(&run.join("fold-02"), &[]), result["folds"][1]["test"]);
    let inspected = host(&["inspect", &text(&run.join("fold-01"))]).good();
    assert!(
        inspected.contains("branches = [\n        3,\n        3,\n        3,\n        3,"),
        "{inspected}"
    );

    let (err, _) =
        train(&folder.path().join("other"), &[], "market.layout=direction model.branches=[5,5]").refused();
    assert!(err.contains("model.branches = [5, 5], but market.layout = Direction"), "{err}");
}
