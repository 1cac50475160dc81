//! The checks that every row passes, whatever file it comes from, and the repairs that were asked for.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::error::{BarError, Place, Problem, RowError};
use crate::options::{LoadOptions, Price, Repair, ZeroVolume};
use crate::series::{Bar, Bars};

/// Largest price and volume; the smallest price, and volume that is not zero, is its inverse. Within it no sum, square or ratio of the
/// features overflows f64, and no real market is outside.
pub const LARGEST: f64 = 1e30;

/// Largest factor between a price and the close before it, and between a bar's low and its high, either way. Splits, new
/// currencies and quotes of a flash crash stay within it; columns that were swapped and units that change do not.
pub const LARGEST_JUMP: f64 = 1e6;

/// Largest excess of open or close over high or low that `widen-range` repairs, as a fraction of the close:
/// it covers a tick, not a spike.
pub const WIDEN_LIMIT: f64 = 1e-3;

/// How many lines of each kind of repaired row a report names.
const EXAMPLES: usize = 3;

/// Rows left out for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub examples: Vec<Place>,
}

/// What the asked-for repairs did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Rows left out, by reason.
    pub dropped: BTreeMap<Problem, Dropped>,
    /// Rows whose high or low was widened.
    pub widened: u64,
    /// Rows that stood before an earlier one and were sorted.
    pub out_of_order: u64,
    /// Bars inserted into gaps.
    pub filled: u64,
}

impl Repaired {
    fn drop_row(&mut self, problem: Problem, place: Place) {
        let dropped = self.dropped.entry(problem).or_default();
        dropped.count += 1;
        if dropped.examples.len() < EXAMPLES {
            dropped.examples.push(place);
        }
    }

    /// Adds what was done to other rows.
    pub fn add(&mut self, other: &Repaired) {
        for (&problem, dropped) in &other.dropped {
            let all = self.dropped.entry(problem).or_default();
            all.count += dropped.count;
            all.examples.extend(dropped.examples.iter().take(EXAMPLES.saturating_sub(all.examples.len())));
        }
        self.widened += other.widened;
        self.out_of_order += other.out_of_order;
        self.filled += other.filled;
    }

    /// Rows left out for any reason.
    pub fn dropped_rows(&self) -> u64 {
        self.dropped.values().map(|dropped| dropped.count).sum()
    }
}

/// A row as a reader hands it over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) bar: Bar,
    /// Adjusted close, if it is to be used.
    pub(crate) adjusted: Option<f64>,
}

/// An error about a row of a file.
pub(crate) fn row_error(
    file: &str,
    place: Place,
    column: &str,
    value: impl Into<String>,
    problem: Problem,
    detail: impl Into<String>,
) -> Box<RowError> {
    let (file, column) = (file.to_owned(), column.to_owned());
    Box::new(RowError { file, place, column, value: value.into(), problem, detail: detail.into() })
}

/// Refuses more rows than are asked for.
pub(crate) fn check_rows(file: &str, options: &LoadOptions, rows: u64) -> Result<(), BarError> {
    if rows > options.max_rows {
        let message = format!("more than {} rows; raise max_rows if that is meant", options.max_rows);
        return Err(BarError::file(file, message));
    }
    Ok(())
}

/// Takes rows in file order, checks them and collects the bars.
pub(crate) struct Collector<'a> {
    file: Cow<'a, str>,
    options: &'a LoadOptions,
    place: fn(u64) -> Place,
    bars: Bars,
    /// Line or row number of each bar.
    numbers: Vec<u64>,
    rows: u64,
    repaired: Repaired,
}

/// What a reader has read.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) bars: Bars,
    /// Line or row of each bar, for the places of gaps.
    pub(crate) places: Vec<Place>,
    pub(crate) rows: u64,
    pub(crate) zero_volume: u64,
    pub(crate) repaired: Repaired,
}

impl<'a> Collector<'a> {
    /// `place` makes a line or a row of the number.
    pub(crate) fn new(
        file: impl Into<Cow<'a, str>>,
        options: &'a LoadOptions,
        place: fn(u64) -> Place,
        has_volume: bool,
    ) -> Self {
        Self {
            file: file.into(),
            options,
            place,
            bars: Bars { has_volume, ..Bars::default() },
            numbers: Vec::new(),
            rows: 0,
            repaired: Repaired::default(),
        }
    }

    /// An error about a row of this file.
    pub(crate) fn error(
        &self,
        number: u64,
        column: &str,
        value: impl Into<String>,
        problem: Problem,
        detail: impl Into<String>,
    ) -> Box<RowError> {
        row_error(&self.file, (self.place)(number), column, value, problem, detail)
    }

    /// Takes the next row, or what was wrong with it.
    pub(crate) fn push(&mut self, number: u64, row: Result<Row, Box<RowError>>) -> Result<(), BarError> {
        self.rows += 1;
        check_rows(&self.file, self.options, self.rows)?;
        let checked = row.and_then(|row| self.check_values(number, row));
        let bar = match checked {
            Ok(bar) => bar,
            Err(error) if self.options.repairs(Repair::DropBadRows) => {
                self.repaired.drop_row(error.problem, error.place);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if self.bars.has_volume && bar.volume == 0.0 {
            match self.options.zero_volume {
                ZeroVolume::Report => {}
                ZeroVolume::Drop => {
                    self.repaired.drop_row(Problem::ZeroVolume, (self.place)(number));
                    return Ok(());
                }
                ZeroVolume::Error => {
                    return Err(self.error(number, "volume", "0", Problem::ZeroVolume, "").into());
                }
            }
        }
        if self.options.repairs(Repair::Sort) {
            self.bars.push(bar);
            self.numbers.push(number);
            return Ok(());
        }
        if let Some(&last) = self.bars.time_ms.last() {
            if bar.time_ms < last {
                let before = format!("the row before is {}", crate::time::utc_text(last));
                let value = crate::time::utc_text(bar.time_ms);
                return Err(self.error(number, "time", value, Problem::OutOfOrder, before).into());
            }
            if bar.time_ms == last {
                return self.duplicate(number, bar);
            }
        }
        self.append(number, bar)
    }

    /// Appends a bar in its place in time, if its prices can follow the close before.
    fn append(&mut self, number: u64, bar: Bar) -> Result<(), BarError> {
        if let Some(error) = self.jump(number, &bar) {
            if !self.options.repairs(Repair::DropBadRows) {
                return Err(error.into());
            }
            self.repaired.drop_row(error.problem, error.place);
            return Ok(());
        }
        self.bars.push(bar);
        self.numbers.push(number);
        Ok(())
    }

    /// What is wrong with a bar whose prices are out of all proportion to the close before, or to each other.
    fn jump(&self, number: u64, bar: &Bar) -> Option<Box<RowError>> {
        let before = self.bars.close.last().zip(self.numbers.last()).map(|(&close, &number)| {
            (close, format!("the close before is {close} ({})", (self.place)(number)))
        });
        let within = (bar.low, format!("the bar's low is {}", bar.low));
        let prices = [("open", bar.open), ("high", bar.high), ("low", bar.low), ("close", bar.close)];
        let far = |price: f64, other: f64| (price / other).max(other / price) > LARGEST_JUMP;
        let find = |(reference, detail): (f64, String)| {
            let (column, price) = prices.into_iter().find(|(_, price)| far(*price, reference))?;
            let detail =
                format!("{detail}, and more than a factor of {LARGEST_JUMP:e} between is no market's");
            Some(self.error(number, column, price.to_string(), Problem::Jump, detail))
        };
        before.and_then(find).or_else(|| find(within))
    }

    /// The checks within one row.
    fn check_values(&mut self, number: u64, row: Row) -> Result<Bar, Box<RowError>> {
        let mut bar = row.bar;
        let prices = [("open", bar.open), ("high", bar.high), ("low", bar.low), ("close", bar.close)];
        let adjusted = row.adjusted.map(|adjusted| ("adj_close", adjusted));
        for (column, price) in prices.into_iter().chain(adjusted) {
            if !price.is_finite() {
                return Err(self.error(number, column, price.to_string(), Problem::NotFinite, ""));
            }
            if price <= 0.0 {
                let detail = "log returns need prices above zero";
                return Err(self.error(number, column, price.to_string(), Problem::NonPositivePrice, detail));
            }
            if !(1.0 / LARGEST..=LARGEST).contains(&price) {
                let detail = format!("expected {:e} to {LARGEST:e}", 1.0 / LARGEST);
                return Err(self.error(number, column, price.to_string(), Problem::OutOfRange, detail));
            }
        }
        if bar.volume != 0.0 && !(1.0 / LARGEST..=LARGEST).contains(&bar.volume) {
            let problem = match bar.volume {
                v if !v.is_finite() => Problem::NotFinite,
                v if v < 0.0 => Problem::NegativeVolume,
                _ => Problem::OutOfRange,
            };
            return Err(self.error(number, "volume", bar.volume.to_string(), problem, ""));
        }
        if bar.high < bar.low {
            let detail = format!("low is {}", bar.low);
            return Err(self.error(number, "high", bar.high.to_string(), Problem::HighBelowLow, detail));
        }
        for (column, price) in [("open", bar.open), ("close", bar.close)] {
            if (bar.low..=bar.high).contains(&price) {
                continue;
            }
            let excess = (price - bar.high).max(bar.low - price);
            if self.options.repairs(Repair::WidenRange) && excess <= WIDEN_LIMIT * bar.close {
                continue;
            }
            let detail = format!("low is {}, high is {}", bar.low, bar.high);
            return Err(self.error(number, column, price.to_string(), Problem::OutsideRange, detail));
        }
        let (high, low) = (bar.high.max(bar.open).max(bar.close), bar.low.min(bar.open).min(bar.close));
        if (high, low) != (bar.high, bar.low) {
            // Only widen-range lets such a row come here.
            self.repaired.widened += 1;
            (bar.high, bar.low) = (high, low);
        }
        if let (Price::Adjusted, Some(adjusted)) = (self.options.price, row.adjusted) {
            // One factor for all four keeps their order, because rounding is monotonic.
            let factor = adjusted / bar.close;
            for price in [&mut bar.open, &mut bar.high, &mut bar.low, &mut bar.close] {
                *price *= factor;
                if !(1.0 / LARGEST..=LARGEST).contains(price) {
                    let detail = format!("the price it adjusts becomes {price:e}");
                    let value = adjusted.to_string();
                    return Err(self.error(number, "adj_close", value, Problem::OutOfRange, detail));
                }
            }
        }
        Ok(bar)
    }

    /// A row with the timestamp of the bar collected last.
    fn duplicate(&mut self, number: u64, bar: Bar) -> Result<(), BarError> {
        let last = self.bars.len() - 1;
        let kept = self.bars.bar(last);
        let keep_last = self.options.repairs(Repair::KeepLast);
        let equal = kept == bar;
        let droppable = keep_last
            || self.options.repairs(Repair::KeepFirst)
            || (equal && self.options.repairs(Repair::DropDuplicates));
        if !droppable {
            let same = if equal { "with the same values" } else { "with other values" };
            let detail = format!("{} has the same time {same}", (self.place)(self.numbers[last]));
            let value = crate::time::utc_text(bar.time_ms);
            return Err(self.error(number, "time", value, Problem::Duplicate, detail).into());
        }
        if keep_last {
            self.bars.set(last, bar);
            self.repaired.drop_row(Problem::Duplicate, (self.place)(self.numbers[last]));
            self.numbers[last] = number;
        } else {
            self.repaired.drop_row(Problem::Duplicate, (self.place)(number));
        }
        Ok(())
    }

    /// Sorts and removes duplicates where asked, and hands over the bars.
    pub(crate) fn finish(mut self) -> Result<Collected, BarError> {
        if self.options.repairs(Repair::Sort) {
            let times = &self.bars.time_ms;
            self.repaired.out_of_order = times.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
            let mut order: Vec<usize> = (0..times.len()).collect();
            order.sort_by_key(|&i| times[i]);
            let sorted = std::mem::take(&mut self.bars);
            let numbers = std::mem::take(&mut self.numbers);
            self.bars.has_volume = sorted.has_volume;
            for i in order {
                let bar = sorted.bar(i);
                if self.bars.time_ms.last() == Some(&bar.time_ms) {
                    self.duplicate(numbers[i], bar)?;
                } else {
                    self.append(numbers[i], bar)?;
                }
            }
        }
        let zeros = self.bars.volume.iter().filter(|volume| **volume == 0.0).count() as u64;
        let zero_volume = if self.bars.has_volume { zeros } else { 0 };
        let places = self.numbers.iter().map(|&number| (self.place)(number)).collect();
        Ok(Collected { bars: self.bars, places, rows: self.rows, zero_volume, repaired: self.repaired })
    }
}
