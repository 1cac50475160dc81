//! From the bars of a backtest to a report with buy-and-hold beside it. `docs/METRICS.md` has every formula.
//!
//! The way of the data: [`gpu::market::LogRow`]s of a pass, on the GPU or the CPU, become a [`Track`] (equity and
//! exposure per bar, fills, costs); a track becomes [`Metrics`]; a [`Report`] is the metrics of the strategy and of
//! [`buy_and_hold`] on the same bars with the same costs, with confidence intervals ([`Bootstrap`]) and a Sharpe ratio
//! deflated for the number of policies compared ([`Deflated`]). A metric that is not defined (a ratio with nothing below
//! the line) is `None`, never 0 or infinite, and prints as `undefined`.

#![warn(missing_docs)]

pub mod block;
pub mod bootstrap;
pub mod deflated;
pub mod drawdown;
pub mod normal;
pub mod ratios;
pub mod returns;

mod buy_and_hold;
mod combine;
mod gross;
mod metrics;
mod parameters;
mod report;
mod table;
mod track;
mod trades;

pub use bootstrap::{Bootstrap, Confidence, Interval, Intervals};
pub use buy_and_hold::buy_and_hold;
pub use deflated::{Deflated, Trials};
pub use drawdown::{Drawdown, Drawdowns};
pub use gross::{Gross, gross_returns};
pub use metrics::Metrics;
pub use parameters::{INITIAL_EQUITY, bar_side, market_params};
pub use report::Report;
pub use table::{Line, lines};
pub use track::{Fill, Track};
pub use trades::{Trade, trades};

use gpu::market::MarketError;

/// What keeps a report or an environment from being made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BacktestError {
    /// The environment's parameters or data cannot work.
    #[error(transparent)]
    Market(#[from] MarketError),
    /// Branch sizes that are no action layout of the market.
    #[error(
        "model.branches = {branches:?}: the market environment needs [9, 3, 3] (exposure, order, urgency) or \
         [3, 3, 3, 3] (direction, magnitude, order, urgency)"
    )]
    Layout {
        /// The configured sizes.
        branches: Vec<usize>,
    },
    /// An annualisation factor that is not a positive number.
    #[error("{value} bars a year: expected a positive finite number")]
    BarsPerYear {
        /// The factor.
        value: f64,
    },
    /// A benchmark on other bars.
    #[error(
        "a track of {bars} bars beside a benchmark of {benchmark} bars: they have to cover the same ones"
    )]
    Benchmark {
        /// Bars of the track.
        bars: usize,
        /// Bars of the benchmark.
        benchmark: usize,
    },
    /// A backtest of no bar.
    #[error("the backtest has no bar: nothing to report")]
    Empty,
}
