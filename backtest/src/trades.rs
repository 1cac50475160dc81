//! Closed trades out of fills.

use serde::{Deserialize, Serialize};

use crate::track::Fill;

/// Units that were bought and sold again (or sold and bought back) by one closing fill.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trade {
    /// Bar of the fill that opened the position.
    pub opened: usize,
    /// Bar of the fill that closed these units.
    pub closed: usize,
    /// Units, negative for a short trade.
    pub quantity: f64,
    /// Average price at which the position was entered.
    pub entry: f64,
    /// Price at which these units were closed.
    pub exit: f64,
    /// Fees of both sides for these units.
    pub fees: f64,
    /// quantity (exit - entry) - fees.
    pub profit: f64,
}

/// What is still open after the last fill.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Open {
    /// Units, negative for short.
    pub quantity: f64,
    /// Average entry price.
    pub entry: f64,
    /// Entry fees of these units.
    pub fees: f64,
    /// Bar of the fill that opened the position.
    pub opened: usize,
}

/// Closed trades of fills in time order, and what they leave open. Every fill against the position closes a trade of
/// the units it takes off, at the average entry price (which further entries move and closings do not); a fill that
/// turns the position round closes all of it and opens the rest, and its fee is split by units.
pub fn trades(fills: &[Fill]) -> (Vec<Trade>, Open) {
    let mut closed = Vec::new();
    let mut open = Open::default();
    for fill in fills {
        let against = open.quantity * fill.quantity < 0.0;
        if !against {
            if open.quantity == 0.0 {
                open = Open { opened: fill.bar, ..Open::default() };
            }
            let quantity = open.quantity + fill.quantity;
            open.entry = (open.entry * open.quantity + fill.price * fill.quantity) / quantity;
            open.fees += fill.fee;
            open.quantity = quantity;
            continue;
        }
        // Units taken off, with the sign of the position.
        let taken = if fill.quantity.abs() < open.quantity.abs() { -fill.quantity } else { open.quantity };
        let entry_fees = open.fees * (taken / open.quantity);
        let exit_fees = fill.fee * (taken / -fill.quantity);
        let fees = entry_fees + exit_fees;
        closed.push(Trade {
            opened: open.opened,
            closed: fill.bar,
            quantity: taken,
            entry: open.entry,
            exit: fill.price,
            fees,
            profit: taken * (fill.price - open.entry) - fees,
        });
        let rest = open.quantity + fill.quantity;
        if rest == 0.0 {
            open = Open::default();
        } else if (rest > 0.0) == (open.quantity > 0.0) {
            open.quantity = rest;
            open.fees -= entry_fees;
        } else {
            open = Open { quantity: rest, entry: fill.price, fees: fill.fee - exit_fees, opened: fill.bar };
        }
    }
    (closed, open)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(bar: usize, quantity: f64, price: f64, fee: f64) -> Fill {
        Fill { bar, quantity, price, fee }
    }

    #[test]
    fn entries_average_and_closings_take_their_share_of_the_fees() {
        let fills = [fill(1, 10.0, 100.0, 1.0), fill(2, 30.0, 120.0, 3.0), fill(5, -10.0, 130.0, 2.0)];
        let (closed, open) = trades(&fills);
        let expected = Trade {
            opened: 1,
            closed: 5,
            quantity: 10.0,
            entry: 115.0,
            exit: 130.0,
            fees: 3.0,
            profit: 147.0,
        };
        assert_eq!(closed, [expected]);
        assert_eq!(open, Open { quantity: 30.0, entry: 115.0, fees: 3.0, opened: 1 });
    }

    #[test]
    fn a_turn_closes_all_and_opens_the_rest() {
        let fills = [fill(1, -4.0, 50.0, 0.4), fill(3, 10.0, 40.0, 1.0)];
        let (closed, open) = trades(&fills);
        assert_eq!(closed.len(), 1);
        let t = closed[0];
        assert_eq!((t.quantity, t.entry, t.exit), (-4.0, 50.0, 40.0));
        assert!((t.fees - 0.8).abs() < 1e-15 && (t.profit - 39.2).abs() < 1e-13);
        assert_eq!((open.quantity, open.entry, open.opened), (6.0, 40.0, 3));
        assert!((open.fees - 0.6).abs() < 1e-15);
    }

    #[test]
    fn nothing_traded_is_nothing_closed() {
        assert_eq!(trades(&[]), (vec![], Open::default()));
    }
}
