//! Damaged files, more than ten thousand of them: an error or what the file says, never a panic, never a silent repair,
//! never more memory than the file is worth.

use std::collections::BTreeSet;

use bars::{
    Bars, FEATURES, FeatureMaker, Gaps, LoadOptions, Loaded, Repair, ZeroVolume, load_bytes,
    load_symbols_bytes, write_parquet,
};
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const BASES: [&str; 3] = [
    "timestamp,open,high,low,close,volume\n2024-01-02T09:30:00Z,100.0,100.24,99.93,100.19,294\n\
     2024-01-02T09:31:00Z,100.19,100.88,100.14,100.86,878\n2024-01-02T09:32:00Z,100.86,101.19,100.84,101.17,650\n\
     2024-01-02T09:33:00Z,101.17,101.22,101.1,101.1,889\n2024-01-02T09:36:00Z,99.93,100.24,99.68,99.76,646\n",
    "Date;Open;High;Low;Close;Volume\r\n13.01.2024;1,1042;1,1046;1,0938;1,0941;120\r\n\
     14.01.2024;1,0942;1,0966;1,0893;1,0921;95\r\n15.01.2024;1.092,10;1.100,00;1.090,50;1.094,75;80\r\n",
    "\u{feff}1704187800000|100|101|99|100\n1704187860000|100|101|99|100\n1704187920000|100|101|99|100\n",
];
const TOKENS: [&str; 24] = [
    "NaN",
    "inf",
    "-1",
    "0",
    "1e999",
    "1e-999",
    "",
    ",",
    ";",
    "\"",
    "\n",
    "\r",
    "\t",
    "|",
    "é",
    "\u{a0}",
    "9999999999999999999",
    "-",
    ".",
    "24:00",
    "99/99/9999",
    "\0",
    "2024-01-02T09:31:00Z",
    "+14:00",
];

/// One change of the bytes.
#[derive(Clone, Debug)]
enum Change {
    Replace(usize, u8),
    Insert(usize, &'static str),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        (any::<usize>(), prop::sample::select(&TOKENS[..])).prop_map(|(at, token)| Change::Insert(at, token)),
        (any::<usize>(), 1..20_usize).prop_map(|(at, n)| Change::Remove(at, n)),
        (any::<usize>(), 1..80_usize).prop_map(|(at, n)| Change::Repeat(at, n)),
    ]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 1..6)
}

/// So few that the file often still loads, with other numbers in it.
fn few_changes() -> impl Strategy<Value = Vec<Change>> {
    let digit = (any::<usize>(), b'0'..=b'9').prop_map(|(at, digit)| Change::Replace(at, digit));
    prop::collection::vec(prop_oneof![digit, change()], 1..3)
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    let length = bytes.len().max(1);
    match *change {
        Change::Replace(at, byte) => {
            if let Some(slot) = bytes.get_mut(at % length) {
                *slot = byte;
            }
        }
        Change::Insert(at, token) => {
            let at = (at % length).min(bytes.len());
            bytes.splice(at..at, token.bytes());
        }
        Change::Remove(at, n) => {
            let at = (at % length).min(bytes.len());
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        Change::Repeat(at, n) => {
            let at = (at % length).min(bytes.len());
            let piece = bytes[at..(at + n).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

fn options() -> impl Strategy<Value = LoadOptions> {
    let repairs = prop::sample::select(vec![
        vec![],
        vec![Repair::DropBadRows],
        vec![Repair::Sort, Repair::KeepLast, Repair::DropBadRows, Repair::WidenRange],
        vec![Repair::Sort, Repair::DropDuplicates],
    ]);
    let gaps = prop::sample::select(vec![Gaps::Split, Gaps::Error, Gaps::Fill(3)]);
    let zero = prop::sample::select(vec![ZeroVolume::Report, ZeroVolume::Error, ZeroVolume::Drop]);
    (repairs, gaps, zero).prop_map(|(repairs, gaps, zero_volume)| LoadOptions {
        repair: BTreeSet::from_iter(repairs),
        gaps,
        zero_volume,
        ..LoadOptions::default()
    })
}

/// What every consumer relies on.
fn check(bars: &Bars) {
    assert!(bars.len() >= 2);
    assert!(bars.time_ms.windows(2).all(|pair| pair[0] < pair[1]));
    for i in 0..bars.len() {
        let bar = bars.bar(i);
        assert!(
            bar.low > 0.0 && bar.high.is_finite() && bar.volume >= 0.0 && bar.volume.is_finite(),
            "{bar:?}"
        );
        assert!(bar.low <= bar.open && bar.open <= bar.high, "{bar:?}");
        assert!(bar.low <= bar.close && bar.close <= bar.high, "{bar:?}");
    }
}

/// Every row is a bar, or was left out as asked for and counted: nothing else becomes of it.
fn accounted(loaded: &Loaded, options: &LoadOptions) {
    let report = &loaded.report;
    let repaired = &report.repaired;
    assert_eq!(report.rows + repaired.filled, report.bars as u64 + repaired.dropped_rows(), "{report}");
    if options.repair.is_empty() {
        let zero = if options.zero_volume == ZeroVolume::Drop { repaired.dropped_rows() } else { 0 };
        assert_eq!((repaired.dropped_rows(), repaired.widened, repaired.out_of_order), (zero, 0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    #[test]
    fn damaged_text_is_an_error_or_valid(
        base in prop::sample::select(&BASES[..]),
        changes in changes(),
        options in options(),
    ) {
        let mut bytes = base.as_bytes().to_vec();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        match load_bytes("t.csv", &bytes, &options) {
            Ok(loaded) => {
                check(&loaded.bars);
                accounted(&loaded, &options);
                let segments = &loaded.calendar.segments;
                prop_assert_eq!((segments[0].start, segments[segments.len() - 1].end), (0, loaded.bars.len()));
                prop_assert!(segments.windows(2).all(|pair| pair[0].end == pair[1].start));
                prop_assert!(loaded.calendar.bars_per_year.is_finite());
                prop_assert!(!loaded.report.to_string().is_empty());
                if loaded.bars.len() >= 8 {
                    let maker = FeatureMaker::new(8, loaded.calendar.interval_ms).unwrap();
                    let features = maker.all(&loaded.bars);
                    prop_assert_eq!(features.len(), loaded.bars.len() * FEATURES);
                    prop_assert!(features.iter().all(|x| x.is_finite()));
                }
            }
            Err(error) => prop_assert!(error.to_string().len() > 8),
        }
    }
}

fn parquet() -> Vec<u8> {
    let bars = bars::Synthetic { seed: 1, bars: 50, kind: Default::default() }.generate().unwrap();
    let mut bytes = Vec::new();
    write_parquet("t.parquet", &bars, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn damaged_parquet_is_an_error_or_valid(changes in changes(), options in options()) {
        let mut bytes = parquet();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        // The first bytes say that it is Parquet; without them it is taken for text, which is tested above.
        bytes.splice(..bytes.len().min(4), *b"PAR1");
        match load_bytes("t.parquet", &bytes, &options) {
            Ok(loaded) => {
                check(&loaded.bars);
                accounted(&loaded, &options);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("t.parquet")),
        }
    }

    #[test]
    fn damaged_files_of_several_symbols_are_errors_or_valid(changes in changes(), options in options()) {
        let mut bytes = SYMBOLS.as_bytes().to_vec();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        let options = LoadOptions { symbol_column: Some("symbol".into()), ..options };
        match load_symbols_bytes("t.csv", &bytes, &options) {
            Ok(symbols) => for symbol in symbols {
                prop_assert!(!symbol.name.is_empty() && symbol.name.len() <= 64);
                check(&symbol.loaded.bars);
                accounted(&symbol.loaded, &options);
            },
            Err(error) => prop_assert!(error.to_string().len() > 8),
        }
    }
}

const SYMBOLS: &str = "symbol,timestamp,open,high,low,close,volume\n\
     A,2024-01-02T09:30:00Z,100.0,100.24,99.93,100.19,294\nB,2024-01-02T09:30:00Z,10.0,10.24,9.93,10.19,29\n\
     A,2024-01-02T09:31:00Z,100.19,100.88,100.14,100.86,878\nB,2024-01-02T09:31:00Z,10.19,10.88,10.14,10.86,87\n\
     A,2024-01-02T09:32:00Z,100.86,101.19,100.84,101.17,650\nB,2024-01-02T09:32:00Z,10.86,11.19,10.84,11.17,65\n";

/// Bars as a few lines of code read them that know nothing of the reader: the text's lines, cut at the delimiter. None for
/// a text that these lines cannot read.
fn plainly(text: &str, delimiter: char) -> Option<Vec<(String, [f64; 5])>> {
    let mut lines =
        text.trim_start_matches('\u{feff}').split(['\n', '\r']).filter(|line| !line.trim().is_empty());
    if lines.next()? != "timestamp,open,high,low,close,volume" || delimiter != ',' || text.contains('"') {
        return None;
    }
    let number = |field: &str| {
        let plain: String = field.trim().chars().filter(|c| !"' \u{a0}\u{202f}".contains(*c)).collect();
        plain.parse().unwrap_or(f64::NAN)
    };
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let [time, open, high, low, close, volume] = fields[..] else { return None };
            Some((time.trim().to_owned(), [open, high, low, close, volume].map(number)))
        })
        .collect()
}

#[test]
fn what_loads_is_what_the_text_says() {
    let config = ProptestConfig { cases: 2500, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let compared = std::cell::Cell::new(0);
    let run = |changes: Vec<Change>| {
        let mut bytes = BASES[0].as_bytes().to_vec();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        let Ok(loaded) = load_bytes("t.csv", &bytes, &LoadOptions::default()) else { return Ok(()) };
        let text = String::from_utf8_lossy(&bytes);
        let Some(rows) = plainly(&text, ',') else { return Ok(()) };
        prop_assert_eq!(rows.len(), loaded.bars.len(), "{}", text);
        for (i, (time, values)) in rows.iter().enumerate() {
            let bar = loaded.bars.bar(i);
            prop_assert_eq!([bar.open, bar.high, bar.low, bar.close, bar.volume], *values, "{}", text);
            let minute = bars::utc_text(bar.time_ms).replace(' ', "T");
            if time.len() == 20 {
                prop_assert!(time.starts_with(&minute), "{} became {}", time, minute);
            }
        }
        compared.set(compared.get() + 1);
        Ok(())
    };
    runner.run(&few_changes(), run).unwrap();
    assert!(compared.get() > 50, "{} damaged files were compared", compared.get());
}

/// A Parquet file of 50 rows whose footer claims another number of them.
fn claiming(rows: i64) -> Vec<u8> {
    let bytes = parquet();
    let metadata =
        ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::copy_from_slice(&bytes)).unwrap();
    let file = metadata.file_metadata();
    let file = FileMetaData::new(
        file.version(),
        rows,
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    let groups = metadata.row_groups().iter();
    let groups = groups.map(|group| group.clone().into_builder().set_num_rows(rows).build().unwrap());
    let claim = ParquetMetaData::new(file, groups.collect());
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let mut bytes = bytes[..bytes.len() - 8 - footer].to_vec();
    ParquetMetaDataWriter::new(&mut bytes, &claim).finish().unwrap();
    bytes
}

#[test]
fn rows_that_a_header_claims_are_not_believed() {
    assert_eq!(load_bytes("t.parquet", &claiming(50), &LoadOptions::default()).unwrap().bars.len(), 50);
    // One row less would be a row lost in silence.
    for rows in [1_000_000_000_000, i64::MAX, 20_000_000, 51, 49, 0, -1] {
        let error = load_bytes("t.parquet", &claiming(rows), &LoadOptions::default()).unwrap_err();
        assert!(error.to_string().starts_with("t.parquet: "), "{rows}: {error}");
    }
}
