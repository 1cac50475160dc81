//! From the configuration to a market: bars loaded and checked, features and parts, the environment's numbers.

use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use ::gpu::market::{BarColumns, LogRow, MarketParams, MarketTable, Part, StateShape};
use anyhow::{Context, bail};
use backtest::Report;
use bars::synthetic::{Kind, Synthetic};
use bars::{
    FEWEST_DECISIONS, Fitted, Fold, Gaps, LoadOptions, Loaded, MarketData, NumberFormat, PrepareOptions,
    Price, Reach, Repair, SplitOptions, TimeFormat, ZeroVolume,
};
use serde::{Deserialize, Serialize};
use settings::{Config, Data};

use crate::train::agent::PartName;

/// What a checkpoint keeps of the data: enough to run the policy as it was trained, and to know the same bars again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MarketRecord {
    /// File, or the synthetic market's description.
    pub source: String,
    /// Hash of all bars, hexadecimal.
    pub bars_hash: String,
    /// Number of bars.
    pub bars: usize,
    /// Fitted on the training part.
    pub fitted: Fitted,
    /// Decision bars of the parts.
    pub fold: Fold,
}

/// Bars, parts and costs of a run.
#[derive(Debug)]
pub struct Market {
    /// Prices, features, runs.
    pub table: MarketTable,
    /// Costs and limits, in training mode.
    pub params: MarketParams,
    /// For checkpoints.
    pub record: MarketRecord,
    /// What there is to say about the data.
    pub text: String,
    /// For annualising.
    pub bars_per_year: f64,
    /// Opening times of all bars, epoch milliseconds UTC.
    pub time_ms: Vec<i64>,
    parts: [Part; 3],
    /// What is learned from, and the held-out rest of the training part, where the vaccine is on.
    vaccine: Option<[Part; 2]>,
}

impl Market {
    /// Loads the bars of a configuration and prepares one split of them; fills in the model's state width and window.
    pub fn prepare(config: &mut Config) -> anyhow::Result<Self> {
        config.check_before_data(bars::FEATURES, ::gpu::market::PORTFOLIO as usize)?;
        let loaded = load(&config.data)?;
        Self::of_loaded(config, &loaded)
    }

    /// The same from bars that are loaded already, as by this configuration.
    pub fn of_loaded(config: &mut Config, loaded: &Loaded) -> anyhow::Result<Self> {
        let options = PrepareOptions {
            window: config.market.window,
            n_step: config.replay.n_step,
            split: SplitOptions {
                train: config.split.train,
                validation: config.split.validation,
                embargo: config.split.embargo,
            },
            ..PrepareOptions::default()
        };
        let prepared = bars::prepare(loaded, &options)?;
        let record = MarketRecord {
            source: loaded.report.file.clone(),
            bars_hash: format!("{:016x}", loaded.bars.content_hash()),
            bars: loaded.bars.len(),
            fitted: prepared.fitted,
            fold: prepared.fold,
        };
        let text = format!("{}{}", loaded.report, prepared.summary);
        Self::assemble(config, prepared.data, record, text)
    }

    /// The market of a checkpoint: the same bars, the fitted numbers as they were.
    ///
    /// # Errors
    /// If the bars are not those of the training: a result on other bars would not be the one that was printed.
    pub fn of_record(config: &mut Config, record: &MarketRecord) -> anyhow::Result<Self> {
        let loaded = load(&config.data)?;
        let hash = format!("{:016x}", loaded.bars.content_hash());
        if hash != record.bars_hash {
            bail!(
                "{} has {} bars with hash {hash}, the policy was trained on {} ({} bars, hash {})",
                loaded.report.file,
                loaded.bars.len(),
                record.source,
                record.bars,
                record.bars_hash
            );
        }
        let data = bars::apply(&loaded, &record.fitted, None)?;
        Self::assemble(config, data, record.clone(), loaded.report.to_string())
    }

    fn assemble(
        config: &mut Config,
        data: MarketData,
        record: MarketRecord,
        text: String,
    ) -> anyhow::Result<Self> {
        let shape = StateShape { window: config.market.window as u32, features: bars::FEATURES as u32 };
        let model = &mut config.model;
        fill("model.state", &mut model.state, "the window and the portfolio", shape.len() as usize)?;
        fill("model.window", &mut model.window, "market.window", shape.window as usize)?;
        fill("model.bar_features", &mut model.bar_features, "the bar features", shape.features as usize)?;
        config.check()?;
        let columns = BarColumns {
            time_ms: &data.timestamps_ms,
            open: &data.open,
            high: &data.high,
            low: &data.low,
            close: &data.close,
        };
        // A run begins where the lookback of the features is complete.
        let back = record.fitted.lookback - 1;
        let runs: Vec<_> = data
            .segments
            .iter()
            .map(|segment| segment.start + back..segment.end)
            .filter(|run| run.start < run.end)
            .collect();
        let side = backtest::bar_side(config.market.bar_side);
        let table = MarketTable::new(columns, data.features, shape, &runs, side, config.market.half_spread)?;
        let part = |name: &str, decisions: &std::ops::Range<usize>| {
            // The environment also sees the bar behind the last decision, in which it is executed and marked.
            Part::new(&table, decisions.start..decisions.end + 1).with_context(|| format!("the {name} part"))
        };
        let [train, validation, test] = record.fold.parts();
        let parts = [part(train.0, train.1)?, part(validation.0, validation.1)?, part(test.0, test.1)?];
        let vaccine = match config.vaccine.enabled {
            true => {
                let reach = Reach {
                    lookback: record.fitted.lookback,
                    window: config.market.window,
                    n_step: config.replay.n_step,
                };
                let [learned, held_out] =
                    held_out(train.1, config.vaccine.holdout, reach).with_context(|| {
                        format!("vaccine.holdout = {} of the training part", config.vaccine.holdout)
                    })?;
                Some([part("learned", &learned)?, part("held-out", &held_out)?])
            }
            false => None,
        };
        let params = backtest::market_params(config, record.fitted.reward_scale)?;
        let (bars_per_year, time_ms) = (data.bars_per_year, data.timestamps_ms);
        Ok(Self { table, params, record, text, bars_per_year, time_ms, parts, vaccine })
    }

    /// A part of the bars.
    pub fn part(&self, name: PartName) -> &Part {
        match name {
            PartName::Train => &self.parts[0],
            PartName::Validation => &self.parts[1],
            PartName::Test => &self.parts[2],
        }
    }

    /// The bars that transitions for training come from: the training part, less what is held out of it.
    pub fn learned(&self) -> &Part {
        self.vaccine.as_ref().map_or(&self.parts[0], |[learned, _]| learned)
    }

    /// The bars that the vaccine's transitions come from, where it is on.
    pub fn held_out(&self) -> Option<&Part> {
        self.vaccine.as_ref().map(|[_, held_out]| held_out)
    }

    /// The report of a backtest's rows.
    pub fn report(&self, rows: &[LogRow], part: PartName) -> anyhow::Result<Report> {
        Ok(Report::new(rows, &self.params, &self.table, self.part(part), self.bars_per_year)?)
    }
}

/// Splits the training part's decision bars: the last `fraction` of them is held out, behind a purge.
fn held_out(train: &Range<usize>, fraction: f64, reach: Reach) -> anyhow::Result<[Range<usize>; 2]> {
    let first = train.end - (train.len() as f64 * fraction).round() as usize;
    let learned = train.start..first.saturating_sub(reach.purge());
    for (name, decisions) in [("learned", learned.len()), ("held-out", train.end - first)] {
        if decisions < FEWEST_DECISIONS {
            bail!(
                "{decisions} decision bars would be {name}, with a purge of {} between them: at least \
                 {FEWEST_DECISIONS} are needed",
                reach.purge()
            );
        }
    }
    Ok([learned, first..train.end])
}

/// Fills a width of the model that follows from the environment; one that was set has to be the environment's.
fn fill(key: &str, value: &mut usize, source: &str, environment: usize) -> anyhow::Result<()> {
    if *value != 0 && *value != environment {
        bail!("{key} = {value}, but the market's states have {environment} ({source}): leave {key} at 0");
    }
    *value = environment;
    Ok(())
}

/// Loads a bar file, or makes the synthetic market.
fn load(data: &Data) -> anyhow::Result<Loaded> {
    let options = load_options(data)?;
    if let Some(file) = &data.file {
        return Ok(bars::load(Path::new(file), &options)?);
    }
    let kind = match data.synthetic.as_str() {
        "regimes" => Kind::Regimes,
        "martingale" => Kind::Martingale,
        other => bail!("data.synthetic = \"{other}\": expected regimes or martingale"),
    };
    let synthetic = Synthetic { seed: data.synthetic_seed, bars: data.synthetic_bars, kind };
    let name = format!("synthetic market ({}, seed {})", data.synthetic, data.synthetic_seed);
    Ok(bars::from_bars(&name, synthetic.generate()?, &options)?)
}

/// The options of the `bars` crate that the section `[data]` means.
pub fn load_options(data: &Data) -> anyhow::Result<LoadOptions> {
    let price = match data.price.as_str() {
        "raw" => Price::Raw,
        "adjusted" => Price::Adjusted,
        other => bail!("data.price = \"{other}\": expected raw or adjusted"),
    };
    let zero_volume = match data.zero_volume.as_str() {
        "report" => ZeroVolume::Report,
        "error" => ZeroVolume::Error,
        "drop" => ZeroVolume::Drop,
        other => bail!("data.zero_volume = \"{other}\": expected report, error or drop"),
    };
    let gaps = match (data.gaps.as_str(), data.gaps.strip_prefix("fill:").map(str::parse)) {
        ("split", _) => Gaps::Split,
        ("error", _) => Gaps::Error,
        (_, Some(Ok(bars))) => Gaps::Fill(bars),
        (other, _) => {
            bail!("data.gaps = \"{other}\": expected split, error, or fill:N with a number of bars")
        }
    };
    let repairs = data.repair.iter().map(|name| Repair::from_str(name)).collect::<Result<Vec<_>, _>>()?;
    let options = LoadOptions {
        delimiter: data.delimiter,
        header: data.header,
        skip_lines: data.skip_lines,
        columns: data.columns.clone(),
        time_format: data.date_format.as_deref().map(TimeFormat::from_str).transpose()?,
        numbers: data.numbers.as_deref().map(NumberFormat::from_str).transpose()?,
        price,
        zero_volume,
        gaps,
        interval_ms: data.interval_ms,
        ..LoadOptions::default()
    };
    Ok(options.with_repairs(repairs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_training_part_is_held_out_behind_a_purge() {
        let reach = Reach { lookback: 64, window: 8, n_step: 1 };
        assert_eq!(held_out(&(100..1100), 0.1, reach).unwrap(), [100..928, 1000..1100]);
        let message = held_out(&(100..1100), 0.01, reach).unwrap_err().to_string();
        assert!(message.starts_with("10 decision bars would be held-out"), "{message}");
        let message = held_out(&(100..250), 0.5, reach).unwrap_err().to_string();
        assert!(message.contains("decision bars would be learned"), "{message}");
    }

    #[test]
    fn a_width_is_filled_from_the_environment_or_has_to_be_its() {
        let mut window = 0;
        fill("model.window", &mut window, "market.window", 8).unwrap();
        assert_eq!(window, 8);
        fill("model.window", &mut window, "market.window", 8).unwrap();
        let message = fill("model.window", &mut window, "market.window", 12).unwrap_err().to_string();
        assert!(message.starts_with("model.window = 8, but ") && message.contains("12 (market.window)"));
    }
}
