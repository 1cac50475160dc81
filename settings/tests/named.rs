//! What is wrong with a value is said of the key that has it, not of another one that follows from it.

use settings::{Config, keys};

/// Values at which something breaks, whatever the key.
const EXTREMES: [&str; 12] = [
    "0",
    "-1",
    "1",
    "65537",
    "1000000000000",
    "9223372036854775807",
    "-0.5",
    "1.5",
    "1e30",
    "nan",
    "inf",
    "\"\"",
];

/// The error of one key set over the presets, if there is one.
fn refused(base: &Config, sets: &[String]) -> Option<String> {
    match Config::layered(base, None, sets) {
        Ok(config) => config.check_before_data(9, 8).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn errors_name_the_key_that_was_set() {
    let mut base = Config::default();
    for sets in [
        &[][..],
        &[
            "cql.enabled=true",
            "iqn.enabled=true",
            "iql.enabled=true",
            "ensemble.enabled=true",
            "confidence.enabled=true",
            "vaccine.enabled=true",
            "probe.enabled=true",
            "attention.enabled=true",
            "mamba.enabled=true",
            "spectral.enabled=true",
            "pruning.enabled=true",
            "replay.prioritized=true",
            "optimizer.schedule=cosine",
            "optimizer.total_steps=100000",
        ][..],
    ] {
        let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
        base = Config::layered(&base, None, &sets).unwrap();
        assert_eq!(refused(&base, &[]), None);
        let (mut seen, mut wrong) = (0, Vec::new());
        for key in keys::sections().iter().flat_map(|section| &section.keys) {
            for value in EXTREMES {
                let set = format!("{}={value}", key.name);
                let Some(error) = refused(&base, std::slice::from_ref(&set)) else { continue };
                seen += 1;
                // Behind the text that was given, which an error of another type repeats.
                let said = error.strip_prefix(&format!("--set {set}: ")).unwrap_or(&error);
                if !said.contains(&key.name) || error.contains('\n') {
                    wrong.push(format!("{set}: {error}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(seen > 500, "{seen}");
    }
}

#[test]
fn what_is_no_toml_is_said_in_one_line_with_its_place() {
    let refused = |text: &str| {
        Config::layered(&Config::default(), Some(("run.toml", text)), &[]).unwrap_err().to_string()
    };
    let error = refused("[train]\nbatch = = 3\n");
    assert!(error.starts_with("run.toml, line 2, column 9: "), "{error}");
    for text in [
        "[train",
        "[train]\nbatch",
        "[train]\nbatch = \"",
        "x = [1,",
        "[train]\n[train]\n",
        "[data]\ndelimiter = \"ab\"\n",
    ] {
        let error = refused(text);
        assert!(error.starts_with("run.toml") && !error.contains('\n'), "{error:?}");
    }
    let set = Config::layered(&Config::default(), None, &["data.delimiter=ab".to_string()])
        .unwrap_err()
        .to_string();
    assert_eq!(set, "--set data.delimiter=ab: data.delimiter: expected one character, found the text \"ab\"");
}
