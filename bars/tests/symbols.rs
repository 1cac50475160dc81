//! Several symbols: files of many, the same splits by time, folds, and what is fitted on which of them.

use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int32Type;
use bars::split::split;
use bars::symbols::{hold_out, time_line};
use bars::{
    Bars, FEATURES, FeatureMaker, Fold, FoldOptions, LoadOptions, Loaded, Normaliser, PrepareOptions,
    Problem, Reach, Repair, SplitOptions, Symbol, Synthetic, from_bars, load_bytes, load_symbols_bytes,
    prepare_symbols, split_symbols, walk_forward,
};
use proptest::prelude::*;

const REACH: Reach = Reach { lookback: 12, window: 4, n_step: 3 };

/// A symbol of the synthetic market's bars from `first` on, without every bar whose number `skip` picks.
fn symbol(name: &str, seed: u64, bars: std::ops::Range<usize>, skip: impl Fn(usize) -> bool) -> Symbol {
    let made = Synthetic { seed, bars: bars.end, kind: Default::default() }.generate().unwrap();
    let mut kept = Bars { has_volume: true, ..Bars::default() };
    bars.filter(|&i| !skip(i)).for_each(|i| kept.push(made.bar(i)));
    Symbol { name: name.into(), loaded: from_bars(name, kept, &LoadOptions::default()).unwrap() }
}

fn times(symbol: &Symbol) -> &[i64] {
    &symbol.loaded.bars.time_ms
}

/// Times that the decisions of a range read: the first bar of the first state and the last bar of the last label.
fn reads(symbol: &Symbol, range: &std::ops::Range<usize>) -> (i64, i64) {
    let times = times(symbol);
    let last = (range.end - 1 + REACH.n_step).min(times.len() - 1);
    (times[range.start - REACH.back()], times[last])
}

/// No symbol's earlier part reads a time that any symbol's later part reads.
fn apart(symbols: &[Symbol], folds: &[Fold]) {
    for (a, fold) in symbols.iter().zip(folds) {
        for (b, other) in symbols.iter().zip(folds) {
            for (earlier, later) in [(&fold.train, &other.validation), (&fold.validation, &other.test)] {
                assert!(
                    reads(a, earlier).1 < reads(b, later).0,
                    "{} {earlier:?}, {} {later:?}",
                    a.name,
                    b.name
                );
            }
        }
    }
}

#[test]
fn one_symbol_is_split_as_one_file() {
    for (bars, train, validation, embargo) in
        [(400, 0.7, 0.15, 0), (413, 0.5, 0.2, 7), (1000, 0.33, 0.33, 1), (777, 0.61, 0.13, 20)]
    {
        let symbols = [symbol("a", 3, 0..bars, |_| false)];
        let options = SplitOptions { train, validation, embargo };
        let expected = split(bars, &symbols[0].loaded.calendar.segments, REACH, &options).unwrap();
        assert_eq!(split_symbols(&symbols, REACH, &options).unwrap(), [expected]);
    }
}

#[test]
fn symbols_are_split_at_the_same_times() {
    // The second begins later and lacks half of its bars in places, the third ends earlier.
    let symbols = [
        symbol("a", 1, 0..900, |_| false),
        symbol("b", 2, 90..900, |i| (300..420).contains(&i) && i % 3 == 0),
        symbol("c", 3, 0..860, |i| i == 500),
    ];
    let options = SplitOptions { train: 0.5, validation: 0.25, embargo: 2 };
    let folds = split_symbols(&symbols, REACH, &options).unwrap();
    let line = time_line(&symbols);
    assert_eq!(line.len(), 900);
    for (symbol, fold) in symbols.iter().zip(&folds) {
        for (end, cut) in [(fold.train.end, 450), (fold.validation.end, 675)] {
            assert!(times(symbol)[end - 1] < line[cut] && line[cut] <= times(symbol)[end], "{}", symbol.name);
        }
        // The symbols' own bars between the parts are the purge and the embargo at least.
        assert!(fold.validation.start - fold.train.end >= REACH.purge() + 2);
        assert!(fold.test.start - fold.validation.end >= REACH.purge() + 2);
        assert_eq!(fold.test.end, times(symbol).len() - 1);
    }
    assert_eq!(folds[0].validation.start - folds[0].train.end, REACH.purge() + 2);
    apart(&symbols, &folds);
}

fn options(count: usize, rolling: bool, embargo: usize) -> FoldOptions {
    FoldOptions { count, rolling, train: 0.3, validation: 0.1, embargo }
}

#[test]
fn folds_walk_over_the_rest_of_the_bars_without_a_gap() {
    let symbols = [symbol("a", 5, 0..1000, |_| false)];
    let g = REACH.purge() + 4;
    for rolling in [false, true] {
        let folds = walk_forward(&symbols, REACH, &options(4, rolling, 4)).unwrap();
        assert_eq!(folds.len(), 4);
        for (i, fold) in folds.iter().enumerate() {
            let Fold { train, validation, test } = &fold[0];
            let end = if i == 3 { 999 } else { 400 + 150 * (i + 1) };
            assert_eq!(*test, 400 + 150 * i..end);
            assert_eq!(*validation, test.start - 100..test.start - g);
            // The first fold has no more bars before its training part than the lookback of its first state.
            let begin = if rolling { (validation.start - 300).max(REACH.back()) } else { REACH.back() };
            assert_eq!(*train, begin..validation.start - g);
        }
    }
}

#[test]
fn folds_of_several_symbols_see_nothing_of_each_others_future() {
    let symbols = [
        symbol("a", 1, 0..1200, |i| (640..655).contains(&i) || i == 800),
        symbol("b", 2, 0..1150, |i| (700..707).contains(&i)),
    ];
    for rolling in [false, true] {
        let folds = walk_forward(&symbols, REACH, &options(3, rolling, 0)).unwrap();
        for fold in &folds {
            apart(&symbols, fold);
        }
        for pair in folds.windows(2) {
            assert_eq!(pair[0].len(), symbols.len());
            for (before, after) in pair[0].iter().zip(pair[1].iter()) {
                assert_eq!(before.test.end, after.test.start, "no bar between two test parts");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_symbols_are_apart(
        seed in any::<u64>(),
        holes in prop::collection::vec((0..2_usize, 0..900_usize, 1..60_usize), 0..6),
        starts in (0..100_usize, 0..100_usize),
        embargo in 0..5_usize,
        rolling in any::<bool>(),
    ) {
        let hole = |s: usize| {
            let holes = holes.clone();
            move |i: usize| holes.iter().any(|&(of, at, n)| of == s && (at..at + n).contains(&i))
        };
        let symbols = [
            symbol("a", seed, starts.0..1000, hole(0)),
            symbol("b", seed ^ 1, starts.1..1000, hole(1)),
        ];
        let split = SplitOptions { train: 0.5, validation: 0.25, embargo };
        if let Ok(folds) = split_symbols(&symbols, REACH, &split) {
            apart(&symbols, &folds);
        }
        if let Ok(folds) = walk_forward(&symbols, REACH, &options(2, rolling, embargo)) {
            folds.iter().for_each(|fold| apart(&symbols, fold));
        }
    }
}

#[test]
fn what_cannot_be_divided_is_named() {
    let a = symbol("a", 1, 0..500, |_| false);
    let error =
        |symbols: &[Symbol]| split_symbols(symbols, REACH, &SplitOptions::default()).unwrap_err().to_string();
    assert!(error(&[]).contains("no symbol"));
    assert_eq!(error(&[a.clone(), a.clone()]), "a: symbol \"a\" is also that of a");
    let late = symbol("late", 2, 480..500, |_| false);
    let text = error(&[a.clone(), late]);
    assert!(text.starts_with("symbol late: the train part is too short"), "{text}");
    let mut daily = Bars { has_volume: false, ..Bars::default() };
    for i in 0..200 {
        let bar = a.loaded.bars.bar(i);
        daily.push(bars::Bar { time_ms: i as i64 * 86_400_000, ..bar });
    }
    let daily =
        Symbol { name: "daily".into(), loaded: from_bars("daily", daily, &LoadOptions::default()).unwrap() };
    assert!(error(&[a.clone(), daily]).contains("daily: bars of 86400000 ms, but a has bars of 3600000 ms"));

    let folds = |options: &FoldOptions| {
        walk_forward(std::slice::from_ref(&a), REACH, options).unwrap_err().to_string()
    };
    let text = folds(&options(40, false, 0));
    assert!(text.starts_with("fold 1 of 40: the test part is too short"), "{text}");
    assert!(folds(&options(0, false, 0)).starts_with("folds.count = 0"));
    let all = FoldOptions { train: 0.9, validation: 0.1, ..options(2, false, 0) };
    assert!(folds(&all).starts_with("folds.train + folds.validation"), "{}", folds(&all));
}

#[test]
fn held_out_bars_begin_at_the_same_time() {
    let symbols = [symbol("a", 1, 0..600, |_| false), symbol("b", 2, 50..600, |i| (200..210).contains(&i))];
    let folds = split_symbols(&symbols, REACH, &SplitOptions::default()).unwrap();
    let train: Vec<_> = folds.iter().map(|fold| fold.train.clone()).collect();
    let parts = hold_out(&symbols, &train, 0.2, REACH);
    let cut = times(&symbols[0])[parts[0][1].start];
    assert_eq!(parts[0][1].len(), (train[0].len() as f64 * 0.2).round() as usize);
    for (a, [learned, held_out]) in symbols.iter().zip(&parts) {
        assert!(times(a)[held_out.start] >= cut && times(a)[held_out.start - 1] < cut);
        for (b, [_, other]) in symbols.iter().zip(&parts) {
            assert!(reads(a, learned).1 < reads(b, other).0);
        }
    }
}

// What is fitted.

fn prepare_options() -> PrepareOptions {
    PrepareOptions {
        lookback: REACH.lookback,
        window: REACH.window,
        n_step: REACH.n_step,
        ..Default::default()
    }
}

/// The same symbol with other prices and volumes at the bars that `which` picks.
fn disturbed(symbol: &Symbol, which: impl Fn(usize) -> bool) -> Symbol {
    let mut bars = Bars { has_volume: true, ..Bars::default() };
    for i in 0..symbol.loaded.bars.len() {
        let mut bar = symbol.loaded.bars.bar(i);
        if which(i) {
            let factor = 1.0 + 0.3 * ((i * 7919) % 13) as f64;
            (bar.open, bar.high) = (bar.open * factor, bar.high * factor);
            (bar.low, bar.close, bar.volume) =
                (bar.low * factor, bar.close * factor, bar.volume + 5e3 * factor);
        }
        bars.push(bar);
    }
    Symbol { name: symbol.name.clone(), loaded: from_bars("x", bars, &LoadOptions::default()).unwrap() }
}

#[test]
fn the_normaliser_is_that_of_all_training_bars() {
    let symbols = [symbol("a", 1, 0..700, |_| false), symbol("b", 2, 60..700, |i| i == 300)];
    let folds = split_symbols(&symbols, REACH, &SplitOptions::default()).unwrap();
    let (data, fitted, _) = prepare_symbols(&symbols, &folds, &prepare_options()).unwrap();
    let mut rows = Vec::new();
    let mut returns = Vec::new();
    for (symbol, fold) in symbols.iter().zip(&folds) {
        let (bars, maker) = (&symbol.loaded.bars, FeatureMaker::new(REACH.lookback, 3_600_000).unwrap());
        let features = maker.all(bars);
        for segment in &symbol.loaded.calendar.segments {
            let end = segment.end.min(fold.train.end);
            rows.extend(
                (segment.start + REACH.lookback - 1..end)
                    .map(|t| features[t * FEATURES..][..FEATURES].to_vec()),
            );
            returns.extend((segment.start + 1..end).map(|t| libm::log(bars.close[t] / bars.close[t - 1])));
        }
    }
    let expected = Normaliser::fit(FEATURES, rows.iter().map(Vec::as_slice), 8.0).unwrap();
    assert_eq!(fitted.normaliser, expected);
    let mean = returns.iter().sum::<f64>() / returns.len() as f64;
    let variance = returns.iter().map(|r| (r - mean) * (r - mean)).sum::<f64>() / returns.len() as f64;
    assert!((fitted.reward_scale * variance.sqrt() - 1.0).abs() < 1e-12);
    assert_eq!(data.iter().map(|data| data.len()).collect::<Vec<_>>(), [700, 639]);
}

#[test]
fn bars_outside_a_folds_training_part_change_nothing_that_is_fitted() {
    let symbols = [symbol("a", 1, 0..900, |_| false), symbol("b", 2, 0..900, |_| false)];
    for rolling in [false, true] {
        let folds = walk_forward(&symbols, REACH, &options(3, rolling, 0)).unwrap();
        for (i, fold) in folds.iter().enumerate() {
            let (data, fitted, _) = prepare_symbols(&symbols, fold, &prepare_options()).unwrap();
            let outside = [0, 1].map(|s| {
                let train = fold[s].train.clone();
                let first = train.start - REACH.back();
                disturbed(&symbols[s], move |t| t < first || t >= train.end)
            });
            assert!(!rolling || i == 0 || fold[0].train.start > REACH.back(), "the part does not move");
            let (other, again, _) = prepare_symbols(&outside, fold, &prepare_options()).unwrap();
            assert_eq!(again, fitted, "fold {i}, rolling {rolling}");
            for s in 0..2 {
                let states =
                    (fold[s].train.start + 1 - REACH.window) * FEATURES..fold[s].train.end * FEATURES;
                assert_eq!(
                    data[s].features[states.clone()],
                    other[s].features[states],
                    "states of the training part"
                );
            }
            // And what is inside does: the test can fail.
            let inside = disturbed(&symbols[1], |t| t == fold[1].train.end - 1);
            let (_, changed, _) =
                prepare_symbols(&[symbols[0].clone(), inside], fold, &prepare_options()).unwrap();
            assert_ne!(changed.normaliser, fitted.normaliser);
        }
    }
}

// Files of several symbols.

fn rows() -> Vec<(&'static str, i64, f64)> {
    (0..6).flat_map(|i| [("EUR", i, 1.0 + 0.01 * i as f64), ("GBP", i, 1.5 - 0.01 * i as f64)]).collect()
}

fn csv(rows: &[(&str, i64, f64)]) -> String {
    let mut text = "Ticker,time,open,high,low,close,volume\n".to_owned();
    for (name, i, close) in rows {
        text += &format!(
            "{name},{},{close},{},{},{close},{}\n",
            1_704_187_800 + 60 * i,
            close + 0.1,
            close - 0.1,
            7
        );
    }
    text
}

fn by_ticker() -> LoadOptions {
    LoadOptions { symbol_column: Some("ticker".into()), ..LoadOptions::default() }
}

fn closes(loaded: &Loaded) -> Vec<f64> {
    loaded.bars.close.clone()
}

#[test]
fn rows_are_sorted_by_symbol_in_whatever_order_they_come() {
    let by_time = rows();
    let mut by_name = by_time.clone();
    by_name.sort_by_key(|row| row.0);
    by_name.rotate_left(6);
    for rows in [by_time, by_name] {
        let symbols = load_symbols_bytes("t.csv", csv(&rows).as_bytes(), &by_ticker()).unwrap();
        let names: Vec<_> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
        assert_eq!(names, ["EUR", "GBP"]);
        assert_eq!(closes(&symbols[0].loaded), [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]);
        assert_eq!(symbols[1].loaded.bars.close[1], 1.49);
        assert_eq!(symbols[1].loaded.report.file, "t.csv, symbol GBP");
        assert_eq!(symbols[1].loaded.report.rows, 6);
    }
    // Not asked for, the column is ignored, and the file is a mess.
    let error = load_bytes("t.csv", csv(&rows()).as_bytes(), &LoadOptions::default()).unwrap_err();
    assert_eq!(error.row().map(|row| row.problem), Some(Problem::Duplicate));
    // A file without the column is one symbol, called as the file.
    let one = load_symbols_bytes("x/EUR.csv", csv(&rows()[..1]).as_bytes(), &LoadOptions::default());
    assert!(one.unwrap_err().to_string().contains("at least 2 are needed"));
    let first: Vec<_> = rows().into_iter().filter(|row| row.0 == "EUR").collect();
    let one = load_symbols_bytes("x/EUR.csv", csv(&first).as_bytes(), &LoadOptions::default()).unwrap();
    assert_eq!((one.len(), one[0].name.as_str()), (1, "EUR"));
}

#[test]
fn symbols_of_parquet_files() {
    let rows = rows();
    let names: Vec<&str> = rows.iter().map(|row| row.0).collect();
    let dictionary: DictionaryArray<Int32Type> = names.iter().copied().collect();
    let kinds: [ArrayRef; 2] = [Arc::new(StringArray::from(names.clone())), Arc::new(dictionary)];
    for symbol in kinds {
        let price =
            |add: f64| Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.2 + add))) as ArrayRef;
        let time = Int64Array::from_iter_values(rows.iter().map(|r| 1_704_187_800 + 60 * r.1));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("time", Arc::new(time)),
            ("open", price(0.0)),
            ("high", price(0.1)),
            ("ticker", symbol),
            ("low", price(-0.1)),
            ("close", price(0.0)),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut bytes = Vec::new();
        let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let symbols = load_symbols_bytes("t.parquet", &bytes, &by_ticker()).unwrap();
        let from_csv = load_symbols_bytes("t.csv", csv(&rows).as_bytes(), &by_ticker()).unwrap();
        for (a, b) in symbols.iter().zip(&from_csv) {
            assert_eq!((&a.name, closes(&a.loaded)), (&b.name, closes(&b.loaded)));
        }
        let by_price = LoadOptions { symbol_column: Some("close".into()), ..LoadOptions::default() };
        let error = load_symbols_bytes("t.parquet", &bytes, &by_price).unwrap_err().to_string();
        assert!(error.contains("no Close column"), "a column is one thing only: {error}");
    }
}

#[test]
fn what_is_wrong_with_a_symbol_names_it() {
    let load = |text: &str, options: &LoadOptions| load_symbols_bytes("t.csv", text.as_bytes(), options);
    let good = csv(&rows());
    let error = |text: &str| load(text, &by_ticker()).unwrap_err();
    // A duplicate within a symbol, by its line.
    let doubled = format!("{good}GBP,1704188100,1.45,1.6,1.3,1.45,7\n");
    let text = error(&doubled).to_string();
    assert!(text.starts_with("t.csv, symbol GBP: line 14") && text.contains("duplicate"), "{text}");
    // A row without a name is wrong, and with repairs it is left out and counted.
    let nameless = good.replacen("GBP,1704187920", ",1704187920", 1);
    let row = error(&nameless).row().unwrap().clone();
    assert_eq!(
        (row.column.as_str(), row.problem, row.place),
        ("ticker", Problem::Missing, bars::Place::Line(7))
    );
    let dropping = by_ticker().with_repairs([Repair::DropBadRows]);
    let symbols = load(&nameless, &dropping).unwrap();
    let dropped: u64 = symbols.iter().map(|symbol| symbol.loaded.report.repaired.dropped_rows()).sum();
    assert_eq!((dropped, symbols[0].loaded.bars.len(), symbols[1].loaded.bars.len()), (1, 6, 5));
    // The first rows of all.
    let early = good.replacen("EUR,1704187800", ",1704187800", 1);
    let symbols = load(&early, &dropping).unwrap();
    let dropped: u64 = symbols.iter().map(|symbol| symbol.loaded.report.repaired.dropped_rows()).sum();
    assert_eq!((dropped, symbols[0].loaded.bars.len()), (1, 5));
    let all = LoadOptions { symbol_column: Some("exchange".into()), ..LoadOptions::default() };
    let text = load(&good, &all).unwrap_err().to_string();
    assert!(text.contains("no column \"exchange\"") && text.contains("Ticker"), "{text}");
    // One symbol is expected where a file is one market.
    let text = load_bytes("t.csv", good.as_bytes(), &by_ticker()).unwrap_err().to_string();
    assert!(text.contains("2 symbols, \"EUR\" to \"GBP\", where one is expected"), "{text}");
    // A column of other things than symbols.
    let mut many = "ticker,time,open,high,low,close\n".to_owned();
    (0..5000).for_each(|i| many += &format!("S{i},{},1,1,1,1\n", 1_704_187_800 + i));
    assert!(error(&many).to_string().contains("more than 4096 symbols in column \"ticker\""));
    let long = good.replacen("EUR,", &format!("{},", "x".repeat(100)), 1);
    assert!(error(&long).to_string().contains("at most 64 bytes"), "{}", error(&long));
    let headless = good.lines().skip(1).collect::<Vec<_>>().join("\n");
    assert!(error(&headless).to_string().contains("no header in which to look for symbol_column"));
}
