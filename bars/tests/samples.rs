//! The sample files load as they are, without options.

use std::path::PathBuf;

use bars::{ClosureKind, LoadOptions, Loaded, PrepareOptions, Price, load, prepare, utc_text};

fn sample(name: &str, options: &LoadOptions) -> Loaded {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    load(&folder.join(name), options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_broker_file_of_hourly_currency_bars() {
    let loaded = sample("currency_1h.csv", &LoadOptions::default());
    assert_eq!((loaded.bars.len(), loaded.report.rows), (1500, 1500));
    assert_eq!(utc_text(loaded.bars.time_ms[0]), "2015-01-04 22:00");
    assert!(loaded.calendar.gaps.is_empty());
    assert_eq!(loaded.calendar.closures.len(), 12);
    let report = loaded.report.to_string();
    for text in [
        "CSV, delimiter ',', header, numbers like 1234.5",
        "day-first, no offset: taken as UTC",
        "1 h, 99.2% of the steps",
        "Fri 22:00 UTC for 2 d: 12 times",
        "gaps        none",
        "repairs     none",
    ] {
        assert!(report.contains(text), "{text:?} is not in\n{report}");
    }
    let parquet = sample("currency_1h.parquet", &LoadOptions::default());
    assert_eq!(parquet.bars.time_ms, loaded.bars.time_ms);

    let prepared = prepare(&loaded, &PrepareOptions::default()).unwrap();
    assert_eq!(prepared.fold.train, 70..1050);
    assert_eq!(prepared.fold.test, 1347..1499);
}

#[test]
fn a_portal_file_of_daily_equity_bars() {
    let loaded = sample("equity_1d.csv", &LoadOptions::default());
    assert_eq!(loaded.calendar.interval_ms, 86_400_000);
    assert!(loaded.calendar.gaps.is_empty(), "{:?}", loaded.calendar.gaps);
    let count = |kind| loaded.calendar.closures.iter().filter(|closure| closure.kind == kind).count();
    assert_eq!(
        (count(ClosureKind::Holiday), count(ClosureKind::Extended)),
        (1, 1),
        "a Thursday and a Friday"
    );
    assert!((loaded.calendar.bars_per_year - 260.0).abs() < 3.0);

    let options = LoadOptions { price: Price::Adjusted, ..LoadOptions::default() };
    let adjusted = sample("equity_1d.csv", &options);
    for t in [0, 299, 300, 599] {
        let factor = if t < 300 { 0.98 } else { 1.0 };
        for (raw, scaled) in
            [(&loaded.bars.open, &adjusted.bars.open), (&loaded.bars.close, &adjusted.bars.close)]
        {
            // Six digits behind the point of prices near 500.
            assert!((scaled[t] / raw[t] - factor).abs() < 1e-8);
        }
    }
}
