//! Runs that are killed and go on, as separate processes: shared by the tests of the commands and of the device.

pub mod walk;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use host::train::tensor_file;
use serde_json::Value;

/// A small run with everything on that keeps something from step to step; a state at every place where there can be one.
pub const EVERYTHING: &str = "data.synthetic_bars=1500 model.trunk1=16 model.trunk2=16 model.value_hidden=8 \
     model.branch_hidden=8 model.atoms=11 model.noisy=true train.batch=8 train.train_steps=25 train.epochs=3 \
     collect.environments=6 collect.steps=8 collect.warmup=16 collect.capacity=200 replay.prioritized=true \
     replay.n_step=3 cql.enabled=true iqn.enabled=true iqn.cosines=8 iqn.hidden=8 iqn.samples=4 iqn.target_samples=4 \
     iql.enabled=true iql.hidden=8 iql.adaptive_support=true iql.adaptive_epsilon=true iql.advantage_weighting=true \
     iql.branch_scaling=true ensemble.enabled=true ensemble.explore=0.2 ensemble.explore_steps=40 confidence.enabled=true \
     attention.enabled=true mamba.enabled=true spectral.enabled=true vaccine.enabled=true vaccine.every=4 vaccine.environments=4 \
     vaccine.capacity=100 probe.enabled=true probe.every=10 pruning.enabled=true pruning.begin=0 pruning.every=5 pruning.end=60 \
     checkpoint.interval_minutes=0 checkpoint.every=2";

/// Arguments of `host train` on a device with these keys set.
pub fn train(device: &str, sets: &str, more: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = ["train", "--device", device].map(String::from).to_vec();
    arguments.extend(sets.split_whitespace().flat_map(|set| ["--set".to_string(), set.to_string()]));
    arguments.extend(more.iter().map(|&argument| argument.to_string()));
    arguments
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Names in a folder, sorted; none where there is no folder.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Starts the program with writes that take long enough to be killed in.
pub fn start(command: &mut Command) -> Child {
    command
        .env("STEPGRAPH_TEST_SLOW_WRITES", "4")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

/// Waits for the end of a run that has to succeed.
#[track_caller]
pub fn good(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Saved states of a run, oldest first.
pub fn states(run: &Path) -> Vec<PathBuf> {
    let folder = run.join("state");
    let whole = names(&folder).into_iter().filter(|name| name.ends_with(".safetensors"));
    whole.map(|name| folder.join(name)).collect()
}

/// Waits until the newest state is another one than `before`; false if the program ended first.
pub fn wait_for_a_state(child: &mut Child, run: &Path, before: Option<&PathBuf>) -> bool {
    let begun = Instant::now();
    while states(run).last() == before {
        if child.try_wait().expect("a child").is_some() {
            return false;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "no state after five minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Rows of the metrics without what a clock measured.
pub fn rows(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let row = |line: &str| {
        let mut row: Value = serde_json::from_str(line).expect("a row of JSON");
        for field in ["collect_seconds", "train_seconds", "microseconds_per_step"] {
            row.as_object_mut().expect("an object").remove(field);
        }
        row
    };
    text.lines().map(row).collect()
}

/// Both runs have left the same: every tensor of the final state, every policy, every row.
#[track_caller]
pub fn assert_same(one: &Path, other: &Path) {
    let (rows, others) = (rows(one), rows(other));
    assert_eq!(rows.len(), others.len(), "rows of metrics");
    for (row, other) in rows.iter().zip(&others) {
        assert_eq!(row, other);
    }
    assert_eq!(events(one), events(other), "bytes of events");
    let state = |run: &Path| tensor_file::read(states(run).last().expect("a state")).unwrap().1;
    let (state, other_state) = (state(one), state(other));
    assert!(state.by_name.keys().eq(other_state.by_name.keys()));
    for (name, values) in &state.by_name {
        assert!(values.bytes() == other_state.by_name[name].bytes(), "tensor `{name}` differs");
    }
    let policies =
        |run: &Path| names(run).into_iter().filter(|n| n.ends_with(".safetensors")).collect::<Vec<_>>();
    assert_eq!(policies(one), policies(other));
    // A control task has no tables.
    let tables = names(one).into_iter().filter(|n| n.ends_with(".csv")).collect::<Vec<_>>();
    let files = policies(one).into_iter().chain(tables).chain(["test.json", "config.toml"].map(String::from));
    for name in files {
        assert!(fs::read(one.join(&name)).unwrap() == fs::read(other.join(&name)).unwrap(), "{name} differs");
    }
}

/// Length of the TensorBoard events: with a row more or less it would be another.
pub fn events(run: &Path) -> u64 {
    fs::metadata(run.join(report::events::FILE)).expect("events").len()
}

/// Runs `EVERYTHING` once without interruption, and killed at `kills` moments, each after a new state; `program` makes the
/// command of `host` with the arguments.
pub fn killed_and_resumed(folder: &Path, device: &str, most: u32, program: impl Fn(&[String]) -> Command) {
    let whole = folder.join("whole");
    let output = program(&train(device, EVERYTHING, &["--quiet", "--run", &text(&whole)])).output();
    good(&output.expect("the program starts"));
    assert_eq!(states(&whole).len(), 2, "the two newest states are kept");
    assert!(whole.join("epoch-0002.safetensors").is_file() && !whole.join("epoch-0001.safetensors").exists());

    let (mut kills, mut inside, mut random) = (0, 0, 12345u64);
    for number in 0.. {
        let killed = folder.join(format!("killed{number}"));
        let mut arguments = train(device, EVERYTHING, &["--quiet", "--run", &text(&killed)]);
        loop {
            let before = states(&killed).pop();
            let mut child = start(&mut program(&arguments));
            if kills < most && wait_for_a_state(&mut child, &killed, before.as_ref()) {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                std::thread::sleep(Duration::from_millis(random >> 57));
                child.kill().expect("a child that was not waited for");
                kills += 1;
            }
            let output = child.wait_with_output().expect("a child");
            let half_written = names(&killed.join("state")).iter().any(|name| name.ends_with(".tmp"));
            inside += u32::from(half_written);
            if output.status.code().is_some() {
                good(&output);
                break;
            }
            arguments = ["train", "--quiet", "--resume", &text(&killed)].map(String::from).to_vec();
        }
        assert_same(&whole, &killed);
        assert!(
            names(&killed.join("state")).iter().all(|name| !name.ends_with(".tmp")),
            "nothing half written"
        );
        if kills >= most {
            break;
        }
    }
    println!("{kills} kills, {inside} of them inside the write of a state");
    // Only a build with debug assertions writes slowly enough to be met in it.
    assert!(!cfg!(debug_assertions) || inside >= 3, "{inside} of {kills} kills inside the write of a state");
}
