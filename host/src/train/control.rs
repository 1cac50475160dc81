//! What the synthetic markets say about a policy beyond its report, because their truth is known: on the one with a
//! predictable part, how much an oracle would have made; on the martingale, whether something was known before it
//! happened.

use std::fmt;

use backtest::{Gross, Track};
use bars::synthetic::Kind;
use gpu::market::LogRow;
use serde::{Deserialize, Serialize};
use settings::Data;

use crate::train::Stop;
use crate::train::agent::PartName;
use crate::train::market::{Market, synthetic};
use crate::train::oracle::{Oracle, sharpe};

/// What is known of a policy on a synthetic market, over one test part or several.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Control {
    kind: Kind,
    gross: Gross,
    /// The oracle's tracks, one behind the other; none on the martingale, where there is nothing to know.
    oracle: Vec<Track>,
    bars_per_year: f64,
}

/// What it comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The oracle's Sharpe ratio after costs on the same bars; on the market with a predictable part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oracle_sharpe: Option<f64>,
    /// The policy's over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_oracle: Option<f64>,
    /// Mean return before costs in standard errors; on the martingale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gross_z: Option<f64>,
    /// Bars that it was taken over.
    pub bars: u64,
    /// Mean absolute exposure at their closes.
    pub mean_exposure: Option<f64>,
}

impl Control {
    /// Of a test part's passes; none on bars of files, whose truth nobody knows.
    ///
    /// # Errors
    /// If the synthetic market cannot be made, and what the environment refuses to the oracle.
    pub fn of(
        data: &Data,
        market: &Market,
        passes: &[Vec<LogRow>],
        stop: &Stop,
    ) -> anyhow::Result<Option<Self>> {
        if data.file.is_some() || !data.files.is_empty() {
            return Ok(None);
        }
        let (params, table, bars_per_year) = (&market.params, &market.table, market.bars_per_year);
        let made = synthetic(data)?;
        let mut gross = Gross::default();
        for rows in passes {
            gross.add(rows, table, params.layout, params.initial_equity);
        }
        let mut oracle = Vec::new();
        if made.kind == Kind::Regimes {
            let (_, truth) = made.generate_with_truth()?;
            // Bars that were filled in or left out on request have no truth.
            if truth.len() == table.bars() {
                let (train, part) = (market.part(PartName::Train), market.part(PartName::Test));
                let best = Oracle::best(params, bars_per_year, table, train, &truth, stop)?;
                let rows = best.backtest(params, table, part, &truth, stop)?;
                oracle.push(Track::new(&rows, params.initial_equity, part.backtest_steps())?);
            }
        }
        Ok(Some(Self { kind: made.kind, gross, oracle, bars_per_year }))
    }

    /// Adds what is known of a later test part.
    pub fn add(&mut self, later: Self) {
        self.gross.merge(&later.gross);
        self.oracle.extend(later.oracle);
    }

    /// What was found, beside the policy's Sharpe ratio on the same bars.
    pub fn finding(&self, policy: Option<f64>) -> Finding {
        let oracle_sharpe = match self.oracle.as_slice() {
            [] => None,
            tracks => sharpe(&Track::chained(tracks), self.bars_per_year),
        };
        Finding {
            oracle_sharpe,
            share_of_oracle: oracle_sharpe.filter(|&o| o > 0.0).and_then(|oracle| Some(policy? / oracle)),
            gross_z: if self.kind == Kind::Martingale { self.gross.z() } else { None },
            bars: self.gross.bars,
            mean_exposure: self.gross.mean_exposure(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(oracle) = self.oracle_sharpe {
            write!(f, "an oracle that knows the regime has a Sharpe ratio of {oracle:.3} after costs")?;
            match self.share_of_oracle {
                Some(share) => writeln!(f, ", the policy {:.0}% of it", 100.0 * share)?,
                None => writeln!(f)?,
            }
        }
        if let (Some(z), Some(exposure)) = (self.gross_z, self.mean_exposure) {
            writeln!(
                f,
                "control: the mean return before costs of {} bars is {z:+.2} standard errors from zero, mean absolute \
                 exposure {exposure:.2} (on this market nothing can be known: beyond 3 something leaks)",
                self.bars
            )?;
        }
        Ok(())
    }
}
