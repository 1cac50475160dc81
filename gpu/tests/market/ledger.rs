//! The account against an independent double-entry ledger, on random actions.

use gpu::action::pack;
use gpu::kernels::market_step::reference::{Book, Costs, Ledger, Quote};
use gpu::market::{Account, ActionLayout, MarketParams, MarketTable, Prices, RUNNING, Times, decode, step};

use crate::support::{Columns, params, random_branches};

fn costs(p: &MarketParams) -> Costs {
    Costs {
        half_spread: p.half_spread,
        slippage: p.slippage,
        impact: p.impact,
        taker_fee: p.taker_fee,
        maker_fee: p.maker_fee,
        financing: p.financing,
        borrow: p.borrow,
        lambda: p.drawdown_penalty,
        ruin: p.ruin,
        ruin_reward: p.ruin_reward,
        c: p.reward_scale,
        initial: p.initial_equity,
    }
}

fn quotes(columns: &Columns) -> Vec<Quote> {
    (0..columns.len())
        .map(|t| Quote {
            open: columns.open[t],
            high: columns.high[t],
            low: columns.low[t],
            close: columns.close[t],
            years: (columns.time_ms[t] - columns.time_ms[0]) as f64 / (365.0 * 24.0 * 3.6e6),
        })
        .collect()
}

fn account(p: &MarketParams) -> Account {
    Account {
        cash: p.initial_equity,
        peak: p.initial_equity,
        end: u32::MAX,
        flags: RUNNING,
        ..Account::default()
    }
}

/// Runs account and ledger side by side until the data or the money ends; returns the steps done and whether the
/// account was ruined.
fn compare(p: &MarketParams, columns: &Columns, table: &MarketTable, seed: u64) -> (usize, bool) {
    let (costs, quotes) = (costs(p), quotes(columns));
    let mut ledger = Ledger::open(&costs, 0);
    let mut account = account(p);
    let (mut fees, mut financing, mut borrow) = (0.0, 0.0, 0.0);
    for t in 0..columns.len() - 1 {
        let branches = random_branches(seed, t as u64, p.layout);
        let decision = decode(p.layout, pack(&branches));
        let (now, next) = (table.bar(t as u32), table.bar(t as u32 + 1));
        let out = step(p, &now, &next, table.elapsed(t as u32 + 1), &mut account, Some(decision));
        let line = ledger.step(&costs, t + 1, &quotes[t], &quotes[t + 1], &branches);
        fees += out.fee;
        financing += out.financing;
        borrow += out.borrow;

        // Every amount of the ledger is a sum of its lines, each rounded a few times: an error of at most some eps
        // of the sum of all |amounts| so far, and the account's own rounding is of the same size.
        let bound = 8.0 * f64::EPSILON * line.scale;
        // Far below the cent that f64 accounts are there to keep.
        assert!(bound < 0.005, "bar {t}: the bound {bound} would hide a cent");
        let money = [
            ("cash", account.cash, line.cash),
            ("equity", out.equity, line.equity),
            ("cash + q close", account.cash + account.quantity * next.close, line.equity),
            ("position", account.quantity * next.close, line.units * next.close),
            ("fees", fees, line.fees),
            ("financing", financing, line.financing),
            ("borrow", borrow, line.borrow),
        ];
        for (name, got, expected) in money {
            assert!((got - expected).abs() <= bound, "bar {}: {name} {got}, ledger {expected}", t + 1);
        }
        // d reward / d E = c / E at both ends, and lambda / peak.
        let reward_bound = (2.0 * p.reward_scale / line.equity.abs().min(out.equity.abs())
            + 4.0 * p.drawdown_penalty / p.initial_equity)
            * bound
            + 8.0 * f64::EPSILON * p.reward_scale;
        assert_eq!(out.terminated, line.terminated, "bar {}", t + 1);
        let error = (out.reward - line.reward).abs();
        assert!(error <= reward_bound, "bar {}: reward {} against {}", t + 1, out.reward, line.reward);

        // The books balance, and what the account earned is what trading made less what was paid.
        let result = -ledger.balance(Book::Result);
        let expected = p.initial_equity + result - line.fees - line.financing - line.borrow;
        assert!((line.equity - expected).abs() <= bound, "bar {}: books do not balance", t + 1);
        if out.terminated {
            assert_eq!(account.quantity, 0.0, "a ruined account holds nothing");
            return (t + 1, true);
        }
    }
    (columns.len() - 1, false)
}

#[test]
fn random_actions_match_the_ledger_to_rounding() {
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        for seed in 0..12 {
            let columns = Columns::random(seed, 250, 0.01);
            let p = MarketParams { layout, ..params() };
            let (steps, _) = compare(&p, &columns, &columns.table(), seed);
            assert!(steps > 20, "seed {seed} tested {steps} steps only");
        }
    }
}

#[test]
fn random_actions_without_costs_match_the_ledger() {
    let free = MarketParams {
        half_spread: 0.0,
        slippage: 0.0,
        impact: 0.0,
        taker_fee: 0.0,
        maker_fee: 0.0,
        financing: 0.0,
        borrow: 0.0,
        drawdown_penalty: 0.0,
        ..params()
    };
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        let free = MarketParams { layout, ..free };
        for seed in 20..26 {
            let columns = Columns::random(seed, 200, 0.01);
            compare(&free, &columns, &columns.table(), seed);
        }
    }
}

#[test]
fn ruin_and_debt_match_the_ledger() {
    // Bars of 30% ruin accounts by all roads: slowly, in one bar, and to below zero on the short side.
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        let mut ruined = 0;
        for seed in 40..90 {
            let columns = Columns::random(seed, 120, 0.3);
            let p = MarketParams { layout, maker_fee: -1e-4, ..params() };
            ruined += compare(&p, &columns, &columns.table(), seed).1 as usize;
        }
        assert!(ruined >= 20, "{layout:?}: only {ruined} of 50 accounts were ruined: the case is not tested");
    }
}

#[test]
fn every_action_of_the_four_branches_is_an_order_of_the_three() {
    let orders = |layout: ActionLayout| {
        let sizes = layout.branches();
        let count: usize = sizes.iter().product();
        let decisions = (0..count).map(|mut composite| {
            let mut branches = vec![0; sizes.len()];
            for (branch, size) in branches.iter_mut().zip(sizes).rev() {
                (*branch, composite) = (composite % size, composite / size);
            }
            decode(layout, pack(&branches))
        });
        decisions.collect::<Vec<_>>()
    };
    let (all, subset) = (orders(ActionLayout::Exposure), orders(ActionLayout::DirectionMagnitude));
    assert_eq!((all.len(), subset.len()), (81, 81));
    assert!(subset.iter().all(|order| all.contains(order)));
    let mut targets: Vec<f64> = subset.iter().map(|order| order.target).collect();
    targets.sort_by(f64::total_cmp);
    targets.dedup();
    // Flat with any magnitude is flat.
    assert_eq!(targets, [-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]);
}
