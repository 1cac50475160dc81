//! Orders, fills and rewards on numbers worked by hand.

use gpu::action::pack;
use gpu::market::{
    Account, ActionLayout, Bar, Decision, Execution, MarketParams, OrderKind, RUNNING, all_in_quantity,
    decode, discount, execute, order_quantity, step,
};

use crate::support;

const NOW: Bar = Bar { open: 99.0, high: 101.0, low: 98.0, close: 100.0 };

/// The tests' costs with accounts of about 1000.
fn params() -> MarketParams {
    MarketParams { initial_equity: 1000.0, ..support::params() }
}

fn bar(open: f64, high: f64, low: f64, close: f64) -> Bar {
    Bar { open, high, low, close }
}

fn account(cash: f64, quantity: f64) -> Account {
    let peak = cash + quantity * NOW.close;
    let entry = if quantity == 0.0 { 0.0 } else { NOW.close };
    Account { cash, quantity, peak, entry, end: 1000, planned: 1000, flags: RUNNING, ..Account::default() }
}

fn decision(target: f64, order: OrderKind) -> Option<Decision> {
    Some(Decision { target, order, urgency: 1.0 })
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{got}, expected {expected}");
}

#[test]
fn actions_decode_as_specified() {
    for b0 in 0..9 {
        for b1 in 0..3 {
            for b2 in 0..3 {
                let d = decode(ActionLayout::Exposure, pack(&[b0, b1, b2]));
                assert_eq!(d.target, -1.0 + b0 as f64 / 4.0);
                assert_eq!(d.order, [OrderKind::Market, OrderKind::Limit, OrderKind::Passive][b1]);
                assert_eq!(d.urgency, [1.0 / 3.0, 2.0 / 3.0, 1.0][b2]);
            }
        }
    }
}

#[test]
fn four_branches_decode_to_a_subset_of_the_same_orders() {
    let all: Vec<_> =
        (0..81).map(|a| decode(ActionLayout::Exposure, pack(&[a / 9, a % 9 / 3, a % 3]))).collect();
    let mut targets = std::collections::BTreeSet::new();
    for a in 0..81 {
        let d = decode(ActionLayout::DirectionMagnitude, pack(&[a / 27, a / 9 % 3, a / 3 % 3, a % 3]));
        assert!(all.contains(&d), "{d:?}");
        targets.insert((d.target * 4.0) as i32);
    }
    assert_eq!(targets.into_iter().collect::<Vec<_>>(), [-4, -2, -1, 0, 1, 2, 4]);
}

#[test]
fn an_order_is_a_fraction_of_the_way_to_the_target() {
    // E = 1000, q = 2 at 100: x_now = 0.2; half way to 1 is 0.4 E / close = 4 units.
    let d = Decision { target: 1.0, order: OrderKind::Market, urgency: 0.5 };
    close(order_quantity(&d, 2.0, 1000.0, 100.0), 4.0);
    let flat = Decision { target: 0.0, order: OrderKind::Market, urgency: 1.0 };
    let odd = 0.1 + 0.2;
    assert_eq!(order_quantity(&flat, odd, 77.7, 3.3), -odd, "closing a position leaves no dust");
}

#[test]
fn a_market_order_pays_half_spread_slippage_impact_and_taker_fee() {
    let p = params();
    // 5 units at close 100 with E = 1000: |dq| close / E = 0.5.
    let next = bar(102.0, 103.0, 101.0, 102.5);
    let cost = 4e-4 + 1e-4 + 2e-4 * 0.5;
    let buy = execute(&p, OrderKind::Market, 5.0, 1000.0, &NOW, &next).unwrap();
    close(buy.price, 102.0 * (1.0 + cost));
    close(buy.fee, 3e-4 * 5.0 * buy.price);
    let sell = execute(&p, OrderKind::Market, -5.0, 1000.0, &NOW, &next).unwrap();
    close(sell.price, 102.0 * (1.0 - cost));
    close(sell.fee, 3e-4 * 5.0 * sell.price);
}

#[test]
fn a_limit_order_fills_only_when_the_bar_trades_through_it() {
    let p = params();
    let fill = |quantity, next| execute(&p, OrderKind::Limit, quantity, 1000.0, &NOW, &next).map(|f| f.price);
    // Buy at L = 100: through it, touching it, above it, opening below it.
    assert_eq!(fill(1.0, bar(101.0, 102.0, 99.9, 101.0)), Some(100.0));
    assert_eq!(fill(1.0, bar(101.0, 102.0, 100.0, 101.0)), None);
    assert_eq!(fill(1.0, bar(101.0, 102.0, 100.5, 101.0)), None);
    assert_eq!(fill(1.0, bar(99.5, 102.0, 99.0, 101.0)), Some(99.5));
    // Sell, mirrored.
    assert_eq!(fill(-1.0, bar(99.0, 100.1, 98.0, 99.0)), Some(100.0));
    assert_eq!(fill(-1.0, bar(99.0, 100.0, 98.0, 99.0)), None);
    assert_eq!(fill(-1.0, bar(100.5, 101.0, 98.0, 99.0)), Some(100.5));
    let Execution { fee, .. } =
        execute(&p, OrderKind::Limit, -3.0, 1000.0, &NOW, &bar(99.0, 100.1, 98.0, 99.0)).unwrap();
    close(fee, 1e-4 * 3.0 * 100.0);
}

#[test]
fn a_passive_order_waits_half_a_spread_away() {
    let p = params();
    let fill =
        |quantity, next| execute(&p, OrderKind::Passive, quantity, 1000.0, &NOW, &next).map(|f| f.price);
    let (bid, ask) = (100.0 * (1.0 - 4e-4), 100.0 * (1.0 + 4e-4));
    assert_eq!(fill(1.0, bar(101.0, 102.0, 99.9, 101.0)), Some(bid));
    assert_eq!(fill(1.0, bar(101.0, 102.0, 99.98, 101.0)), None, "between bid and close");
    assert_eq!(fill(-1.0, bar(99.0, 100.1, 98.0, 99.0)), Some(ask));
    assert_eq!(fill(-1.0, bar(99.0, 100.02, 98.0, 99.0)), None);
}

#[test]
fn interest_is_charged_on_what_is_carried_into_the_bar() {
    let p = params();
    let year = 1.0 / 365.0;
    let next = bar(100.0, 100.0, 100.0, 100.0);
    let mut long = account(-500.0, 15.0);
    let out = step(&p, &NOW, &next, year, &mut long, None);
    close(out.financing, 0.4 * 500.0 / 365.0);
    assert_eq!(out.borrow, 0.0);
    close(long.cash, -500.0 - out.financing);
    let mut short = account(2500.0, -15.0);
    let out = step(&p, &NOW, &next, year, &mut short, None);
    close(out.borrow, 0.3 * 1500.0 / 365.0);
    assert_eq!(out.financing, 0.0);
    // The position that a bar opens pays from the next bar on; the one that it closes pays for this bar.
    let mut flat = account(1000.0, 0.0);
    let out = step(&p, &NOW, &next, year, &mut flat, decision(-1.0, OrderKind::Market));
    assert_eq!(out.borrow, 0.0);
    let out = step(&p, &next, &next, 3.0 * year, &mut flat, decision(0.0, OrderKind::Market));
    assert!(out.borrow > 3.0 * 0.3 * 990.0 / 365.0, "three days of borrowing {}", out.borrow);
}

#[test]
fn the_reward_is_the_scaled_log_growth_less_the_deepening_of_the_drawdown() {
    let p = params();
    let mut a = account(0.0, 10.0);
    let down = step(&p, &NOW, &bar(100.0, 100.0, 90.0, 90.0), 0.0, &mut a, None);
    close(down.reward, 50.0 * (0.9f64).ln() - 2.0 * 0.1);
    let up = step(&p, &bar(90.0, 90.0, 90.0, 90.0), &bar(90.0, 95.0, 90.0, 95.0), 0.0, &mut a, None);
    close(up.reward, 50.0 * (95.0f64 / 90.0).ln());
    assert_eq!(a.peak, 1000.0);
}

#[test]
fn ruin_is_tested_before_the_logarithm() {
    let p = params();
    // Exactly 10% of the start is ruin; the reward is the fixed one and the position is closed at the mark.
    let mut a = account(0.0, 10.0);
    let out = step(&p, &NOW, &bar(100.0, 100.0, 10.0, 10.0), 0.0, &mut a, None);
    assert!(out.terminated && !out.truncated);
    assert_eq!((out.reward, out.equity, out.closed_out), (-7.0, 100.0, -10.0));
    assert_eq!((a.cash, a.quantity, a.entry), (100.0, 0.0, 0.0));
    // A short position can leave debt: no logarithm of a negative number, nothing non-finite.
    let mut a = account(2000.0, -10.0);
    let out = step(&p, &NOW, &bar(250.0, 250.0, 250.0, 250.0), 0.0, &mut a, None);
    assert!(out.terminated);
    assert_eq!((out.reward, out.equity, a.cash), (-7.0, -500.0, -500.0));
    assert_eq!(a.exposure(250.0), 0.0);
}

#[test]
fn only_termination_stops_the_bootstrap() {
    assert_eq!(discount(0.97, false), 0.97);
    assert_eq!(discount(0.97, true), 0.0);
    // Ruin on the episode's last bar: both flags, and termination decides.
    let p = params();
    let mut a = account(0.0, 10.0);
    a.end = 1;
    let out = step(&p, &NOW, &bar(100.0, 100.0, 5.0, 5.0), 0.0, &mut a, None);
    assert!(out.terminated && out.truncated);
    assert_eq!(discount(p.gamma, out.terminated), 0.0);
}

#[test]
fn average_entry_price_follows_the_position() {
    let mut a = account(10_000.0, 0.0);
    a.trade(10.0, 100.0, 0.0);
    a.trade(30.0, 120.0, 0.0);
    close(a.entry, 115.0);
    a.trade(-20.0, 200.0, 0.0);
    close(a.entry, 115.0);
    a.trade(-30.0, 130.0, 1.5);
    assert_eq!((a.quantity, a.entry), (-10.0, 130.0));
    a.trade(10.0, 50.0, 0.0);
    assert_eq!((a.quantity, a.entry), (0.0, 0.0));
    close(a.cash, 10_000.0 - 1000.0 - 3600.0 + 4000.0 + 3900.0 - 1.5 - 500.0);
}

#[test]
fn the_order_flag_tells_filled_from_cancelled_and_keeps_over_bars_without_an_order() {
    let p = params();
    let mut a = account(1000.0, 0.0);
    let none =
        step(&p, &NOW, &bar(100.0, 100.0, 100.0, 100.0), 0.0, &mut a, decision(0.0, OrderKind::Market));
    assert!(!none.ordered);
    assert_eq!(a.flags & gpu::market::FILLED, 0);
    step(&p, &NOW, &bar(100.0, 100.0, 100.0, 100.0), 0.0, &mut a, decision(1.0, OrderKind::Market));
    assert_ne!(a.flags & gpu::market::FILLED, 0);
    assert_eq!((a.t, a.last_trade), (2, 2));
    step(&p, &NOW, &bar(100.0, 100.0, 100.0, 100.0), 0.0, &mut a, None);
    assert_ne!(a.flags & gpu::market::FILLED, 0);
    let cancelled =
        step(&p, &NOW, &bar(100.0, 100.0, 100.0, 100.0), 0.0, &mut a, decision(0.0, OrderKind::Limit));
    assert!(cancelled.ordered && cancelled.quantity == 0.0);
    assert_eq!(a.flags & gpu::market::FILLED, 0);
    assert_eq!((a.t, a.last_trade), (4, 2));
}

#[test]
fn all_in_spends_the_cash_and_the_fee_exactly() {
    for impact in [0.0, 2e-3] {
        let p = MarketParams { impact, ..params() };
        let next = bar(101.0, 102.0, 100.0, 101.0);
        let q = all_in_quantity(&p, 5000.0, 5000.0, &NOW, &next);
        let fill = execute(&p, OrderKind::Market, q, 5000.0, &NOW, &next).unwrap();
        // The quadratic's root and the bill are each a few roundings of 5000.
        assert!((q * fill.price + fill.fee - 5000.0).abs() <= 8.0 * f64::EPSILON * 5000.0);
    }
}
