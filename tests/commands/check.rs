use std::fs;

use bars::synthetic::Kind;
use bars::{Bars, Synthetic};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{Done, host, sample, text};

fn market(bars: usize) -> Bars {
    Synthetic { seed: 5, bars, kind: Kind::Regimes }.generate().unwrap()
}

/// The synthetic market as a CSV file with its lines changed; line n is element n - 1.
fn with_lines(bars: usize, change: impl Fn(&mut Vec<String>)) -> (TempDir, String) {
    let mut csv = Vec::new();
    bars::write_csv("t.csv", &market(bars), &mut csv).unwrap();
    let mut lines: Vec<String> = String::from_utf8(csv).unwrap().lines().map(str::to_owned).collect();
    change(&mut lines);
    let folder = tempdir().unwrap();
    let path = folder.path().join("bars.csv");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let path = text(&path);
    (folder, path)
}

/// Gives a line's field another value.
fn set(lines: &mut [String], line: usize, column: usize, value: &str) {
    let mut fields: Vec<&str> = lines[line - 1].split(',').collect();
    fields[column] = value;
    lines[line - 1] = fields.join(",");
}

fn json(out: &str) -> Value {
    serde_json::from_str(out).expect("JSON")
}

/// Runs the check as JSON with more arguments.
fn checked(path: &str, more: &[&str]) -> (Done, Value) {
    let done = host(&[&["data", "check", path, "--json"], more].concat());
    let value = json(&done.out);
    (done, value)
}

#[test]
fn a_good_file_is_described() {
    for (name, rows, interval) in [
        ("currency_1h.csv", 1500, 3_600_000),
        ("currency_1h.parquet", 1500, 3_600_000),
        ("equity_1d.csv", 600, 86_400_000),
    ] {
        let path = sample(name);
        let out = host(&["data", "check", &path]).good();
        for word in
            ["rows", "span", "interval", "calendar", "gaps        none", "`train` would use this file"]
        {
            assert!(out.contains(word), "{name}: no {word} in\n{out}");
        }
        let (done, value) = checked(&path, &[]);
        done.good();
        assert_eq!((&value["accepted"], &value["refusal"]), (&Value::Bool(true), &Value::Null), "{name}");
        let report = &value["report"];
        assert_eq!(report["rows"], rows, "{name}");
        assert_eq!(report["interval_ms"], interval, "{name}");
        assert_eq!(report["gaps"], Value::Array(vec![]), "{name}");
        assert!(report["closures"]["recurring"].as_u64().unwrap() > 5, "{name}: weekends");
    }
    let (_, value) = checked(&sample("currency_1h.csv"), &[]);
    assert_eq!(value["report"]["first"], "2015-01-04 22:00");
    assert_eq!(value["report"]["closures"]["patterns"][0]["weekday"], 4, "closed from Friday on");
}

#[test]
fn every_problem_is_counted_and_the_remedy_works() {
    // Four empty opens, two texts, one high below low, one equal duplicate, two rows swapped.
    let (_folder, path) = with_lines(1200, |lines| {
        lines.swap(199, 200);
        for line in [50, 60, 70, 80] {
            set(lines, line, 1, "");
        }
        set(lines, 90, 4, "abc");
        set(lines, 91, 4, "abc");
        set(lines, 100, 2, "1");
        lines.insert(110, lines[109].clone());
    });
    let (done, value) = checked(&path, &[]);
    let (err, _) = done.refused();
    assert!(err.contains("line 50") && err.contains("would refuse"), "{err}");
    let rows = |value: &Value, problem: &str| {
        let found = value["problems"].as_array().unwrap().iter().find(|row| row["problem"] == problem);
        found.unwrap_or_else(|| panic!("no {problem} in {value}")).clone()
    };
    let missing = rows(&value, "no value");
    assert_eq!(missing["rows"], 4);
    assert_eq!(missing["repaired_by"], Value::Null);
    let places: Vec<_> = missing["first"].as_array().unwrap().iter().map(|place| &place["place"]).collect();
    assert_eq!(places, ["line 50", "line 60", "line 70"]);
    assert_eq!(rows(&value, "not a number")["rows"], 2);
    assert!(rows(&value, "not a number")["first"][0]["text"].as_str().unwrap().contains(",abc,"));
    assert_eq!(rows(&value, "high below low")["first"][0]["place"], "line 100");
    assert_eq!(rows(&value, "duplicate timestamp")["rows"], 1);
    assert_eq!(rows(&value, "duplicate timestamp")["first"][0]["place"], "line 111");
    assert_eq!(rows(&value, "out of order")["rows"], 1);

    // One error for each option that was needed, each with place and value.
    let remedy = &value["remedy"];
    assert_eq!((&remedy["loads"], &remedy["refusal"]), (&Value::Bool(true), &Value::Null));
    let errors: Vec<&str> =
        remedy["errors"].as_array().unwrap().iter().map(|e| e.as_str().unwrap()).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(errors[0].contains("line 50, column open") && errors[1].contains("line 111"), "{errors:?}");
    assert!(errors[2].contains("line 202") && errors[2].contains("out of order"), "{errors:?}");
    let option = remedy["options"][0].as_str().unwrap();
    assert_eq!(option, r#"--set 'data.repair=["sort", "drop-duplicates", "drop-bad-rows"]'"#);
    let set = option.trim_start_matches("--set ").trim_matches('\'');

    let (done, value) = checked(&path, &["--set", set]);
    done.good();
    let repaired = &value["report"]["repaired"];
    assert_eq!(repaired["sorted"], 1);
    assert_eq!(value["report"]["bars"], 1200 - 7);

    // Half of the repairs: what they deal with is told apart from what they leave.
    let (done, value) = checked(&path, &["--set", "data.repair=drop-bad-rows"]);
    done.refused();
    assert_eq!(rows(&value, "no value")["repaired_by"], "drop-bad-rows");
    assert_eq!(rows(&value, "out of order")["repaired_by"], Value::Null);

    // The same for people.
    let (_, out) = host(&["data", "check", &path]).refused();
    for text in
        ["4 row(s): no value", "and 1 more", "line 60: ", "would help  --set 'data.repair=[", "With that:"]
    {
        assert!(out.contains(text), "no {text} in\n{out}");
    }
}

#[test]
fn the_gentlest_remedy_is_found() {
    // A tick outside: widened, not dropped.
    let open = market(1200).open[38];
    let (_folder, path) = with_lines(1200, |lines| {
        set(lines, 40, 2, &(open * 0.9999).to_string());
        set(lines, 40, 3, &(open * 0.9998).to_string());
        set(lines, 40, 4, &(open * 0.9999).to_string());
    });
    let (done, value) = checked(&path, &[]);
    done.refused();
    assert_eq!(value["remedy"]["options"][0], "--set data.repair=widen-range");
    assert_eq!(value["report"]["repaired"]["widened"], 1);
    // A spike: dropped.
    let (_folder, path) = with_lines(1200, |lines| set(lines, 40, 4, "1000"));
    let (done, value) = checked(&path, &[]);
    done.refused();
    assert_eq!(value["remedy"]["options"][0], "--set data.repair=drop-bad-rows");

    // Two rows of one time with different values.
    let (_folder, path) = with_lines(1200, |lines| {
        lines.insert(40, lines[39].clone());
        set(lines, 41, 5, "123456");
    });
    let (_, out) = host(&["data", "check", &path]).refused();
    assert!(out.contains("--set data.repair=keep-first") && out.contains("keep-last"), "{out}");

    // Missing bars, refused because that was asked for.
    let (_folder, path) = with_lines(1200, |lines| drop(lines.drain(40..43)));
    let (done, value) = checked(&path, &[]);
    done.good();
    assert_eq!(value["report"]["gaps"][0]["bars"], 3);
    let (done, value) = checked(&path, &["--set", "data.gaps=error"]);
    done.refused();
    assert_eq!(value["remedy"]["options"][0], "--set data.gaps=split");
}

#[test]
fn rows_of_a_table_are_named_too() {
    let mut table = market(1200);
    table.open[99] = -1.0;
    table.time_ms[500] = table.time_ms[499];
    let folder = tempdir().unwrap();
    let path = text(&folder.path().join("bars.parquet"));
    bars::write_parquet(&path, &table, fs::File::create(&path).unwrap()).unwrap();
    let (_, out) = host(&["data", "check", &path]).refused();
    for text in ["row 100", "column open", "-1", "duplicate timestamp", "row 501"] {
        assert!(out.contains(text), "no {text} in\n{out}");
    }
}

#[test]
fn what_train_refuses_later_is_refused_too() {
    // Good rows, too few of them for three parts.
    let (_folder, path) = with_lines(60, |_| ());
    let (done, value) = checked(&path, &[]);
    let (err, _) = done.refused();
    let trained = host(&["train", "--data", &path, "--device", "cpu", "--run", "/dev/null/no"]);
    assert_eq!(trained.code, 1);
    let reason = trained.err.trim().trim_start_matches("error: ").to_owned();
    assert!(err.contains(&reason), "check: {err}train: {reason}");
    assert_eq!(value["report"]["bars"], 60);
    assert_eq!(value["accepted"], false);

    // A repair would help against the row, but not against the number of rows.
    let (_folder, path) = with_lines(60, |lines| set(lines, 30, 1, "x"));
    let (done, value) = checked(&path, &[]);
    done.refused();
    assert_eq!(value["remedy"]["loads"], true);
    assert!(value["remedy"]["refusal"].as_str().is_some_and(|text| text.contains("bars.csv: ")), "{value}");

    // Nothing but one row.
    let (_folder, path) = with_lines(2, |lines| set(lines, 3, 1, "x"));
    let (done, value) = checked(&path, &[]);
    done.refused();
    assert_eq!(value["remedy"]["loads"], false);
    assert_eq!(value["problems"][0]["problem"], "not a number");
}

#[test]
fn other_files_and_wrong_options_are_clear_errors() {
    let folder = tempdir().unwrap();
    let file = |name: &str| text(&folder.path().join(name));
    fs::write(file("empty.csv"), "").unwrap();
    fs::write(file("prose.csv"), "This is no table.\nNot at all.\n").unwrap();
    for (name, reason) in
        [("empty.csv", "the file is empty"), ("absent.csv", "No such file"), ("prose.csv", "prose.csv")]
    {
        let (err, _) = host(&["data", "check", &file(name)]).refused();
        assert!(err.contains(name) && err.contains(reason), "{err}");
    }
    let (err, _) = host(&["data", "check", &text(folder.path())]).refused();
    assert!(err.contains("not a regular file"), "{err}");
    let (err, _) = host(&["data", "check", &sample("equity_1d.csv"), "--set", "data.repare=sort"]).refused();
    assert!(err.contains("repare"), "{err}");
    let (err, _) = host(&["data", "check", &sample("equity_1d.csv"), "--set", "data.repair=mend"]).refused();
    assert!(err.contains("mend") && err.contains("drop-bad-rows"), "{err}");
}

#[test]
fn a_file_of_several_symbols_is_checked_by_symbol() {
    let (_folder, path) = with_lines(900, |lines| {
        let rows: Vec<String> = lines.drain(1..).collect();
        lines[0] += ",Pair";
        lines.extend(rows.iter().flat_map(|row| [format!("{row},EUR/USD"), format!("{row},GBP/USD")]));
    });
    let by_pair = ["--set", "data.symbol_column=pair"];
    let out = host(&[&["data", "check", path.as_str()], &by_pair[..]].concat()).good();
    assert!(out.contains("symbol EUR/USD") && out.contains("symbol GBP/USD"), "{out}");
    let (done, value) = checked(&path, &by_pair);
    done.good();
    let symbols = value["report"]["symbols"].as_array().unwrap();
    assert_eq!(symbols.len(), 2);
    assert_eq!((&symbols[1]["symbol"], &symbols[1]["report"]["bars"]), (&"GBP/USD".into(), &900.into()));
    // What is wrong is counted over all symbols, and the remedy has been tried on all of them.
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    set(&mut lines, 100, 1, "NaN");
    set(&mut lines, 201, 4, "");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let (done, value) = checked(&path, &by_pair);
    let (err, _) = done.refused();
    assert!(err.contains("line 100"), "{err}");
    assert_eq!((&value["problems"][0]["rows"], &value["remedy"]["loads"]), (&2.into(), &true.into()));
}
