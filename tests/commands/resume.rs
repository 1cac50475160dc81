//! A run that is killed, stopped or refused, and goes on: what `docs/RESUME.md` promises, of the program as a whole.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::tempdir;

use crate::resumable::{
    assert_same, killed_and_resumed, names, rows, start, states, text, train, wait_for_a_state,
};
use crate::{Done, host};

/// A small run with C51 alone.
const SMALL: &str = "data.synthetic_bars=1200 train.batch=8 train.train_steps=4 train.epochs=3 collect.environments=4 \
     collect.steps=8 collect.warmup=16 collect.capacity=256 model.trunk1=8 model.trunk2=8 model.value_hidden=8 \
     model.branch_hidden=8 model.atoms=11";

/// `host` with arguments.
fn program(arguments: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_host"));
    command.args(arguments);
    command
}

fn run(arguments: &[String]) -> Done {
    host(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn killed_at_twenty_moments_it_leaves_what_it_would_have_left() {
    let folder = tempdir().unwrap();
    killed_and_resumed(folder.path(), "cpu", 20, program);
}

#[test]
fn stopped_by_a_signal_it_saves_says_how_to_go_on_and_does() {
    let folder = tempdir().unwrap();
    let whole = folder.path().join("whole");
    // Long enough to be stopped in; no state but the one at the end.
    let sets = format!("{SMALL} train.train_steps=400");
    run(&train("cpu", &sets, &["--quiet", "--run", &text(&whole)])).good();
    for (signal, code) in [(libc::SIGTERM, 143), (libc::SIGINT, 130)] {
        let stopped = folder.path().join(format!("stopped{signal}"));
        let mut command = program(&train("cpu", &sets, &["--run", &text(&stopped)]));
        // SAFETY: one call that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // What a shell without job control starts in the background ignores SIGINT, and the program leaves it at that.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        let child = start(&mut command);
        // Between two epochs or inside one; a stop before the first one ends is another case.
        let begun = Instant::now();
        while !stopped.join("best.safetensors").is_file() {
            assert!(begun.elapsed() < Duration::from_secs(120), "no epoch after two minutes");
            std::thread::sleep(Duration::from_millis(2));
        }
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert!(err.contains(&format!("go on with: host train --resume {}", stopped.display())), "{err}");
        assert!(err.contains(&format!("tested by: host eval {}", stopped.display())), "{err}");
        assert!(!stopped.join("test.json").exists(), "the test is made when the run has ended");
        host(&["train", "--quiet", "--resume", &text(&stopped)]).good();
        assert_same(&whole, &stopped);
    }
}

/// A finished run of three epochs.
fn finished(folder: &Path) -> PathBuf {
    let run_folder = folder.join("run");
    run(&train(
        "cpu",
        SMALL,
        &["--quiet", "--set", "checkpoint.interval_minutes=0", "--run", &text(&run_folder)],
    ))
    .good();
    run_folder
}

#[test]
fn a_finished_run_can_be_given_more_epochs_and_tested_again() {
    let folder = tempdir().unwrap();
    let finished = finished(folder.path());
    let (before, tested) = (rows(&finished), fs::read(finished.join("test.json")).unwrap());
    host(&["train", "--quiet", "--resume", &text(&finished)]).good();
    assert_eq!(rows(&finished), before, "nothing is left to do but the test");
    assert_eq!(fs::read(finished.join("test.json")).unwrap(), tested);
    host(&["train", "--quiet", "--resume", &text(&finished), "--epochs", "5"]).good();
    let epochs = |rows: &[Value]| rows.iter().filter(|row| row["kind"] == "epoch").count();
    assert_eq!((epochs(&before), epochs(&rows(&finished))), (3, 5));
    assert_eq!(rows(&finished).iter().filter(|row| row["kind"] == "test").count(), 1);
}

#[test]
fn other_configurations_bars_and_devices_are_refused_by_name() {
    let folder = tempdir().unwrap();
    let finished = finished(folder.path());
    let before = names(&finished);
    let resume = text(&finished);
    for (more, expected) in [
        (&["--set", "train.batch=16"][..], "train.batch was 8 and is 16"),
        (&["--epochs", "2"], "train.epochs was 3 and is 2"),
        (&["--seed", "7"], "train.seed was 1 and is 7"),
        (&["--set", "data.synthetic_seed=5"], "data.synthetic_seed was 1 and is 5"),
        (&["--set", "iql.enabled=true"], "iql.enabled was false and is true"),
    ] {
        let (err, _) = host(&[&["train", "--resume", &resume][..], more].concat()).refused();
        assert!(err.contains("cannot go on with another configuration") && err.contains(expected), "{err}");
    }
    let again = [
        "train",
        "--quiet",
        "--resume",
        &resume,
        "--set",
        "checkpoint.states=1",
        "--set",
        "checkpoint.every=1",
    ];
    host(&again).good();
    assert_eq!(states(&finished).len(), 1);
    assert_eq!(names(&finished), before);
    let (err, _) = host(&["train", "--quiet", "--run", &resume]).refused();
    assert!(err.contains(&format!("or go on with --resume {resume}")), "{err}");
    let clap = host(&["train", "--run", &resume, "--resume", &resume]);
    assert_eq!(clap.code, 2, "{}", clap.err);
}

#[test]
fn a_damaged_state_is_refused_and_the_one_before_offered() {
    let folder = tempdir().unwrap();
    let finished = finished(folder.path());
    let [older, newest] = &states(&finished)[..] else { panic!("two states are kept") };
    let whole = fs::read(newest).unwrap();
    let metrics = fs::read(finished.join("metrics.jsonl")).unwrap();
    for (damaged, reason) in [
        (whole[..whole.len() / 2].to_vec(), "it is not whole"),
        (whole[..5].to_vec(), "shorter than a header"),
        ([&whole[..whole.len() - 1], &[whole[whole.len() - 1] ^ 1]].concat(), "it is damaged: its checksum"),
    ] {
        fs::write(newest, damaged).unwrap();
        let (err, _) = host(&["train", "--resume", &text(&finished)]).refused();
        assert!(err.contains(reason) && err.contains(&text(newest)), "{err}");
        assert!(err.contains(&format!("host train --resume {}", older.display())), "{err}");
    }
    assert_eq!(fs::read(finished.join("metrics.jsonl")).unwrap(), metrics, "a refusal changes nothing");
    host(&["train", "--quiet", "--resume", &text(older)]).good();
    assert_ne!(rows(&finished).len(), 0);
    let row = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(
        row(&fs::read(finished.join("metrics.jsonl")).unwrap()),
        row(&metrics),
        "no row twice, none missing"
    );
}

#[test]
fn one_folder_has_one_run_at_a_time() {
    let folder = tempdir().unwrap();
    let busy = folder.path().join("busy");
    let sets = format!("{SMALL} train.train_steps=100000 checkpoint.interval_minutes=0");
    let mut child = start(&mut program(&train("cpu", &sets, &["--quiet", "--run", &text(&busy)])));
    assert!(wait_for_a_state(&mut child, &busy, None));
    for option in ["--resume", "--run"] {
        let (err, _) = host(&["train", "--quiet", option, &text(&busy)]).refused();
        assert!(err.contains("busy is in use by another process"), "{err}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The lock ends with the process: what is refused now is another thing.
    let (err, _) = host(&["train", "--resume", &text(&busy), "--seed", "3"]).refused();
    assert!(err.contains("train.seed was 1 and is 3"), "{err}");
}

#[test]
fn without_room_for_a_state_the_run_goes_on_and_stays_usable() {
    let folder = tempdir().unwrap();
    let full = folder.path().join("full");
    // Files may have 64 KiB: enough for metrics and a policy, not for a state. Without the trap the signal would end the
    // program, as it does not on a full disk.
    let sets = format!("{SMALL} checkpoint.interval_minutes=0");
    let arguments = train("cpu", &sets, &["--run", &text(&full)]);
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_host")])
        .args(&arguments)
        .output()
        .expect("sh");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("warning: writing the saved state") && err.contains("File too large"), "{err}");
    assert!(err.contains("epoch 3/3"), "the run itself went on: {err}");
    assert_eq!(names(&full.join("state")), Vec::<String>::new(), "nothing half written is left");
    host(&["eval", "--device", "cpu", &text(&full)]).good();
    let (err, _) = host(&["train", "--resume", &text(&full)]).refused();
    assert!(err.contains("holds no saved state"), "{err}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [file.join("run"), PathBuf::from("/proc/run")] {
        let (err, _) = run(&train("cpu", SMALL, &["--quiet", "--run", &text(&place)])).refused();
        assert!(err.contains(&format!("creating {}", place.display())), "{err}");
    }
    let (err, _) = host(&["train", "--resume", &text(&folder.path().join("absent"))]).refused();
    assert!(err.contains("absent"), "{err}");
}
