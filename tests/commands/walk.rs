//! A walk-forward that is killed, stopped or refused, and goes on as one run (`docs/RESUME.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tempfile::tempdir;

use crate::host;
use crate::resumable::{assert_same, events, names, rows, start, states, text, train};

/// Three folds, each of which goes on with the networks of the one before and with what they keep; a state at every place
/// where there can be one.
const WALK: &str = "data.synthetic_bars=2400 folds.count=3 folds.train=0.4 folds.validation=0.2 folds.warm_start=true \
     train.batch=8 train.train_steps=30 train.epochs=2 collect.environments=4 collect.steps=8 collect.warmup=16 \
     collect.capacity=256 model.trunk1=8 model.trunk2=8 model.value_hidden=8 model.branch_hidden=8 model.atoms=11 \
     spectral.enabled=true iql.enabled=true iql.hidden=8 iql.adaptive_support=true confidence.enabled=true \
     replay.prioritized=true checkpoint.interval_minutes=0 checkpoint.every=1";

/// Two folds that are trained in a moment.
const SMALL: &str = "data.synthetic_bars=1800 folds.count=2 folds.train=0.4 folds.validation=0.2 train.batch=8 \
     train.train_steps=4 train.epochs=2 collect.environments=4 collect.steps=8 collect.warmup=16 \
     collect.capacity=256 model.trunk1=8 model.trunk2=8 model.value_hidden=8 model.branch_hidden=8 model.atoms=11 \
     checkpoint.interval_minutes=0";

fn program(arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_host"));
    command.args(arguments);
    command
}

fn fold(run: &Path, number: usize) -> PathBuf {
    run.join(format!("fold-{number:02}"))
}

fn resume(run: &Path) -> Vec<String> {
    ["train", "--resume", &text(run)].map(String::from).to_vec()
}

/// Waits until something is to be seen in the run's folder.
#[track_caller]
fn wait(child: &mut Child, what: &str, seen: impl Fn() -> bool) {
    let begun = Instant::now();
    while !seen() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before there was {what}");
        assert!(begun.elapsed() < Duration::from_secs(300), "no {what} after five minutes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Both walk-forwards have left the same: every fold, every row, the pooled result.
#[track_caller]
fn assert_same_walk(one: &Path, other: &Path, folds: usize) {
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

/// One run, killed again and again where it could matter, against one that never was.
#[test]
fn killed_in_any_fold_and_between_two_it_leaves_what_it_would_have_left() {
    let folder = tempdir().unwrap();
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    host(
        &train("cpu", WALK, &["--quiet", "--run", &text(&whole)])
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    )
    .good();
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
    let mut arguments = train("cpu", WALK, &["--quiet", "--run", &text(run)]);
    for (what, seen) in moments {
        let mut child = start(&mut program(&arguments));
        wait(&mut child, what, seen);
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), None, "{what}: {}", String::from_utf8_lossy(&output.stderr));
        arguments = resume(run);
    }
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

/// In the midst of a fold, and of a fold's test.
#[test]
fn stopped_by_a_signal_it_says_how_to_go_on_and_does() {
    let folder = tempdir().unwrap();
    let whole = folder.path().join("whole");
    let sets = format!("{SMALL} train.train_steps=300 checkpoint.interval_minutes=5");
    let arguments = train("cpu", &sets, &["--quiet", "--run", &text(&whole)]);
    host(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).good();
    let stopped = folder.path().join("stopped");
    let mut arguments = train("cpu", &sets, &["--run", &text(&stopped)]);
    for number in 1..=2 {
        let mut child = start(&mut program(&arguments));
        let begun =
            || fold(&stopped, number).join("metrics.jsonl").metadata().is_ok_and(|facts| facts.len() > 4000);
        wait(&mut child, "a step of the fold", begun);
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(143), "{err}");
        assert!(err.contains(&format!("go on with: host train --resume {}", stopped.display())), "{err}");
        assert!(!stopped.join("test.json").exists() && !fold(&stopped, number).join("test.json").exists());
        arguments = resume(&stopped);
    }
    arguments.push("--quiet".into());
    let output = program(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same_walk(&whole, &stopped, 2);
}

fn finished(folder: &Path, sets: &str) -> PathBuf {
    let run = folder.join("walk");
    let arguments = train("cpu", &format!("{SMALL} {sets}"), &["--quiet", "--run", &text(&run)]);
    host(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).good();
    run
}

#[test]
fn what_would_give_other_bits_is_refused_and_changes_nothing() {
    let folder = tempdir().unwrap();
    let run = finished(folder.path(), "");
    let argument = text(&run);
    let metrics = fs::read(run.join("metrics.jsonl")).unwrap();
    for (more, expected) in [
        (&["--epochs", "5"][..], "train.epochs was 2 and is 5"),
        (&["--seed", "7"], "train.seed was 1 and is 7"),
        (&["--set", "folds.count=3"], "folds.count was 2 and is 3"),
        (&["--set", "data.synthetic_seed=5"], "data.synthetic_seed was 1 and is 5"),
    ] {
        let (err, _) = host(&[&["train", "--quiet", "--resume", &argument][..], more].concat()).refused();
        assert!(err.contains("the walk-forward cannot go on with another configuration"), "{err}");
        assert!(err.contains(expected) && !err.contains("may be raised"), "{err}");
    }
    // The newest state is damaged: the one before is offered, and the second fold is found whole in its folder.
    let tested = fs::read(run.join("test.json")).unwrap();
    let [older, newest] = &states(&run)[..] else { panic!("two states are kept") };
    let bytes = fs::read(newest).unwrap();
    fs::write(newest, &bytes[..bytes.len() / 2]).unwrap();
    let (err, _) = host(&["train", "--quiet", "--resume", &argument]).refused();
    assert!(err.contains("The one before it is whole (1 of 2 folds done)"), "{err}");
    assert!(err.contains(&format!("host train --resume {}", older.display())), "{err}");
    assert_eq!(fs::read(run.join("metrics.jsonl")).unwrap(), metrics, "a refusal changes nothing");
    host(&["train", "--quiet", "--resume", &text(older)]).good();
    assert_eq!(fs::read(run.join("test.json")).unwrap(), tested);
    assert_eq!(rows(&run).iter().filter(|row| row["kind"] == "fold").count(), 2);

    // A fold may go on alone; with more epochs it is another fold.
    let first = fold(&run, 1);
    host(&["train", "--quiet", "--resume", &text(&first)]).good();
    let done = host(&["train", "--resume", &argument]);
    assert!(done.err.contains("done before: fold 2: test "), "{}", done.err);
    done.good();
    assert_eq!(fs::read(run.join("test.json")).unwrap(), tested);
    let alone = host(&["train", "--resume", &text(&first), "--epochs", "3"]);
    assert!(
        alone.err.contains("the walk-forward of this fold goes on with: host train --resume "),
        "{}",
        alone.err
    );
    alone.good();
    let (err, _) = host(&["train", "--quiet", "--resume", &argument]).refused();
    assert!(err.contains("fold-01/metrics.jsonl was changed after fold 1 was tested"), "{err}");
    assert_eq!(fs::read(run.join("test.json")).unwrap(), tested);
}

#[test]
fn without_states_it_cannot_go_on() {
    let folder = tempdir().unwrap();
    let run = finished(folder.path(), "checkpoint.states=0");
    let (err, _) = host(&["train", "--resume", &text(&run)]).refused();
    assert!(err.contains("has saved no state of its own (checkpoint.states was 0"), "{err}");
}
