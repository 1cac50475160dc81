//! Split, normaliser, and the data an environment gets.

use bars::split::{FEWEST_DECISIONS, decisions, split};
use bars::synthetic::Kind;
use bars::{
    BarError, Bars, FEATURES, FeatureMaker, Fitted, Fold, LoadOptions, Loaded, PrepareOptions, Prepared,
    Reach, Segment, SplitOptions, Synthetic, apply, from_bars, prepare, prepare_fold,
};
use proptest::prelude::*;

fn loaded(bars: Bars) -> Loaded {
    from_bars("synthetic", bars, &LoadOptions::default()).unwrap()
}

fn market(bars: usize) -> Bars {
    Synthetic { seed: 5, bars, kind: Kind::Regimes }.generate().unwrap()
}

fn prepared(bars: Bars, options: &PrepareOptions) -> Prepared {
    prepare(&loaded(bars), options).unwrap()
}

/// A market with a gap: twenty hours are missing from bar `at` on.
fn with_gap(bars: usize, at: usize) -> Bars {
    let full = market(bars + 20);
    let mut out = Bars { has_volume: true, ..Bars::default() };
    (0..full.len()).filter(|i| !(at..at + 20).contains(i)).for_each(|i| out.push(full.bar(i)));
    out
}

#[test]
fn parts_have_the_documented_bounds() {
    let reach = Reach { lookback: 64, window: 8, n_step: 3 };
    assert_eq!((reach.back(), reach.purge()), (70, 74));
    let options = SplitOptions { train: 0.5, validation: 0.25, embargo: 10 };
    let whole = [Segment { start: 0, end: 1000 }];
    let fold = split(1000, &whole, reach, &options).unwrap();
    assert_eq!(fold, Fold { train: 70..500, validation: 584..750, test: 834..999 });
    let all: Vec<usize> = decisions(&whole, reach, 0..1000).collect();
    assert_eq!((all[0], all[all.len() - 1]), (70, 998), "a decision needs its past and one bar to trade in");
}

proptest! {
    /// No bar that a label of one part reads is read by a state of a later part.
    #[test]
    fn parts_share_no_bar(
        bars in 300..2000_usize,
        gap in 0..2000_usize,
        lookback in 8..65_usize,
        window in 1..16_usize,
        n_step in 1..6_usize,
        embargo in 0..20_usize,
        train in 0.2..0.7_f64,
        validation in 0.1..0.28_f64,
    ) {
        let reach = Reach { lookback, window, n_step };
        let gap = gap % (bars - 2) + 1;
        let segments = [Segment { start: 0, end: gap }, Segment { start: gap, end: bars }];
        let options = SplitOptions { train, validation, embargo };
        let Ok(fold) = split(bars, &segments, reach, &options) else { return Ok(()) };
        for (earlier, later) in [(&fold.train, &fold.validation), (&fold.validation, &fold.test)] {
            let last_read = earlier.end - 1 + n_step;
            let first_read = later.start - reach.back();
            prop_assert!(last_read + embargo < first_read, "{fold:?}");
        }
        for (_, part) in fold.parts() {
            let mut count = 0;
            for t in decisions(&segments, reach, part.clone()) {
                let segment = segments.iter().find(|s| (s.start..s.end).contains(&t)).unwrap();
                prop_assert!(t - reach.back() >= segment.start && t + 1 < segment.end && part.contains(&t));
                count += 1;
            }
            prop_assert!(count >= FEWEST_DECISIONS);
        }
    }
}

#[test]
fn short_parts_are_named() {
    let reach = Reach { lookback: 64, window: 8, n_step: 1 };
    let text = |bars: usize, options: &SplitOptions| {
        split(bars, &[Segment { start: 0, end: bars }], reach, options).unwrap_err().to_string()
    };
    let default = SplitOptions::default();
    assert!(text(0, &default).starts_with("the train part is too short"));
    assert!(text(100, &default).starts_with("the train part is too short"));
    let short = text(500, &default);
    assert!(
        short.starts_with("the validation part is too short: bars 422..425 of 500 hold 3 decisions"),
        "{short}"
    );
    let test = text(2000, &SplitOptions { train: 0.5, validation: 0.46, embargo: 0 });
    assert!(test.starts_with("the test part is too short"), "{test}");
    assert!(text(2000, &SplitOptions { train: 0.9, validation: 0.1, embargo: 0 }).contains("less than 1"));
    assert!(text(2000, &SplitOptions { train: f64::NAN, ..default.clone() }).contains("split.train = NaN"));
    assert!(
        text(2000, &SplitOptions { embargo: usize::MAX, ..default }).contains("validation part is too short")
    );
    // Enough bars, but in pieces shorter than a state's past.
    let pieces: Vec<_> = (0..40).map(|i| Segment { start: i * 50, end: i * 50 + 50 }).collect();
    let error = split(2000, &pieces, reach, &SplitOptions::default()).unwrap_err().to_string();
    assert!(error.contains("hold 0 decisions"), "{error}");
}

#[test]
fn a_fold_from_elsewhere_is_checked() {
    let loaded = loaded(market(2000));
    let options = PrepareOptions::default();
    let good = Fold { train: 70..900, validation: 1000..1300, test: 1400..1999 };
    assert!(prepare_fold(&loaded, &good, &options).is_ok());
    let close = Fold { validation: 950..1300, ..good.clone() };
    let error = prepare_fold(&loaded, &close, &options).unwrap_err().to_string();
    assert!(error.contains("closer than the purge and embargo of 72 bars"), "{error}");
    let beyond = Fold { test: 1400..2000, ..good };
    assert!(matches!(prepare_fold(&loaded, &beyond, &options), Err(BarError::Split(_))));
}

#[test]
fn an_environment_gets_consistent_vectors() {
    let bars = with_gap(3000, 1500);
    let prepared = prepared(bars.clone(), &PrepareOptions::default());
    let data = &prepared.data;
    assert_eq!((data.len(), data.features.len()), (3000, 3000 * FEATURES));
    assert_eq!(data.segments, [Segment { start: 0, end: 1500 }, Segment { start: 1500, end: 3000 }]);
    assert!(data.segment_end[..1500].iter().all(|end| *end == 1499));
    assert!(data.segment_end[1500..].iter().all(|end| *end == 2999));
    assert_eq!((&data.close, &data.timestamps_ms), (&bars.close, &bars.time_ms));
    assert!(data.features.iter().all(|x| x.abs() <= 8.0));
    assert!(data.features[..63 * FEATURES].iter().all(|x| *x == 0.0));
    // 22:00 is 330 degrees.
    let angle = (330_f64).to_radians();
    assert!((f64::from(data.day_sin[0]) - angle.sin()).abs() < 1e-6);
    assert!((f64::from(data.day_cos[0]) - angle.cos()).abs() < 1e-6);
    // Decisions: none in the first 70 bars of either segment, none at the end of the first.
    let decisions = data.decisions(PrepareOptions::default().reach(), 0..3000);
    assert_eq!((decisions[0], decisions[1498 - 70], decisions[1499 - 70]), (70, 1498, 1570));
    assert!((data.bars_per_year - 6261.0).abs() < 60.0, "{}", data.bars_per_year);
    let text = prepared.summary.to_string();
    assert!(
        text.contains("train       bars 70..2100") && text.contains("72 (lookback 64 + window 8"),
        "{text}"
    );
}

#[test]
fn features_are_normalised_by_the_training_part() {
    let bars = with_gap(3000, 1500);
    let options = PrepareOptions::default();
    let prepared = prepared(bars.clone(), &options);
    let all = FeatureMaker::new(64, 3_600_000).unwrap().all(&bars);
    // Usable training bars: complete lookbacks in either segment, before the end of the training part.
    let rows: Vec<usize> = (63..1500).chain(1563..2100).collect();
    for j in 0..FEATURES {
        let values: Vec<f64> = rows.iter().map(|t| all[t * FEATURES + j]).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let std = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        assert!((prepared.fitted.normaliser.mean[j] - mean).abs() <= 1e-12, "feature {j}");
        assert!((prepared.fitted.normaliser.std[j] - std).abs() <= 1e-12, "feature {j}");
        let z = ((all[2500 * FEATURES + j] - mean) / std).clamp(-8.0, 8.0);
        assert!((f64::from(prepared.data.features[2500 * FEATURES + j]) - z).abs() <= 1e-5);
    }
    let returns: Vec<f64> =
        (1..1500).chain(1501..2100).map(|t| (bars.close[t] / bars.close[t - 1]).ln()).collect();
    let mean = returns.iter().sum::<f64>() / returns.len() as f64;
    let std = (returns.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / returns.len() as f64).sqrt();
    assert!((prepared.fitted.reward_scale * std - 1.0).abs() < 1e-9);
}

#[test]
fn later_prices_do_not_reach_the_training_part() {
    let options = PrepareOptions::default();
    let first = prepared(market(2000), &options);
    // Other prices and volumes from the end of the training part on.
    let mut bars = market(2000);
    for t in 1400..2000 {
        for price in [&mut bars.open, &mut bars.high, &mut bars.low, &mut bars.close] {
            price[t] *= 1.0 + (t % 7) as f64;
        }
        bars.volume[t] = 1e6;
    }
    let second = prepared(bars, &options);
    assert_eq!(first.fitted, second.fitted);
    let until = 1400 * FEATURES;
    assert_eq!(first.data.features[..until], second.data.features[..until]);
    assert_ne!(first.data.features[until..], second.data.features[until..]);
}

#[test]
fn what_was_fitted_is_stored_exactly_and_reused() {
    let bars = market(2000);
    let first = prepared(bars.clone(), &PrepareOptions::default());
    let stored = serde_json::to_string(&first.fitted).unwrap();
    let fitted: Fitted = serde_json::from_str(&stored).unwrap();
    assert_eq!(fitted, first.fitted);
    assert_eq!(apply(&loaded(bars.clone()), &fitted, None).unwrap(), first.data);
    // On another file nothing is fitted anew.
    let mut moved = bars;
    moved.close.iter_mut().zip(&mut moved.high).for_each(|(close, high)| *high = high.max(*close));
    let other = apply(&loaded(moved), &fitted, Some(252.0)).unwrap();
    assert_eq!((other.reward_scale, other.bars_per_year), (first.data.reward_scale, 252.0));
    // Bars of another length are another task.
    let wrong = Fitted { interval_ms: 60_000, ..fitted.clone() };
    let error = apply(&loaded(market(2000)), &wrong, None).unwrap_err().to_string();
    assert!(error.contains("bars of 3600000 ms, but the model was trained on bars of 60000 ms"), "{error}");
    let mut damaged = fitted;
    damaged.normaliser.std[2] = 0.0;
    assert!(apply(&loaded(market(2000)), &damaged, None).is_err());
}

#[test]
fn constant_features_and_constant_prices() {
    // Without volume two features are zero throughout: deviation 1, normalised 0.
    let bars = Bars { has_volume: false, volume: vec![0.0; 2000], ..market(2000) };
    let prepared = prepared(bars, &PrepareOptions::default());
    assert_eq!(prepared.fitted.normaliser.std[4..6], [1.0, 1.0]);
    assert!(prepared.data.features.chunks_exact(FEATURES).all(|row| row[4] == 0.0 && row[5] == 0.0));

    let mut still = market(2000);
    for price in [&mut still.open, &mut still.high, &mut still.low, &mut still.close] {
        price.fill(50.0);
    }
    let error = prepare(&loaded(still), &PrepareOptions::default()).unwrap_err().to_string();
    assert!(error.contains("constant returns"), "{error}");
    let options = PrepareOptions { lookback: 65, ..PrepareOptions::default() };
    assert!(prepare(&loaded(market(2000)), &options).unwrap_err().to_string().contains("lookback = 65"));
    let options = PrepareOptions { clip: 0.0, ..PrepareOptions::default() };
    assert!(prepare(&loaded(market(2000)), &options).unwrap_err().to_string().contains("clip = 0"));
}
