//! What a pass over the bars left behind, in the form that metrics are computed from.

use gpu::market::LogRow;
use serde::{Deserialize, Serialize};

use crate::BacktestError;

/// One filled order. Money in the quote currency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fill {
    /// Position in [`Track::equity`] of the bar that filled it, at least 1.
    pub bar: usize,
    /// Units, negative when sold.
    pub quantity: f64,
    /// Price per unit, price costs included.
    pub price: f64,
    /// Fee paid.
    pub fee: f64,
}

/// Equity and exposure at each close, and all that was traded and paid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Track {
    /// Equity at the closes, `[bars + 1]`: the first is the start, before the first bar.
    pub equity: Vec<f64>,
    /// Exposure q close / E at the closes of the bars, `[bars]`.
    pub exposure: Vec<f64>,
    /// Fills in time order.
    pub fills: Vec<Fill>,
    /// Which account each fill belongs to, `[fills]`, in a track that is made of several; empty where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<usize>,
    /// Fees paid in all.
    pub fees: f64,
    /// Interest paid on borrowed cash in all.
    pub financing: f64,
    /// Paid for borrowed units in all.
    pub borrow: f64,
}

impl Track {
    /// The track of a backtest of `bars` bars that started with `start_equity`. A pass that ended early, by ruin,
    /// stays at its last equity without a position, so that it covers the same bars as what it is compared with.
    ///
    /// # Errors
    /// [`BacktestError::Empty`] without a row or a bar.
    pub fn new(rows: &[LogRow], start_equity: f64, bars: usize) -> Result<Self, BacktestError> {
        if rows.is_empty() || bars == 0 {
            return Err(BacktestError::Empty);
        }
        let mut track = Self { equity: vec![start_equity], ..Self::default() };
        for (i, row) in rows.iter().enumerate() {
            let out = &row.outcome;
            let bar = i + 1;
            track.equity.push(out.equity);
            track.exposure.push(row.exposure);
            if out.quantity != 0.0 {
                track.fills.push(Fill { bar, quantity: out.quantity, price: out.price, fee: out.fee });
            }
            if out.closed_out != 0.0 {
                track.fills.push(Fill { bar, quantity: out.closed_out, price: row.close, fee: 0.0 });
            }
            track.fees += out.fee;
            track.financing += out.financing;
            track.borrow += out.borrow;
        }
        let last = track.equity[rows.len()];
        track.equity.resize(track.equity.len().max(bars + 1), last);
        track.exposure.resize(track.exposure.len().max(bars), 0.0);
        Ok(track)
    }

    /// Profits of the closed trades, in the order in which they closed.
    pub fn profits(&self) -> Vec<f64> {
        self.trades().iter().map(|trade| trade.profit).collect()
    }

    /// Bars of the track.
    pub fn bars(&self) -> usize {
        self.exposure.len()
    }
}
