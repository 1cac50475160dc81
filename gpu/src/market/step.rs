//! One bar of one environment.

use super::{
    account::{Account, FILLED, RUNNING, TERMINATED, TRUNCATED},
    log::LogRow,
    order::{Bar, Decision, decode, execute, order_quantity},
    params::MarketParams,
    reset::resumed,
    view::{Prices, Runs, Times},
};

/// What one step did. Money in the quote currency.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// r_t.
    pub reward: f64,
    /// E_{t+1} <= ruin E_0. May be set together with `truncated`; then termination decides the discount.
    pub terminated: bool,
    /// The episode or the data window ends at bar t + 1.
    pub truncated: bool,
    /// An order was sent (dq was not 0).
    pub ordered: bool,
    /// dq where the order was filled, else 0.
    pub quantity: f64,
    /// Fill price, 0 without a fill.
    pub price: f64,
    /// Fee paid, 0 without a fill.
    pub fee: f64,
    /// Interest paid on borrowed cash over the bar.
    pub financing: f64,
    /// Fee paid for borrowed units over the bar.
    pub borrow: f64,
    /// E_{t+1}, marked at the close of bar t + 1.
    pub equity: f64,
    /// Units traded at the close of bar t + 1 to close a ruined account, else 0.
    pub closed_out: f64,
}

/// The larger of `x` and 0; for a NaN 0, but no NaN arises from checked bars and parameters.
#[inline(always)]
fn positive(x: f64) -> f64 {
    if x > 0.0 { x } else { 0.0 }
}

/// Advances `account` from the close of bar `now` to the close of bar `next`.
///
/// `elapsed` is the time between the two bars in years. `decision` is `None` where no complete window exists (a
/// backtest just behind a gap): then nothing is ordered. The account must be in a running episode.
///
/// 1. Interest over (t, t+1] on the position carried into it: financing on max(0, -cash), borrow on max(0, -q close).
/// 2. The order, sized by the equity at the close of bar t, executed inside bar t + 1.
/// 3. Mark at the close of bar t + 1; the ruin test before the logarithm.
#[inline(always)]
pub fn step(
    params: &MarketParams,
    now: &Bar,
    next: &Bar,
    elapsed: f64,
    account: &mut Account,
    decision: Option<Decision>,
) -> StepOutcome {
    let mut out = StepOutcome::default();
    let equity = account.equity(now.close);
    let drawdown = account.drawdown(now.close);

    out.financing = params.financing * elapsed * positive(-account.cash);
    out.borrow = params.borrow * elapsed * (positive(-account.quantity) * now.close);
    account.cash = account.cash - out.financing - out.borrow;

    if let Some(decision) = decision {
        let quantity = order_quantity(&decision, account.quantity, equity, now.close);
        if quantity != 0.0 {
            out.ordered = true;
            account.flags &= !FILLED;
            if let Some(fill) = execute(params, decision.order, quantity, equity, now, next) {
                account.trade(quantity, fill.price, fill.fee);
                account.flags |= FILLED;
                account.last_trade = account.t + 1;
                (out.quantity, out.price, out.fee) = (quantity, fill.price, fill.fee);
            }
        }
    }

    account.t += 1;
    out.equity = account.equity(next.close);
    if out.equity > account.peak {
        account.peak = out.equity;
    }
    out.terminated = out.equity <= params.ruin * params.initial_equity;
    out.truncated = account.t >= account.end;
    if out.terminated {
        out.reward = params.ruin_reward;
        // The position is closed at the mark: a ruined account trades no more, and its final observation stays
        // finite although its equity may be 0 or negative.
        if account.quantity != 0.0 {
            out.closed_out = -account.quantity;
            account.trade(out.closed_out, next.close, 0.0);
        }
    } else {
        let growth = positive(account.drawdown(next.close) - drawdown);
        out.reward = params.reward_scale * libm::log(out.equity / equity) - params.drawdown_penalty * growth;
    }
    account.flags = (account.flags & FILLED)
        | RUNNING
        | if out.terminated { TERMINATED } else { 0 }
        | if out.truncated { TRUNCATED } else { 0 };
    out
}

/// Discount of a transition: gamma (1 - terminated). A truncated episode bootstraps, from its final observation.
#[inline(always)]
pub fn discount(gamma: f64, terminated: bool) -> f64 {
    if terminated { 0.0 } else { gamma }
}

/// One step of environment `environment`: starts an episode where one is due, decodes the packed action and advances
/// the account by one bar. `None`, and an unchanged account, when a backtest has reached its end.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "what a kernel has as separate buffers stays separate")]
pub fn advance(
    params: &MarketParams,
    prices: &impl Prices,
    times: &impl Times,
    runs: &impl Runs,
    seed: u64,
    environment: u32,
    account: &mut Account,
    action: u64,
) -> Option<LogRow> {
    *account = resumed(params, runs, seed, environment, *account);
    if account.ended() {
        return None;
    }
    let t = account.t;
    let decided = runs.run_end(t) != 0;
    let decision = if decided { Some(decode(params.layout, action)) } else { None };
    let (now, next) = (prices.bar(t), prices.bar(t + 1));
    let outcome = step(params, &now, &next, times.elapsed(t + 1), account, decision);
    Some(LogRow {
        bar: t + 1,
        action: if decided { action } else { 0 },
        decided,
        exposure: account.exposure(next.close),
        close: next.close,
        outcome,
    })
}
