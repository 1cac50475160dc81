//! What a policy made before costs: the statistic by which a leak is found.

use gpu::market::{ActionLayout, LogRow, MarketTable, OrderKind, Prices, decode};
use serde::{Deserialize, Serialize};

/// Returns before costs, summed over as many backtests as are added.
///
/// On a market whose simple returns are a martingale difference no policy has an expected return before costs. A mean
/// that lies several standard errors above zero means that something was known before it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gross {
    /// Bars.
    pub bars: u64,
    sum: f64,
    squares: f64,
    exposure: f64,
}

impl Gross {
    /// Adds a backtest's rows on the bars of `table`.
    pub fn add(&mut self, rows: &[LogRow], table: &MarketTable, layout: ActionLayout, start_equity: f64) {
        let returns = gross_returns(rows, table, layout, start_equity);
        for (g, row) in returns.into_iter().zip(rows) {
            self.bars += 1;
            self.sum += g;
            self.squares += g * g;
            self.exposure += row.exposure.abs();
        }
    }

    /// Adds another's bars.
    pub fn merge(&mut self, other: &Self) {
        self.bars += other.bars;
        self.sum += other.sum;
        self.squares += other.squares;
        self.exposure += other.exposure;
    }

    /// Mean return of a bar before costs; `None` without a bar.
    pub fn mean(&self) -> Option<f64> {
        (self.bars > 0).then(|| self.sum / self.bars as f64)
    }

    /// The mean in standard errors: mean / (standard deviation / sqrt(bars)), ddof 1. `None` where the returns do not
    /// vary.
    pub fn z(&self) -> Option<f64> {
        let (n, mean) = (self.bars as f64, self.mean()?);
        let variance = (self.squares - n * mean * mean) / (n - 1.0);
        (variance > 0.0).then(|| mean / (variance / n).sqrt())
    }

    /// Mean of the absolute exposure at the closes; `None` without a bar.
    pub fn mean_exposure(&self) -> Option<f64> {
        (self.bars > 0).then(|| self.exposure / self.bars as f64)
    }
}

/// The return before costs of every bar, `[rows]`: (q (C' - C) + dq (C' - O')) / E, with q the units held at the close C
/// of the bar before, dq what a market order added, O' and C' the bar's mid open and close, and E the equity at C.
///
/// No spread, slippage, impact, fee or interest is in it. The fill of a resting order is left out too, as if the units
/// were received at the close: that it is hit by prices that go on against it is a cost of resting, and no expectation of
/// zero. Units are known before the prices they are multiplied by, so every bar's expectation is zero on a martingale.
pub fn gross_returns(
    rows: &[LogRow],
    table: &MarketTable,
    layout: ActionLayout,
    start_equity: f64,
) -> Vec<f64> {
    let (mut units, mut equity) = (0.0, start_equity);
    rows.iter()
        .map(|row| {
            let (now, next) = (table.close(row.bar - 1), table.bar(row.bar));
            let out = &row.outcome;
            let market = row.decided && decode(layout, row.action).order == OrderKind::Market;
            let traded = if market { out.quantity * (next.close - next.open) } else { 0.0 };
            let gross = (units * (next.close - now) + traded) / equity;
            units += out.quantity + out.closed_out;
            equity = out.equity;
            gross
        })
        .collect()
}
