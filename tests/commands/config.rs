use std::fs;

use settings::{Config, presets};
use tempfile::tempdir;

use crate::{host, text};

#[test]
fn the_resolved_configuration_has_every_meaning_and_reads_back() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("run.toml");
    fs::write(&file, "[train]\nbatch = 64\n").unwrap();
    let arguments = ["config", "--preset", "p1", "--config", &text(&file), "--set", "model.atoms=21"];
    let out = host(&arguments).good();
    assert!(
        out.contains("# B: samples per training step. Unit: samples. (an integer, 0 or more)\nbatch = 64\n")
    );
    let config = Config::layered(&Config::default(), Some(("printed", &out)), &[]).unwrap();
    let mut expected = presets::find("p1").unwrap().config().unwrap();
    (expected.train.batch, expected.model.atoms) = (64, 21);
    assert_eq!(config, expected);
    let mut plain = arguments.to_vec();
    plain.push("--plain");
    let plain = host(&plain).good();
    assert!(!plain.contains('#'), "{plain}");
    assert_eq!(plain, expected.to_toml());
}

#[test]
fn presets_are_listed_by_every_command_that_takes_one() {
    for command in ["config", "train", "profile"] {
        let out = host(&[command, "--preset", "list"]).good();
        assert_eq!(out, presets::list(), "{command}");
    }
}

#[test]
fn slips_are_refused_with_what_was_meant() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("run.toml");
    fs::write(&file, "[train]\nbatch = 64\n\n[modle]\natoms = 3\n").unwrap();
    for (arguments, expected) in [
        (&["--set", "train.bacth=3"][..], "did you mean train.batch?"),
        (&["--set", "train.batch=big"], "expected an integer, 0 or more, found the text \"big\""),
        (&["--preset", "market-fll"], "did you mean market-full?"),
        (&["--config", &text(&file)], "line 4: modle: there is no such key; did you mean [model]?"),
    ] {
        let mut all = vec!["train", "--device", "cpu"];
        all.extend(arguments);
        let (err, out) = host(&all).refused();
        assert!(err.contains(expected) && out.is_empty(), "{err}");
    }
}

/// A preset of the command line trains.
#[test]
fn a_run_takes_its_preset() {
    let folder = tempdir().unwrap();
    let run = text(&folder.path().join("run"));
    let small = "data.synthetic_bars=1200 train.batch=16 train.train_steps=3 collect.environments=4 collect.steps=8 \
                 collect.warmup=16 collect.capacity=256 train.epochs=1 model.trunk1=8 model.trunk2=8 \
                 model.value_hidden=4 model.branch_hidden=4";
    let mut arguments =
        vec!["train", "--device", "cpu", "--quiet", "--preset", "market-quick", "--run", &run];
    arguments.extend(small.split_whitespace().flat_map(|set| ["--set", set]));
    host(&arguments).good();
    let written = fs::read_to_string(folder.path().join("run/config.toml")).unwrap();
    // The preset's atoms, not those of the CPU's default.
    assert!(written.contains("atoms = 51"), "{written}");
}
