//! Strategy and buy-and-hold side by side.

use gpu::market::{LogRow, MarketParams, MarketTable, Part};
use serde::{Deserialize, Serialize};

use crate::{BacktestError, Bootstrap, Confidence, Deflated, Metrics, Track, Trials, buy_and_hold, returns};

/// The result of a backtest. `Display` is an aligned table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The annualisation factor, from the data.
    pub bars_per_year: f64,
    /// The strategy.
    pub strategy: Metrics,
    /// Buy-and-hold on the same bars with the same costs.
    pub buy_and_hold: Metrics,
    /// Confidence intervals, where they were asked for and there are returns to resample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<Confidence>,
    /// The strategy's Sharpe ratio against the luck of having compared several policies, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deflated: Option<Deflated>,
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

    /// The report of two tracks over the same bars: of one part, or pooled over several.
    ///
    /// # Errors
    /// [`BacktestError`] without a bar, with tracks of different lengths, or with a factor that is not positive and finite.
    pub fn of_tracks(strategy: &Track, holding: &Track, bars_per_year: f64) -> Result<Self, BacktestError> {
        Ok(Self {
            bars_per_year,
            strategy: Metrics::new(strategy, Some(holding), bars_per_year)?,
            buy_and_hold: Metrics::new(holding, None, bars_per_year)?,
            confidence: None,
            deflated: None,
        })
    }

    /// Adds what has to be judged a result: confidence intervals, and the Sharpe ratio deflated for the policies that were
    /// compared, where they are known. Of the tracks that the report was made of. An equity that was used up has neither.
    pub fn judged(
        mut self,
        strategy: &Track,
        holding: &Track,
        bootstrap: &Bootstrap,
        trials: Option<Trials>,
    ) -> Self {
        let of = |track: &Track| returns::simple_returns(&track.equity);
        if let Some(r) = of(strategy) {
            self.deflated = trials.map(|trials| Deflated::new(&r, self.bars_per_year, trials));
            if let Some(b) = of(holding).filter(|b| bootstrap.resamples > 0 && b.len() == r.len()) {
                let profits = strategy.profits();
                self.confidence = Some(bootstrap.intervals(&r, &b, &profits, self.bars_per_year));
            }
        }
        self
    }
}
