//! The numbers of a report.

use serde::{Deserialize, Serialize};

use crate::{BacktestError, Drawdown, Track, returns};

/// Metrics of one track; `docs/METRICS.md` has the formulas. Fractions, not percent; money in the quote currency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// n: bars of the track.
    pub bars: usize,
    /// E_0.
    pub start_equity: f64,
    /// E_n, marked at the last close.
    pub end_equity: f64,
    /// E_n / E_0 - 1.
    pub total_return: f64,
    /// (E_n / E_0)^(bars a year / n) - 1; undefined for an equity that is not positive.
    pub cagr: Option<f64>,
    /// Mean return per bar times bars a year.
    pub annual_return: Option<f64>,
    /// Standard deviation (ddof 1) of the returns per bar times the root of bars a year.
    pub annual_volatility: Option<f64>,
    /// Mean over standard deviation (ddof 1) of the returns per bar, risk-free rate 0, times the root of bars a year.
    pub sharpe: Option<f64>,
    /// Mean over downside deviation of the returns per bar, target 0, times the root of bars a year.
    pub sortino: Option<f64>,
    /// CAGR over the deepest relative drawdown.
    pub calmar: Option<f64>,
    /// The deepest relative drawdown; the start equity is the first peak.
    pub max_drawdown: Drawdown,
    /// Mean of the exposure at the closes.
    pub average_exposure: f64,
    /// Mean of its absolute value.
    pub average_gross_exposure: f64,
    /// Traded notional over the equity at the close before, summed, per year.
    pub turnover: f64,
    /// Filled orders.
    pub fills: usize,
    /// Closed trades.
    pub trades: usize,
    /// Closed trades with a profit above 0 over closed trades.
    pub win_rate: Option<f64>,
    /// Sum of the winning trades' profits over the sum of the losing trades' losses.
    pub profit_factor: Option<f64>,
    /// Fees paid.
    pub fees: f64,
    /// Interest paid on borrowed cash.
    pub financing: f64,
    /// Paid for borrowed units.
    pub borrow: f64,
}

impl Metrics {
    /// Metrics of a track, annualised with the data's own number of bars a year.
    ///
    /// # Errors
    /// [`BacktestError::BarsPerYear`] for a factor that is not positive and finite, [`BacktestError::Empty`] for a
    /// track without a bar.
    pub fn new(track: &Track, bars_per_year: f64) -> Result<Self, BacktestError> {
        if !(bars_per_year.is_finite() && bars_per_year > 0.0) {
            return Err(BacktestError::BarsPerYear { value: bars_per_year });
        }
        let (Some(&start), Some(&end)) = (track.equity.first(), track.equity.last()) else {
            return Err(BacktestError::Empty);
        };
        let bars = track.bars();
        if bars == 0 || track.equity.len() != bars + 1 {
            return Err(BacktestError::Empty);
        }
        let n = bars as f64;
        let per_bar = returns::simple_returns(&track.equity);
        let of_returns = |metric: fn(&[f64], f64) -> Option<f64>| metric(per_bar.as_deref()?, bars_per_year);
        let max_drawdown = Drawdown::deepest(&track.equity);
        let cagr = (end > 0.0).then(|| (end / start).powf(bars_per_year / n) - 1.0).filter(|x| x.is_finite());
        let calmar = cagr.filter(|_| max_drawdown.relative > 0.0).map(|cagr| cagr / max_drawdown.relative);

        let closed = track.trades();
        let wins: Vec<f64> = closed.iter().map(|t| t.profit).filter(|&p| p > 0.0).collect();
        let lost: f64 = -closed.iter().map(|t| t.profit).filter(|&p| p < 0.0).sum::<f64>();
        let traded: f64 =
            track.fills.iter().map(|f| (f.quantity * f.price).abs() / track.equity[f.bar - 1]).sum();
        Ok(Self {
            bars,
            start_equity: start,
            end_equity: end,
            total_return: end / start - 1.0,
            cagr,
            annual_return: of_returns(returns::annual_return),
            annual_volatility: of_returns(returns::annual_volatility),
            sharpe: of_returns(returns::sharpe),
            sortino: of_returns(returns::sortino),
            calmar,
            max_drawdown,
            average_exposure: track.exposure.iter().sum::<f64>() / n,
            average_gross_exposure: track.exposure.iter().map(|x| x.abs()).sum::<f64>() / n,
            turnover: traded * bars_per_year / n,
            fills: track.fills.len(),
            trades: closed.len(),
            win_rate: (!closed.is_empty()).then(|| wins.len() as f64 / closed.len() as f64),
            profit_factor: (lost > 0.0).then(|| wins.iter().sum::<f64>() / lost),
            fees: track.fees,
            financing: track.financing,
            borrow: track.borrow,
        })
    }
}
