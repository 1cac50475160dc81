//! Exported policies: the files in `tests/data/export`, which the Python tests run, are what the program writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpu_path::Oracle;
use host::export::Policy;
use host::predict::learner;
use host::train::checkpoint::{Checkpoint, Provenance};
use host::train::market::{Market, MarketRecord};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;
use settings::{Config, Flat};
use tempfile::tempdir;

use crate::{host, text};

/// What each exported policy has, beside a small C51 network.
const CASES: [(&str, &[&str]); 5] = [
    ("mlp", &["model.branches=[3, 3, 3, 3]"]),
    ("glu", &["model.head=glu", "model.noisy=true", "model.leaky_slope=0.2"]),
    ("attention", &["attention.enabled=true", "attention.heads=2"]),
    ("mamba", &["mamba.enabled=true", "mamba.width=8", "mamba.heads=2", "mamba.state=3", "mamba.conv=2"]),
    (
        "everything",
        &[
            "model.head=glu",
            "model.noisy=true",
            "attention.enabled=true",
            "mamba.enabled=true",
            "mamba.width=8",
            "mamba.state=4",
            "iqn.enabled=true",
            "iqn.cosines=6",
            "iqn.samples=5",
            "iqn.hidden=7",
            "ensemble.enabled=true",
            "ensemble.members=3",
            "iql.enabled=true",
            "iql.hidden=4",
            "confidence.enabled=true",
        ],
    ),
];

/// States in `expected.safetensors`.
const STATES: usize = 16;

/// Numbers between -1 and 1 from a counter, by integers alone: the same on every machine.
fn number(i: usize) -> f32 {
    let mixed = (i as u32).wrapping_mul(0x9e37_79b9) ^ ((i as u32) << 7);
    ((mixed.wrapping_mul(0x85eb_ca6b) >> 8) as f32 / (1 << 23) as f32) - 1.0
}

/// A policy with made-up weights of a trained one's size.
fn policy(sets: &[&str], record: &MarketRecord) -> Checkpoint {
    let small = [
        "market.window=3",
        "model.trunk1=8",
        "model.trunk2=8",
        "model.value_hidden=6",
        "model.branch_hidden=5",
        "model.atoms=11",
    ];
    let sets: Vec<String> = small.iter().chain(sets).map(|set| set.to_string()).collect();
    let mut config = Config::layered(&Config::cpu_preset(), None, &sets).unwrap();
    (config.model.state, config.model.window, config.model.bar_features) = (35, 3, 9);
    config.check().unwrap();
    let flat = Flat::new(&config.model, &config.parts());
    let mut online = vec![0.0; flat.len];
    for t in flat.tensors() {
        // Inputs of a layer add up to about 1; gates are open.
        let scale = if t.fan_in > 0 { (3.0 / t.fan_in as f32).sqrt() } else { 1.0 };
        for (i, value) in online[t.offset..t.offset + t.len()].iter_mut().enumerate() {
            *value = scale * number(t.offset + i);
        }
    }
    let target = online[..flat.target_len()].to_vec();
    let provenance = Provenance {
        epoch: 3,
        device: "a test".into(),
        kernels: "none".into(),
        program: "0".into(),
        score: Some(0.5),
    };
    Checkpoint {
        config,
        market: Some(record.clone()),
        data_set: None,
        provenance,
        online,
        target,
        kept: Default::default(),
    }
}

/// A record that does not change with the synthetic market's code.
fn record() -> MarketRecord {
    let numbers = |scale: f64| (0..9).map(|i| (scale * (f64::from(i) + 1.0)).to_string()).collect::<Vec<_>>();
    let value = serde_json::json!({
        "fitted": {
            "normaliser": { "mean": numbers(0.125), "std": numbers(0.25), "clip": "8" },
            "reward_scale": "128", "lookback": 64, "interval_ms": 60_000,
        },
        "symbols": [{
            "name": "made-up", "source": "made up", "bars_hash": "0123456789abcdef", "bars": 1000,
            "fold": {
                "train": { "start": 65, "end": 600 }, "validation": { "start": 700, "end": 800 },
                "test": { "start": 900, "end": 999 },
            },
        }],
    });
    serde_json::from_value(value).expect("a record")
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/export").join(name)
}

/// States and what the f64 implementation says of them, by name.
fn expected(checkpoint: &Checkpoint) -> Vec<(&'static str, Vec<usize>, Vec<f64>)> {
    let model = &checkpoint.config.model;
    let exported = Policy::of(checkpoint).unwrap();
    let states: Vec<f64> = (0..STATES * model.state).map(|i| (2.0 * number(7919 + i)).into()).collect();
    let taus: Vec<f64> = exported.taus.iter().map(|&tau| tau.into()).collect();
    let oracle: Oracle = learner(checkpoint).unwrap();
    let seen = oracle.outlook(&states, &taus).unwrap();
    let (actions, atoms) = (model.actions(), model.atoms);
    let greedy = seen.greedy.iter().map(|&a| a.into()).collect();
    let mut values = vec![
        ("states", vec![STATES, model.state], states),
        ("actions", vec![STATES, model.branches.len()], greedy),
        ("q", vec![STATES, actions], seen.q),
        ("probabilities", vec![STATES, actions, atoms], seen.probabilities),
    ];
    if !seen.quantiles.is_empty() {
        values.push(("quantiles", vec![STATES, taus.len(), actions], seen.quantiles));
    }
    if !seen.members.is_empty() {
        values.push(("ensemble", vec![STATES, checkpoint.config.ensemble.members], seen.members));
    }
    values
}

/// `STEPGRAPH_WRITE_EXPORTS=1 cargo test --workspace --test commands export` writes the files anew.
#[test]
fn the_files_of_the_python_tests_are_what_is_exported() {
    let record = record();
    let temporary = tempdir().unwrap();
    for (name, sets) in CASES {
        let checkpoint = policy(sets, &record);
        let path = temporary.path().join(format!("{name}.safetensors"));
        checkpoint.save(&path).unwrap();
        let out = temporary.path().join(name);
        host(&["export", &text(&path), &text(&out)]).good();
        let expected = expected(&checkpoint);
        // Actions are compared exactly elsewhere: none may hang on rounding.
        let (_, _, q) = expected.iter().find(|(name, _, _)| *name == "q").unwrap();
        let branches = &checkpoint.config.model.branches;
        for row in q.chunks_exact(branches.iter().sum()) {
            let mut rest = row;
            for &n in branches {
                let (own, behind) = rest.split_at(n);
                let mut sorted = own.to_vec();
                sorted.sort_by(f64::total_cmp);
                assert!(sorted[n - 1] - sorted[n - 2] > 1e-4, "{name}: two best actions are nearly equal");
                rest = behind;
            }
        }
        let folder = folder(name);
        if std::env::var_os("STEPGRAPH_WRITE_EXPORTS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            for file in ["policy.safetensors", "policy.onnx"] {
                fs::copy(out.join(file), folder.join(file)).unwrap();
            }
            let bytes: Vec<(&str, Vec<usize>, Vec<u8>)> = expected
                .iter()
                .map(|(name, shape, values)| {
                    (*name, shape.clone(), values.iter().flat_map(|x| x.to_le_bytes()).collect())
                })
                .collect();
            let views = bytes
                .iter()
                .map(|(name, shape, bytes)| {
                    (*name, TensorView::new(Dtype::F64, shape.clone(), bytes).unwrap())
                })
                .collect::<Vec<_>>();
            safetensors::serialize_to_file(views, None, &folder.join("expected.safetensors")).unwrap();
        }
        for file in ["policy.safetensors", "policy.onnx"] {
            let (now, kept) = (fs::read(out.join(file)).unwrap(), fs::read(folder.join(file)).unwrap());
            assert!(
                now == kept,
                "tests/data/export/{name}/{file} is not what is exported; write it anew with\n  \
                 STEPGRAPH_WRITE_EXPORTS=1 cargo test --workspace --test commands export\nand run the Python tests"
            );
        }
        let kept = fs::read(folder.join("expected.safetensors")).unwrap();
        let kept = SafeTensors::deserialize(&kept).unwrap();
        assert_eq!(kept.len(), expected.len());
        for (value, shape, want) in expected {
            let tensor = kept.tensor(value).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F64, &shape[..]));
            for (word, want) in tensor.data().chunks_exact(8).zip(want) {
                let got = f64::from_le_bytes(word.try_into().unwrap());
                // exp and ln of another mathematics library may differ in the last place.
                assert!((got - want).abs() < 1e-12, "{name}: {value} {got} {want}");
            }
        }
    }
}

/// Runs `python/tests`: the ONNX files through ONNX Runtime, the tensors through the torch module, every output beside
/// what the f64 implementation says. The interpreter is `python3`, or what `STEPGRAPH_PYTHON` names.
#[test]
#[ignore = "needs Python with torch, onnx, onnxruntime, safetensors and pytest (docs/EXPORT.md)"]
fn pytorch_and_onnx_runtime_give_the_same_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = std::env::var_os("STEPGRAPH_PYTHON").unwrap_or_else(|| "python3".into());
    let mut path = vec![root.join("python"), root.join("python/tests")];
    path.extend(std::env::var_os("PYTHONPATH").iter().flat_map(std::env::split_paths));
    let output = Command::new(python)
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"])
        .arg(root.join("python/tests"))
        .env("PYTHONPATH", std::env::join_paths(path).unwrap())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    // A package that is missing skips its tests, and this one is here to run all of them.
    assert!(said.contains(" passed") && !said.contains("skipped"), "{said}");
}

#[test]
fn a_support_that_adapted_is_exported_as_it_was_at_the_end() {
    let mut checkpoint = policy(&["iql.enabled=true", "iql.adaptive_support=true"], &record());
    checkpoint.kept.iql = vec![0.1, 0.2, 1.0, 0.3, -2.0, 3.0];
    let exported = Policy::of(&checkpoint).unwrap();
    let expected: Vec<f32> = (0..11).map(|k| -2.0 + 0.5 * k as f32).collect();
    assert_eq!(exported.support, expected);
    assert_eq!(exported.left_out, ["the IQL value networks"]);
}

#[test]
fn the_description_says_what_goes_in_and_comes_out_and_nothing_is_overwritten() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("best.safetensors");
    policy(CASES[4].1, &record()).save(&path).unwrap();
    let out = folder.path().join("exported");
    // A run's folder is its best policy.
    let said = host(&["export", &text(folder.path()), &text(&out)]).good();
    assert!(said.contains("left out: the IQL value networks, the confidence head, the noise"), "{said}");
    let value: Value = serde_json::from_slice(&fs::read(out.join("policy.json")).unwrap()).unwrap();
    assert_eq!(value["inputs"]["states"]["shape"], serde_json::json!(["N", 35]));
    assert_eq!(value["outputs"]["quantiles"]["shape"], serde_json::json!(["N", 5, 15]));
    assert_eq!(value["outputs"]["ensemble"]["shape"], serde_json::json!(["N", 3]));
    assert_eq!(value["policy"]["branches"], serde_json::json!([9, 3, 3]));
    assert_eq!(value["source"]["market"]["fitted"]["normaliser"]["mean"][1], "0.25");
    assert_eq!(value["source"]["features"][0], "log_return");
    let (err, _) = host(&["export", &text(&path), &text(&out)]).refused();
    assert!(err.contains("already holds policy.safetensors"), "{err}");
    let (err, _) = host(&["export", &text(&out.join("policy.safetensors")), &text(&out)]).refused();
    assert!(err.contains("it is not a policy of this program"), "{err}");
}

/// A policy of the synthetic market, for the tests of other commands.
pub fn synthetic_policy(sets: &[&str]) -> Checkpoint {
    let mut config = Config::layered(
        &Config::cpu_preset(),
        None,
        &sets.iter().map(|set| set.to_string()).collect::<Vec<_>>(),
    )
    .unwrap();
    let market = Some(Market::prepare(&mut config).unwrap().record);
    let online = cpu_path::init_parameters(&Flat::new(&config.model, &config.parts()), 5);
    let target = online[..Flat::new(&config.model, &config.parts()).target_len()].to_vec();
    let provenance = Provenance {
        epoch: 2,
        device: "a test".into(),
        kernels: "none".into(),
        program: "0".into(),
        score: Some(0.5),
    };
    Checkpoint { config, market, data_set: None, provenance, online, target, kept: Default::default() }
}
