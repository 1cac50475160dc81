//! From the rows of backtests to reports: of every symbol, and of all of them as a portfolio.

use std::fmt;

use ::gpu::market::LogRow;
use anyhow::bail;
use backtest::{Report, Track, buy_and_hold};
use serde::{Deserialize, Serialize};

use crate::train::agent::PartName;
use crate::train::market::Market;

/// Result of a part of the bars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartResult {
    /// Of the one symbol, or of all symbols as a portfolio of equal weights at the start.
    #[serde(flatten)]
    pub report: Report,
    /// Each symbol's; empty where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<SymbolResult>,
}

/// Result of one symbol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymbolResult {
    /// Its name.
    pub symbol: String,
    /// Its report.
    #[serde(flatten)]
    pub report: Report,
}

/// What a policy and buy-and-hold did with the same bars.
#[derive(Clone, Debug)]
pub struct Tracks {
    /// The policy.
    pub strategy: Track,
    /// Buy-and-hold with the same costs.
    pub holding: Track,
}

impl Market {
    /// The result of backtests, one pass a symbol.
    ///
    /// # Errors
    /// For another number of passes than symbols, and passes without a row.
    pub fn result(&self, passes: &[Vec<LogRow>], part: PartName) -> anyhow::Result<PartResult> {
        let tracks = self.symbol_tracks(passes, part)?;
        let report = |tracks: &Tracks, bars_per_year| {
            Report::of_tracks(&tracks.strategy, &tracks.holding, bars_per_year)
        };
        if let [only] = tracks.as_slice() {
            return Ok(PartResult { report: report(only, self.bars_per_year)?, symbols: Vec::new() });
        }
        let portfolio = self.side_by_side(&tracks, part);
        let symbols = self.symbols.iter().zip(&tracks).map(|(symbol, tracks)| {
            let report = report(tracks, symbol.bars_per_year)?;
            Ok(SymbolResult { symbol: symbol.name.clone(), report })
        });
        let symbols = symbols.collect::<anyhow::Result<_>>()?;
        Ok(PartResult { report: report(&portfolio, self.bars_per_year)?, symbols })
    }

    /// The tracks of backtests, one pass a symbol: of the one symbol, or of the portfolio.
    ///
    /// # Errors
    /// As for [`Self::result`].
    pub fn tracks(&self, passes: &[Vec<LogRow>], part: PartName) -> anyhow::Result<Tracks> {
        let mut tracks = self.symbol_tracks(passes, part)?;
        match tracks.len() {
            1 => Ok(tracks.remove(0)),
            _ => Ok(self.side_by_side(&tracks, part)),
        }
    }

    fn symbol_tracks(&self, passes: &[Vec<LogRow>], part: PartName) -> anyhow::Result<Vec<Tracks>> {
        if passes.len() != self.symbols.len() {
            bail!("{} backtests of {} symbols", passes.len(), self.symbols.len());
        }
        let track = |(symbol, rows): (usize, &Vec<LogRow>)| {
            let part = self.symbol_part(part, symbol);
            let strategy = Track::new(rows, self.params.initial_equity, part.backtest_steps())?;
            Ok(Tracks { strategy, holding: buy_and_hold(&self.params, &self.table, part) })
        };
        passes.iter().enumerate().map(track).collect()
    }

    fn side_by_side(&self, tracks: &[Tracks], part: PartName) -> Tracks {
        let with_times = |track: fn(&Tracks) -> &Track| -> Track {
            let pairs: Vec<(&[i64], &Track)> = tracks
                .iter()
                .enumerate()
                .map(|(symbol, tracks)| {
                    let part = self.symbol_part(part, symbol);
                    let first = part.backtest_start()[0] as usize;
                    (&self.times_ms[first + 1..=part.last() as usize], track(tracks))
                })
                .collect();
            Track::side_by_side(&pairs).1
        };
        Tracks { strategy: with_times(|t| &t.strategy), holding: with_times(|t| &t.holding) }
    }
}

impl fmt::Display for PartResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.report)?;
        let width = self.symbols.iter().map(|symbol| symbol.symbol.len()).max().unwrap_or(0);
        for SymbolResult { symbol, report } in &self.symbols {
            let sharpe = |metrics: &backtest::Metrics| {
                metrics.sharpe.map_or("undefined".to_owned(), |sharpe| format!("{sharpe:.3}"))
            };
            let (strategy, holding) = (&report.strategy, &report.buy_and_hold);
            writeln!(
                f,
                "{symbol:<width$}  return {:+.2}%, Sharpe ratio {}; buy-and-hold {:+.2}%, {}",
                100.0 * strategy.total_return,
                sharpe(strategy),
                100.0 * holding.total_return,
                sharpe(holding)
            )?;
        }
        Ok(())
    }
}
