//! Damaged files: an error or valid bars, never a panic.

use std::collections::BTreeSet;

use bars::{Bars, FEATURES, FeatureMaker, Gaps, LoadOptions, Repair, ZeroVolume, load_bytes, write_parquet};
use proptest::prelude::*;

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

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Replace(at, byte)),
        (any::<usize>(), prop::sample::select(&TOKENS[..])).prop_map(|(at, token)| Change::Insert(at, token)),
        (any::<usize>(), 1..20_usize).prop_map(|(at, n)| Change::Remove(at, n)),
        (any::<usize>(), 1..80_usize).prop_map(|(at, n)| Change::Repeat(at, n)),
    ];
    prop::collection::vec(change, 1..6)
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

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
            Ok(loaded) => check(&loaded.bars),
            Err(error) => prop_assert!(error.to_string().starts_with("t.parquet")),
        }
    }
}
