//! From a factored action to an order, and from an order to a fill inside the next bar.

use super::params::{ActionLayout, MarketParams};
use crate::action::branch;

/// Mid prices of one bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// First price.
    pub open: f64,
    /// Highest price.
    pub high: f64,
    /// Lowest price.
    pub low: f64,
    /// Last price.
    pub close: f64,
}

/// Type of an order, branch b1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// At the next open, with half spread, slippage, impact and the taker fee.
    Market,
    /// At the last close or better, maker fee, cancelled when the next bar does not trade through it.
    Limit,
    /// As a limit order, half a spread away from the last close: on the own side of the book.
    Passive,
}

/// A decoded action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// x: target exposure, fraction of equity, -1 to 1.
    pub target: f64,
    /// Type of the order.
    pub order: OrderKind,
    /// u: the fraction of the way to the target that is ordered.
    pub urgency: f64,
}

/// Decodes an action packed one byte per branch ([`crate::action`]).
///
/// Branches must be within the layout's sizes: the caller chose the action (checked in debug builds, and by
/// [`VecMarket`](super::VecMarket) always).
#[inline(always)]
pub fn decode(layout: ActionLayout, action: u64) -> Decision {
    let (target, order, urgency) = match layout {
        ActionLayout::Exposure => {
            let level = branch(action, 0);
            debug_assert!(level < 9, "exposure {level} of 9");
            (-1.0 + level as f64 / 4.0, branch(action, 1), branch(action, 2))
        }
        ActionLayout::DirectionMagnitude => {
            let (direction, size) = (branch(action, 0), branch(action, 1));
            debug_assert!(direction < 3 && size < 3, "direction {direction} of 3, magnitude {size} of 3");
            let magnitude = match size {
                0 => 0.25,
                1 => 0.5,
                _ => 1.0,
            };
            // direction - 1 is exact, and 0 * magnitude is 0: flat has no magnitude.
            ((direction as f64 - 1.0) * magnitude, branch(action, 2), branch(action, 3))
        }
    };
    debug_assert!(order < 3 && urgency < 3, "order {order} of 3, urgency {urgency} of 3");
    Decision {
        target,
        order: match order {
            0 => OrderKind::Market,
            1 => OrderKind::Limit,
            _ => OrderKind::Passive,
        },
        urgency: match urgency {
            0 => 1.0 / 3.0,
            1 => 2.0 / 3.0,
            _ => 1.0,
        },
    }
}

/// dq = u (x - x_now) E / close with x_now = q close / E, written as u (x E / close - q): the same number without
/// the detour, and exactly -q when a whole position is closed, so that no rounding dust stays behind.
#[inline(always)]
pub fn order_quantity(decision: &Decision, quantity: f64, equity: f64, close: f64) -> f64 {
    decision.urgency * (decision.target * equity / close - quantity)
}

/// A fill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Execution {
    /// Price per unit, all price costs included.
    pub price: f64,
    /// Fee in the quote currency; negative for a maker rebate.
    pub fee: f64,
}

/// What becomes of an order of `quantity` units (not 0; negative: sell) decided at the close of bar `now` with
/// equity `equity` there, inside bar `next`; `None` when it is cancelled unfilled.
///
/// A market order fills at open' (1 + sign(dq) (half_spread + slippage + impact |dq| close / E)). A limit buy at
/// L = close fills if low' < L, at min(L, open'); a sell mirrored. Passive: L = close (1 - half_spread), sell (1 + ..).
/// Touching L is not enough: the queue at L is not known.
#[inline(always)]
pub fn execute(
    params: &MarketParams,
    order: OrderKind,
    quantity: f64,
    equity: f64,
    now: &Bar,
    next: &Bar,
) -> Option<Execution> {
    let buy = quantity > 0.0;
    let units = if buy { quantity } else { -quantity };
    let (price, rate) = match order {
        OrderKind::Market => {
            let cost = params.half_spread + params.slippage + params.impact * (units * now.close / equity);
            let price = if buy { next.open * (1.0 + cost) } else { next.open * (1.0 - cost) };
            (price, params.taker_fee)
        }
        OrderKind::Limit | OrderKind::Passive => {
            let away = if order == OrderKind::Passive { params.half_spread } else { 0.0 };
            let price = if buy {
                let limit = now.close * (1.0 - away);
                if next.low >= limit {
                    return None;
                }
                if next.open < limit { next.open } else { limit }
            } else {
                let limit = now.close * (1.0 + away);
                if next.high <= limit {
                    return None;
                }
                if next.open > limit { next.open } else { limit }
            };
            (price, params.maker_fee)
        }
    };
    Some(Execution { price, fee: rate * (units * price) })
}

/// The largest market buy at `next.open` that `cash` pays with its fee, in units: the positive root of
/// dq open' (1 + half_spread + slippage + impact dq close / E) (1 + fee) = cash. Used by buy-and-hold, which must
/// not borrow.
pub fn all_in_quantity(params: &MarketParams, cash: f64, equity: f64, now: &Bar, next: &Bar) -> f64 {
    let gross = next.open * (1.0 + params.taker_fee);
    let linear = gross * (1.0 + params.half_spread + params.slippage);
    let square = gross * params.impact * now.close / equity;
    // 2c / (b + sqrt(b^2 + 4ac)): no cancellation, and right for a = 0.
    2.0 * cash / (linear + libm::sqrt(linear * linear + 4.0 * square * cash))
}
