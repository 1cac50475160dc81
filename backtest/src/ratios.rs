//! The numbers that are made of returns and of an equity curve, for a track and for its resamples alike.

use serde::{Deserialize, Serialize};

use crate::Drawdown;
use crate::returns;

/// A return series beside the returns of buy-and-hold on the same bars.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    /// r_t, `[bars]`.
    pub returns: &'a [f64],
    /// Returns of the benchmark, `[bars]`; `None` for the benchmark itself.
    pub benchmark: Option<&'a [f64]>,
}

/// Numbers made of returns; `docs/METRICS.md` has the formulas. `None` is undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// Compound growth a year.
    pub cagr: Option<f64>,
    /// Mean return a year.
    pub annual_return: Option<f64>,
    /// Standard deviation of the returns, annualised.
    pub annual_volatility: Option<f64>,
    /// Mean over standard deviation, annualised.
    pub sharpe: Option<f64>,
    /// Mean over downside deviation, annualised.
    pub sortino: Option<f64>,
    /// CAGR over the deepest drawdown.
    pub calmar: Option<f64>,
    /// Gains over losses.
    pub omega: Option<f64>,
    /// Deepest relative drawdown.
    pub max_drawdown: Option<f64>,
    /// Annual return beyond beta times the benchmark's.
    pub alpha: Option<f64>,
    /// Covariance with the benchmark over the benchmark's variance.
    pub beta: Option<f64>,
}

impl Ratios {
    /// Names of the fields, in order.
    pub const NAMES: [&str; 10] = [
        "cagr",
        "annual_return",
        "annual_volatility",
        "sharpe",
        "sortino",
        "calmar",
        "omega",
        "max_drawdown",
        "alpha",
        "beta",
    ];

    /// Of returns and the equity curve that they make, `[bars + 1]`.
    pub fn new(series: Series<'_>, equity: &[f64], bars_per_year: f64) -> Self {
        let r = series.returns;
        let cagr = cagr(equity, bars_per_year);
        let depth = Drawdown::deepest(equity).relative;
        let regression = series.benchmark.and_then(|b| returns::regression(r, b));
        Self {
            cagr,
            annual_return: returns::annual_return(r, bars_per_year),
            annual_volatility: returns::annual_volatility(r, bars_per_year),
            sharpe: returns::sharpe(r, bars_per_year),
            sortino: returns::sortino(r, bars_per_year),
            calmar: calmar(cagr, depth),
            omega: returns::omega(r),
            max_drawdown: Some(depth),
            alpha: regression.map(|(alpha, _)| alpha * bars_per_year),
            beta: regression.map(|(_, beta)| beta),
        }
    }

    /// The same with what needs no returns alone: for an equity that was used up, after which there are none.
    pub fn without_returns(equity: &[f64], bars_per_year: f64) -> Self {
        let cagr = cagr(equity, bars_per_year);
        let depth = Drawdown::deepest(equity).relative;
        Self { cagr, calmar: calmar(cagr, depth), max_drawdown: Some(depth), ..Self::default() }
    }

    /// The values in the order of [`Self::NAMES`].
    pub fn values(&self) -> [Option<f64>; 10] {
        [
            self.cagr,
            self.annual_return,
            self.annual_volatility,
            self.sharpe,
            self.sortino,
            self.calmar,
            self.omega,
            self.max_drawdown,
            self.alpha,
            self.beta,
        ]
    }
}

/// (E_n / E_0)^(bars a year / n) - 1.
fn cagr(equity: &[f64], bars_per_year: f64) -> Option<f64> {
    let (start, end) = (*equity.first()?, *equity.last()?);
    let years = (equity.len() - 1) as f64 / bars_per_year;
    (end > 0.0 && years > 0.0).then(|| (end / start).powf(1.0 / years) - 1.0).filter(|x| x.is_finite())
}

fn calmar(cagr: Option<f64>, depth: f64) -> Option<f64> {
    cagr.filter(|_| depth > 0.0).map(|cagr| cagr / depth)
}

/// Numbers made of the profits of closed trades.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TradeRatios {
    /// Profitable trades over trades.
    pub win_rate: Option<f64>,
    /// Profits over losses.
    pub profit_factor: Option<f64>,
    /// Mean profit of a trade, in the quote currency.
    pub expectancy: Option<f64>,
}

impl TradeRatios {
    /// Names of the fields, in order.
    pub const NAMES: [&str; 3] = ["win_rate", "profit_factor", "expectancy"];

    /// Of the profits of trades, fees taken off.
    pub fn new(profits: &[f64]) -> Self {
        let won: Vec<f64> = profits.iter().copied().filter(|&p| p > 0.0).collect();
        let lost = -profits.iter().filter(|&&p| p < 0.0).sum::<f64>();
        Self {
            win_rate: (!profits.is_empty()).then(|| won.len() as f64 / profits.len() as f64),
            profit_factor: (lost > 0.0).then(|| won.iter().sum::<f64>() / lost),
            expectancy: returns::mean(profits),
        }
    }

    /// The values in the order of [`Self::NAMES`].
    pub fn values(&self) -> [Option<f64>; 3] {
        [self.win_rate, self.profit_factor, self.expectancy]
    }
}
