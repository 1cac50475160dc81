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

#[test]
fn prices_out_of_all_proportion_are_refused_with_their_place() {
    let far = [
        TWICE[0],
        "2017-01-01T01:00Z,1e20,2e20,1e20,1.5e20,10",
        "2017-01-01T02:00Z,1,2,0.5,1.0,10",
        "2017-01-01T03:00Z,1,2,0.5,1.0,10",
    ];
    let error = row_error(&file(&far), &LoadOptions::default());
    assert_eq!((error.problem, error.place, error.column.as_str()), (Problem::Jump, Place::Line(3), "open"));
    let text = error.to_string();
    assert!(
        text.contains("price jumps: the close before is 1.5 (line 2)") && text.contains("drop-bad-rows"),
        "{text}"
    );
    // One bar, by itself.
    let wide = [TWICE[0], "2017-01-01T01:00Z,1,2,1e-20,1.5,10", TWICE[3]];
    let error = row_error(&file(&wide), &LoadOptions::default());
    assert_eq!((error.problem, error.column.as_str()), (Problem::Jump, "low"));
    let first = ["2017-01-01T00:00Z,1,2,1e-20,1.5,10", TWICE[3]];
    assert_eq!(row_error(&file(&first), &LoadOptions::default()).problem, Problem::Jump);
    // What is left out is not what the next bar is compared with, be the rows in order or not.
    for (rows, repairs) in [
        (far, &[Repair::DropBadRows][..]),
        ([far[3], far[1], far[0], far[2]], &[Repair::DropBadRows, Repair::Sort]),
    ] {
        let loaded = load_with(&file(&rows), repairs);
        assert_eq!(loaded.bars.close, [1.5, 1.0, 1.0]);
        assert_eq!(loaded.report.repaired.dropped[&Problem::Jump].count, 1);
    }
    // A split of one for a thousand is no jump.
    load_with(&file(&[TWICE[0], "2017-01-01T01:00Z,1000,2000,1000,1500,10", TWICE[3]]), &[]);
}

#[test]
fn rows_of_several_symbols_hint_at_the_column_that_tells_them_apart() {
    let rows = |column: &str| {
        format!(
            "time,{column},open,high,low,close\n2017-01-01T00:00Z,A,1,2,1,2\n2017-01-01T00:00Z,B,1,2,1,2\n\
             2017-01-01T01:00Z,A,1,2,1,2\n2017-01-01T01:00Z,B,1,2,1,2\n"
        )
    };
    for column in ["ticker", "Symbol", "what"] {
        let error = row_error(&rows(column), &LoadOptions::default());
        let hint = format!("if column {column} says which symbol a row belongs to: --symbol-column {column}");
        assert!(error.problem == Problem::Duplicate && error.detail.contains(&hint), "{error}");
    }
    // A column of numbers tells nothing, and neither does one that is used already.
    let numbers = rows("spread").replace(",A,", ",1,").replace(",B,", ",2,");
    assert!(!row_error(&numbers, &LoadOptions::default()).to_string().contains("symbol"));
}

#[test]
fn names_with_control_characters_are_refused() {
    let options = LoadOptions { symbol_column: Some("ticker".into()), ..LoadOptions::default() };
    let text = "time,ticker,open,high,low,close\n2017-01-01T00:00Z,A\u{1b}[2J,1,2,1,2\n2017-01-01T01:00Z,A,1,2,1,2\n";
    let error = bars::load_symbols_bytes("t.csv", text.as_bytes(), &options).unwrap_err();
    let row = error.row().expect("a row");
    assert_eq!(
        (row.problem, row.place, row.column.as_str()),
        (Problem::OutOfRange, Place::Line(2), "ticker")
    );
    assert!(
        !error.to_string().contains('\u{1b}') && error.to_string().contains("no control character"),
        "{error}"
    );

    let text = file(&[TWICE[0], TWICE[1], TWICE[3]]);
    let error =
        load_bytes("a\u{1b}[2J.csv", text.as_bytes(), &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("a\\u{1b}[2J.csv: ") && error.contains("rename the file"), "{error}");
}
