//! Nothing that happens after bar T can be seen before it.

use gpu::market::{
    ActionLayout, LogRow, MarketError, MarketParams, MarketTable, Part, Transitions, VecMarket, rollout,
};

use crate::support::{Columns, hashed_action, params};

const BARS: usize = 150;

/// All bars after `t` replaced by those of another market.
fn changed_after(columns: &Columns, t: usize) -> Columns {
    let other = Columns::random(99, BARS, 0.03);
    let mut changed = columns.clone();
    for i in t + 1..BARS {
        changed.open[i] = 3.0 * other.open[i];
        changed.high[i] = 3.0 * other.high[i];
        changed.low[i] = 3.0 * other.low[i];
        changed.close[i] = 3.0 * other.close[i];
    }
    changed
}

/// States, actions and log rows of a backtest with a policy that reacts to every bit of its state.
fn trace(table: &MarketTable, layout: ActionLayout) -> (Vec<Vec<u32>>, Vec<u64>, Vec<LogRow>) {
    let part = Part::new(table, 0..BARS).unwrap();
    let p = MarketParams { layout, ..params() };
    let (mut states, mut actions) = (Vec::new(), Vec::new());
    let rows = rollout::<MarketError>(&p, table, &part, |state| {
        states.push(state.iter().map(|v| v.to_bits()).collect());
        let action = hashed_action(state, layout);
        actions.push(action);
        Ok(action)
    })
    .unwrap();
    (states, actions, rows)
}

#[test]
fn bars_after_t_do_not_change_states_actions_or_rewards_up_to_t() {
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        let columns = Columns::random(11, BARS, 0.01);
        let (states, actions, rows) = trace(&columns.table(), layout);
        let first = rows[0].bar as usize - 1;
        for t in [first, first + 1, 40, 77, BARS - 2] {
            let (changed_states, changed_actions, changed_rows) =
                trace(&changed_after(&columns, t).table(), layout);
            // Decision k is taken at the close of bar first + k; the reward in row k is known at bar first + k + 1.
            let decisions = t - first + 1;
            assert_eq!(states[..decisions], changed_states[..decisions], "states up to bar {t}");
            assert_eq!(actions[..decisions], changed_actions[..decisions], "actions up to bar {t}");
            let known = decisions - 1;
            for (a, b) in rows[..known].iter().zip(&changed_rows[..known]) {
                assert_eq!(a, b, "bar {}", a.bar);
                assert_eq!(a.outcome.reward.to_bits(), b.outcome.reward.to_bits());
            }
            // The change is felt in the first bar that it touches: the test can fail.
            assert_ne!(rows[known].close, changed_rows[known].close);
        }
    }
}

#[test]
fn training_rewards_before_the_change_are_the_same_bits() {
    let columns = Columns::random(12, BARS, 0.01);
    let t = 90;
    let run = |table: &MarketTable| {
        let part = Part::new(table, 0..BARS).unwrap();
        let mut market = VecMarket::new(params(), table, &part, 32, 4).unwrap();
        let mut states = vec![0.0; 32 * market.state_len()];
        let mut out = Transitions::new(32, market.state_len());
        let mut seen = Vec::new();
        // Episodes are compared until they touch a changed bar; afterwards the paths may differ.
        for _ in 0..40 {
            market.observe(&mut states).unwrap();
            let actions: Vec<u64> =
                states.chunks(market.state_len()).map(|s| hashed_action(s, params().layout)).collect();
            market.step(&actions, &mut out).unwrap();
            for (e, &action) in actions.iter().enumerate() {
                let account = market.account(e);
                seen.push((account.t, account.episodes, action, out.rewards[e].to_bits()));
            }
        }
        seen
    };
    let (a, b) = (run(&columns.table()), run(&changed_after(&columns, t).table()));
    let mut compared = 0;
    for (x, y) in a.iter().zip(&b) {
        if x.1 == 1 && x.0 as usize <= t {
            assert_eq!(x, y);
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared} transitions compared");
}
