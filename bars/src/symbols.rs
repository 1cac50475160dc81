//! Several symbols on one time line: the same splits by time for all of them, and walk-forward folds.
//!
//! The *time line* is all distinct times of all symbols; of one symbol it is its bars. Cuts are made on it and carried
//! over to each symbol's own bars. Between two parts stand, of every symbol, the purge of L + W - 1 + n of its own bars
//! and the embargo, and the bars that any symbol's label of the earlier part reads end before the first bar that any
//! symbol's state of the later part reads: no symbol sees another's future through a joint network.

use crate::error::BarError;
use crate::load::Loaded;
use crate::split::{Fold, Reach, SplitOptions, check_fractions};

/// Bars of one symbol.
#[derive(Clone, Debug, PartialEq)]
pub struct Symbol {
    /// Its name, for reports.
    pub name: String,
    /// Bars, calendar, report.
    pub loaded: Loaded,
}

impl Symbol {
    fn times(&self) -> &[i64] {
        &self.loaded.bars.time_ms
    }
}

/// How to divide bars into walk-forward folds. Fractions are of the time line.
#[derive(Clone, Debug, PartialEq)]
pub struct FoldOptions {
    /// k, at least 1.
    pub count: usize,
    /// Whether training parts move and keep their length (`true`), or begin with the data (`false`).
    pub rolling: bool,
    /// Training part of the first fold; of every fold if they move.
    pub train: f64,
    /// Validation part of every fold.
    pub validation: f64,
    /// Bars left out between the parts on top of [`Reach::purge`].
    pub embargo: usize,
}

/// Refuses symbols that cannot be traded together.
///
/// # Errors
/// Two symbols of one name or with different bar intervals, and none at all; the names are said.
pub fn check_symbols(symbols: &[Symbol]) -> Result<(), BarError> {
    let Some(first) = symbols.first() else {
        return Err(BarError::Split("no symbol to trade".into()));
    };
    for (i, symbol) in symbols.iter().enumerate() {
        let file = &symbol.loaded.report.file;
        if let Some(other) = symbols[..i].iter().find(|other| other.name == symbol.name) {
            let message = format!("symbol {:?} is also that of {}", symbol.name, other.loaded.report.file);
            return Err(BarError::file(file, message));
        }
        let (interval, expected) = (symbol.loaded.calendar.interval_ms, first.loaded.calendar.interval_ms);
        if interval != expected {
            let message = format!(
                "bars of {interval} ms, but {} has bars of {expected} ms: all symbols must have the same interval",
                first.loaded.report.file
            );
            return Err(BarError::file(file, message));
        }
    }
    Ok(())
}

/// All distinct times of all symbols, in order.
pub fn time_line(symbols: &[Symbol]) -> Vec<i64> {
    let mut times: Vec<i64> = symbols.iter().flat_map(|symbol| symbol.times().iter().copied()).collect();
    if symbols.len() > 1 {
        times.sort_unstable();
        times.dedup();
    }
    times
}

/// One split by time, for every symbol: for a single one what [`crate::split::split`] makes.
///
/// With the time line's N times, b1 = floor(N train), b2 = floor(N (train + validation)): a symbol's training part ends
/// at its first bar at or behind time b1, its validation part at that of b2; the next part begins where the purge allows.
///
/// # Errors
/// If a fraction makes no sense or a part of a symbol is too short, which the text names.
pub fn split_symbols(
    symbols: &[Symbol],
    reach: Reach,
    options: &SplitOptions,
) -> Result<Vec<Fold>, BarError> {
    reach.check()?;
    check_symbols(symbols)?;
    check_fractions("split", options.train, options.validation)?;
    let line = time_line(symbols);
    let n = line.len() as f64;
    let cut = |fraction: f64| Cut::at(&line, (n * fraction) as usize);
    let joint = Joint { symbols, reach, embargo: options.embargo };
    let train_ends = joint.bars_before(cut(options.train));
    let validation_ends = joint.bars_before(cut(options.train + options.validation));
    let validation_starts = joint.starts_behind(&train_ends);
    let folds: Vec<Fold> = (0..symbols.len())
        .map(|s| Fold {
            train: range(reach.back(), train_ends[s]),
            validation: range(validation_starts[s], validation_ends[s]),
            test: 0..0,
        })
        .collect();
    let test_starts = joint.starts_behind(&validation_ends);
    let folds = folds.into_iter().enumerate().map(|(s, fold)| {
        let last = symbols[s].times().len() - 1;
        Fold { test: range(test_starts[s], last), ..fold }
    });
    joint.checked(folds.collect())
}

/// Walk-forward: k folds, `[fold][symbol]`, whose test parts lie one behind the other without a bar between them.
///
/// With N times, the test part of fold i = 0..k reaches from time c_i to c_{i+1}, c_i = floor(N (train + validation +
/// (1 - train - validation) i / k)); the last one to the end. Its validation part begins floor(N validation) times
/// before c_i, its training part with the data, or floor(N train) times before the validation part. Purge and embargo
/// are taken from the ends of the training and the validation part, so that no bar behind the first test part's
/// beginning stays untested.
///
/// # Errors
/// If a fraction makes no sense or a part of a symbol is too short, which the text names with the fold.
pub fn walk_forward(
    symbols: &[Symbol],
    reach: Reach,
    options: &FoldOptions,
) -> Result<Vec<Vec<Fold>>, BarError> {
    reach.check()?;
    check_symbols(symbols)?;
    check_fractions("folds", options.train, options.validation)?;
    if options.count == 0 {
        return Err(BarError::option("folds.count", 0, "expected at least 1"));
    }
    let line = time_line(symbols);
    let (n, k) = (line.len() as f64, options.count);
    let first = options.train + options.validation;
    let cut = |i: usize| (n * (first + (1.0 - first) * i as f64 / k as f64)) as usize;
    let (train, validation) = ((n * options.train) as usize, (n * options.validation) as usize);
    let joint = Joint { symbols, reach, embargo: options.embargo };
    let fold = |i: usize| {
        let test = cut(i);
        let begin = test.saturating_sub(validation);
        let test_starts = joint.bars_before(Cut::at(&line, test));
        let test_ends: Vec<usize> = match i + 1 < k {
            true => joint.bars_before(Cut::at(&line, cut(i + 1))),
            false => symbols.iter().map(|symbol| symbol.times().len() - 1).collect(),
        };
        let validation_starts = joint.bars_before(Cut::at(&line, begin));
        let train_starts = match options.rolling {
            true => joint.bars_before(Cut::at(&line, begin.saturating_sub(train))),
            false => vec![0; symbols.len()],
        };
        let validation_ends = joint.ends_before(&test_starts);
        let train_ends = joint.ends_before(&validation_starts);
        let folds = (0..symbols.len()).map(|s| Fold {
            train: range(train_starts[s].max(reach.back()), train_ends[s]),
            validation: range(validation_starts[s], validation_ends[s]),
            // A symbol's last bar has none behind it in which a decision could be executed.
            test: range(test_starts[s], test_ends[s].min(symbols[s].times().len() - 1)),
        });
        joint
            .checked(folds.collect())
            .map_err(|error| BarError::Split(format!("fold {} of {k}: {error}", i + 1)))
    };
    (0..k).map(fold).collect()
}

/// Holds out the end of every symbol's training part from the same time on: what is learned from, and what is held
/// out, `[symbol]`. The last `fraction` of the first symbol's training decisions says which time.
pub fn hold_out(
    symbols: &[Symbol],
    train: &[std::ops::Range<usize>],
    fraction: f64,
    reach: Reach,
) -> Vec<[std::ops::Range<usize>; 2]> {
    let joint = Joint { symbols, reach, embargo: 0 };
    let Some(first) = train.first() else { return Vec::new() };
    let cut = first.end - (first.len() as f64 * fraction).round() as usize;
    let cut = symbols[0].times().get(cut).map_or(Cut::End, |&time| Cut::Time(time));
    let starts = joint.bars_before(cut);
    let ends = joint.ends_before(&starts);
    let parts = train.iter().zip(starts.into_iter().zip(ends));
    parts.map(|(train, (start, end))| [range(train.start, end), range(start, train.end)]).collect()
}

/// A place on the time line.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Time(i64),
    /// Behind everything.
    End,
}

impl Cut {
    fn at(line: &[i64], index: usize) -> Self {
        line.get(index).map_or(Cut::End, |&time| Cut::Time(time))
    }
}

struct Joint<'a> {
    symbols: &'a [Symbol],
    reach: Reach,
    embargo: usize,
}

impl Joint<'_> {
    /// Bars of each symbol before a cut.
    fn bars_before(&self, cut: Cut) -> Vec<usize> {
        self.symbols
            .iter()
            .map(|symbol| match cut {
                Cut::Time(time) => symbol.times().partition_point(|&t| t < time),
                Cut::End => symbol.times().len(),
            })
            .collect()
    }

    /// First decision bars of the next part, whose states read nothing up to the last bar that a label of a part with
    /// these ends reads, with one bar to spare.
    fn starts_behind(&self, ends: &[usize]) -> Vec<usize> {
        let last_read = self.symbols.iter().zip(ends).filter(|&(_, &end)| end > 0).map(|(symbol, &end)| {
            let times = symbol.times();
            times[(end - 1 + self.reach.n_step).min(times.len() - 1)]
        });
        let Some(read) = last_read.max() else { return vec![usize::MAX; ends.len()] };
        self.symbols
            .iter()
            .map(|symbol| {
                let free = symbol.times().partition_point(|&t| t <= read);
                (free + self.reach.back() + 1).saturating_add(self.embargo)
            })
            .collect()
    }

    /// Ends of the part before, whose labels read nothing from the first bar on that a state of a part with these starts
    /// reads, with one bar to spare.
    fn ends_before(&self, starts: &[usize]) -> Vec<usize> {
        let first_read = self.symbols.iter().zip(starts).filter_map(|(symbol, &start)| {
            // A symbol without a bar in the later part reads nothing there.
            symbol.times().get(start)?;
            symbol.times().get(start.saturating_sub(self.reach.back()))
        });
        let Some(&read) = first_read.min() else {
            return self.symbols.iter().map(|symbol| symbol.times().len()).collect();
        };
        self.symbols
            .iter()
            .map(|symbol| {
                let free = symbol.times().partition_point(|&t| t < read);
                free.saturating_sub(self.reach.n_step + 1).saturating_sub(self.embargo)
            })
            .collect()
    }

    /// The folds, if every symbol's will do.
    fn checked(&self, folds: Vec<Fold>) -> Result<Vec<Fold>, BarError> {
        for (symbol, fold) in self.symbols.iter().zip(&folds) {
            let (bars, segments) = (symbol.times().len(), &symbol.loaded.calendar.segments);
            fold.check(bars, segments, self.reach, self.embargo).map_err(|error| match self.symbols {
                [_] => error,
                _ => BarError::Split(format!("symbol {}: {error}", symbol.name)),
            })?;
        }
        Ok(folds)
    }
}

/// `start..end`, or nothing at the end.
fn range(start: usize, end: usize) -> std::ops::Range<usize> {
    start.min(end)..end
}
