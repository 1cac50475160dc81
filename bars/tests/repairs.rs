//! Bad rows, and the repairs that a user may ask for.

use bars::{LoadOptions, Place, Problem, Repair, ZeroVolume, load_bytes};

use crate::{error_text, row_error};

fn file(rows: &[&str]) -> String {
    format!("time,open,high,low,close,volume\n{}\n", rows.join("\n"))
}

fn load_with(text: &str, repairs: &[Repair]) -> bars::Loaded {
    let options = LoadOptions::default().with_repairs(repairs.iter().copied());
    load_bytes("t.csv", text.as_bytes(), &options).unwrap_or_else(|error| panic!("{error}"))
}

const TWICE: [&str; 4] = [
    "2017-01-01T00:00Z,1,2,0.5,1.5,10",
    "2017-01-01T01:00Z,1,2,0.5,1.0,20",
    "2017-01-01T01:00Z,1,2,0.5,1.5,30",
    "2017-01-01T02:00Z,1,2,0.5,1.5,40",
];

#[test]
fn duplicates_need_a_policy() {
    let text = file(&TWICE);
    let error = row_error(&text, &LoadOptions::default());
    assert_eq!((error.problem, error.place), (Problem::Duplicate, Place::Line(4)));
    assert!(error.to_string().contains("line 3 has the same time with other values"), "{error}");

    // Rows that differ are not the same row written twice.
    let options = LoadOptions::default().with_repairs([Repair::DropDuplicates]);
    assert_eq!(row_error(&text, &options).problem, Problem::Duplicate);
    assert_eq!(load_with(&text, &[Repair::KeepFirst]).bars.volume, [10.0, 20.0, 40.0]);
    assert_eq!(load_with(&text, &[Repair::KeepLast]).bars.volume, [10.0, 30.0, 40.0]);

    let equal = file(&[TWICE[0], TWICE[1], TWICE[1], TWICE[1], TWICE[3]]);
    let loaded = load_with(&equal, &[Repair::DropDuplicates]);
    assert_eq!(loaded.bars.volume, [10.0, 20.0, 40.0]);
    let dropped = &loaded.report.repaired.dropped[&Problem::Duplicate];
    assert_eq!((dropped.count, &dropped.examples[..]), (2, &[Place::Line(4), Place::Line(5)][..]));
    let options = LoadOptions::default().with_repairs([Repair::KeepFirst, Repair::KeepLast]);
    assert!(error_text(&text, &options).contains("at most one of"));
}

#[test]
fn duplicates_apart_are_found_by_sorting() {
    let text = file(&[TWICE[1], TWICE[3], TWICE[0], TWICE[2]]);
    let error = row_error(&text, &LoadOptions::default());
    assert_eq!((error.problem, error.place), (Problem::OutOfOrder, Place::Line(4)));
    let sort = LoadOptions::default().with_repairs([Repair::Sort]);
    let error = row_error(&text, &sort);
    assert_eq!((error.problem, error.place), (Problem::Duplicate, Place::Line(5)));
    assert_eq!(load_with(&text, &[Repair::Sort, Repair::KeepFirst]).bars.volume, [10.0, 20.0, 40.0]);
    assert_eq!(load_with(&text, &[Repair::Sort, Repair::KeepLast]).bars.volume, [10.0, 30.0, 40.0]);
}

#[test]
fn newest_first_files_are_sorted_on_request() {
    let text = file(&[TWICE[3], TWICE[1], TWICE[0]]);
    let loaded = load_with(&text, &[Repair::Sort]);
    assert_eq!(loaded.bars.volume, [10.0, 20.0, 40.0]);
    assert!(loaded.report.to_string().contains("2 row(s) stood behind a later one and were sorted"));
}

#[test]
fn zero_volume_is_counted_refused_or_dropped() {
    let text = file(&[
        TWICE[0],
        "2017-01-01T01:00Z,1,2,0.5,1.5,0",
        "2017-01-01T02:00Z,1,2,0.5,1.5,0",
        "2017-01-01T03:00Z,1,2,0.5,1.5,7",
        "2017-01-01T04:00Z,1,2,0.5,1.5,7",
    ]);
    let loaded = load_with(&text, &[]);
    assert_eq!((loaded.report.zero_volume, loaded.bars.len()), (2, 5));
    assert!(loaded.report.to_string().contains("2 bar(s) of zero volume"));
    let options = LoadOptions { zero_volume: ZeroVolume::Error, ..LoadOptions::default() };
    let error = row_error(&text, &options);
    assert_eq!((error.problem, error.place), (Problem::ZeroVolume, Place::Line(3)));
    let options = LoadOptions { zero_volume: ZeroVolume::Drop, ..LoadOptions::default() };
    let loaded = load_bytes("t.csv", text.as_bytes(), &options).unwrap();
    assert_eq!((loaded.bars.len(), loaded.report.repaired.dropped[&Problem::ZeroVolume].count), (3, 2));
    assert_eq!(loaded.calendar.gaps[0].bars, 2, "what is left out is missing");
    // A file without volume has no zero volumes.
    let text = "time,open,high,low,close\n2017-01-01,1,2,0.5,1.5\n2017-01-02,1,2,0.5,1.5\n";
    let options = LoadOptions { zero_volume: ZeroVolume::Error, ..LoadOptions::default() };
    assert!(load_bytes("t.csv", text.as_bytes(), &options).is_ok());
}

#[test]
fn without_repairs_the_report_says_so_and_with_repairs_it_counts() {
    let text = file(&[TWICE[0], "2017-01-01T01:00Z,1,2,0.5,oops,20", TWICE[3]]);
    let error = row_error(&text, &LoadOptions::default());
    let expected =
        "t.csv: line 3, column close: \"oops\" not a number (to go on anyway: repair = drop-bad-rows)";
    assert_eq!(error.to_string(), expected);
    let loaded = load_with(&text, &[Repair::DropBadRows]);
    assert!(loaded.report.to_string().contains("repairs     1 left out, not a number: line 3"));
    let loaded = load_with(&file(&[TWICE[0], TWICE[1]]), &[Repair::Sort, Repair::DropBadRows]);
    assert!(loaded.report.to_string().contains("repairs     none"));
}

#[test]
fn repairs_have_names() {
    for name in ["sort", "drop-duplicates", "keep-first", "keep-last", "drop-bad-rows", "widen-range"] {
        assert_eq!(name.parse::<Repair>().unwrap().to_string(), name);
    }
    let error = "interpolate".parse::<Repair>().unwrap_err().to_string();
    assert!(error.contains("expected one of sort, drop-duplicates"), "{error}");
}
