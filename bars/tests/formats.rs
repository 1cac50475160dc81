//! Delimiters, headers, number and timestamp formats of text files.

use bars::{LoadOptions, Price, Problem, TimeFormat, load_bytes, utc_text};

use crate::{error_text, load_text, row_error};

/// 2017-02-01 22:00 UTC.
const T0: i64 = 1_485_986_400_000;

/// Two bars whose timestamps are written as given; returns the times read.
fn times_of(first: &str, second: &str) -> Vec<i64> {
    let text = format!("time;open;high;low;close\n{first};1;2;0.5;1.5\n{second};1;2;0.5;1.5\n");
    load_text(&text).unwrap_or_else(|error| panic!("{error}")).bars.time_ms
}

#[test]
fn timestamps_that_speak_for_themselves() {
    // Each pair is T0 and an hour later; the second decides the order of day and month where needed.
    let pairs = [
        ("2017-02-01T22:00:00Z", "2017-02-01T23:00:00Z"),
        ("2017-02-01 22:00", "2017-02-01 23:00"),
        ("2017-02-01t22:00:00.000z", "2017-02-01t23:00:00.000z"),
        ("2017-02-02T00:00:00+02:00", "2017-02-02T01:00:00+02:00"),
        ("2017-02-01 17:00:00-0500", "2017-02-01 18:00:00-0500"),
        ("2017/02/01 22:00:00,000", "2017/02/01 23:00:00,000"),
        ("2017.02.01 22:00", "2017.02.01 23:00"),
        ("20170201 220000", "20170201 230000"),
        ("20170201220000", "20170201230000"),
        ("1 Feb 2017 22:00", "1 Feb 2017 23:00"),
        ("01-Feb-17 22:00", "01-Feb-17 23:00"),
        ("Feb 1, 2017 10:00 PM", "Feb 1, 2017 11:00 PM"),
        ("01. February 2017 22:00", "01. February 2017 23:00"),
        ("1485986400", "1485990000"),
        ("1485986400.0", "1485990000.0"),
        ("1485986400000", "1485990000000"),
        ("1485986400000000", "1485990000000000"),
        ("1485986400000000000", "1485990000000000000"),
    ];
    for (first, second) in pairs {
        assert_eq!(times_of(first, second), [T0, T0 + 3_600_000], "{first}");
    }
}

#[test]
fn one_row_decides_the_order_for_the_whole_file() {
    // 13 cannot be a month, so 01/02 before it is the first of February.
    let times = times_of("01/02/2017 22:00", "13/02/2017 22:00");
    assert_eq!(times, [T0, T0 + 12 * 86_400_000]);
    let times = times_of("02/01/2017 22:00", "02/13/2017 22:00");
    assert_eq!(times, [T0, T0 + 12 * 86_400_000]);
    let times = times_of("01.02.2017 22:00:00.000 GMT+0100", "13.02.2017 22:00:00.000 GMT+0100");
    assert_eq!(times[0], T0 - 3_600_000);
}

#[test]
fn an_order_that_no_row_decides_needs_an_option() {
    let text = "time,open,high,low,close\n01/02/2017,1,2,0.5,1.5\n02/02/2017,1,2,0.5,1.5\n";
    let error = error_text(text, &LoadOptions::default());
    assert!(error.contains("day-first") && error.contains("month-first"), "{error}");
    assert!(error.contains("\"01/02/2017\" in line 2"), "{error}");
    let with = |format: &str| {
        let options = LoadOptions { time_format: Some(format.parse().unwrap()), ..LoadOptions::default() };
        load_bytes("t.csv", text.as_bytes(), &options).unwrap().bars.time_ms
    };
    assert_eq!(utc_text(with("day-first")[1]), "2017-02-02 00:00");
    assert_eq!(utc_text(with("day-first")[0]), "2017-02-01 00:00");
    assert_eq!(utc_text(with("month-first")[0]), "2017-01-02 00:00");
    assert_eq!(with("%m/%d/%Y"), with("month-first"));
    // 201701022200 is a minute or a count of milliseconds.
    let text = "time,open,high,low,close\n201701022200,1,2,0.5,1.5\n201701022300,1,2,0.5,1.5\n";
    assert!(error_text(text, &LoadOptions::default()).contains("epoch-ms"));
    // Days that are equal in both readings are no ambiguity.
    assert_eq!(times_of("02/02/2017 01:00", "02/02/2017 02:00")[0], 1_485_997_200_000);
}

#[test]
fn mixed_timestamp_formats_are_refused_with_both_lines() {
    let text = "time,open,high,low,close\n13/02/2017,1,2,0.5,1.5\n02/14/2017,1,2,0.5,1.5\n";
    let error = error_text(text, &LoadOptions::default());
    assert!(error.contains("line 3") && error.contains("\"13/02/2017\" in line 2"), "{error}");
    // With the format given, the other row is a bad row with its line.
    let options = LoadOptions { time_format: Some("day-first".parse().unwrap()), ..LoadOptions::default() };
    let error = row_error(text, &options);
    assert_eq!((error.problem, error.place.to_string().as_str()), (Problem::Timestamp, "line 3"));
    // A mixture of times with and without offset cannot be put on one clock.
    let text = "time,open,high,low,close\n2017-02-13 00:00,1,2,0.5,1.5\n2017-02-13 01:00Z,1,2,0.5,1.5\n";
    let error = row_error(text, &LoadOptions::default());
    assert!(error.detail.contains("earlier rows have none"), "{error}");
}

#[test]
fn impossible_timestamps_are_bad_rows() {
    for bad in
        ["2017-02-30", "2017-02-01 25:00", "2017-02-01 22:60", "tomorrow", "2017-02-01 22:00 Mars", "1-2"]
    {
        let text = format!("time,open,high,low,close\n2017-01-31,1,2,0.5,1.5\n{bad},1,2,0.5,1.5\n");
        let error = row_error(&text, &LoadOptions::default());
        assert_eq!((error.problem, error.value.as_str()), (Problem::Timestamp, bad));
    }
    let text = "time,open,high,low,close\nsoon,1,2,0.5,1.5\nlater,1,2,0.5,1.5\n";
    assert!(error_text(text, &LoadOptions::default()).contains("give time_format"));
}

#[test]
fn a_pattern_is_taken_literally() {
    let text = "time,open,high,low,close\n22h01.02.17,1,2,0.5,1.5\n23h01.02.17,1,2,0.5,1.5\n";
    let format = |text: &str| Some(text.parse::<TimeFormat>().unwrap());
    let options = LoadOptions { time_format: format("%Hh%d.%m.%y"), ..LoadOptions::default() };
    // A pattern without minutes: the hour alone gives a time of day.
    let loaded = load_bytes("t.csv", text.as_bytes(), &options).unwrap();
    assert_eq!(loaded.bars.time_ms, [T0, T0 + 3_600_000]);
    let options = LoadOptions { time_format: format("%d.%m.%Y"), ..LoadOptions::default() };
    assert_eq!(row_error(text, &options).problem, Problem::Timestamp);
    assert!("noon".parse::<TimeFormat>().is_err());
}

#[test]
fn delimiters_and_headers() {
    let rows = [["2017-02-01", "1.5", "2", "0.5", "1", "7"], ["2017-02-02", "1.25", "2", "0.5", "1", "8"]];
    for delimiter in [",", ";", "\t", "|"] {
        for header in
            ["", "Date,Open,High,Low,Close,Volume\n", "\"<DATE>\",OPEN,HIGH,LOW,CLOSE,\"<TICKVOL>\"\n"]
        {
            let mut text = header.replace(',', delimiter);
            for row in rows {
                text += &(row.join(delimiter) + "\n");
            }
            let loaded = load_text(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(loaded.bars.open, [1.5, 1.25], "{text}");
            assert_eq!(loaded.bars.volume, [7.0, 8.0], "{text}");
        }
    }
    // Any other delimiter by option.
    let text = "2017-02-01^1^2^0.5^1\n2017-02-02^1^2^0.5^1\n";
    assert!(error_text(text, &LoadOptions::default()).contains("give delimiter"));
    let options = LoadOptions { delimiter: Some('^'), ..LoadOptions::default() };
    assert!(!load_bytes("t.csv", text.as_bytes(), &options).unwrap().bars.has_volume);
}

#[test]
fn date_and_time_in_two_columns() {
    let text = "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\n\
                2017.02.01\t22:00:00\t1\t2\t0.5\t1\n2017.02.01\t23:00:00\t1\t2\t0.5\t1\n";
    assert_eq!(load_text(text).unwrap().bars.time_ms, [T0, T0 + 3_600_000]);
    // Without header too.
    let text = "20170201,22:00,1,2,0.5,1\n20170201,23:00,1,2,0.5,1\n";
    assert_eq!(load_text(text).unwrap().bars.time_ms, [T0, T0 + 3_600_000]);
}

#[test]
fn columns_in_any_order_among_others_and_by_option() {
    let text = "symbol,Close,Low,High,Open,Trades,Open Time\nX,1,0.5,2,1.5,3,2017-02-01\nX,1,0.5,2,1.5,3,2017-02-02\n";
    let loaded = load_text(text).unwrap();
    assert_eq!((loaded.bars.open[0], loaded.bars.close[0]), (1.5, 1.0));
    assert!(loaded.report.to_string().contains("2 column(s): symbol, Trades"));

    let text = "2017-02-01,1.5,2,0.5,1,0,0,0\n2017-02-02,1.5,2,0.5,1,0,0,0\n";
    assert!(error_text(text, &LoadOptions::default()).contains("columns = "));
    let names = ["time", "open", "high", "low", "close", "-", "-", "volume"];
    let options = LoadOptions { columns: Some(names.map(str::to_owned).to_vec()), ..LoadOptions::default() };
    assert_eq!(load_bytes("t.csv", text.as_bytes(), &options).unwrap().bars.close, [1.0, 1.0]);
    let options = LoadOptions { columns: Some(vec!["time".into()]), ..LoadOptions::default() };
    assert!(error_text(text, &options).contains("8 fields"));

    let missing = "time,open,high,close\n2017-02-01,1,2,1,\n2017-02-01,1,2,1,\n";
    assert!(error_text(missing, &LoadOptions::default()).contains("no Low column"));
    let twice = "time,open,high,low,close,Close\n2017-02-01,1,2,1,1,1\n";
    assert!(error_text(twice, &LoadOptions::default()).contains("\"close\" and \"Close\""));
    let clocks = "unix,date,open,high,low,close\n1485986400,2017-02-01,1,2,1,1\n";
    assert!(error_text(clocks, &LoadOptions::default()).contains("\"unix\" and \"date\""));
}

#[test]
fn number_formats_are_found_over_the_whole_file() {
    let open_of = |rows: [&str; 2], delimiter: char| {
        let text = format!(
            "time{d}open{d}high{d}low{d}close\n2017-02-01{d}{}{d}\"9.999\"{d}1{d}1\n2017-02-02{d}{}{d}\"9.999\"{d}1{d}1\n",
            rows[0],
            rows[1],
            d = delimiter
        );
        load_text(&text).map(|loaded| loaded.bars.open)
    };
    // 9.999 is a point or thousands; the other numbers decide.
    assert_eq!(open_of(["1.5", "2.25"], ';').unwrap(), [1.5, 2.25]);
    assert_eq!(open_of(["1,5", "2,25"], ';').unwrap(), [1.5, 2.25]);
    assert_eq!(
        open_of(["\"1,500.25\"", "2.25"], ';').unwrap_err().row().unwrap().problem,
        Problem::OutsideRange
    );
    assert_eq!(open_of(["2", "3"], ',').unwrap(), [2.0, 3.0]);
    // Nothing decides, and the delimiter suggests commas: refused.
    let error = open_of(["2", "3"], ';').unwrap_err().to_string();
    assert!(error.contains("two ways") && error.contains("\"9.999\""), "{error}");
    // A contradiction names both lines.
    let error = open_of(["1.5", "2,5"], ';').unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("line 2"), "{error}");
}

#[test]
fn thousands_marks_must_separate_threes() {
    let loaded = load_text(
        "time;open;high;low;close;volume\n2017-02-01;1 234,5;1 300,0;1 200,0;1 234,5;12 345 678\n\
         2017-02-02;1'234,5;1300,0;1200,0;1234,5;12\n",
    );
    assert!(loaded.unwrap_err().to_string().contains("another number format"));
    let text = "time;open;high;low;close;volume\n2017-02-01;1\u{a0}234,5;1300,0;1200,0;1234,5;12 345 678\n\
                2017-02-02;1234,5;1300,0;1200,0;1234,5;12\n";
    let loaded = load_text(text).unwrap();
    assert_eq!((loaded.bars.open[0], loaded.bars.volume[0]), (1234.5, 12_345_678.0));
    let text = "time,open,high,low,close\n2017-02-01,\"1,23.5\",2,0.5,1.5\n2017-02-02,1.5,2,0.5,1.5\n";
    assert_eq!(row_error(text, &LoadOptions::default()).problem, Problem::NotANumber);
    let text = "time,open,high,low,close\n2017-02-01,1e999,2,0.5,1.5\n2017-02-02,1.5,2,0.5,1.5\n";
    assert_eq!(row_error(text, &LoadOptions::default()).problem, Problem::NotFinite);
    let text = "time,open,high,low,close\n2017-02-01,1e29,1e31,0.5,1.5\n2017-02-02,1.5,2,0.5,1.5\n";
    assert_eq!(row_error(text, &LoadOptions::default()).problem, Problem::OutOfRange);
}

#[test]
fn adjusted_prices_scale_all_four() {
    let text =
        "Date,Open,High,Low,Close,Adj Close,Volume\n2017-02-01,10,12,8,10,5,100\n2017-02-02,5,6,4,5,5,100\n";
    let raw = load_text(text).unwrap();
    assert_eq!(raw.bars.open, [10.0, 5.0]);
    let options = LoadOptions { price: Price::Adjusted, ..LoadOptions::default() };
    let adjusted = load_bytes("t.csv", text.as_bytes(), &options).unwrap().bars;
    assert_eq!(
        (adjusted.open[0], adjusted.high[0], adjusted.low[0], adjusted.close[0]),
        (5.0, 6.0, 4.0, 5.0)
    );
    assert_eq!((adjusted.open[1], adjusted.volume[0]), (5.0, 100.0));
    let text = "Date,Open,High,Low,Close\n2017-02-01,10,12,8,10\n2017-02-02,5,6,4,5\n";
    assert!(error_text(text, &options).contains("Adj Close"));
    let text = "Date,Open,High,Low,Close,Adj Close\n2017-02-01,10,12,8,10,0\n2017-02-02,5,6,4,5,5\n";
    assert_eq!(row_error(text, &options).column, "adj_close");
    assert!(load_text(text).is_ok(), "an unused column may hold anything");
}

#[test]
fn files_that_are_no_bar_files() {
    let refuse = |bytes: &[u8]| load_bytes("t.csv", bytes, &LoadOptions::default()).unwrap_err().to_string();
    assert!(refuse(b"").contains("empty"));
    assert!(refuse(b"\xef\xbb\xbf\r\n\r\n").contains("empty"));
    assert!(refuse(b"\xff\xfet\0i\0").contains("UTF-16"));
    assert!(refuse(b"\x1f\x8b\x08").contains("gzip"));
    assert!(refuse(b"time,open\0").contains("zero bytes"));
    assert!(refuse(b"time,open,high,low,close\n").contains("no data rows"));
    assert!(refuse(b"time,open,high,low,close\n2017-02-01,1,2,1,1\n").contains("1 usable bar(s)"));
    let missing = bars::load(std::path::Path::new("no/such/file.csv"), &LoadOptions::default());
    assert!(missing.unwrap_err().to_string().contains("no/such/file.csv"));
    let folder = bars::load(std::path::Path::new(env!("CARGO_MANIFEST_DIR")), &LoadOptions::default());
    assert!(folder.unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn an_endless_record_is_refused_before_it_fills_the_memory() {
    let mut text = "time,open,high,low,close\n2017-02-01,1,2,0.5,1.5\n2017-02-02,\"".to_owned();
    text += &"1,2,0.5\n".repeat(1 << 18);
    let error = error_text(&text, &LoadOptions::default());
    assert!(error.contains("longer than") && error.contains("unclosed quote"), "{error}");
}

#[test]
fn rows_and_skipped_lines_are_counted_as_an_editor_does() {
    let text = "# made by somebody\n\ntime,open,high,low,close\r\n2017-02-01,1,2,0.5,1.5\r\n\r\n2017-02-02,1,2,0.5,x\r\n";
    let options = LoadOptions { skip_lines: 1, ..LoadOptions::default() };
    assert_eq!(row_error(text, &options).place.to_string(), "line 6");
    let options = LoadOptions { max_rows: 2, ..LoadOptions::default() };
    let text = "time,open,high,low,close\n1,1,1,1,1\n".to_owned() + &"2017-02-01,1,1,1,1\n".repeat(3);
    let options = options.with_repairs([bars::Repair::DropBadRows, bars::Repair::KeepFirst]);
    assert!(error_text(&text, &options).contains("more than 2 rows"));
}
