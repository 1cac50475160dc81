//! Learning from data sets of transitions: `train --transitions`, `data check`, and what its checkpoints are good for.

use std::fs;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{host, sample, text};

/// A task that one step solves: the state is one of four corners, the right action is the corner's, reward 1 for it and 0 for
/// the others; every episode has 5 steps and is truncated, except that a wrong action terminates it.
fn corners(folder: &TempDir) -> String {
    let (mut states, mut next, mut actions, mut rewards) = (vec![], vec![], vec![], vec![]);
    let (mut terminated, mut truncated) = (vec![], vec![]);
    let mut random = 1_u32;
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    let place = |corner: u32| [corner % 2, corner / 2].map(|bit| 2.0 * bit as f32 - 1.0);
    for _ in 0..400 {
        let mut corner = draw(4);
        for step in 0..5 {
            let (action, following) = (draw(4), draw(4));
            let right = action == corner;
            states.extend(place(corner));
            next.extend(place(following));
            actions.push(i64::from(action));
            rewards.push(f32::from(u8::from(right)));
            terminated.push(u8::from(!right));
            truncated.push(u8::from(right && step == 4));
            corner = following;
            if !right {
                break;
            }
        }
    }
    let rows = rewards.len();
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let arrays = [
        ("states", Dtype::F32, vec![rows, 2], bytes(&states)),
        ("next_states", Dtype::F32, vec![rows, 2], bytes(&next)),
        ("actions", Dtype::I64, vec![rows], actions.iter().flat_map(|x| x.to_le_bytes()).collect()),
        ("rewards", Dtype::F32, vec![rows], bytes(&rewards)),
        ("terminated", Dtype::BOOL, vec![rows], terminated),
        ("truncated", Dtype::BOOL, vec![rows], truncated),
    ];
    let views: Vec<_> = arrays
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    let path = folder.path().join("corners.safetensors");
    safetensors::serialize_to_file(views, None, &path).unwrap();
    text(&path)
}

const SMALL: &str = "model.branches=[4] model.trunk1=16 model.trunk2=16 model.value_hidden=8 model.branch_hidden=8 \
                     model.atoms=21 model.v_min=0.0 model.v_max=5.0 train.gamma=0.5 train.batch=64 train.epochs=4 \
                     train.train_steps=150 optimizer.lr=0.003 optimizer.tau=0.05 replay.prioritized=true replay.n_step=2";

fn train<'a>(run: &'a str, set: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", run, "--transitions", set];
    arguments.extend(SMALL.split_whitespace().chain(more.iter().copied()).flat_map(|set| ["--set", set]));
    arguments
}

#[test]
fn a_policy_learns_from_a_data_set_alone() {
    let folder = tempdir().unwrap();
    let set = corners(&folder);
    let run = text(&folder.path().join("run"));
    let out = host(&train(&run, &set, &[])).good();
    assert!(out.contains("held-out transitions, policy of epoch") && out.contains("C51 loss"), "{out}");

    let rows: Vec<Value> = fs::read_to_string(folder.path().join("run/metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let data = &rows[0];
    assert_eq!((&data["kind"], &data["format"]), (&"data".into(), &"safetensors".into()));
    assert_eq!(data["episodes"], 400);
    let (learned, held_out) = (data["learned"].as_u64().unwrap(), data["held_out"].as_u64().unwrap());
    assert_eq!(learned + held_out, data["transitions"].as_u64().unwrap());
    let epochs: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "epoch").collect();
    assert_eq!(epochs.len(), 4);
    let loss = |epoch: &Value| epoch["validation_loss"].as_f64().unwrap();
    assert!(loss(epochs[3]) < loss(epochs[0]), "{epochs:?}");

    // The learned policy takes every corner's own action.
    let exported = text(&folder.path().join("exported"));
    host(&["export", &run, &exported]).good();
    let checkpoint =
        host::train::checkpoint::Checkpoint::load(&folder.path().join("run/best.safetensors")).unwrap();
    assert!(checkpoint.market.is_none());
    let learner: cpu_path::CpuLearner = host::predict::learner(&checkpoint).unwrap();
    let states = [-1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0];
    assert_eq!(learner.act(&states).unwrap().greedy, [0, 1, 2, 3]);

    let inspected = host(&["inspect", &run]).good();
    assert!(
        inspected.contains("trained on  the transitions of") && inspected.contains("held-out"),
        "{inspected}"
    );
    for command in ["eval", "predict"] {
        let (err, _) = host(&[command, &run]).refused();
        assert!(err.contains("corners.safetensors, not on bars"), "{command}: {err}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_a_run_begins() {
    let folder = tempdir().unwrap();
    let set = corners(&folder);
    let run = text(&folder.path().join("run"));
    for (more, expected) in [
        ("model.branches=[3]", "expected 0 to 2 (model.branches = [3])"),
        ("model.state=5", "model.state = 5, but the states of"),
        ("probe.enabled=true", "probe.enabled = true, transitions.file ="),
        ("transitions.validation=0.9", "transitions.validation = 0.9: expected above 0, at most 0.5"),
    ] {
        let (err, out) = host(&train(&run, &set, &[more])).refused();
        assert!(err.contains(expected) && out.is_empty(), "{err}");
        assert!(!folder.path().join("run").exists());
    }
    let (err, _) = host(&train(&run, &sample("equity_1d.csv"), &[])).refused();
    assert!(err.contains("is no transition data set"), "{err}");
}

#[test]
fn check_says_what_a_data_set_holds() {
    let plain = sample("transitions/plain.npz");
    let arguments =
        ["data", "check", &plain, "--set", "model.branches=[3, 2]", "--set", "transitions.validation=0.2"];
    let out = host(&arguments).good();
    for part in [
        "format      NPZ",
        "transitions 9, 3 state features",
        "episodes    3: 2 end terminated, 2 truncated, 1 of them both",
        "model.branches = [3, 2]",
        "returns     15 to 384, mean 170.3333",
    ] {
        assert!(out.contains(part), "no {part} in\n{out}");
    }
    let mut json = arguments.to_vec();
    json.push("--json");
    let value: Value = serde_json::from_str(&host(&json).good()).unwrap();
    assert_eq!(value["accepted"], true);
    assert_eq!(value["report"]["branches"], serde_json::json!([3, 2]));
    // With the default branches `train` would refuse it, and so does the check.
    for file in ["transitions/lists.parquet", "transitions/minari.hdf5", "transitions/small.safetensors"] {
        let (err, out) = host(&["data", "check", &sample(file)]).refused();
        assert!(err.contains("actions have 2 columns") && err.contains("'model.branches=[3, 2]'"), "{err}");
        assert!(out.contains("transitions 9"), "{out}");
    }
}
