//! A walk-forward that is killed where it could matter and goes on, as separate processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::{assert_same, events, good, names, rows, start, states, text, train};

/// Three folds, each of which goes on with the networks of the one before and with what they keep; a state at every place
/// where there can be one.
const WALK: &str = "data.synthetic_bars=2400 folds.count=3 folds.train=0.4 folds.validation=0.2 folds.warm_start=true \
     train.batch=8 train.train_steps=30 train.epochs=2 collect.environments=4 collect.steps=8 collect.warmup=16 \
     collect.capacity=256 model.trunk1=8 model.trunk2=8 model.value_hidden=8 model.branch_hidden=8 model.atoms=11 \
     spectral.enabled=true iql.enabled=true iql.hidden=8 iql.adaptive_support=true confidence.enabled=true \
     replay.prioritized=true checkpoint.interval_minutes=0 checkpoint.every=1";

/// Folder of a fold.
pub fn fold(run: &Path, number: usize) -> PathBuf {
    run.join(format!("fold-{number:02}"))
}

/// Arguments that go on with a run.
pub fn resume(run: &Path) -> Vec<String> {
    ["train", "--resume", &text(run)].map(String::from).to_vec()
}

/// Waits until something is to be seen in the run's folder; false if the program ended first.
#[track_caller]
pub fn wait(child: &mut Child, what: &str, seen: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !seen() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "no {what} after five minutes");
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Both walk-forwards have left the same: every fold, every row, the pooled result.
#[track_caller]
pub fn assert_same_walk(one: &Path, other: &Path, folds: usize) {
    assert_eq!(names(one), names(other));
    assert_eq!(rows(one), rows(other));
    assert_eq!(events(one), events(other));
    for name in ["test.json", "config.toml"] {
        assert!(fs::read(one.join(name)).unwrap() == fs::read(other.join(name)).unwrap(), "{name} differs");
    }
    for number in 1..=folds {
        assert_same(&fold(one, number), &fold(other, number));
    }
    let half_written = |folder: &Path| names(&folder.join("state")).iter().any(|name| name.ends_with(".tmp"));
    assert!(!half_written(other) && !(1..=folds).any(|number| half_written(&fold(other, number))));
}

/// One run, killed again and again, against one that never was; `program` makes the command of `host` with the arguments.
pub fn killed_and_resumed(folder: &Path, device: &str, program: impl Fn(&[String]) -> Command) {
    let (whole, killed) = (folder.join("whole"), folder.join("killed"));
    good(
        &program(&train(device, WALK, &["--quiet", "--run", &text(&whole)]))
            .output()
            .expect("the program starts"),
    );
    let half_written = |fold: PathBuf| names(&fold.join("state")).iter().any(|name| name.ends_with(".tmp"));
    type Seen<'a> = Box<dyn Fn() -> bool + 'a>;
    let run = &killed;
    let moments: Vec<(&str, Seen<'_>)> = vec![
        ("a first state, of no fold", Box::new(|| !states(run).is_empty())),
        ("a state half written in the first fold", Box::new(move || half_written(fold(run, 1)))),
        ("a state in the first fold", Box::new(|| states(&fold(run, 1)).len() > 1)),
        (
            "a policy of the first fold's last epoch",
            Box::new(|| fold(run, 1).join("epoch-0002.safetensors").is_file()),
        ),
        ("a result of the first fold", Box::new(|| fold(run, 1).join("test.json").is_file())),
        ("a state behind the first fold", Box::new(|| states(run).len() > 1)),
        ("a folder of the second fold", Box::new(|| fold(run, 2).join("metrics.jsonl").is_file())),
        ("a state in the second fold", Box::new(|| !states(&fold(run, 2)).is_empty())),
        ("a state half written in the second fold", Box::new(move || half_written(fold(run, 2)))),
        ("a result of the second fold", Box::new(|| fold(run, 2).join("test.json").is_file())),
        ("a state in the third fold", Box::new(|| !states(&fold(run, 3)).is_empty())),
        ("a result of the third fold", Box::new(|| fold(run, 3).join("test.json").is_file())),
    ];
    let (most, mut kills) = (moments.len(), 0);
    let mut arguments = train(device, WALK, &["--quiet", "--run", &text(run)]);
    for (what, seen) in moments {
        let mut child = start(&mut program(&arguments));
        if wait(&mut child, what, seen) {
            child.kill().expect("a child that was not waited for");
        }
        let output = child.wait_with_output().expect("a child");
        if output.status.code().is_some() {
            good(&output);
            break;
        }
        kills += 1;
        arguments = resume(run);
    }
    println!("{kills} kills");
    // Only a build with debug assertions writes slowly enough to be met in it; the last moments are close to the end.
    let fewest = if cfg!(debug_assertions) { most - 2 } else { 3 };
    assert!(kills >= fewest, "{kills} of {most} kills");
    let output = program(&resume(run)).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("done before: fold 1: test ")
            && out.contains("pooled out-of-sample result of 3 fold(s)")
    );
    assert_same_walk(&whole, run, 3);

    // Nothing is left to do but the pooled result.
    let output = program(&resume(run)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same_walk(&whole, run, 3);
}
