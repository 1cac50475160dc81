//! Episodes: where they start and end, what is observed at both ends, and backtests across gaps.

use std::collections::BTreeMap;

use gpu::market::{
    ActionLayout, BarSide, MarketError, MarketParams, PORTFOLIO, Part, Prices, TERMINATED, TRUNCATED,
    Transitions, VecMarket, rollout,
};

use crate::support::{Columns, SHAPE, hashed_action, params};

const LONG: [usize; 3] = [8, 0, 2];

fn actions(market: &VecMarket, states: &[f32]) -> Vec<u64> {
    states.chunks(market.state_len()).map(|s| hashed_action(s, market.params().layout)).collect()
}

#[test]
fn the_transition_keeps_the_final_observation_and_the_next_state_is_of_the_new_episode() {
    let columns = Columns::random(1, 200, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..200).unwrap();
    let p = MarketParams { episode: 5, ..params() };
    let (e, s) = (16, SHAPE.len() as usize);
    let mut market = VecMarket::new(p, &table, &part, e, 9).unwrap();
    let (mut states, mut out) = (vec![0.0; e * s], Transitions::new(e, s));
    let mut ended = 0;
    for step in 1..=30 {
        market.observe(&mut states).unwrap();
        let chosen = actions(&market, &states);
        market.step(&chosen, &mut out).unwrap();
        let mut after = vec![0.0; e * s];
        market.observe(&mut after).unwrap();
        for i in 0..e {
            let (next, new) = (&out.next_states[i * s..][..s], &after[i * s..][..s]);
            let remaining = SHAPE.window as usize * SHAPE.features as usize + 4;
            // The state before the step is one bar older than s': their windows overlap in W - 1 bars.
            let (w, f) = ((SHAPE.window * SHAPE.features) as usize, SHAPE.features as usize);
            assert_eq!(&states[i * s..][f..w], &next[..w - f]);
            if out.flags[i] == 0 {
                assert_eq!(next, new, "a running episode continues from s'");
                assert_eq!(out.discounts[i], 0.97);
            } else {
                ended += 1;
                assert_eq!(out.flags[i], TRUNCATED);
                assert_eq!(out.discounts[i], 0.97, "truncation bootstraps");
                assert_eq!(new[remaining], 1.0, "the next state is the first of a new episode");
                assert_eq!(new[w], 0.0, "without a position");
                if step % 5 == 0 && market.account(i).end == market.account(i).planned {
                    assert_eq!(next[remaining], 0.0, "the final observation is the end of the old one");
                }
            }
        }
    }
    assert!(ended >= e * 6, "{ended} episodes ended");
}

#[test]
fn episodes_and_windows_stay_inside_runs() {
    let columns = Columns::random(2, 100, 0.01);
    let runs = [0..30, 30..37, 60..100];
    let table = columns.table_with(&runs, BarSide::Mid);
    let part = Part::new(&table, 0..90).unwrap();
    let (e, s) = (64, SHAPE.len() as usize);
    let mut market = VecMarket::new(params(), &table, &part, e, 3).unwrap();
    let (mut states, mut out) = (vec![0.0; e * s], Transitions::new(e, s));
    let mut last_bars = BTreeMap::new();
    for _ in 0..120 {
        market.observe(&mut states).unwrap();
        let chosen = actions(&market, &states);
        market.step(&chosen, &mut out).unwrap();
        for i in 0..e {
            let account = market.account(i);
            let (start, t) = (account.start as usize, account.t as usize);
            let run = runs.iter().find(|run| run.contains(&start)).unwrap();
            assert!(start + 1 >= run.start + SHAPE.window as usize, "the first window starts before its run");
            assert!(t < run.end.min(90), "episode from {start} went to {t}");
            if out.flags[i] != 0 {
                assert_eq!(out.flags[i], TRUNCATED);
                *last_bars.entry(t).or_insert(0) += 1;
                assert!(t == run.end.min(90) - 1 || t == start + 40, "cut at {t}, from {start}");
            }
        }
    }
    for end in [29, 36, 89] {
        assert!(last_bars.contains_key(&end), "no episode reached bar {end}: {last_bars:?}");
    }
}

#[test]
fn starts_cover_the_part_evenly_and_depend_on_seed_environment_and_episode_only() {
    let columns = Columns::random(3, 24, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..24).unwrap();
    let p = MarketParams { episode: 1, ..params() };
    let starts = |seed, e: usize, steps: usize| {
        let mut market = VecMarket::new(p, &table, &part, e, seed).unwrap();
        let mut out = Transitions::new(e, market.state_len());
        let still = vec![gpu::action::pack(&[4, 0, 2]); e];
        (0..steps)
            .map(|_| {
                market.step(&still, &mut out).unwrap();
                (0..e).map(|i| market.account(i).start).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let all = starts(5, 100, 200);
    let few = starts(5, 7, 200);
    assert!(
        all.iter().zip(&few).all(|(a, f)| a[..7] == f[..]),
        "a start depends on the number of environments"
    );
    assert_ne!(starts(6, 7, 200), few);
    let mut counts = BTreeMap::new();
    for start in all.iter().flatten() {
        *counts.entry(*start).or_insert(0usize) += 1;
    }
    // 20 start bars, 20,000 draws: binomial with mean 1000 and deviation 31; five deviations.
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), part.starts);
    assert!(counts.values().all(|n| n.abs_diff(1000) < 155), "{counts:?}");
}

/// C26: the flags of an episode that is ruined in the middle let an n-step window stop at the terminal step.
#[test]
fn a_ruined_episode_is_terminal_and_the_next_step_belongs_to_a_new_one() {
    let mut columns = Columns::random(4, 60, 0.001);
    // The price falls by 95% in bar 30 and stays there.
    for t in 30..60 {
        for column in [&mut columns.open, &mut columns.high, &mut columns.low, &mut columns.close] {
            column[t] *= 0.05;
        }
    }
    columns.high[30] /= 0.05;
    columns.open[30] /= 0.05;
    let table = columns.table();
    let part = Part::new(&table, 20..60).unwrap();
    let (e, s) = (32, SHAPE.len() as usize);
    let mut market = VecMarket::new(params(), &table, &part, e, 1).unwrap();
    let mut out = Transitions::new(e, s);
    let mut states = vec![0.0; e * s];
    let (mut ruined, mut fresh) = (0, vec![false; e]);
    for _ in 0..20 {
        market.observe(&mut states).unwrap();
        for (i, _) in fresh.iter().enumerate().filter(|(_, fresh)| **fresh) {
            let portfolio = &states[(i + 1) * s - PORTFOLIO as usize..(i + 1) * s];
            assert_eq!(portfolio[..4], [0.0; 4], "the new episode starts flat");
        }
        market.step(&vec![gpu::action::pack(&LONG); e], &mut out).unwrap();
        fresh = out.flags.iter().map(|&flags| flags != 0).collect();
        for i in 0..e {
            if out.flags[i] & TERMINATED != 0 {
                ruined += 1;
                assert_eq!(market.account(i).t, 30);
                assert_eq!((out.rewards[i], out.discounts[i]), (-7.0, 0.0));
            } else {
                assert_eq!(out.discounts[i], 0.97);
            }
        }
        assert!(out.next_states.iter().all(|v| v.is_finite()));
    }
    assert!(ruined > 0);
}

#[test]
fn a_backtest_goes_to_the_last_bar_and_holds_across_gaps() {
    let columns = Columns::random(7, 80, 0.01);
    let table = columns.table_with(&[0..30, 50..80], BarSide::Mid);
    let part = Part::new(&table, 10..75).unwrap();
    let mut asked = Vec::new();
    let rows = rollout::<MarketError>(&params(), &table, &part, |state| {
        asked.push(state.to_vec());
        Ok(gpu::action::pack(&[6, 0, 2]))
    })
    .unwrap();
    assert_eq!(rows.len(), part.backtest_steps());
    assert_eq!(rows.iter().map(|r| r.bar).collect::<Vec<_>>(), (11..75).collect::<Vec<_>>());
    // A decision at bar t shows in row t + 1. Windows end at 10..=29 and 53..=73.
    for row in &rows {
        let t = row.bar - 1;
        let possible = (10..30).contains(&t) || (53..74).contains(&t);
        assert_eq!(row.decided, possible, "bar {t}");
        assert_eq!(row.outcome.quantity != 0.0, possible, "bar {t} traded {}", row.outcome.quantity);
        assert_eq!(row.outcome.truncated, row.bar == 74);
    }
    assert_eq!(asked.len(), 20 + 21);
    // Held units through the gap: the equity moves with the close.
    let (a, b) = (rows[30], rows[31]);
    let units = a.exposure * a.outcome.equity / a.close;
    let change = units * (b.close - a.close) - b.outcome.financing;
    assert!((b.outcome.equity - a.outcome.equity - change).abs() < 1e-6);
}

#[test]
fn a_finished_backtest_stands_still() {
    let columns = Columns::random(8, 20, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..20).unwrap();
    let mut market = VecMarket::new(params().backtest(&part), &table, &part, 2, 0).unwrap();
    let mut out = Transitions::new(2, market.state_len());
    let mut rows = 0;
    for _ in 0..30 {
        market.step_logged(&[gpu::action::pack(&LONG); 2], &mut out, |_, _| rows += 1).unwrap();
    }
    assert_eq!(rows, 2 * part.backtest_steps());
    assert_eq!((out.rewards[1], out.discounts[1], out.flags[1]), (0.0, 0.0, TRUNCATED));
    assert_eq!(market.account(1).t, 19);
}

#[test]
fn an_action_outside_the_layout_is_an_error_and_changes_nothing() {
    let columns = Columns::random(9, 30, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..30).unwrap();
    let p = MarketParams { layout: ActionLayout::DirectionMagnitude, ..params() };
    let mut market = VecMarket::new(p, &table, &part, 3, 0).unwrap();
    let mut out = Transitions::new(3, market.state_len());
    let good = gpu::action::pack(&[2, 2, 0, 2]);
    let error = market.step(&[good, good, gpu::action::pack(&[2, 3, 0, 2])], &mut out).unwrap_err();
    assert_eq!(error.to_string(), "environment 2: action 3 in branch 1 of 3 actions");
    let error = market.step(&[good, good, gpu::action::pack(&[2, 2, 0, 2, 1])], &mut out).unwrap_err();
    assert!(matches!(error, MarketError::Action { branch: 4, .. }));
    assert!(matches!(market.step(&[good; 2], &mut out).unwrap_err(), MarketError::Length { .. }));
    assert!(market.memory().1.iter().all(|&w| w == 0), "no account has moved");
}

#[test]
fn portfolio_features_are_what_the_docs_say() {
    let columns = Columns::random(10, 60, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..60).unwrap();
    let p = params();
    let mut market = VecMarket::new(p, &table, &part, 1, 2).unwrap();
    let mut out = Transitions::new(1, market.state_len());
    for _ in 0..6 {
        market.step(&[gpu::action::pack(&[7, 0, 1])], &mut out).unwrap();
    }
    market.step(&[gpu::action::pack(&[4, 1, 0])], &mut out).unwrap();
    let a = market.account(0);
    let close = table.close(a.t);
    let equity = a.cash + a.quantity * close;
    let profit = 50.0 * a.quantity * (close - a.entry) / equity;
    let drawdown = 50.0 * (1.0 - equity / a.peak);
    let idle = (a.t - a.last_trade) as f64;
    let seconds = (columns.time_ms[a.t as usize] / 1000 % 86_400) as f64;
    let angle = core::f64::consts::TAU * seconds / 86_400.0;
    let expected = [
        a.quantity * close / equity,
        profit / (8.0 + profit.abs()),
        idle / (idle + 32.0),
        drawdown / (32.0 + drawdown),
        1.0 - (a.t - a.start) as f64 / 40.0,
        angle.sin(),
        angle.cos(),
        if a.last_trade == a.t { 1.0 } else { 0.0 },
    ];
    let got = &out.next_states[market.state_len() - PORTFOLIO as usize..];
    for (k, (g, e)) in got.iter().zip(expected).enumerate() {
        // One rounding to f32, and the f64 noise of an angle of many days.
        assert!(
            (*g as f64 - e).abs() <= f32::EPSILON as f64 * e.abs() + 1e-12,
            "feature {k}: {g}, expected {e}"
        );
    }
    assert_ne!(a.quantity, 0.0);
}
