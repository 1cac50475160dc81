//! The numbers of a report.

use serde::{Deserialize, Serialize};

use crate::drawdown::Drawdowns;
use crate::ratios::{Ratios, Series, TradeRatios};
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
    /// Sum of the returns above 0 over the sum of those below.
    #[serde(default)]
    pub omega: Option<f64>,
    /// Annual return beyond beta times buy-and-hold's; undefined for buy-and-hold itself.
    #[serde(default)]
    pub alpha: Option<f64>,
    /// Covariance of the returns with buy-and-hold's over the variance of these.
    #[serde(default)]
    pub beta: Option<f64>,
    /// The deepest relative drawdown; the start equity is the first peak.
    pub max_drawdown: Drawdown,
    /// All drawdowns.
    #[serde(default)]
    pub drawdowns: Drawdowns,
    /// Fraction of the bars at whose close a position is held.
    #[serde(default)]
    pub exposed: f64,
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
    /// Mean profit of a closed trade.
    #[serde(default)]
    pub expectancy: Option<f64>,
    /// Fees paid.
    pub fees: f64,
    /// Interest paid on borrowed cash.
    pub financing: f64,
    /// Paid for borrowed units.
    pub borrow: f64,
}

impl Metrics {
    /// Metrics of a track, annualised with the data's own number of bars a year. `benchmark` is what alpha and beta refer
    /// to, on the same bars.
    ///
    /// # Errors
    /// [`BacktestError::BarsPerYear`] for a factor that is not positive and finite, [`BacktestError::Empty`] for a
    /// track without a bar, [`BacktestError::Benchmark`] for one of another length.
    pub fn new(track: &Track, benchmark: Option<&Track>, bars_per_year: f64) -> Result<Self, BacktestError> {
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
        if let Some(benchmark) = benchmark.filter(|b| b.equity.len() != track.equity.len()) {
            return Err(BacktestError::Benchmark { bars, benchmark: benchmark.bars() });
        }
        let n = bars as f64;
        let of_benchmark = benchmark.and_then(|b| returns::simple_returns(&b.equity));
        let ratios = match returns::simple_returns(&track.equity) {
            Some(returns) => {
                let series = Series { returns: &returns, benchmark: of_benchmark.as_deref() };
                Ratios::new(series, &track.equity, bars_per_year)
            }
            None => Ratios::without_returns(&track.equity, bars_per_year),
        };
        let profits = track.profits();
        let by_trade = TradeRatios::new(&profits);
        let traded: f64 =
            track.fills.iter().map(|f| (f.quantity * f.price).abs() / track.equity[f.bar - 1]).sum();
        Ok(Self {
            bars,
            start_equity: start,
            end_equity: end,
            total_return: end / start - 1.0,
            cagr: ratios.cagr,
            annual_return: ratios.annual_return,
            annual_volatility: ratios.annual_volatility,
            sharpe: ratios.sharpe,
            sortino: ratios.sortino,
            calmar: ratios.calmar,
            omega: ratios.omega,
            alpha: ratios.alpha,
            beta: ratios.beta,
            max_drawdown: Drawdown::deepest(&track.equity),
            drawdowns: Drawdowns::of(&track.equity),
            exposed: track.exposure.iter().filter(|x| **x != 0.0).count() as f64 / n,
            average_exposure: track.exposure.iter().sum::<f64>() / n,
            average_gross_exposure: track.exposure.iter().map(|x| x.abs()).sum::<f64>() / n,
            turnover: traded * bars_per_year / n,
            fills: track.fills.len(),
            trades: profits.len(),
            win_rate: by_trade.win_rate,
            profit_factor: by_trade.profit_factor,
            expectancy: by_trade.expectancy,
            fees: track.fees,
            financing: track.financing,
            borrow: track.borrow,
        })
    }
}
