//! Damaged configurations: an error that names the place, or a configuration; never a panic.

use proptest::prelude::*;
use settings::Config;

const TOKENS: [&str; 22] = [
    "=",
    "[",
    "]",
    "\"",
    "\n",
    "nan",
    "-inf",
    "1e999",
    "0",
    "-1",
    "9223372036854775808",
    "99999999999999999999999",
    "true",
    "{",
    "}",
    ",",
    "é",
    "\0",
    "[[train]]",
    "enabled = true",
    "branches = [2, 2]",
    "window = 1000000000000",
];

/// One change of a text: what is inserted, or how many bytes are removed, and where.
fn changes() -> impl Strategy<Value = Vec<(usize, &'static str, usize)>> {
    prop::collection::vec((any::<usize>(), prop::sample::select(&TOKENS[..]), 0..12_usize), 1..6)
}

fn changed(text: &str, changes: &[(usize, &str, usize)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for &(at, token, removed) in changes {
        let at = at % (bytes.len() + 1);
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, token.bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a program does with a configuration before it trains.
fn used(config: &Config) {
    if config.check_before_data(9, 8).is_ok() {
        let again = Config::layered(&Config::default(), Some(("x", &config.to_toml())), &[]);
        // As text: a NaN is no NaN's equal.
        assert_eq!(again.expect("what was written is read").to_toml(), config.to_toml());
    }
    let _ = config.without_effect(&Config::cpu_preset());
    let _ = config.differences(&Config::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn files(changes in changes()) {
        let text = changed(&Config::gpu_preset().to_toml(), &changes);
        match Config::layered(&Config::default(), Some(("run.toml", &text)), &[]) {
            Ok(config) => used(&config),
            Err(error) => {
                let text = error.to_string();
                // With the line of a key that is unknown or has a value of another type.
                prop_assert!(text.starts_with("run.toml: ") || text.starts_with("run.toml, line "), "{}", text);
            }
        }
    }

    #[test]
    fn overrides(key in "[a-z_.]{0,24}", value in ".{0,24}", changes in changes()) {
        for set in [format!("{key}={value}"), changed("replay.n_step=3", &changes), changed("data.repair=[\"sort\"]", &changes)] {
            match Config::layered(&Config::default(), None, std::slice::from_ref(&set)) {
                Ok(config) => used(&config),
                Err(error) => {
                    let named = error.to_string().starts_with(&format!("--set {set}: "));
                    prop_assert!(named, "{}", error);
                }
            }
        }
    }

    /// Every number of every key.
    #[test]
    fn numbers(at in any::<usize>(), number in prop_oneof![Just("-1"), Just("0"), Just("9223372036854775807"),
        Just("1e300"), Just("-1e-300"), Just("nan"), Just("inf"), Just("1000000000000"), Just("0.5")]) {
        let text = Config::gpu_preset().to_toml();
        let lines: Vec<&str> = text.lines().collect();
        let numbers: Vec<usize> = (0..lines.len())
            .filter(|&i| lines[i].split(" = ").nth(1).is_some_and(|value| value.parse::<f64>().is_ok()))
            .collect();
        prop_assert!(numbers.len() > 60);
        let line = numbers[at % numbers.len()];
        let key = lines[line].split(" = ").next().unwrap_or_default();
        let replaced = format!("{key} = {number}");
        let changed: Vec<&str> =
            (0..lines.len()).map(|i| if i == line { replaced.as_str() } else { lines[i] }).collect();
        if let Ok(config) = Config::layered(&Config::default(), Some(("x", &changed.join("\n"))), &[]) {
            used(&config);
        }
    }
}
