//! The shared cases on bar files: known ways in which programs go wrong, with what is acceptable.

use bars::{Gaps, LoadOptions, Normaliser, Place, Problem, Repair, load_bytes, read};
use serde_json::Value;

fn folder() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn case(id: &str) -> Value {
    let text = std::fs::read_to_string(folder().join(format!("{id}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn integers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn c50_missing_bars_are_reported_and_split_segments() {
    let expected = &case("C50")["expected"];
    let loaded = load_bytes("C50_gaps.csv", &file("C50_gaps.csv"), &LoadOptions::default()).unwrap();
    assert_eq!(loaded.bars.time_ms, integers(&expected["timestamps_ms"]));
    assert_eq!(loaded.calendar.interval_ms, 60_000);
    let gaps = expected["gaps"].as_array().unwrap();
    assert_eq!(loaded.calendar.gaps.len(), gaps.len());
    for (found, gap) in loaded.calendar.gaps.iter().zip(gaps) {
        assert_eq!(found.after_ms, gap["after"].as_i64().unwrap());
        let missing: Vec<i64> = (1..=found.bars as i64).map(|k| found.after_ms + k * 60_000).collect();
        assert_eq!(missing, integers(&gap["missing"]));
    }
    let lengths: Vec<usize> = loaded.calendar.segments.iter().map(|s| s.end - s.start).collect();
    assert_eq!(lengths, [4, 3, 2]);
    let report = loaded.report.to_string();
    assert!(report.contains("gaps        2 (3 bars missing): 3 segments"), "{report}");
}

#[test]
fn c50_gaps_are_filled_from_the_past_on_request() {
    let options = LoadOptions { gaps: Gaps::Fill(2), ..LoadOptions::default() };
    let loaded = load_bytes("C50_gaps.csv", &file("C50_gaps.csv"), &options).unwrap();
    assert_eq!(loaded.bars.len(), 12);
    assert_eq!(loaded.report.repaired.filled, 3);
    assert!(loaded.calendar.gaps.is_empty());
    for row in case("C50")["expected"]["fill_if_filled"].as_array().unwrap() {
        let row = floats(row);
        let i = loaded.bars.time_ms.iter().position(|t| *t == row[0] as i64).unwrap();
        let bar = loaded.bars.bar(i);
        assert_eq!([bar.open, bar.high, bar.low, bar.close, bar.volume], row[1..]);
    }
    // Only gaps up to the asked length are filled.
    let options = LoadOptions { gaps: Gaps::Fill(1), ..LoadOptions::default() };
    let loaded = load_bytes("C50_gaps.csv", &file("C50_gaps.csv"), &options).unwrap();
    assert_eq!((loaded.bars.len(), loaded.calendar.gaps.len()), (10, 1));
    // And gaps can be made an error, which says where.
    let options = LoadOptions { gaps: Gaps::Error, ..LoadOptions::default() };
    let error = load_bytes("C50_gaps.csv", &file("C50_gaps.csv"), &options).unwrap_err().to_string();
    assert!(error.contains("2 missing bar(s) after 2024-01-02 09:33 (line 5), 2 gap(s)"), "{error}");
}

#[test]
fn c52_non_finite_and_missing_values_are_errors_or_counted() {
    let bytes = file("C52_nonfinite.csv");
    let error = load_bytes("C52_nonfinite.csv", &bytes, &LoadOptions::default()).unwrap_err();
    let row = error.row().unwrap();
    assert_eq!((row.place, row.column.as_str(), row.value.as_str()), (Place::Line(4), "close", "NaN"));
    assert_eq!(row.problem, Problem::Missing);

    let options = LoadOptions::default().with_repairs([Repair::DropBadRows]);
    let (bars, repaired) = read("C52_nonfinite.csv", &bytes, &options).unwrap();
    assert_eq!(bars.time_ms, [0, 1, 4, 9].map(|minute| 1_704_187_800_000 + minute * 60_000));
    assert_eq!(repaired.dropped_rows(), 6);
    assert_eq!(repaired.dropped[&Problem::Missing].count, 4, "NaN, empty, null and n/a");
    assert_eq!(repaired.dropped[&Problem::NotFinite].count, 2, "inf and -Infinity");
    let examples = &repaired.dropped[&Problem::NotFinite].examples;
    assert_eq!(examples[..], [Place::Line(7), Place::Line(9)]);
    assert!(bars.close.iter().chain(&bars.high).chain(&bars.low).all(|x| x.is_finite() && *x > 0.0));

    // The rows left out are gaps, not ordinary steps.
    let loaded =
        load_bytes("C52_nonfinite.csv", &bytes, &LoadOptions { interval_ms: Some(60_000), ..options })
            .unwrap();
    let missing: Vec<u64> = loaded.calendar.gaps.iter().map(|gap| gap.bars).collect();
    assert_eq!(missing, [2, 4]);
}

#[test]
fn c54_offsets_across_a_change_of_clocks() {
    let expected = &case("C54")["expected"];
    let bytes = file("C54_dst_offset.csv");
    let loaded = load_bytes("C54_dst_offset.csv", &bytes, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.bars.time_ms, integers(&expected["epoch_ms_utc"]));
    assert_eq!(loaded.calendar.interval_ms, expected["step_ms"].as_i64().unwrap());
    assert!(loaded.calendar.gaps.is_empty() && loaded.calendar.closures.is_empty());
}

#[test]
fn c56_out_of_order_rows_are_an_error_or_sorted() {
    let expected = &case("C56")["expected"];
    let bytes = file("C56_out_of_order.csv");
    let error = load_bytes("C56_out_of_order.csv", &bytes, &LoadOptions::default()).unwrap_err();
    let row = error.row().unwrap();
    assert_eq!((row.place, row.problem), (Place::Line(5), Problem::OutOfOrder));

    let options = LoadOptions::default().with_repairs([Repair::Sort]);
    let loaded = load_bytes("C56_out_of_order.csv", &bytes, &options).unwrap();
    assert_eq!(loaded.bars.time_ms, integers(&expected["sorted_timestamps_ms"]));
    assert_eq!(loaded.bars.close, floats(&expected["sorted_close"]));
    assert_eq!(loaded.report.repaired.out_of_order, 2);
    assert!(loaded.calendar.gaps.is_empty());
}

#[test]
fn c58_negative_prices_are_refused_with_their_line() {
    let bytes = file("C58_negative.csv");
    let error = load_bytes("C58_negative.csv", &bytes, &LoadOptions::default()).unwrap_err();
    let row = error.row().unwrap();
    assert_eq!((row.place, row.column.as_str()), (Place::Line(3), "low"));
    assert_eq!((row.value.as_str(), row.problem), ("-40.32", Problem::NonPositivePrice));
}

#[test]
fn c60_bom_carriage_returns_and_blank_lines() {
    let expected = &case("C60")["expected"];
    let loaded = load_bytes("C60_bom_crlf.csv", &file("C60_bom_crlf.csv"), &LoadOptions::default()).unwrap();
    assert_eq!(loaded.bars.len() as u64, expected["row_count"].as_u64().unwrap());
    for (i, row) in expected["rows"].as_array().unwrap().iter().enumerate() {
        let (row, bar) = (floats(row), loaded.bars.bar(i));
        assert_eq!(bar.time_ms, row[0] as i64);
        assert_eq!([bar.open, bar.high, bar.low, bar.close, bar.volume], row[1..]);
    }
}

#[test]
fn c62_semicolons_decimal_commas_and_thousands() {
    let expected = &case("C62")["expected"];
    let bytes = file("C62_semicolon.csv");
    // The third row is another instrument's price on purpose: its low is far above the row before, which is
    // nobody's business here.
    let loaded = load_bytes("C62_semicolon.csv", &bytes, &LoadOptions::default()).unwrap();
    for (i, row) in expected["rows"].as_array().unwrap().iter().enumerate() {
        let bar = loaded.bars.bar(i);
        assert!(bars::utc_text(bar.time_ms).starts_with(row[0].as_str().unwrap()));
        let row: Vec<f64> = row.as_array().unwrap()[1..].iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!([bar.open, bar.high, bar.low, bar.close, bar.volume], row[..]);
    }
    // The same when the format is given.
    let options = LoadOptions { numbers: Some("1.234,5".parse().unwrap()), ..LoadOptions::default() };
    assert_eq!(load_bytes("C62_semicolon.csv", &bytes, &options).unwrap().bars, loaded.bars);
    // A format that does not fit is an error, not another number.
    let options = LoadOptions { numbers: Some(bars::NumberFormat::PLAIN), ..LoadOptions::default() };
    let error = load_bytes("C62_semicolon.csv", &bytes, &options).unwrap_err();
    assert_eq!(error.row().unwrap().value, "1,1042");
}

#[test]
fn c64_timestamps_of_every_unit_and_zone_are_the_same_instants() {
    let case = case("C64");
    let expected = &case["expected"];
    let names = case["input"]["files"].as_array().unwrap();
    assert_eq!(names.len(), 6);
    for name in names {
        let name = name.as_str().unwrap();
        let loaded = load_bytes(name, &file(name), &LoadOptions::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(loaded.bars.time_ms, integers(&expected["epoch_ms_in_every_file"]), "{name}");
        assert_eq!(loaded.bars.close, floats(&expected["close"]), "{name}");
    }
}

#[test]
fn c66_inconsistent_and_ragged_rows() {
    let bytes = file("C66_inconsistent.csv");
    let error = load_bytes("C66_inconsistent.csv", &bytes, &LoadOptions::default()).unwrap_err();
    let row = error.row().unwrap();
    assert_eq!((row.place, row.problem), (Place::Line(3), Problem::HighBelowLow));

    let options = LoadOptions::default().with_repairs([Repair::DropBadRows]);
    let (bars, repaired) = read("C66_inconsistent.csv", &bytes, &options).unwrap();
    assert_eq!(bars.len(), 1, "only line 2 is valid");
    let count = |problem| repaired.dropped.get(&problem).map_or(0, |dropped| dropped.count);
    assert_eq!(count(Problem::HighBelowLow), 1);
    assert_eq!(count(Problem::OutsideRange), 2);
    assert_eq!(count(Problem::NegativeVolume), 1);
    assert_eq!(count(Problem::Ragged), 2);

    // One tick outside is repaired when asked, half a percent is not.
    let options = options.with_repairs([Repair::WidenRange]);
    let (bars, repaired) = read("C66_inconsistent.csv", &bytes, &options).unwrap();
    assert_eq!((bars.len(), repaired.widened, bars.high[1]), (2, 1, 101.51));
}

#[test]
fn c76_normaliser_sees_the_training_rows_only() {
    let case = case("C76");
    let x = floats(&case["input"]["x"]);
    let expected = &case["expected"];
    let fit = |x: &[f64]| Normaliser::fit(1, x[..5].chunks_exact(1), 8.0).unwrap();
    let normaliser = fit(&x);
    assert_eq!(normaliser.mean, [expected["mean"].as_f64().unwrap()]);
    assert_eq!(normaliser.std, [expected["std_ddof0"].as_f64().unwrap()]);
    for (x, z) in x.iter().zip(floats(&expected["z_all_rows"])) {
        assert!((normaliser.z(0, *x) - z).abs() <= 1e-6 + 1e-5 * z.abs());
        let mut out = [0.0];
        normaliser.apply(&[*x], &mut out);
        assert_eq!(out[0], z.clamp(-8.0, 8.0) as f32, "clamped to the documented range");
    }
    let mut changed = x.clone();
    changed[5..].fill(1e6);
    assert_eq!(fit(&changed), normaliser);
    let stored = serde_json::to_string(&normaliser).unwrap();
    assert_eq!(serde_json::from_str::<Normaliser>(&stored).unwrap(), normaliser);
}
