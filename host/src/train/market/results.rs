//! From the rows of backtests to reports: of every symbol, and of all of them as a portfolio.

use std::fmt;
use std::path::Path;

use ::gpu::market::LogRow;
use anyhow::{Context, bail};
use backtest::{Bootstrap, Report, Track, Trials, buy_and_hold};
use report::tables::{self, Pass};
use serde::{Deserialize, Serialize};

use crate::train::agent::PartName;
use crate::train::files::write_atomically;
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
#[derive(Clone, Debug, Serialize, Deserialize)]
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
        self.reports(passes, part, |report, _, _| report)
    }

    /// The same with what has to be known to judge it: confidence intervals, and the Sharpe ratio deflated for the
    /// policies that were compared, of which `sharpes` are the validation ratios; without them nothing is deflated. A
    /// symbol's result has intervals alone: policies are compared by the portfolio.
    ///
    /// # Errors
    /// As for [`Self::result`].
    pub fn judged(
        &self,
        keys: &settings::Report,
        passes: &[Vec<LogRow>],
        part: PartName,
        sharpes: Option<&[Option<f64>]>,
    ) -> anyhow::Result<PartResult> {
        self.reports(passes, part, |report, tracks, whole| {
            let sharpes = sharpes.filter(|_| whole);
            tracks.judge(report, keys, sharpes)
        })
    }

    /// `finish` gets every report with its tracks, and whether it is that of the whole: of the one symbol, of the
    /// portfolio.
    fn reports(
        &self,
        passes: &[Vec<LogRow>],
        part: PartName,
        finish: impl Fn(Report, &Tracks, bool) -> Report,
    ) -> anyhow::Result<PartResult> {
        let tracks = self.symbol_tracks(passes, part)?;
        let report = |tracks: &Tracks, bars_per_year, whole| {
            let report = Report::of_tracks(&tracks.strategy, &tracks.holding, bars_per_year)?;
            anyhow::Ok(finish(report, tracks, whole))
        };
        if let [only] = tracks.as_slice() {
            return Ok(PartResult { report: report(only, self.bars_per_year, true)?, symbols: Vec::new() });
        }
        let portfolio = self.side_by_side(&tracks, part);
        let symbols = self.symbols.iter().zip(&tracks).map(|(symbol, tracks)| {
            let report = report(tracks, symbol.bars_per_year, false)?;
            Ok(SymbolResult { symbol: symbol.name.clone(), report })
        });
        let symbols = symbols.collect::<anyhow::Result<_>>()?;
        Ok(PartResult { report: report(&portfolio, self.bars_per_year, true)?, symbols })
    }

    /// Writes `NAME-bars.csv` and `NAME-trades.csv` of backtests, one pass a symbol, into a folder (`docs/REPORT.md`).
    ///
    /// # Errors
    /// As for [`Self::result`]; the file that cannot be written.
    pub fn write_tables(
        &self,
        passes: &[Vec<LogRow>],
        part: PartName,
        branches: usize,
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<()> {
        let tracks = self.symbol_tracks(passes, part)?;
        let mut first = 0;
        let mut tables = Vec::new();
        for ((rows, tracks), symbol) in passes.iter().zip(&tracks).zip(&self.record.symbols) {
            tables.push(Pass {
                symbol: &symbol.name,
                rows,
                strategy: &tracks.strategy,
                holding: &tracks.holding,
                time_ms: &self.times_ms,
                first,
                branches,
            });
            first += symbol.bars;
        }
        for (path, bytes) in tables::files(&tables, folder, name)? {
            write_atomically(&path, &bytes).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
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

impl Tracks {
    /// Adds intervals, and with the validation ratios of the policies that were compared the deflated ratio, to the
    /// report of these tracks.
    pub fn judge(&self, report: Report, keys: &settings::Report, sharpes: Option<&[Option<f64>]>) -> Report {
        let bootstrap = Bootstrap {
            level: keys.level,
            resamples: keys.resamples,
            block: (keys.block > 0.0).then_some(keys.block),
            seed: keys.seed,
        };
        let trials = sharpes.map(|sharpes| Trials::of(sharpes, report.bars_per_year, keys.trials));
        report.judged(&self.strategy, &self.holding, &bootstrap, trials)
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
