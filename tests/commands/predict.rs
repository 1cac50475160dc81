use std::fs;

use gpu::action;
use host::train::Stop;
use host::train::agent::{Agent, PartName};
use host::train::cpu::CpuAgent;
use host::train::market::Market;
use host::train::world::World;
use serde_json::Value;
use tempfile::tempdir;

use crate::export::synthetic_policy;
use crate::{host, text};

const PARTS: [&str; 5] = [
    "iqn.enabled=true",
    "ensemble.enabled=true",
    "confidence.enabled=true",
    "attention.enabled=true",
    "data.synthetic_bars=1500",
];

/// The only decision in what `--json` prints.
fn decision(out: &str) -> Value {
    let value: Value = serde_json::from_str(out).unwrap();
    let decisions = value["decisions"].as_array().unwrap();
    assert_eq!((decisions.len(), &value["checkpoint"]["epoch"]), (1, &Value::from(2)));
    decisions[0].clone()
}

/// The first decision of a backtest is made at a known bar with cash alone: a file that ends with that bar gives it too.
#[test]
fn the_newest_bar_is_decided_as_a_backtest_decides_it() {
    let folder = tempdir().unwrap();
    let bars = folder.path().join("bars.csv");
    host(&["data", "synth", &text(&bars), "--bars", "1500"]).good();
    let checkpoint = synthetic_policy(&PARTS);
    let path = folder.path().join("policy.safetensors");
    checkpoint.save(&path).unwrap();

    let mut config = checkpoint.config.clone();
    (config.collect.environments, config.collect.capacity) = (1, 1);
    let record = checkpoint.record().unwrap();
    let market = Market::of_record(&mut config, record).unwrap();
    let mut agent = CpuAgent::new(&config, World::Market(&market)).unwrap();
    agent.set_parameters(&checkpoint.online, &checkpoint.target).unwrap();
    let row = agent.backtest(PartName::Test, 0, &Stop::default()).unwrap()[0];
    let first = record.symbols[0].fold.test.start;
    assert_eq!(row.bar as usize, first + 1);

    let lines: Vec<String> = fs::read_to_string(&bars).unwrap().lines().map(str::to_owned).collect();
    let short = folder.path().join("until.csv");
    // The header and the bars 0 to `first`.
    fs::write(&short, lines[..first + 2].join("\n") + "\n").unwrap();
    let out = host(&["predict", &text(&path), "--data", &text(&short), "--json"]).good();
    let value = decision(&out);
    assert_eq!(value["bar"]["index"], first);
    for d in 0..3 {
        let chosen = u64::from(action::branch(row.action, d as u32));
        assert_eq!(value["branches"][d]["chosen"], chosen, "branch {d}");
    }
    let target = -1.0 + f64::from(action::branch(row.action, 0)) / 4.0;
    assert_eq!(value["order"]["target_exposure"], target);
    let urgency = value["order"]["urgency"].as_f64().unwrap();
    assert_eq!(value["order"]["trade"], urgency * target);

    for branch in value["branches"].as_array().unwrap() {
        let actions = branch["actions"].as_array().unwrap();
        let q: Vec<f64> = actions.iter().map(|a| a["q"].as_f64().unwrap()).collect();
        let best = (0..q.len()).max_by(|&a, &b| q[a].total_cmp(&q[b])).unwrap();
        assert_eq!(branch["chosen"], best);
        for action in actions {
            let quantiles: Vec<f64> =
                action["quantiles"].as_array().unwrap().iter().map(|z| z.as_f64().unwrap()).collect();
            assert!(quantiles.is_sorted() && quantiles.len() == 5);
            assert_eq!(action["iqn"].as_array().unwrap().len(), 5);
            assert!(action["std"].as_f64().unwrap() > 0.0);
        }
    }
    assert_eq!(value["uncertainty"]["ensemble"].as_array().unwrap().len(), 5);
    assert!(value["uncertainty"]["ensemble_std"].as_f64().unwrap() > 0.0);
    let notes = value["notes"].to_string();
    // The synthetic market ends years ago.
    assert!(notes.contains("stale: the newest bar began"), "{notes}");

    let text_out = host(&["predict", &text(&path), "--data", &text(&short)]).good();
    for part in
        ["decision at the close of", "exposure (best by", "urgency", "ensemble    value", "IQN quantiles"]
    {
        assert!(text_out.contains(part), "no {part} in\n{text_out}");
    }
}

#[test]
fn the_account_is_part_of_the_state() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    synthetic_policy(&["data.synthetic_bars=1500"]).save(&path).unwrap();
    let q = |arguments: &[&str]| -> Value {
        let path = text(&path);
        let mut all = vec!["predict", &path, "--json"];
        all.extend(arguments);
        decision(&host(&all).good())
    };
    // Without a file: the policy's own bars.
    let flat = q(&[]);
    assert_eq!(flat["bar"]["index"], 1499);
    let short = q(&["--exposure", "-0.5", "--bars-since-trade", "3", "--drawdown", "0.1"]);
    assert_ne!(flat["branches"][0]["actions"][0]["q"], short["branches"][0]["actions"][0]["q"]);
    assert_eq!(short["order"]["exposure"], -0.5);
    let path = text(&path);
    let (err, out) = host(&["predict", &path, "--drawdown", "1.5"]).refused();
    assert!(err.contains("drawdown 1.5: expected 0 to below 1") && out.is_empty(), "{err}");
    // An entry price belongs to a position.
    let done = host(&["predict", &path, "--entry", "1.1"]);
    assert!(done.code == 2 && done.err.contains("--exposure <FRACTION>"), "{}", done.err);
    let (err, _) = host(&["predict", &path, "--entry", "1.1", "--exposure", "0"]).refused();
    assert!(err.contains("entry price 1.1 with exposure 0"), "{err}");
}

#[test]
fn bars_that_do_not_fit_are_clear_errors() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    synthetic_policy(&["data.synthetic_bars=1500"]).save(&path).unwrap();
    let bars = folder.path().join("bars.csv");
    host(&["data", "synth", &text(&bars), "--bars", "400"]).good();
    let lines: Vec<String> = fs::read_to_string(&bars).unwrap().lines().map(str::to_owned).collect();
    // A gap of 20 bars, 50 bars before the end.
    let gap: Vec<&str> = lines[..331].iter().chain(&lines[351..]).map(String::as_str).collect();
    let broken = folder.path().join("gap.csv");
    fs::write(&broken, gap.join("\n") + "\n").unwrap();
    let (err, _) = host(&["predict", &text(&path), "--data", &text(&broken)]).refused();
    assert!(
        err.contains("50 bars since the gap of 20 bar(s)") && err.contains("reads 71 bars without a gap"),
        "{err}"
    );
    // Every second bar: another interval.
    let sparse: Vec<&str> =
        lines[..1].iter().chain(lines[1..].iter().step_by(2)).map(String::as_str).collect();
    let other = folder.path().join("sparse.csv");
    fs::write(&other, sparse.join("\n") + "\n").unwrap();
    let (err, _) = host(&["predict", &text(&path), "--data", &text(&other)]).refused();
    assert!(err.contains("the model was trained on bars of"), "{err}");
}

#[test]
fn several_symbols_get_a_decision_each() {
    let folder = tempdir().unwrap();
    let files = ["one", "two"].map(|name| text(&folder.path().join(format!("{name}.csv"))));
    for (file, seed) in files.iter().zip(["1", "2"]) {
        host(&["data", "synth", file, "--bars", "1500", "--seed", seed]).good();
    }
    let path = folder.path().join("policy.safetensors");
    synthetic_policy(&[&format!("data.files={files:?}")]).save(&path).unwrap();
    let path = text(&path);
    let all: Value = serde_json::from_str(&host(&["predict", &path, "--json"]).good()).unwrap();
    let decisions = all["decisions"].as_array().unwrap();
    let names: Vec<&Value> = decisions.iter().map(|decision| &decision["symbol"]).collect();
    assert_eq!(names, ["one", "two"]);
    assert_ne!(decisions[0]["bar"]["close"], decisions[1]["bar"]["close"]);
    let two = decision(&host(&["predict", &path, "--json", "--symbol", "two", "--exposure", "0.5"]).good());
    assert_eq!((&two["bar"], &two["order"]["exposure"]), (&decisions[1]["bar"], &Value::from(0.5)));
    let (err, _) = host(&["predict", &path, "--exposure", "0.5"]).refused();
    assert!(err.contains("2 symbols, and one position") && err.contains("--symbol"), "{err}");
    let (err, _) = host(&["predict", &path, "--symbol", "three"]).refused();
    assert!(err.contains("no symbol three in the bars; there are: one, two"), "{err}");
}
