//! Strategy and buy-and-hold side by side.

use std::fmt;

use gpu::market::{LogRow, MarketParams, MarketTable, Part};
use serde::{Deserialize, Serialize};

use crate::{BacktestError, Metrics, Track, buy_and_hold};

/// The result of a backtest. `Display` is an aligned table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The annualisation factor, from the data.
    pub bars_per_year: f64,
    /// The strategy.
    pub strategy: Metrics,
    /// Buy-and-hold on the same bars with the same costs.
    pub buy_and_hold: Metrics,
}

impl Report {
    /// The report of a backtest's rows on `part` (from [`gpu::market::rollout`] or the device's log).
    /// `bars_per_year` comes from the data's bar interval and calendar, or from the user.
    ///
    /// # Errors
    /// [`BacktestError`] without rows or with a factor that is not positive and finite.
    pub fn new(
        rows: &[LogRow],
        params: &MarketParams,
        table: &MarketTable,
        part: &Part,
        bars_per_year: f64,
    ) -> Result<Self, BacktestError> {
        let track = Track::new(rows, params.initial_equity, part.backtest_steps())?;
        Self::of_tracks(&track, &buy_and_hold(params, table, part), bars_per_year)
    }

    /// The report of a strategy's track and of that of buy-and-hold over the same bars.
    ///
    /// # Errors
    /// [`BacktestError`] for a track without a bar or a factor that is not positive and finite.
    pub fn of_tracks(strategy: &Track, holding: &Track, bars_per_year: f64) -> Result<Self, BacktestError> {
        Ok(Self {
            bars_per_year,
            strategy: Metrics::new(strategy, bars_per_year)?,
            buy_and_hold: Metrics::new(holding, bars_per_year)?,
        })
    }

    /// Name and texts of every line of the table.
    fn lines(&self) -> Vec<[String; 3]> {
        let line = |name: &str, text: &dyn Fn(&Metrics) -> String| {
            [name.to_owned(), text(&self.strategy), text(&self.buy_and_hold)]
        };
        vec![
            line("total return", &|m| percent(Some(m.total_return))),
            line("CAGR", &|m| percent(m.cagr)),
            line("annualised return", &|m| percent(m.annual_return)),
            line("annualised volatility", &|m| percent(m.annual_volatility)),
            line("Sharpe ratio", &|m| number(m.sharpe)),
            line("Sortino ratio", &|m| number(m.sortino)),
            line("Calmar ratio", &|m| number(m.calmar)),
            line("max drawdown", &|m| percent(Some(m.max_drawdown.relative))),
            line("max drawdown, bars", &|m| {
                let open = m.max_drawdown.relative > 0.0 && m.max_drawdown.recovery.is_none();
                format!("{}{}", m.max_drawdown.bars, if open { " (open)" } else { "" })
            }),
            line("average exposure", &|m| percent(Some(m.average_exposure))),
            line("average gross exposure", &|m| percent(Some(m.average_gross_exposure))),
            line("turnover per year", &|m| format!("{:.2}", m.turnover)),
            line("filled orders", &|m| m.fills.to_string()),
            line("closed trades", &|m| m.trades.to_string()),
            line("win rate", &|m| percent(m.win_rate)),
            line("profit factor", &|m| number(m.profit_factor)),
            line("fees paid", &|m| format!("{:.2}", m.fees)),
            line("financing paid", &|m| format!("{:.2}", m.financing)),
            line("borrow paid", &|m| format!("{:.2}", m.borrow)),
            line("start equity", &|m| format!("{:.2}", m.start_equity)),
            line("end equity", &|m| format!("{:.2}", m.end_equity)),
        ]
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} bars, {:.0} a year", self.strategy.bars, self.bars_per_year);
        let mut rows = vec![[title, "strategy".to_owned(), "buy-and-hold".to_owned()]];
        rows.extend(self.lines());
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        for [name, strategy, holding] in &rows {
            writeln!(f, "{name:<0$}  {strategy:>1$}  {holding:>2$}", widths[0], widths[1], widths[2])?;
        }
        Ok(())
    }
}

const UNDEFINED: &str = "undefined";

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| UNDEFINED.to_owned(), |v| format!("{:.2}%", 100.0 * v))
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| UNDEFINED.to_owned(), |v| format!("{v:.3}"))
}
