//! Tables and parts: what is checked, where decisions are possible, how prices become mid prices.

use gpu::market::{BarSide, MarketError, MarketParams, MarketTable, Part, Prices, StateShape, rollout};

use crate::support::{Columns, HOUR_MS, SHAPE, hashed_action, params};

fn build(columns: &Columns) -> Result<MarketTable, MarketError> {
    // The features are not what is tested here; they are those of the good bars.
    let features = Columns::random(1, columns.len(), 0.01).features();
    MarketTable::new(columns.view(), features, SHAPE, &[0..columns.len()], BarSide::Mid, 0.0)
}

#[test]
fn bad_bars_are_named_and_not_repaired() {
    let good = Columns::random(1, 30, 0.01);
    build(&good).unwrap();

    let mut bad = good.clone();
    bad.close[7] = 0.0;
    let error = build(&bad).unwrap_err();
    assert_eq!(error.to_string(), "bar 7: close = 0 is not a positive finite number");

    let mut bad = good.clone();
    bad.high[9] = 0.5;
    let error = build(&bad).unwrap_err();
    assert!(matches!(error, MarketError::Price { bar: 9, column: "open", .. }), "{error}");

    let mut bad = good.clone();
    bad.open[3] = f64::NAN;
    assert!(matches!(build(&bad).unwrap_err(), MarketError::Price { bar: 3, column: "open", .. }));

    let mut bad = good.clone();
    bad.time_ms[12] = bad.time_ms[11];
    assert!(matches!(build(&bad).unwrap_err(), MarketError::Time { bar: 12, .. }));

    let mut bad = good.clone();
    bad.low.pop();
    assert_eq!(build(&bad).unwrap_err().to_string(), "column low has 29 values: expected 30");

    let mut features = good.features();
    features[3 * 5 + 1] = f32::NAN;
    let table = |runs: &[_]| MarketTable::new(good.view(), features.clone(), SHAPE, runs, BarSide::Mid, 0.0);
    assert!(matches!(table(&[0..30]).unwrap_err(), MarketError::Feature { bar: 5, feature: 1, .. }));
    // Outside the runs features may be undefined: they are the warm-up.
    table(&[6..30]).unwrap();
    assert!(matches!(table(&[6..20, 19..30]).unwrap_err(), MarketError::Run { index: 1, .. }));
    assert!(matches!(table(&[6..31]).unwrap_err(), MarketError::Run { index: 0, .. }));
}

#[test]
fn bad_parameters_name_the_key_and_the_value() {
    params().check().unwrap();
    let error = MarketParams { taker_fee: 5.0, ..params() }.check().unwrap_err();
    assert_eq!(error.to_string(), "market.taker_fee = 5: expected a fraction from 0 to 0.1");
    for bad in [
        MarketParams { ruin: 1.0, ..params() },
        MarketParams { financing: f64::NAN, ..params() },
        MarketParams { reward_scale: 0.0, ..params() },
        MarketParams { gamma: 1.5, ..params() },
        MarketParams { episode: 0, ..params() },
        MarketParams { ruin_reward: f64::INFINITY, ..params() },
    ] {
        assert!(matches!(bad.check().unwrap_err(), MarketError::Param { .. }), "{bad:?}");
    }
}

#[test]
fn parameters_survive_the_device_buffer() {
    for p in [params(), MarketParams { layout: gpu::market::ActionLayout::DirectionMagnitude, ..params() }] {
        let words = p.words();
        assert_eq!(MarketParams::load(|i| words[i as usize]), p);
    }
}

#[test]
fn a_decision_needs_a_whole_window_inside_one_run() {
    let columns = Columns::random(2, 60, 0.01);
    let runs = [5..20, 22..24, 30..60];
    let table = columns.table_with(&runs, BarSide::Mid);
    let part = Part::new(&table, 10..50).unwrap();
    for t in 0..60usize {
        let run = runs.iter().find(|run| run.contains(&t));
        let whole = run.is_some_and(|run| t + 1 >= run.start + SHAPE.window as usize);
        let usable = whole && (10..50).contains(&t);
        let expected = if usable { run.unwrap().end.min(50) } else { 0 };
        assert_eq!(part.run_end[t] as usize, expected, "bar {t}");
        let start = usable && t + 1 < expected;
        assert_eq!(part.starts.contains(&(t as u32)), start, "bar {t}");
    }
    let error = Part::new(&table, 20..34).unwrap_err();
    assert_eq!(error, MarketError::NoStart { from: 20, to: 34, window: 4 });
    assert!(matches!(Part::new(&table, 50..61).unwrap_err(), MarketError::Run { .. }));
}

#[test]
fn elapsed_time_is_real_time() {
    let mut columns = Columns::random(4, 10, 0.01);
    for time in &mut columns.time_ms[5..] {
        *time += 48 * HOUR_MS;
    }
    let table = columns.table();
    assert_eq!(table.elapsed[0], 0.0);
    assert!((table.elapsed[4] * 365.0 * 24.0 - 1.0).abs() < 1e-14);
    assert!((table.elapsed[5] * 365.0 * 24.0 - 49.0).abs() < 1e-12);
}

#[test]
fn the_clock_is_the_utc_time_of_day() {
    let mut columns = Columns::random(4, 4, 0.01);
    columns.time_ms = vec![-18 * HOUR_MS, 0, 6 * HOUR_MS, 24 * HOUR_MS + 18 * HOUR_MS];
    let clock = columns.table().clock;
    let expected = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0f32]];
    for (t, want) in expected.iter().enumerate() {
        for k in 0..2 {
            // f64 sine and cosine of an angle rounded by an ulp of 2 pi, stored as f32.
            assert!((clock[2 * t + k] - want[k]).abs() < 1e-15, "bar {t}: {:?}", &clock[2 * t..2 * t + 2]);
        }
    }
}

/// An ask file: a market buy pays the file's open, a sell a whole spread less; limit orders meet at the mid.
#[test]
fn bar_side_puts_the_half_spread_where_the_file_does_not_have_it() {
    let columns = Columns::random(5, 20, 0.01);
    let h = params().half_spread;
    let bare = MarketParams { slippage: 0.0, impact: 0.0, ..params() };
    for (side, buy_factor, sell_factor) in [
        (BarSide::Mid, 1.0 + h, 1.0 - h),
        (BarSide::Ask, 1.0, (1.0 - h) / (1.0 + h)),
        (BarSide::Bid, (1.0 + h) / (1.0 - h), 1.0),
    ] {
        let table = columns.table_with(&[0..20], side);
        let (now, next) = (table.bar(8), table.bar(9));
        for (quantity, factor) in [(1.0, buy_factor), (-1.0, sell_factor)] {
            let fill =
                gpu::market::execute(&bare, gpu::market::OrderKind::Market, quantity, 100.0, &now, &next)
                    .unwrap();
            let expected = columns.open[9] * factor;
            assert!((fill.price - expected).abs() <= 4.0 * f64::EPSILON * expected, "{side:?} {quantity}");
        }
    }
}

/// The side only scales prices, so equity, exposure and reward of any policy do not depend on it.
#[test]
fn results_do_not_depend_on_the_quoted_side() {
    let columns = Columns::random(6, 120, 0.01);
    let actions: Vec<u64> =
        (0..120).map(|t| hashed_action(&[t as f32], gpu::market::ActionLayout::Exposure)).collect();
    let run = |side| {
        let table = columns.table_with(&[0..120], side);
        let part = Part::new(&table, 0..120).unwrap();
        let mut t = 0;
        rollout::<MarketError>(&params(), &table, &part, |_| {
            t += 1;
            Ok(actions[t])
        })
        .unwrap()
    };
    let (mid, ask) = (run(BarSide::Mid), run(BarSide::Ask));
    assert_eq!(mid.len(), ask.len());
    for (a, b) in mid.iter().zip(&ask) {
        // 120 bars of a few roundings each; a limit order exactly at a low would differ, none is.
        assert!((a.outcome.equity / b.outcome.equity - 1.0).abs() < 1e-12, "bar {}", a.bar);
        assert!((a.exposure - b.exposure).abs() < 1e-12, "bar {}", a.bar);
    }
}

#[test]
fn a_state_counts_window_and_portfolio() {
    assert_eq!(StateShape { window: 8, features: 9 }.len(), 80);
}
