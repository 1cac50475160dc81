//! Errors that `docs/ERRORS.md` lists: what they name, and the code.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use tempfile::tempdir;

use crate::{host, names, text};

/// `host train` on the CPU with keys set, in a folder of its own; what it says, and what it left there.
fn refused(sets: &[&str], more: &[&str]) -> (String, Vec<String>) {
    let folder = tempdir().unwrap();
    let run = text(&folder.path().join("run"));
    let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", &run];
    arguments.extend(sets.iter().flat_map(|set| ["--set", set]));
    arguments.extend(more);
    let (err, out) = host(&arguments).refused();
    assert_eq!(out, "");
    (err, names(folder.path()))
}

#[test]
fn values_that_cannot_work_name_their_key_and_leave_nothing() {
    for (sets, expected) in [
        (&["replay.n_step=0"][..], "replay.n_step = 0: expected 1 to 64"),
        (
            &["model.v_min=5", "model.v_max=5"],
            "model.v_min = 5, model.v_max = 5: expected finite v_min < v_max",
        ),
        (&["model.v_max=1e30"], "model.v_max = 1000000000000000000000000000000: expected values between"),
        (&["train.seed=18446744073709551615"], "is larger than the largest integer, 9223372036854775807"),
        (&["train.batch=many"], "--set train.batch=many"),
        (&["trian.batch=7"], "--set trian.batch=7"),
        (&["checkpoint.interval_minutes=-5"], "checkpoint.interval_minutes = -5: expected 0 to 525600"),
        (&["market.window=0"], "market.window = 0: expected 1 to 1819"),
        (&["data.synthetic_bars=0"], "data.synthetic_bars = 0: expected 1 to "),
        (&["data.interval_ms=0"], "data.interval_ms = 0: expected 1 to "),
        (&["data.delimiter=ab"], "data.delimiter: expected one character, found the text \"ab\""),
    ] {
        let (err, left) = refused(sets, &[]);
        assert!(err.contains(expected), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(left.is_empty(), "{left:?}");
    }
    let (err, _) = refused(&[], &["--seed", "18446744073709551615"]);
    assert!(err.contains("train.seed = 18446744073709551615: expected 0 to 9223372036854775807"), "{err}");
}

#[test]
fn what_does_not_fit_into_memory_is_refused_before_it_is_asked_for() {
    let small = ["data.synthetic_bars=1200", "collect.environments=4", "collect.steps=8"];
    for (set, what, key) in [
        ("collect.capacity=1073741823", "no room for the replay ring: ", "; reduce collect.capacity"),
        ("vaccine.capacity=1073741823", "no room for the ring of held-out transitions: ", "vaccine.capacity"),
    ] {
        let (err, left) = refused(&[&small[..], &[set, "vaccine.enabled=true"]].concat(), &[]);
        assert!(err.contains(what) && err.contains(key) && err.contains(" of memory are available"), "{err}");
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn keys_without_effect_are_warned_of_and_change_nothing_else() {
    let folder = tempdir().unwrap();
    let run = text(&folder.path().join("run"));
    let sets = "data.synthetic_bars=1200 train.batch=8 train.train_steps=2 train.epochs=1 collect.environments=4 \
                collect.steps=8 collect.warmup=16 collect.capacity=256 iqn.hidden=64 replay.alpha=0.3";
    let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", &run];
    arguments.extend(sets.split_whitespace().flat_map(|set| ["--set", set]));
    let done = host(&arguments);
    let expected = "warning: iqn.hidden = 64 has no effect: iqn.enabled = false\n\
                    warning: replay.alpha = 0.3 has no effect: replay.prioritized = false\n";
    assert_eq!(done.err, expected);
    done.good();
}

#[test]
fn divergence_says_when_it_was_seen_and_what_helps() {
    let sets = [
        "data.synthetic_bars=1200",
        "train.batch=8",
        "train.train_steps=40",
        "train.epochs=3",
        "collect.environments=4",
        "collect.steps=8",
        "collect.warmup=16",
        "collect.capacity=256",
        "optimizer.lr=1e10",
    ];
    let (err, left) = refused(&sets, &[]);
    assert!(err.contains("step ") && err.contains("optimizer.lr"), "{err}");
    assert!(err.contains("not finite") || err.contains("not a finite"), "{err}");
    assert_eq!(left, ["run"], "what was done so far is kept");
}

#[test]
fn a_missing_number_in_the_bars_is_named_with_its_place() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("bars.csv");
    let mut lines: Vec<String> =
        fs::read_to_string(crate::sample("equity_1d.csv")).unwrap().lines().map(str::to_owned).collect();
    let fields: Vec<&str> = lines[4].split(',').collect();
    lines[4] = [&fields[..1], &["NaN"], &fields[2..]].concat().join(",");
    fs::write(&path, lines.join("\n")).unwrap();
    let (err, left) = refused(&[], &["--data", &text(&path)]);
    assert!(err.contains("bars.csv") && err.contains("line 5") && err.contains("NaN"), "{err}");
    assert!(left.is_empty());
}

#[test]
fn a_command_line_that_is_not_understood_has_a_code_of_its_own() {
    for arguments in [&["train", "--epochs", "many"][..], &["tarin"], &["train", "--no-such-option"]] {
        let done = host(arguments);
        assert_eq!(done.code, 2, "{}", done.err);
        assert!(done.err.contains("Usage") || done.err.contains("--help"), "{}", done.err);
    }
}

/// Also on a machine that has a GPU: it is hidden.
#[test]
fn without_a_gpu_the_reason_is_said() {
    let output = Command::new(env!("CARGO_BIN_EXE_host"))
        .args(["train", "--device", "gpu", "--quiet"])
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.starts_with("error: opening the GPU: "), "{err}");
    assert!(err.contains("no NVIDIA driver: libcuda.so.1") || err.contains("CUDA_VISIBLE_DEVICES="), "{err}");
}

#[test]
fn a_large_file_is_announced_and_a_sparse_one_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("sparse.csv");
    File::create(&path).unwrap().set_len(300 << 20).unwrap();
    let begun = Instant::now();
    let done = host(&["data", "check", &text(&path)]);
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.err.contains(&format!("reading {} (300.0 MiB)", path.display())), "{}", done.err);
    println!("{:.1} s: {}{}", begun.elapsed().as_secs_f64(), done.out, done.err);
}

/// The decoder is someone else's code; what it panics with is not for the user.
#[test]
fn a_damaged_parquet_file_is_one_line() {
    let folder = tempdir().unwrap();
    let bytes = fs::read(crate::sample("currency_1h.parquet")).unwrap();
    let path = folder.path().join("damaged.parquet");
    for place in (4..bytes.len()).step_by(bytes.len() / 40) {
        let mut damaged = bytes.clone();
        for byte in damaged.iter_mut().skip(place).take(3) {
            *byte ^= 0xa5;
        }
        fs::write(&path, damaged).unwrap();
        let done =
            host(&["data", "convert", &text(&path), &text(&folder.path().join(format!("{place}.csv")))]);
        if done.code != 0 {
            let (err, _) = done.refused();
            assert!(!err.contains("panicked") && err.trim_end().lines().count() == 1, "{err}");
        }
    }
    assert!(Path::new(&path).exists());
}
