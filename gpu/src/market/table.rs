//! The bars of a file as the environment reads them, and the part of them that a run may use.

use core::ops::Range;
use std::sync::Arc;

use super::{
    error::MarketError,
    observe::StateShape,
    order::Bar,
    view::{Features, Prices, Runs, Times},
};

/// Milliseconds in the year that yearly rates refer to: 365 days (the Actual/365 Fixed convention).
pub const YEAR_MS: f64 = 365.0 * 86_400_000.0;

const DAY_MS: i64 = 86_400_000;

/// Which side of the book a file's prices are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BarSide {
    /// Mid prices.
    #[default]
    Mid,
    /// Bid prices: mid = bid / (1 - half_spread).
    Bid,
    /// Ask prices: mid = ask / (1 + half_spread).
    Ask,
}

/// Columns of a bar file, each `[T]`.
#[derive(Clone, Copy, Debug)]
pub struct BarColumns<'a> {
    /// Time of the bar, epoch milliseconds UTC, strictly increasing.
    pub time_ms: &'a [i64],
    /// First price.
    pub open: &'a [f64],
    /// Highest price.
    pub high: &'a [f64],
    /// Lowest price.
    pub low: &'a [f64],
    /// Last price.
    pub close: &'a [f64],
}

/// All bars of a file: prices at the mid, times, features, and the runs without a gap. The vectors are public
/// because they are what the device buffers hold.
#[derive(Clone, Debug)]
pub struct MarketTable {
    /// Mid open, high, low, close, row-major `[T, 4]`.
    pub prices: Vec<f64>,
    /// Years since the bar before, `[T]`; 0 for the first bar.
    pub elapsed: Vec<f64>,
    /// Sine and cosine of 2 pi (UTC time of day), row-major `[T, 2]`.
    pub clock: Vec<f32>,
    /// Bar features, row-major `[T, F]`.
    pub features: Vec<f32>,
    shape: StateShape,
    runs: Vec<Range<usize>>,
}

impl MarketTable {
    /// Checks and converts the columns of a file.
    ///
    /// `features` are row-major `[T, F]`, F = `shape.features`. `runs` are the maximal runs of bars without a gap
    /// whose features are all defined, in order; a window of W = `shape.window` bars and an episode stay inside one.
    /// `side` and `half_spread` turn the file's prices into mid prices, to which all order rules apply: a market buy
    /// on an ask file then fills at the file's price (before slippage and impact) and a sell a whole spread lower.
    ///
    /// # Errors
    /// [`MarketError`] with the first bar, column and value that is wrong; nothing is repaired.
    pub fn new(
        columns: BarColumns,
        features: Vec<f32>,
        shape: StateShape,
        runs: &[Range<usize>],
        side: BarSide,
        half_spread: f64,
    ) -> Result<Self, MarketError> {
        let bars = columns.close.len();
        check_lengths(&columns, &features, shape)?;
        check_prices(&columns)?;
        check_runs(runs, bars, &features, shape)?;

        let to_mid = match side {
            BarSide::Mid => 1.0,
            BarSide::Bid => 1.0 / (1.0 - half_spread),
            BarSide::Ask => 1.0 / (1.0 + half_spread),
        };
        let mut prices = Vec::with_capacity(4 * bars);
        let mut elapsed = Vec::with_capacity(bars);
        let mut clock = Vec::with_capacity(2 * bars);
        for t in 0..bars {
            for column in [columns.open, columns.high, columns.low, columns.close] {
                prices.push(column[t] * to_mid);
            }
            let time = columns.time_ms[t];
            elapsed.push(if t == 0 { 0.0 } else { (time - columns.time_ms[t - 1]) as f64 / YEAR_MS });
            let angle = core::f64::consts::TAU * (time.rem_euclid(DAY_MS) as f64 / DAY_MS as f64);
            clock.extend([libm::sin(angle) as f32, libm::cos(angle) as f32]);
        }
        Ok(Self { prices, elapsed, clock, features, shape, runs: runs.to_vec() })
    }

    /// One table of several symbols, each behind the one before: bar t of table i becomes bar `offset_i + t`, where
    /// `offset_i` is the number of bars of the tables before. Runs stay what they are, so no window and no episode spans
    /// two symbols.
    ///
    /// # Errors
    /// [`MarketError::Length`] for tables of different shapes or none, [`MarketError::TooLarge`] for too many bars.
    pub fn joined(tables: Vec<MarketTable>) -> Result<Self, MarketError> {
        let mut tables = tables.into_iter();
        let nothing = MarketError::Length { column: "tables", got: 0, expected: 1 };
        let mut all = tables.next().ok_or(nothing)?;
        for table in tables {
            if table.shape != all.shape {
                let (got, expected) = (table.shape.len() as usize, all.shape.len() as usize);
                return Err(MarketError::Length { column: "state", got, expected });
            }
            let offset = all.bars();
            all.prices.extend(table.prices);
            all.elapsed.extend(table.elapsed);
            all.clock.extend(table.clock);
            all.features.extend(table.features);
            all.runs.extend(table.runs.into_iter().map(|run| run.start + offset..run.end + offset));
        }
        check_size(all.bars(), all.shape)?;
        Ok(all)
    }

    /// T.
    pub fn bars(&self) -> usize {
        self.elapsed.len()
    }

    /// W and F.
    pub fn shape(&self) -> StateShape {
        self.shape
    }
}

impl Prices for MarketTable {
    fn bar(&self, t: u32) -> Bar {
        let row = &self.prices[4 * t as usize..4 * t as usize + 4];
        Bar { open: row[0], high: row[1], low: row[2], close: row[3] }
    }

    fn close(&self, t: u32) -> f64 {
        self.prices[4 * t as usize + 3]
    }
}

impl Times for MarketTable {
    fn elapsed(&self, t: u32) -> f64 {
        self.elapsed[t as usize]
    }
}

impl Features for MarketTable {
    fn feature(&self, i: u32) -> f32 {
        self.features[i as usize]
    }

    fn clock(&self, t: u32) -> [f32; 2] {
        [self.clock[2 * t as usize], self.clock[2 * t as usize + 1]]
    }
}

/// Which bars of a table a run may use: the training, validation or test part.
#[derive(Clone, Debug)]
pub struct Part {
    /// First bar behind the run of decision bars that contains t, `[T]`; 0 where no decision is possible.
    pub run_end: Arc<[u32]>,
    /// Bars at which a training episode may start, at least one.
    pub starts: Vec<u32>,
    range: Range<usize>,
}

impl Part {
    /// The decision bars of `range`: bars in it at which a window of W bars ends that lies inside one run. The window
    /// may reach back to bars before the range, which are the past; a purge between parts is the caller's choice of
    /// ranges. Episodes start at any decision bar that another one follows.
    ///
    /// # Errors
    /// [`MarketError::Run`] for a range outside the table, [`MarketError::NoStart`] if no step fits.
    pub fn new(table: &MarketTable, range: Range<usize>) -> Result<Self, MarketError> {
        let mut run_end = vec![0; table.bars()];
        let starts = mark(table, &range, &mut run_end)?;
        Ok(Self { run_end: run_end.into(), starts, range })
    }

    /// The same part of time of several symbols: `ranges` are theirs, in order and without overlap. Returns the part of
    /// all of them, in which environments may start at any symbol, and each symbol's own, for its backtest. They share
    /// the runs.
    ///
    /// # Errors
    /// As for [`Self::new`]; [`MarketError::Run`] for ranges out of order or none.
    pub fn of_symbols(
        table: &MarketTable,
        ranges: &[Range<usize>],
    ) -> Result<(Self, Vec<Self>), MarketError> {
        let mut run_end = vec![0; table.bars()];
        let mut starts: Vec<Vec<u32>> = Vec::with_capacity(ranges.len());
        let mut free = 0;
        for (index, range) in ranges.iter().enumerate() {
            if range.start < free {
                let (from, to) = (range.start, range.end);
                return Err(MarketError::Run { index, from, to, reason: "overlaps the part before it" });
            }
            free = range.end;
            starts.push(mark(table, range, &mut run_end)?);
        }
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Err(MarketError::Run {
                index: 0,
                from: 0,
                to: 0,
                reason: "is empty or outside the table",
            });
        };
        let run_end: Arc<[u32]> = run_end.into();
        let joint = Self { run_end: run_end.clone(), starts: starts.concat(), range: first.start..last.end };
        let symbols = starts.into_iter().zip(ranges);
        let symbols = symbols
            .map(|(starts, range)| Self { run_end: run_end.clone(), starts, range: range.clone() })
            .collect();
        Ok((joint, symbols))
    }

    /// The part's bars.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The one start of a backtest: the first decision bar that another one follows.
    pub fn backtest_start(&self) -> &[u32] {
        &self.starts[..1]
    }

    /// Last bar of the part, where a backtest ends.
    pub fn last(&self) -> u32 {
        self.range.end as u32 - 1
    }

    /// Steps of a backtest: one per bar from the first decision bar to the last bar.
    pub fn backtest_steps(&self) -> usize {
        (self.last() - self.starts[0]) as usize
    }
}

/// Writes the ends of the runs of decision bars of `range` into `run_end` `[T]` and returns the starts.
fn mark(table: &MarketTable, range: &Range<usize>, run_end: &mut [u32]) -> Result<Vec<u32>, MarketError> {
    if range.start >= range.end || range.end > table.bars() {
        return Err(MarketError::Run {
            index: 0,
            from: range.start,
            to: range.end,
            reason: "is empty or outside the table",
        });
    }
    let window = table.shape.window as usize;
    let mut starts = Vec::new();
    for run in &table.runs {
        let from = (run.start + window - 1).max(range.start);
        let to = run.end.min(range.end);
        if from < to {
            run_end[from..to].fill(to as u32);
            starts.extend(from as u32..to as u32 - 1);
        }
    }
    if starts.is_empty() {
        return Err(MarketError::NoStart { from: range.start, to: range.end, window });
    }
    Ok(starts)
}

/// A part's runs with the starts that a mode uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunView<'a> {
    pub run_end: &'a [u32],
    pub starts: &'a [u32],
}

impl Runs for RunView<'_> {
    fn run_end(&self, t: u32) -> u32 {
        self.run_end[t as usize]
    }

    fn starts(&self) -> u32 {
        self.starts.len() as u32
    }

    fn start(&self, i: u32) -> u32 {
        self.starts[i as usize]
    }
}

fn check_lengths(columns: &BarColumns, features: &[f32], shape: StateShape) -> Result<(), MarketError> {
    let bars = columns.close.len();
    let lengths = [
        ("time", columns.time_ms.len()),
        ("open", columns.open.len()),
        ("high", columns.high.len()),
        ("low", columns.low.len()),
    ];
    for (column, got) in lengths {
        if got != bars {
            return Err(MarketError::Length { column, got, expected: bars });
        }
    }
    if shape.window == 0 || shape.features == 0 {
        let value = shape.window as f64;
        return Err(MarketError::Param {
            name: "window",
            value,
            expected: "at least one bar and one feature",
        });
    }
    let expected = bars * shape.features as usize;
    if features.len() != expected {
        return Err(MarketError::Length { column: "features", got: features.len(), expected });
    }
    check_size(bars, shape)
}

/// Kernels index with u32; t + episode stays below 2^31 too.
fn check_size(bars: usize, shape: StateShape) -> Result<(), MarketError> {
    let most = (1 << 30) / (shape.features as usize).max(4);
    if bars > most {
        return Err(MarketError::TooLarge { what: "bars", got: bars, most });
    }
    Ok(())
}

fn check_prices(columns: &BarColumns) -> Result<(), MarketError> {
    for t in 0..columns.close.len() {
        let (low, high) = (columns.low[t], columns.high[t]);
        let named = [("open", columns.open[t]), ("high", high), ("low", low), ("close", columns.close[t])];
        for (column, value) in named {
            if !(value.is_finite() && value > 0.0) {
                let reason = "is not a positive finite number";
                return Err(MarketError::Price { bar: t, column, value, reason });
            }
        }
        for (column, value) in named {
            if value < low || value > high {
                return Err(MarketError::Price {
                    bar: t,
                    column,
                    value,
                    reason: "is outside the bar's low to high",
                });
            }
        }
        if t > 0 && columns.time_ms[t] <= columns.time_ms[t - 1] {
            let (time_ms, before_ms) = (columns.time_ms[t], columns.time_ms[t - 1]);
            return Err(MarketError::Time { bar: t, time_ms, before_ms });
        }
    }
    Ok(())
}

fn check_runs(
    runs: &[Range<usize>],
    bars: usize,
    features: &[f32],
    shape: StateShape,
) -> Result<(), MarketError> {
    let mut free = 0;
    for (index, run) in runs.iter().enumerate() {
        let err = |reason| Err(MarketError::Run { index, from: run.start, to: run.end, reason });
        if run.start >= run.end || run.end > bars {
            return err("is empty or outside the table");
        }
        if run.start < free {
            return err("overlaps the run before it");
        }
        free = run.end;
        let width = shape.features as usize;
        for (i, &value) in features.iter().enumerate().take(run.end * width).skip(run.start * width) {
            if !value.is_finite() {
                return Err(MarketError::Feature { bar: i / width, feature: i % width, value });
            }
        }
    }
    Ok(())
}
