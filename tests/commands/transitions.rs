//! Learning from data sets of transitions: `train --transitions`, `data check`, and what its checkpoints are good for.

use std::fs;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use tempfile::tempdir;

use crate::resumable::{assert_same, states};
use crate::{host, names, sample, text};

/// A task that one step solves: the state is one of four corners, the right action is the corner's, reward 1 for it and 0 for
/// the others; every episode has 5 steps and is truncated, except that a wrong action terminates it. The corners are drawn by
/// `seed`.
fn corners(folder: &Path, name: &str, seed: u32, episodes: usize) -> String {
    let (mut states, mut next, mut actions, mut rewards) = (vec![], vec![], vec![], vec![]);
    let (mut terminated, mut truncated) = (vec![], vec![]);
    let mut random = seed;
    let mut draw = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    let place = |corner: u32| [corner % 2, corner / 2].map(|bit| 2.0 * bit as f32 - 1.0);
    for _ in 0..episodes {
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
    let path = folder.join(name);
    safetensors::serialize_to_file(views, None, &path).unwrap();
    text(&path)
}

const SMALL: &str = "model.branches=[4] model.trunk1=16 model.trunk2=16 model.value_hidden=8 model.branch_hidden=8 \
                     model.atoms=21 model.v_min=0.0 model.v_max=2.0 train.gamma=0.5 train.batch=64 train.epochs=4 \
                     train.train_steps=150 optimizer.lr=0.003 optimizer.tau=0.05 replay.n_step=2";

/// Arguments of `host train` on these files.
fn train<'a>(run: &'a str, files: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--device", "cpu", "--run", run];
    arguments.extend(files.iter().flat_map(|file| ["--transitions", file]));
    arguments.extend(SMALL.split_whitespace().chain(more.iter().copied()).flat_map(|set| ["--set", set]));
    arguments
}

fn rows(run: &Path) -> Vec<Value> {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_policy_learns_from_data_sets_alone() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let [one, two] =
        [(1, 300), (2, 100)].map(|(seed, n)| corners(folder.path(), &format!("{seed}.st"), seed, n));
    let name = text(&run);
    let done = host(&train(&name, &[&one, &two], &["replay.prioritized=true"]));
    assert!(done.err.contains("in 300 episodes") && done.err.contains("in 100 episodes"), "{}", done.err);
    assert!(done.err.contains("sum to between 0.0000 and 1.8750"), "{}", done.err);
    let out = done.good();
    assert!(out.contains("test part, policy of epoch") && out.contains("C51 loss"), "{out}");
    assert_eq!(
        names(&run),
        [
            "best.safetensors",
            "config.toml",
            "events.out.tfevents.stepgraph",
            "last.safetensors",
            "metrics.jsonl",
            "report.html",
            "run.log",
            "state",
            "test.json"
        ]
    );

    let rows = rows(&run);
    let about = &rows[0];
    assert_eq!((&about["kind"], &about["task"]), (&"run".into(), &"transitions".into()));
    assert_eq!((&about["transitions"][1]["episodes"], &about["data"]), (&100.into(), &Value::Array(vec![])));
    let epochs: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "epoch").collect();
    assert_eq!(epochs.len(), 4);
    assert!(epochs[0].get("validation_return").is_none() && epochs[0].get("epsilon").is_none());
    let loss = |epoch: &Value| epoch["validation_loss"].as_f64().unwrap();
    assert!(loss(epochs[3]) < loss(epochs[0]), "{epochs:?}");
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for part in ["Held-out loss", "has no backtest", "test transitions", "300 episodes"] {
        assert!(page.contains(part), "no {part}");
    }

    // The printed result again, from the checkpoint; the data may have been moved meanwhile.
    let moved = folder.path().join("moved.st");
    fs::rename(&two, &moved).unwrap();
    let (err, _) = host(&["eval", &name]).refused();
    assert!(err.contains("2.st"), "{err}");
    let evaluated = host(&["eval", &name, "--data", &one, "--data", &text(&moved)]).good();
    assert!(out.contains(evaluated.lines().nth(1).unwrap()), "{evaluated}\n{out}");
    let json = host(&["eval", &name, "--data", &one, "--data", &text(&moved), "--json"]).good();
    let test: Value = serde_json::from_str(&fs::read_to_string(run.join("test.json")).unwrap()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), test);
    let (err, _) = host(&["eval", &name, "--data", &text(&moved), "--data", &one]).refused();
    assert!(err.contains("the files are the same, and their order counts: "), "{err}");
    let (err, _) = host(&["eval", &name, "--data", &one, "--data", &one]).refused();
    assert!(err.contains("the policy was trained on") && err.contains("2.st"), "{err}");

    // The learned policy takes every corner's own action.
    let checkpoint = host::train::checkpoint::Checkpoint::load(&run.join("best.safetensors")).unwrap();
    assert!(checkpoint.market.is_none() && checkpoint.data_set.is_some());
    let mut learner = cpu_path::CpuLearner::from_config(&checkpoint.config).unwrap();
    let state = cpu_path::LearnerState { online: checkpoint.online.clone(), ..learner.export() };
    learner.import(state).unwrap();
    let states = [-1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0];
    assert_eq!(learner.act(&states).unwrap().greedy, [0, 1, 2, 3]);

    host(&["export", &name, &text(&folder.path().join("exported"))]).good();
    let inspected = host(&["inspect", &name]).good();
    for part in ["1.st: ", "for validation", "held-out loss", "minus the C51 loss"] {
        assert!(inspected.contains(part), "no {part} in\n{inspected}");
    }
    let (err, _) = host(&["predict", &name, "--data", &sample("equity_1d.csv")]).refused();
    assert!(err.contains("trained on the task transitions, not on bars"), "{err}");
}

#[test]
fn what_does_not_fit_is_refused_before_a_run_begins() {
    let folder = tempdir().unwrap();
    let set = corners(folder.path(), "set.safetensors", 1, 50);
    let run = text(&folder.path().join("run"));
    for (more, expected) in [
        ("model.branches=[3]", "expected 0 to 2 (model.branches = [3])"),
        ("model.state=5", "model.state = 5, but the states of"),
        ("her.enabled=true", "her.enabled = true, task.name = \"transitions\": "),
        ("transitions.validation=0.9", "transitions.validation = 0.9: expected above 0, at most 0.4"),
        ("folds.count=3", "folds.count = 3, task.name = \"transitions\": this task reads no bars"),
        ("attention.enabled=true", "attention.enabled = true, model.window = 0: "),
    ] {
        let (err, out) = host(&train(&run, &[&set], &[more])).refused();
        assert!(err.contains(expected) && out.is_empty(), "{err}");
        assert!(!folder.path().join("run").exists());
    }
    let (err, _) = host(&train(&run, &[&sample("equity_1d.csv")], &[])).refused();
    assert!(err.contains("is no transition data set"), "{err}");
    let (err, _) = host(&train(&run, &[&set, &sample("transitions/plain.npz")], &[])).refused();
    assert!(
        err.contains("plain.npz have 3 numbers, those of") && err.contains("set.safetensors have 2"),
        "{err}"
    );
    let (err, _) = host(&["train", "--device", "cpu", "--set", "task.name=transitions"]).refused();
    assert!(err.contains("transitions.files = []"), "{err}");
}

/// From states in the midst of a run the rest of it is the same bit for bit: with priorities, and where the ring holds a part
/// of the data set that changes.
#[test]
fn a_run_goes_on_from_a_saved_state() {
    let folder = tempdir().unwrap();
    let set = corners(folder.path(), "set.safetensors", 1, 200);
    for (kind, more) in [
        ("priorities", &["replay.prioritized=true"][..]),
        ("shards", &["transitions.resident=100", "transitions.shard_steps=7"]),
    ] {
        let whole = folder.path().join(kind);
        // A state whenever the one before is written.
        let every = [
            "checkpoint.interval_minutes=0",
            "checkpoint.states=1000",
            "train.epochs=2",
            "train.train_steps=60",
        ];
        let name = text(&whole);
        let done = host(&train(&name, &[&set], &[more, &every].concat()));
        assert_eq!(done.err.contains("two halves of"), kind == "shards", "{}", done.err);
        done.good();
        let count = states(&whole).len();
        assert!(count >= 4, "{kind}: {count} states");
        for place in [count / 3, 2 * count / 3] {
            let resumed = folder.path().join(format!("{kind}-{place}"));
            fs::create_dir_all(resumed.join("state")).unwrap();
            for name in names(&whole).iter().filter(|name| *name != "state") {
                fs::copy(whole.join(name), resumed.join(name)).unwrap();
            }
            let from = &states(&whole)[place];
            let copied = resumed.join("state").join(from.file_name().unwrap());
            fs::copy(from, &copied).unwrap();
            host(&["train", "--quiet", "--resume", &text(&copied)]).good();
            assert_same(&whole, &resumed);
        }
    }
    let resume = text(&folder.path().join("shards"));
    let (err, _) = host(&["train", "--resume", &resume, "--set", "transitions.resident=80"]).refused();
    assert!(err.contains("transitions.resident was 100 and is 80"), "{err}");
    corners(folder.path(), "set.safetensors", 2, 200);
    let (err, _) = host(&["train", "--resume", &resume]).refused();
    assert!(err.contains("the run cannot go on: ") && err.contains("the policy was trained on"), "{err}");
}

#[test]
fn check_says_what_a_data_set_holds() {
    let plain = sample("transitions/plain.npz");
    let branches = "model.branches=[3, 2]";
    let arguments = ["data", "check", &plain, "--set", branches, "--set", "transitions.validation=0.2"];
    let out = host(&arguments).good();
    for part in [
        "format      NPZ",
        "transitions 9, 3 state features",
        "episodes    3: 2 end terminated, 2 truncated, 1 of them both",
        "model.branches = [3, 2]",
        "returns     15 to 384, mean 170.3333",
        "warning: the support is too narrow",
        "verdict     `train` would use this data set",
    ] {
        assert!(out.contains(part), "no {part} in\n{out}");
    }
    let mut json = arguments.to_vec();
    json.push("--json");
    let value: Value = serde_json::from_str(&host(&json).good()).unwrap();
    assert_eq!(value["accepted"], true);
    assert_eq!(value["report"]["branches"], serde_json::json!([3, 2]));
    let parts = &value["parts"];
    let sum = ["learned", "validation", "test"].iter().map(|part| parts[part].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum, 9);
    // One index that is meant for one branch, with the default branches.
    let folder = tempdir().unwrap();
    let plain = corners(folder.path(), "plain.st", 1, 40);
    let out = host(&["data", "check", &plain]).good();
    assert!(out.contains("warning: one index up to 3 is read as a composite one of 81"), "{out}");
    // A name says what a file was meant to be, whatever is in it.
    let text = folder.path().join("text.npz");
    fs::write(&text, "time,open\n").unwrap();
    let (err, _) = host(&["data", "check", &text.display().to_string()]).refused();
    assert!(err.contains("text.npz") && !err.contains("delimiter"), "{err}");
    // With the default branches `train` would refuse it, and so does the check.
    for file in ["transitions/lists.parquet", "transitions/minari.hdf5", "transitions/small.safetensors"] {
        let (err, out) = host(&["data", "check", &sample(file)]).refused();
        assert!(err.contains("actions have 2 columns") && err.contains("'model.branches=[3, 2]'"), "{err}");
        assert!(out.contains("transitions 9"), "{out}");
    }
}
