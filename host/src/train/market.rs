//! From the configuration to a market: bars loaded and checked, features and parts, the environment's numbers.

mod load;
mod record;
mod results;

use std::ops::Range;

use ::gpu::market::{BarColumns, MarketParams, MarketTable, Part, StateShape};
use anyhow::{Context, bail};
use bars::{
    FEWEST_DECISIONS, Fold, FoldOptions, Loaded, MarketData, PrepareOptions, Reach, SplitOptions, Symbol,
};
use settings::{Config, Scheme};

use crate::train::agent::PartName;
pub use load::{by_key, load, load_options, synthetic};
pub use record::{MarketRecord, SymbolRecord, Walk};
pub use results::{PartResult, SymbolResult, Tracks};

/// One symbol of a market.
#[derive(Debug)]
pub struct SymbolMarket {
    /// Its name.
    pub name: String,
    /// For annualising.
    pub bars_per_year: f64,
    /// Train, validation, test: its own bars in the table.
    parts: [Part; 3],
}

/// Bars, parts and costs of a run.
#[derive(Debug)]
pub struct Market {
    /// Prices, features, runs of all symbols, one behind the other.
    pub table: MarketTable,
    /// Opening times of the table's bars, UTC in milliseconds.
    pub times_ms: Vec<i64>,
    /// Costs and limits, in training mode.
    pub params: MarketParams,
    /// For checkpoints.
    pub record: MarketRecord,
    /// What there is to say about the data.
    pub text: String,
    /// The parts alone; empty for a market of a checkpoint.
    pub summary: String,
    /// For annualising: of the symbols' common time line.
    pub bars_per_year: f64,
    /// The symbols.
    pub symbols: Vec<SymbolMarket>,
    /// Train, validation, test of all symbols.
    parts: [Part; 3],
    /// What is learned from, and the held-out rest of the training part, where the vaccine is on.
    vaccine: Option<[Part; 2]>,
}

impl Market {
    /// Loads the bars of a configuration and prepares one split of them; fills in the model's state width and window.
    pub fn prepare(config: &mut Config) -> anyhow::Result<Self> {
        config.check_before_data(bars::FEATURES, ::gpu::market::PORTFOLIO as usize)?;
        let symbols = load(&config.data)?;
        Self::of_symbols(config, &symbols)
    }

    /// One split of bars that are loaded already.
    pub fn of_symbols(config: &mut Config, symbols: &[Symbol]) -> anyhow::Result<Self> {
        let options = prepare_options(config);
        let folds = bars::split_symbols(symbols, options.reach(), &options.split)?;
        Self::of_folds(config, symbols, &folds, None)
    }

    /// All folds of a walk-forward, `[fold][symbol]`.
    ///
    /// # Errors
    /// If a part of a fold is too short, with its name.
    pub fn folds(config: &Config, symbols: &[Symbol]) -> anyhow::Result<Vec<Vec<Fold>>> {
        let folds = &config.folds;
        let options = FoldOptions {
            count: folds.count,
            rolling: folds.scheme == Scheme::Rolling,
            train: folds.train,
            validation: folds.validation,
            embargo: folds.embargo,
        };
        Ok(bars::walk_forward(symbols, prepare_options(config).reach(), &options)?)
    }

    /// One fold of a configuration's walk-forward.
    ///
    /// # Errors
    /// As for [`Self::folds`]; a fold that the configuration does not have.
    pub fn of_walk(config: &mut Config, walk: Walk) -> anyhow::Result<Self> {
        let symbols = load(&config.data)?;
        let folds = Self::folds(config, &symbols)?;
        let parts = walk.fold.checked_sub(1).and_then(|i| folds.get(i));
        let parts = parts.filter(|_| walk.of == folds.len());
        let parts = parts.with_context(|| {
            format!("fold {} of {}, but folds.count = {}", walk.fold, walk.of, folds.len())
        })?;
        Self::of_folds(config, &symbols, parts, Some(walk))
    }

    /// The market of given parts of every symbol's bars; everything is fitted on their training parts.
    pub fn of_folds(
        config: &mut Config,
        symbols: &[Symbol],
        folds: &[Fold],
        walk: Option<Walk>,
    ) -> anyhow::Result<Self> {
        let mut options = prepare_options(config);
        if walk.is_some() {
            options.split.embargo = config.folds.embargo;
        }
        let (data, fitted, summaries) = bars::prepare_symbols(symbols, folds, &options)?;
        let record = MarketRecord { fitted, symbols: Self::symbol_records(symbols, folds), walk };
        let text = symbols.iter().zip(&summaries);
        let text = text.map(|(symbol, summary)| format!("{}{summary}", symbol.loaded.report)).collect();
        let summary = match summaries.as_slice() {
            [only] => only.to_string(),
            all => all.iter().zip(symbols).map(|(s, symbol)| format!("{}\n{s}", symbol.name)).collect(),
        };
        Ok(Self { text, summary, ..Self::assemble(config, symbols, data, record)? })
    }

    /// What is kept of symbols and of the parts of their bars.
    pub fn symbol_records(symbols: &[Symbol], folds: &[Fold]) -> Vec<SymbolRecord> {
        let record = |(symbol, fold): (&Symbol, &Fold)| SymbolRecord {
            name: symbol.name.clone(),
            source: symbol.loaded.report.file.clone(),
            bars_hash: hash_of(&symbol.loaded),
            bars: symbol.loaded.bars.len(),
            fold: fold.clone(),
        };
        symbols.iter().zip(folds).map(record).collect()
    }

    /// The market of a checkpoint: the same bars, the fitted numbers as they were.
    ///
    /// # Errors
    /// If the bars are not those of the training: a result on other bars would not be the one that was printed.
    pub fn of_record(config: &mut Config, record: &MarketRecord) -> anyhow::Result<Self> {
        let symbols = load(&config.data)?;
        if symbols.len() != record.symbols.len() {
            let (got, expected) = (symbols.len(), record.symbols.len());
            bail!("{got} symbol(s) to trade, the policy was trained on {expected}: {}", names(record));
        }
        for (symbol, known) in symbols.iter().zip(&record.symbols) {
            let hash = hash_of(&symbol.loaded);
            if hash != known.bars_hash {
                bail!(
                    "{} has {} bars with hash {hash}, the policy was trained on {} ({} bars, hash {})",
                    symbol.loaded.report.file,
                    symbol.loaded.bars.len(),
                    known.source,
                    known.bars,
                    known.bars_hash
                );
            }
        }
        Self::frozen(config, &symbols, record)
    }

    /// A record's numbers on any bars of the same symbols: nothing is fitted.
    ///
    /// # Errors
    /// If the bars have another interval, or the record's parts do not fit on them.
    pub fn frozen(config: &mut Config, symbols: &[Symbol], record: &MarketRecord) -> anyhow::Result<Self> {
        let apply = |symbol: &Symbol| bars::apply(&symbol.loaded, &record.fitted, None);
        let data = symbols.iter().map(apply).collect::<Result<Vec<_>, _>>()?;
        let text = symbols.iter().map(|symbol| symbol.loaded.report.to_string()).collect();
        Ok(Self { text, ..Self::assemble(config, symbols, data, record.clone())? })
    }

    fn assemble(
        config: &mut Config,
        symbols: &[Symbol],
        data: Vec<MarketData>,
        record: MarketRecord,
    ) -> anyhow::Result<Self> {
        choose_layout(config)?;
        let shape = StateShape { window: config.market.window as u32, features: bars::FEATURES as u32 };
        let model = &mut config.model;
        fill("model.state", &mut model.state, "the window and the portfolio", shape.len() as usize)?;
        fill("model.window", &mut model.window, "market.window", shape.window as usize)?;
        fill("model.bar_features", &mut model.bar_features, "the bar features", shape.features as usize)?;
        config.check()?;
        let bars_per_year = match data.as_slice() {
            [only] => only.bars_per_year,
            _ => {
                let line = bars::symbols::time_line(symbols);
                bars::Calendar::infer("all symbols", &line, Some(record.fitted.interval_ms))?.bars_per_year
            }
        };
        let mut times_ms = Vec::new();
        let (mut tables, mut offsets, mut years) = (Vec::new(), Vec::new(), Vec::new());
        for (symbol, data) in record.symbols.iter().zip(data) {
            offsets.push(times_ms.len());
            years.push(data.bars_per_year);
            times_ms.extend_from_slice(&data.timestamps_ms);
            let table = table_of(config, shape, data, record.fitted.lookback);
            tables.push(table.with_context(|| format!("symbol {}", symbol.name))?);
        }
        let table = MarketTable::joined(tables)?;
        // In the table, of every symbol. The environment also sees the bar behind the last decision, in which it is
        // executed and marked.
        let ranges = |decisions: &[Range<usize>]| -> Vec<Range<usize>> {
            let shifted = decisions.iter().zip(&offsets);
            shifted.map(|(range, offset)| range.start + offset..range.end + 1 + offset).collect()
        };
        let part = |name: &str, decisions: &[Range<usize>]| {
            Part::of_symbols(&table, &ranges(decisions)).with_context(|| format!("the {name} part"))
        };
        let decisions = |part: fn(&Fold) -> &Range<usize>| -> Vec<Range<usize>> {
            record.symbols.iter().map(|symbol| part(&symbol.fold).clone()).collect()
        };
        let train = decisions(|fold| &fold.train);
        let (train_part, trains) = part("train", &train)?;
        let (validation, validations) = part("validation", &decisions(|fold| &fold.validation))?;
        let (test, tests) = part("test", &decisions(|fold| &fold.test))?;
        let vaccine = match config.vaccine.enabled {
            true => {
                let reach = Reach {
                    lookback: record.fitted.lookback,
                    window: config.market.window,
                    n_step: config.replay.n_step,
                };
                let (learned, held_out) = held_out(symbols, &train, config.vaccine.holdout, reach)
                    .with_context(|| {
                        format!("vaccine.holdout = {} of the training part", config.vaccine.holdout)
                    })?;
                Some([part("learned", &learned)?.0, part("held-out", &held_out)?.0])
            }
            false => None,
        };
        let params = backtest::market_params(config, record.fitted.reward_scale)?;
        let own = trains.into_iter().zip(validations).zip(tests).zip(years).zip(&record.symbols);
        let symbols = own
            .map(|((((train, validation), test), bars_per_year), symbol)| SymbolMarket {
                name: symbol.name.clone(),
                bars_per_year,
                parts: [train, validation, test],
            })
            .collect();
        let parts = [train_part, validation, test];
        Ok(Self {
            table,
            times_ms,
            params,
            record,
            text: String::new(),
            summary: String::new(),
            bars_per_year,
            symbols,
            parts,
            vaccine,
        })
    }

    /// A part of all symbols' bars.
    pub fn part(&self, name: PartName) -> &Part {
        &self.parts[name.index()]
    }

    /// A part of one symbol's bars.
    ///
    /// # Panics
    /// If there are not so many symbols.
    pub fn symbol_part(&self, name: PartName, symbol: usize) -> &Part {
        &self.symbols[symbol].parts[name.index()]
    }

    /// The bars that transitions for training come from: the training part, less what is held out of it.
    pub fn learned(&self) -> &Part {
        self.vaccine.as_ref().map_or(&self.parts[0], |[learned, _]| learned)
    }

    /// The bars that the vaccine's transitions come from, where it is on.
    pub fn held_out(&self) -> Option<&Part> {
        self.vaccine.as_ref().map(|[_, held_out]| held_out)
    }
}

/// The table of one symbol.
fn table_of(
    config: &Config,
    shape: StateShape,
    data: MarketData,
    lookback: usize,
) -> anyhow::Result<MarketTable> {
    let columns = BarColumns {
        time_ms: &data.timestamps_ms,
        open: &data.open,
        high: &data.high,
        low: &data.low,
        close: &data.close,
    };
    // A run begins where the lookback of the features is complete.
    let back = lookback - 1;
    let runs: Vec<_> = data
        .segments
        .iter()
        .map(|segment| segment.start + back..segment.end)
        .filter(|run| run.start < run.end)
        .collect();
    let side = backtest::bar_side(config.market.bar_side);
    Ok(MarketTable::new(columns, data.features, shape, &runs, side, config.market.half_spread)?)
}

/// Hash of a symbol's bars as records have it.
fn hash_of(loaded: &Loaded) -> String {
    format!("{:016x}", loaded.bars.content_hash())
}

/// The symbols' names in a sentence.
fn names(record: &MarketRecord) -> String {
    record.symbols.iter().map(|symbol| symbol.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn prepare_options(config: &Config) -> PrepareOptions {
    PrepareOptions {
        window: config.market.window,
        n_step: config.replay.n_step,
        split: SplitOptions {
            train: config.split.train,
            validation: config.split.validation,
            embargo: config.split.embargo,
        },
        ..PrepareOptions::default()
    }
}

/// Decision bars of every symbol: to learn from, and held out.
type Divided = (Vec<Range<usize>>, Vec<Range<usize>>);

/// Splits the training parts' decision bars: those from a time on, the last `fraction`, are held out, behind a purge.
fn held_out(
    symbols: &[Symbol],
    train: &[Range<usize>],
    fraction: f64,
    reach: Reach,
) -> anyhow::Result<Divided> {
    let parts = bars::symbols::hold_out(symbols, train, fraction, reach);
    for (symbol, [learned, held_out]) in symbols.iter().zip(&parts) {
        for (name, decisions) in [("learned", learned.len()), ("held-out", held_out.len())] {
            if decisions < FEWEST_DECISIONS {
                bail!(
                    "{decisions} decision bars of {} would be {name}, with a purge of {} between them: at least \
                     {FEWEST_DECISIONS} are needed",
                    symbol.name,
                    reach.purge()
                );
            }
        }
    }
    Ok(parts.into_iter().map(|[learned, held_out]| (learned, held_out)).unzip())
}

/// The branches that `market.layout` means, where it is set; branches that were set have to be those.
fn choose_layout(config: &mut Config) -> anyhow::Result<()> {
    let Some(layout) = config.market.layout else { return Ok(()) };
    let branches = &mut config.model.branches;
    if *branches != settings::ModelShape::default().branches && branches != layout.branches() {
        bail!(
            "model.branches = {branches:?}, but market.layout = {layout:?} has {:?}: leave one of the two out",
            layout.branches()
        );
    }
    *branches = layout.branches().to_vec();
    Ok(())
}

/// Fills a width of the model that follows from the environment; one that was set has to be the environment's.
fn fill(key: &str, value: &mut usize, source: &str, environment: usize) -> anyhow::Result<()> {
    if *value != 0 && *value != environment {
        bail!("{key} = {value}, but the market's states have {environment} ({source}): leave {key} at 0");
    }
    *value = environment;
    Ok(())
}

#[cfg(test)]
mod tests {
    use settings::Data;

    use super::*;

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // one symbol's parts are one range
    fn the_end_of_the_training_part_is_held_out_behind_a_purge() {
        let reach = Reach { lookback: 64, window: 8, n_step: 1 };
        let data = Data { synthetic_bars: 1200, ..Data::default() };
        let symbols = load(&data).unwrap();
        let held_out = |train: Range<usize>, fraction| held_out(&symbols, &[train], fraction, reach);
        assert_eq!(held_out(100..1100, 0.1).unwrap(), (vec![100..928], vec![1000..1100]));
        let message = held_out(100..1100, 0.01).unwrap_err().to_string();
        assert!(message.starts_with("10 decision bars of regimes would be held-out"), "{message}");
        let message = held_out(100..250, 0.5).unwrap_err().to_string();
        assert!(message.contains("decision bars of regimes would be learned"), "{message}");
    }

    #[test]
    fn the_layout_chooses_the_branches_or_has_to_be_theirs() {
        let mut config = Config::default();
        config.market.layout = Some(settings::MarketLayout::Direction);
        choose_layout(&mut config).unwrap();
        assert_eq!(config.model.branches, [3, 3, 3, 3]);
        choose_layout(&mut config).unwrap();
        config.market.layout = Some(settings::MarketLayout::Exposure);
        let message = choose_layout(&mut config).unwrap_err().to_string();
        assert!(message.contains("[3, 3, 3, 3]") && message.contains("[9, 3, 3]"), "{message}");
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
