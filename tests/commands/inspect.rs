use std::collections::HashMap;
use std::fs;
use std::path::Path;

use host::train::checkpoint::{Checkpoint, Provenance};
use host::train::market::Market;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use settings::{Config, Flat, Layout, Pruning};
use tempfile::tempdir;

use crate::{host, sample, text};

/// A policy with all kinds of networks and made-up weights.
fn policy(score: Option<f64>) -> Checkpoint {
    let mut config = Config::cpu_preset();
    config.data.synthetic_bars = 1500;
    config.model.trunk1 = 16;
    config.iqn.enabled = true;
    config.iql.enabled = true;
    let market = Some(Market::prepare(&mut config).unwrap().record);
    let flat = Flat::new(&config.model, &config.parts());
    // What lies between tensors is padding, which no file holds: zero.
    let mut online = vec![0.0; flat.len];
    for t in flat.tensors() {
        for (i, value) in online[t.offset..t.offset + t.len()].iter_mut().enumerate() {
            *value = ((t.offset + i) as f32 * 0.37).sin();
        }
    }
    let target = online[..flat.target_len()].to_vec();
    let provenance =
        Provenance { epoch: 3, device: "a test".into(), kernels: "none".into(), program: "0".into(), score };
    Checkpoint {
        config,
        market,
        data_set: None,
        provenance,
        online,
        target,
        kept: host::step::Kept::default(),
    }
}

#[test]
fn a_checkpoint_tells_what_it_holds() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("best.safetensors");
    let checkpoint = policy(Some(1.25));
    checkpoint.save(&path).unwrap();
    // By its name, and as a run's.
    for argument in [text(&path), text(folder.path())] {
        let out = host(&["inspect", &argument]).good();
        for text in [
            "epoch       3",
            "score       1.25",
            "device      a test",
            "checksum    fnv1a64 ",
            "[iqn]",
            "trunk",
        ] {
            assert!(out.contains(text), "no {text} in\n{out}");
        }
        let value: Value = serde_json::from_str(&host(&["inspect", &argument, "--json"]).good()).unwrap();
        let flat = Flat::new(&checkpoint.config.model, &checkpoint.config.parts());
        assert_eq!(value["parameters"]["total"], flat.count());
        let parts = value["parameters"]["parts"].as_object().unwrap();
        assert_eq!(parts.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), flat.count() as u64);
        assert!(parts.contains_key("iqn head") && parts.contains_key("iql value networks"), "{parts:?}");
        let tensors = value["tensors"].as_array().unwrap();
        let online = tensors.iter().filter(|t| t["name"].as_str().unwrap().starts_with("online."));
        assert_eq!(online.map(|t| t["parameters"].as_u64().unwrap()).sum::<u64>(), flat.count() as u64);
        let first =
            tensors.iter().find(|t| t["name"] == "online.trunk1.weight").expect("the trunk's first layer");
        assert_eq!(first["shape"], serde_json::json!([16, checkpoint.config.model.state]));
        assert_eq!(value["provenance"]["epoch"], 3);
        assert_eq!(value["provenance"]["score"], 1.25);
        assert_eq!(value["config"]["model"]["trunk1"], 16);
        assert_eq!(value["market"]["symbols"][0]["bars"], 1500);
    }
}

#[test]
fn other_files_are_clear_errors() {
    let folder = tempdir().unwrap();
    let golden = text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/step.safetensors"));
    let cases = [
        (text(&folder.path().join("absent")), "No such file"),
        (text(folder.path()), "holds no best.safetensors"),
        (sample("equity_1d.csv"), "not a whole safetensors file"),
        (golden, "it is not a policy of this program"),
        // Endless: it would fill the memory.
        ("/dev/zero".into(), "is not a regular file"),
    ];
    for (argument, reason) in cases {
        for command in ["inspect", "eval"] {
            let (err, out) = host(&[command, &argument]).refused();
            assert!(err.contains(reason) && err.contains(&argument), "{err}");
            assert_eq!(out, "");
        }
    }
}

#[test]
fn the_same_policy_is_the_same_bytes_and_comes_back_whole() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    for score in [Some(0.1 + 0.2), Some(f64::NEG_INFINITY), None] {
        let checkpoint = policy(score);
        checkpoint.save(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for _ in 0..4 {
            policy(score).save(&path).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "the file differs");
        }
        let (again, checksum) = Checkpoint::load_with_checksum(&path).unwrap();
        assert!(again.online == checkpoint.online && again.target == checkpoint.target);
        assert_eq!((&again.market, &again.config), (&checkpoint.market, &checkpoint.config));
        // Its text may have rounded the last bit.
        let close = |(a, b): (f64, f64)| (a - b).abs() < 1e-15 || a == b;
        assert_eq!(again.provenance.score.is_some(), score.is_some());
        assert!(again.provenance.score.zip(score).is_none_or(close));
        assert!(checksum.is_some_and(|sum| sum.starts_with("fnv1a64 ")));
    }
}

#[test]
fn an_undefined_score_is_said_so() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    policy(None).save(&path).unwrap();
    let out = host(&["inspect", &text(&path)]).good();
    assert!(out.contains("score       undefined (Sharpe"), "{out}");
    let value: Value = serde_json::from_str(&host(&["inspect", &text(&path), "--json"]).good()).unwrap();
    assert_eq!(value["provenance"]["score"], "undefined");
    // Numbers of the configuration have the digits that were given, not those of a wider type.
    let json = host(&["inspect", &text(&path), "--json"]).good();
    assert!(json.contains("\"gamma\": 0.99,") && !json.contains("0.9900000095"), "{json}");
}

#[test]
fn damage_is_found_wherever_it_is() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    policy(Some(1.0)).save(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let data = 8 + header;
    let digit = bytes.windows(12).position(|w| w == b"\\\"epoch\\\":3,").expect("the epoch") + 10;
    let checksum = bytes.windows(8).position(|w| w == b"fnv1a64 ").expect("the checksum") + 8;
    let end = bytes.len() - 1;
    for (place, what) in [
        (data, "first weight"),
        (data + (end - data) / 2, "a weight"),
        (end, "last weight"),
        (digit, "epoch"),
        (checksum, "checksum"),
    ] {
        let mut broken = bytes.clone();
        broken[place] ^= 1;
        fs::write(&path, broken).unwrap();
        let (err, _) = host(&["inspect", &text(&path)]).refused();
        assert!(err.contains("policy.safetensors is damaged"), "{what}: {err}");
    }
    fs::write(&path, &bytes[..end]).unwrap();
    let (err, _) = host(&["inspect", &text(&path)]).refused();
    assert!(err.contains("not a whole safetensors file"), "{err}");
}

/// As the program wrote them before there was a checksum, with `null` for a score that JSON has no number for.
#[test]
fn older_files_still_load() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    let checkpoint = policy(Some(f64::NEG_INFINITY));
    checkpoint.save(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata: HashMap<String, String> = header.metadata().clone().unwrap();
    assert!(metadata.remove("checksum").is_some());
    let origin = metadata.get_mut("provenance").unwrap();
    assert!(origin.contains("\"-inf\""));
    *origin = origin.replace("\"-inf\"", "null");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let views: Vec<(String, TensorView<'_>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, t)| {
            assert_eq!(t.dtype(), Dtype::F32);
            (name, t)
        })
        .collect();
    fs::write(&path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
    let (again, checksum) = Checkpoint::load_with_checksum(&path).unwrap();
    assert_eq!(checksum, None);
    assert!(again.online == checkpoint.online && again.provenance == checkpoint.provenance);
    let out = host(&["inspect", &text(&path)]).good();
    assert!(out.contains("checksum    none") && out.contains("score       -inf"), "{out}");
}

#[test]
fn the_same_run_writes_the_same_bytes() {
    let folder = tempdir().unwrap();
    let runs = ["one", "two"].map(|name| text(&folder.path().join(name)));
    for run in &runs {
        let small = "data.synthetic_bars=1200 train.batch=16 train.train_steps=3 collect.environments=4 \
                     collect.steps=8 collect.warmup=16 collect.capacity=256 train.epochs=2";
        let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", run];
        arguments.extend(small.split_whitespace().flat_map(|set| ["--set", set]));
        host(&arguments).good();
    }
    for name in ["best.safetensors", "last.safetensors"] {
        let [one, two] = runs.each_ref().map(|run| fs::read(Path::new(run).join(name)).unwrap());
        assert!(one == two, "{name} differs");
    }
    let out = host(&["inspect", &runs[0]]).good();
    assert!(out.contains("synthetic market (regimes, seed 1): 1200 bars") && out.contains("CPU"), "{out}");
    // The history of the run, as it was recorded.
    let metrics = fs::read_to_string(Path::new(&runs[0]).join("metrics.jsonl")).unwrap();
    let recorded: Vec<Value> = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|row: &Value| row["kind"] == "epoch")
        .collect();
    assert_eq!(recorded.len(), 2);
    let value: Value = serde_json::from_str(&host(&["inspect", &runs[0], "--json"]).good()).unwrap();
    assert_eq!(value["history"], Value::from(recorded.clone()));
    let history = out.split_once("  history\n").expect("a history").1;
    assert_eq!(history.lines().count(), 3);
    for (line, row) in history.lines().skip(1).zip(&recorded) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..2], [row["epoch"].to_string(), format!("{:.5}", row["loss"].as_f64().unwrap())]);
        assert_eq!(line.ends_with("best so far"), row["best"] == true);
    }
    // A row that is being written is not there yet; a damaged one is an error.
    let path = Path::new(&runs[0]).join("metrics.jsonl");
    fs::write(&path, format!("{metrics}{{\"kind\":\"epoch\",\"epo")).unwrap();
    assert_eq!(host(&["inspect", &runs[0]]).good(), out);
    fs::write(&path, "{\"kind\":\"epoch\",\"epo\n").unwrap();
    let (err, _) = host(&["inspect", &runs[0]]).refused();
    assert!(err.contains("metrics.jsonl, line 1"), "{err}");
}

/// A policy whose first matrix has a quarter of its weights pruned.
fn pruned() -> Checkpoint {
    let mut checkpoint = policy(Some(1.0));
    checkpoint.config.pruning = Pruning { enabled: true, begin: 0, end: 10, ..Pruning::default() };
    let main = Layout::main(&checkpoint.config.model);
    let first = main.tensors.iter().find(|t| t.name == "trunk1.weight").expect("the first matrix");
    let mut masks = vec![1.0; main.len];
    for i in (first.offset..first.offset + first.len()).step_by(4) {
        masks[i] = 0.0;
        checkpoint.online[i] = 0.0;
    }
    checkpoint.kept.masks = masks;
    checkpoint
}

#[test]
fn a_pruned_policy_holds_its_masks() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    let checkpoint = pruned();
    checkpoint.save(&path).unwrap();
    let again = Checkpoint::load(&path).unwrap();
    assert!(again.kept.masks == checkpoint.kept.masks && again.online == checkpoint.online);
    let out = host(&["inspect", &text(&path)]).good();
    assert!(out.contains("trunk1.weight 25.00%") && out.contains("trunk2.weight 0.00%"), "{out}");
    assert!(out.contains("mask.trunk1.weight "), "{out}");
    let value: Value = serde_json::from_str(&host(&["inspect", &text(&path), "--json"]).good()).unwrap();
    assert_eq!(value["sparsity"]["trunk1.weight"], 0.25);
    // As programs without masks wrote it.
    let bytes = fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata: HashMap<String, String> = header.metadata().clone().unwrap();
    metadata.remove("checksum");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let old: Vec<_> = tensors.tensors().into_iter().filter(|(name, _)| !name.starts_with("mask.")).collect();
    fs::write(&path, safetensors::serialize(old, Some(metadata.clone())).unwrap()).unwrap();
    let again = Checkpoint::load(&path).unwrap();
    assert!(again.kept.masks.is_empty() && again.online == checkpoint.online);
    let out = host(&["inspect", &text(&path)]).good();
    assert!(out.contains("pruned      not said: written by an earlier program"), "{out}");
    // One mask alone is no policy of any program.
    let some: Vec<_> =
        tensors.tensors().into_iter().filter(|(name, _)| name != "mask.trunk2.weight").collect();
    fs::write(&path, safetensors::serialize(some, Some(metadata)).unwrap()).unwrap();
    let (err, _) = host(&["inspect", &text(&path)]).refused();
    assert!(err.contains("policy.safetensors: mask.trunk2.weight"), "{err}");
}

#[test]
fn masks_that_do_not_fit_the_weights_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("policy.safetensors");
    let main = Layout::main(&pruned().config.model);
    let first = main.tensors.iter().find(|t| t.name == "trunk1.weight").expect("the first matrix").clone();
    let columns = first.shape[1];
    let place = first.offset + columns * 2 + (4 - columns * 2 % 4) % 4;
    let at = format!("[2, {}]", place - first.offset - 2 * columns);
    let refused = |checkpoint: Checkpoint| {
        checkpoint.save(&path).unwrap();
        host(&["inspect", &text(&path)]).refused().0
    };
    let mut weight = pruned();
    weight.online[place] = 0.5;
    let err = refused(weight);
    let reason = format!("online.trunk1.weight {at} is 0.5, but mask.trunk1.weight says that it is pruned");
    assert!(err.contains("policy.safetensors") && err.contains(&reason), "{err}");
    let mut mask = pruned();
    mask.kept.masks[place] = 0.25;
    let err = refused(mask);
    assert!(err.contains(&format!("mask.trunk1.weight {at} is 0.25, expected 0 (pruned) or 1")), "{err}");
    let mut off = pruned();
    off.config.pruning.enabled = false;
    let err = refused(off);
    assert!(err.contains("its configuration has pruning.enabled = false"), "{err}");
}

#[test]
fn a_pruned_run_writes_the_masks_of_its_zeros() {
    let folder = tempdir().unwrap();
    let run = text(&folder.path().join("run"));
    let small = "data.synthetic_bars=1200 train.batch=16 train.train_steps=3 collect.environments=4 collect.steps=8 \
                 collect.warmup=16 collect.capacity=256 train.epochs=2 pruning.enabled=true pruning.begin=0 pruning.end=6 \
                 pruning.every=1 pruning.sparsity=0.5";
    let mut arguments = vec!["train", "--device", "cpu", "--quiet", "--run", &run];
    arguments.extend(small.split_whitespace().flat_map(|set| ["--set", set]));
    host(&arguments).good();
    let last = Checkpoint::load(&folder.path().join("run/last.safetensors")).unwrap();
    for (t, mask) in last.masks() {
        let weights = &last.online[t.offset..][..t.len()];
        let zeros = mask.iter().filter(|&&kept| kept == 0.0).count();
        // The last of six steps is step 5 of `pruning.end` = 6.
        assert_eq!(zeros, last.config.pruning.zeros(5, t.len()), "{}", t.name);
        assert!(mask.iter().zip(weights).all(|(&kept, &w)| kept != 0.0 || w == 0.0), "{}", t.name);
    }
    assert!(!last.masks().is_empty());
    host(&["eval", &run]).good();
}
