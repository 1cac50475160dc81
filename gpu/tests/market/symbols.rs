//! Several symbols in one table: each is what it is alone.

use core::ops::Range;

use gpu::market::{
    ActionLayout, BarSide, LogRow, MarketError, MarketParams, MarketTable, Part, StateShape, Transitions,
    VecMarket, rollout,
};

use crate::support::{Columns, SHAPE, hashed_action, params};

/// A market without and one with a gap, of 70 and 90 bars.
fn tables() -> [MarketTable; 2] {
    let (one, other) = (Columns::random(36, 70, 0.01), Columns::random(37, 90, 0.02));
    [one.table(), other.table_with(&[0..30, 33..90], BarSide::Mid)]
}

const RANGES: [Range<usize>; 2] = [5..60, 10..85];

fn joined() -> (MarketTable, Part, Vec<Part>) {
    let table = MarketTable::joined(tables().to_vec()).unwrap();
    let ranges = [RANGES[0].clone(), RANGES[1].start + 70..RANGES[1].end + 70];
    let (joint, symbols) = Part::of_symbols(&table, &ranges).unwrap();
    (table, joint, symbols)
}

#[test]
fn a_symbols_backtest_is_the_same_alone_and_among_others() {
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        let p = MarketParams { layout, ..params() };
        let run = |table: &MarketTable, part: &Part| {
            let mut states = Vec::new();
            let decide = |state: &[f32]| {
                states.push(state.to_vec());
                Ok(hashed_action(state, layout))
            };
            let rows = rollout::<MarketError>(&p, table, part, decide).unwrap();
            (states, rows)
        };
        let (table, _, symbols) = joined();
        for (s, (alone, offset)) in tables().iter().zip([0, 70]).enumerate() {
            let (states, rows) = run(alone, &Part::new(alone, RANGES[s].clone()).unwrap());
            let (joint_states, joint_rows) = run(&table, &symbols[s]);
            assert_eq!(states, joint_states);
            let shifted: Vec<LogRow> =
                rows.iter().map(|row| LogRow { bar: row.bar + offset, ..*row }).collect();
            assert_eq!(shifted, joint_rows);
        }
    }
}

#[test]
fn an_episode_stays_with_its_symbol() {
    let (table, joint, symbols) = joined();
    let (e, s) = (64, SHAPE.len() as usize);
    let mut market = VecMarket::new(params(), &table, &joint, e, 3).unwrap();
    let (mut states, mut out) = (vec![0.0; e * s], Transitions::new(e, s));
    let mut begun = [0; 2];
    for _ in 0..120 {
        market.observe(&mut states).unwrap();
        let actions: Vec<u64> = states.chunks(s).map(|state| hashed_action(state, params().layout)).collect();
        market.step(&actions, &mut out).unwrap();
        for i in 0..e {
            let account = market.account(i);
            let symbol = usize::from(account.start >= 70);
            let range = symbols[symbol].range();
            assert!(range.contains(&(account.start as usize)) && range.contains(&(account.t as usize)));
            // The window of the first decision too.
            assert!(account.start as usize + 1 - SHAPE.window as usize >= 70 * symbol);
            begun[symbol] += usize::from(account.t == account.start + 1);
        }
    }
    // Starts are drawn over the bars of both.
    assert!(begun.iter().all(|&n| n > 50), "{begun:?}");
    assert_eq!(joint.starts.len(), symbols[0].starts.len() + symbols[1].starts.len());
}

#[test]
fn what_cannot_be_joined_is_refused() {
    let [one, other] = tables();
    let columns = Columns::random(1, 40, 0.01);
    let wide = StateShape { window: 5, ..SHAPE };
    let wide =
        MarketTable::new(columns.view(), columns.features(), wide, &[0..40], BarSide::Mid, 0.0).unwrap();
    let is_length = |error: MarketError| matches!(error, MarketError::Length { .. });
    assert!(is_length(MarketTable::joined(vec![one.clone(), wide]).unwrap_err()));
    assert!(is_length(MarketTable::joined(Vec::new()).unwrap_err()));
    let table = MarketTable::joined(vec![one, other]).unwrap();
    let refused = |ranges: &[Range<usize>]| Part::of_symbols(&table, ranges).unwrap_err().to_string();
    assert!(refused(&[0..60, 50..90]).contains("overlaps the part before it"));
    assert!(refused(&[]).contains("is empty"));
    assert!(refused(&[0..60, 100..161]).contains("outside the table"));
}
