//! A walk-forward that is killed, stopped or refused, and goes on as one run (`docs/RESUME.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::tempdir;

use crate::host;
use crate::resumable::walk::{assert_same_walk, fold, killed_and_resumed, resume, wait};
use crate::resumable::{rows, start, states, text, train};

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

#[test]
fn killed_in_any_fold_and_between_two_it_leaves_what_it_would_have_left() {
    let folder = tempdir().unwrap();
    killed_and_resumed(folder.path(), "cpu", program);
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
        assert!(wait(&mut child, "a step of the fold", begun));
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
    fs::remove_dir_all(&first).unwrap();
    let (err, _) = host(&["train", "--quiet", "--resume", &argument]).refused();
    assert!(err.contains("fold-01/metrics.jsonl is not there: fold 1 is done"), "{err}");
    assert_eq!(fs::read(run.join("test.json")).unwrap(), tested);
}

#[test]
fn without_states_it_cannot_go_on() {
    let folder = tempdir().unwrap();
    let run = finished(folder.path(), "checkpoint.states=0");
    let (err, _) = host(&["train", "--resume", &text(&run)]).refused();
    assert!(err.contains("has saved no state of its own (checkpoint.states was 0"), "{err}");
}
