//! Control tasks from outside: trained, evaluated and inspected on the CPU.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::tempdir;

use crate::{host, names, text};

/// Two short epochs of a small network.
const SMALL: [&str; 14] = [
    "model.trunk1=32",
    "model.trunk2=32",
    "model.value_hidden=16",
    "model.branch_hidden=16",
    "model.atoms=21",
    "train.batch=32",
    "train.epochs=2",
    "train.train_steps=30",
    "optimizer.schedule=constant",
    "collect.environments=8",
    "collect.steps=40",
    "collect.warmup=60",
    "collect.capacity=4096",
    "task.evaluation_episodes=5",
];

fn train(preset: &str, run: &Path, sets: &[&str]) -> String {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../settings/src/presets/{preset}.toml"));
    let (config, run) = (text(&config), text(run));
    let mut arguments = vec!["train", "--device", "cpu", "--config", &config, "--run", &run];
    for set in SMALL.iter().chain(sets) {
        arguments.extend(["--set", set]);
    }
    host(&arguments).good()
}

fn rows(run: &Path) -> Vec<Value> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    metrics.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

/// A run of CartPole: its rows, its files, and the printed results again by `eval`.
#[test]
fn a_task_is_trained_evaluated_and_inspected() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let out = train("cartpole", &run, &[]);
    assert_eq!(
        names(&run),
        ["best.safetensors", "config.toml", "last.safetensors", "metrics.jsonl", "test.json"]
    );
    let rows = rows(&run);
    let kind = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!(kind("step").len(), 60);
    let epochs = kind("epoch");
    assert_eq!(epochs.len(), 2);
    for epoch in &epochs {
        let validation = &epoch["validation"];
        let mean = validation["mean_return"].as_f64().unwrap();
        assert_eq!(epoch["validation_return"].as_f64(), Some(mean));
        assert_eq!(
            (validation["task"].as_str(), validation["episodes"].as_u64()),
            (Some("cartpole"), Some(5))
        );
        // CartPole's return is the number of its steps: at least eight until the pole has fallen, whatever is done.
        assert_eq!(validation["mean_steps"].as_f64(), Some(mean));
        assert!((8.0..=500.0).contains(&mean), "{mean}");
    }
    let returns = |epoch: &Value| epoch["validation"]["mean_return"].as_f64().unwrap();
    let best = if returns(&epochs[1]) > returns(&epochs[0]) { 2 } else { 1 };
    let test: Value = serde_json::from_str(&fs::read_to_string(run.join("test.json")).unwrap()).unwrap();
    assert_eq!((kind("test")[0]["mean_return"].as_f64()), test["best"]["mean_return"].as_f64());
    assert_eq!((kind("test_last")[0]["mean_return"].as_f64()), test["last"]["mean_return"].as_f64());

    for (checkpoint, key) in [(&run, "best"), (&run.join("last.safetensors"), "last")] {
        let evaluated = host(&["eval", &text(checkpoint), "--device", "cpu"]).good();
        let report = evaluated.lines().nth(1).expect("a report");
        assert!(out.contains(report), "no {report} in\n{out}");
        let json = host(&["eval", &text(checkpoint), "--device", "cpu", "--json"]).good();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), test[key]);
    }
    let inspected = host(&["inspect", &text(&run)]).good();
    for expected in [
        &format!("epoch       {best}")[..],
        "(mean return of the validation episodes)",
        "trained on  the task cartpole",
    ] {
        assert!(inspected.contains(expected), "no {expected} in\n{inspected}");
    }
    let inspected: Value = serde_json::from_str(&host(&["inspect", &text(&run), "--json"]).good()).unwrap();
    assert!(inspected["market"].is_null());
    assert_eq!(inspected["config"]["task"]["name"], "cartpole");
}

/// The same seed gives the same run, another one another; hindsight and n-step returns are part of it.
#[test]
fn a_task_is_reproducible() {
    let folder = tempdir().unwrap();
    for (preset, sets) in [
        ("bit_flip", &["task.size=6", "model.branches=[6]", "collect.steps=12", "collect.warmup=24"][..]),
        ("acrobot", &["task.limit=30"]),
    ] {
        let test = |name: &str, seed: &str| {
            let run = folder.path().join(format!("{preset}-{name}"));
            train(preset, &run, &[sets, &[seed]].concat());
            (
                fs::read(run.join("last.safetensors")).unwrap(),
                fs::read_to_string(run.join("test.json")).unwrap(),
            )
        };
        let first = test("first", "train.seed=5");
        assert!(first == test("again", "train.seed=5"), "{preset}: the same seed, another run");
        assert!(first.0 != test("other", "train.seed=6").0, "{preset}: another seed, the same run");
    }
}

/// Errors name the keys.
#[test]
fn wrong_names_and_combinations_are_refused() {
    for (set, expected) in [
        ("task.name=pong", "task.name = \"pong\": expected market, cartpole, acrobot, bit_flip"),
        ("task.size=2", "task.size = 2, task.name = \"cartpole\": this task has no size"),
        ("her.enabled=true", "her.enabled = true, task.name = \"cartpole\": this task has no goals"),
        ("vaccine.enabled=true", "vaccine.enabled = true, task.name = \"cartpole\": "),
        ("attention.enabled=true", "attention.enabled = true, model.window = 0: "),
    ] {
        let (error, _) =
            host(&["train", "--device", "cpu", "--set", "task.name=cartpole", "--set", set]).refused();
        assert!(error.contains(expected), "{set}: {error}");
    }
}
