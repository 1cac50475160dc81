//! What simply holding the asset would have made.

use gpu::market::{MarketParams, MarketTable, OrderKind, Part, Prices, all_in_quantity, execute};

use crate::{Fill, Track};

/// Buy-and-hold on the bars of a part's backtest, with the same costs: one market order for all the cash, decided at
/// the close of the first decision bar and filled at the next open like any other order, held to the last close.
///
/// The fill and its fee use up the cash exactly, so nothing is borrowed and no interest is due. Like the strategy's
/// last position it is marked at the last close, not sold.
pub fn buy_and_hold(params: &MarketParams, table: &MarketTable, part: &Part) -> Track {
    let start = part.backtest_start()[0];
    let cash = params.initial_equity;
    let (now, next) = (table.bar(start), table.bar(start + 1));
    let quantity = all_in_quantity(params, cash, cash, &now, &next);
    let price = match execute(params, OrderKind::Market, quantity, cash, &now, &next) {
        Some(fill) => fill.price,
        None => unreachable!("a market order always fills"),
    };
    // The whole cash is spent, so what the units do not cost is the fee: equal to fee rate * notional up to rounding.
    let fee = cash - quantity * price;
    let mut track = Track {
        equity: vec![cash],
        fills: vec![Fill { bar: 1, quantity, price, fee }],
        fees: fee,
        ..Track::default()
    };
    for t in start + 1..=part.last() {
        track.equity.push(quantity * table.close(t));
        track.exposure.push(1.0);
    }
    track
}
