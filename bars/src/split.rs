//! Train, validation and test by time, with bars left out between them so that no part sees another's.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::calendar::Segment;
use crate::error::BarError;

/// Fewest decision bars of a part; with fewer, no figure computed from it means anything.
pub const FEWEST_DECISIONS: usize = 16;

/// How far a decision reads back and its label reaches forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// L: bars that one bar's features read.
    pub lookback: usize,
    /// W: bars in a state.
    pub window: usize,
    /// n: steps of the n-step return.
    pub n_step: usize,
}

impl Reach {
    /// Bars before a decision bar that its state reads: L + W - 2.
    pub fn back(self) -> usize {
        self.lookback + self.window - 2
    }

    /// Bars left out between two parts before any embargo: L + W - 1 + n.
    pub fn purge(self) -> usize {
        self.lookback + self.window - 1 + self.n_step
    }

    pub(crate) fn check(self) -> Result<(), BarError> {
        // Shapes beyond these are typing errors; the sums above cannot overflow within them.
        for (name, value) in [("lookback", self.lookback), ("window", self.window), ("n_step", self.n_step)] {
            if value == 0 || value > 1 << 16 {
                return Err(BarError::option(name, value, "expected 1 to 65536"));
            }
        }
        Ok(())
    }
}

/// One split: ranges of *decision bars*, half-open. A decision at bar t reads bars up to t and is executed in
/// and marked at the close of bar t + 1, so bar `end` of a range is the last one its environment sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fold {
    /// Decisions to learn from.
    pub train: Range<usize>,
    /// Decisions to choose the checkpoint by.
    pub validation: Range<usize>,
    /// Decisions to report.
    pub test: Range<usize>,
}

/// Fractions of the bars, and extra bars between the parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SplitOptions {
    /// Fraction of the bars for training.
    pub train: f64,
    /// Fraction of the bars for validation; the rest is the test part.
    pub validation: f64,
    /// Bars left out between the parts on top of [`Reach::purge`].
    pub embargo: usize,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { train: 0.7, validation: 0.15, embargo: 0 }
    }
}

impl Fold {
    /// The part's names with their ranges.
    pub fn parts(&self) -> [(&'static str, &Range<usize>); 3] {
        [("train", &self.train), ("validation", &self.validation), ("test", &self.test)]
    }

    /// Refuses a fold whose parts are out of order, too close, beyond the data, or too short to use. For
    /// folds from elsewhere (walk-forward, a checkpoint).
    ///
    /// # Errors
    /// Naming the part and its length.
    pub fn check(
        &self,
        bars: usize,
        segments: &[Segment],
        reach: Reach,
        embargo: usize,
    ) -> Result<(), BarError> {
        reach.check()?;
        let apart = reach.purge().saturating_add(embargo);
        let order = [(&self.train, &self.validation), (&self.validation, &self.test)];
        for (earlier, later) in order {
            // Empty ones are too short, which is said below.
            let both = !earlier.is_empty() && !later.is_empty();
            if both && earlier.end.saturating_add(apart) > later.start {
                return Err(BarError::Split(format!(
                    "parts {earlier:?} and {later:?} are closer than the purge and embargo of {apart} bars"
                )));
            }
        }
        for (name, part) in self.parts() {
            let decisions = decisions(segments, reach, part.clone()).count();
            if part.end >= bars || decisions < FEWEST_DECISIONS {
                return Err(BarError::Split(format!(
                    "the {name} part is too short: bars {}..{} of {bars} hold {decisions} decisions that have {} bars \
                     before and one behind them in one segment, and at least {FEWEST_DECISIONS} are needed (purge {} \
                     + embargo {embargo} bars are left out between parts): use a longer file, a larger fraction or a \
                     smaller market.window",
                    part.start,
                    part.end,
                    reach.back(),
                    reach.purge()
                )));
            }
        }
        Ok(())
    }
}

/// One split by time.
///
/// With N bars, b1 = floor(N train), b2 = floor(N (train + validation)) and g = purge + embargo: train is
/// L+W-2 .. b1, validation b1+g .. b2, test b2+g .. N-1.
///
/// # Errors
/// If a fraction makes no sense or a part is too short, which the text names.
pub fn split(
    bars: usize,
    segments: &[Segment],
    reach: Reach,
    options: &SplitOptions,
) -> Result<Fold, BarError> {
    reach.check()?;
    let (train, validation) = (options.train, options.validation);
    check_fractions("split", train, validation)?;
    let first_end = (bars as f64 * train) as usize;
    let second_end = (bars as f64 * (train + validation)) as usize;
    let apart = reach.purge().saturating_add(options.embargo);
    let part = |start: usize, end: usize| start.min(end)..end;
    let fold = Fold {
        train: part(reach.back(), first_end),
        validation: part(first_end.saturating_add(apart), second_end),
        test: part(second_end.saturating_add(apart), bars.saturating_sub(1)),
    };
    fold.check(bars, segments, reach, options.embargo)?;
    Ok(fold)
}

/// Refuses fractions that leave nothing for a part; `section` is that of the configuration.
pub(crate) fn check_fractions(section: &str, train: f64, validation: f64) -> Result<(), BarError> {
    for (name, value) in [("train", train), ("validation", validation)] {
        if !(value > 0.0 && value < 1.0) {
            let option = format!("{section}.{name}");
            return Err(BarError::option(option, value, "expected a fraction between 0 and 1"));
        }
    }
    if train + validation >= 1.0 {
        return Err(BarError::option(
            format!("{section}.train + {section}.validation"),
            format!("{train} + {validation}"),
            "expected less than 1: the rest is the test part",
        ));
    }
    Ok(())
}

/// The bars of a range at which a decision can be made: the whole state lies in the bar's segment, and so
/// does the next bar, in which the decision is executed.
pub fn decisions(
    segments: &[Segment],
    reach: Reach,
    range: Range<usize>,
) -> impl Iterator<Item = usize> + '_ {
    segments.iter().flat_map(move |segment| {
        let first = (segment.start + reach.back()).max(range.start);
        let end = segment.end.saturating_sub(1).min(range.end);
        first..end.max(first)
    })
}
