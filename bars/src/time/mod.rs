//! Timestamps of text files: which format, over the whole file, and reading them to UTC milliseconds.

mod detect;
mod text;

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};

pub(crate) use detect::TimeDetector;
use text::Written;

use crate::error::BarError;

/// First and last instant (ms) that a bar may have: the years 1900 to 2199.
const RANGE_MS: std::ops::Range<i64> = -2_208_988_800_000..7_258_118_400_000;

/// How timestamps are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum TimeFormat {
    /// A date in this order, with optional time of day and offset.
    Date(DateOrder),
    /// A count since 1970 in this unit.
    Epoch(EpochUnit),
    /// A pattern in the language of strptime, for example `%d.%m.%Y %H:%M:%S%.f`.
    Pattern(String),
}

/// Order of year, month and day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DateOrder {
    /// 2017-02-01, 20170201.
    YearFirst,
    /// 01.02.2017, 1 Feb 2017.
    DayFirst,
    /// 02/01/2017, Feb 1, 2017.
    MonthFirst,
}

/// Unit of an epoch timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EpochUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds, floored to milliseconds.
    Microseconds,
    /// Nanoseconds, floored to milliseconds.
    Nanoseconds,
}

impl EpochUnit {
    /// All units; the position is the power of 1000.
    pub(crate) const ALL: [EpochUnit; 4] =
        [EpochUnit::Seconds, EpochUnit::Milliseconds, EpochUnit::Microseconds, EpochUnit::Nanoseconds];

    /// Ticks per second.
    fn per_second(self) -> i64 {
        match self {
            EpochUnit::Seconds => 1,
            EpochUnit::Milliseconds => 1_000,
            EpochUnit::Microseconds => 1_000_000,
            EpochUnit::Nanoseconds => 1_000_000_000,
        }
    }

    /// The unit in which the count is a time between 1971 and 2199, if there is one (no two units overlap).
    pub(crate) fn of_magnitude(count: i64) -> Option<EpochUnit> {
        const YEAR_1971: i64 = 31_536_000;
        EpochUnit::ALL.into_iter().find(|unit| {
            let first = YEAR_1971.checked_mul(unit.per_second());
            let end = (RANGE_MS.end / 1000).checked_mul(unit.per_second());
            first.is_some_and(|first| count >= first) && end.is_none_or(|end| count < end)
        })
    }

    /// The count as milliseconds, if it lies in the years that bars may have.
    pub(crate) fn to_ms(self, count: i64) -> Option<i64> {
        let ms = match self {
            EpochUnit::Seconds => count.checked_mul(1000)?,
            _ => count.div_euclid(self.per_second() / 1000),
        };
        RANGE_MS.contains(&ms).then_some(ms)
    }
}

const NAMES: [(&str, TimeFormat); 7] = [
    ("year-first", TimeFormat::Date(DateOrder::YearFirst)),
    ("day-first", TimeFormat::Date(DateOrder::DayFirst)),
    ("month-first", TimeFormat::Date(DateOrder::MonthFirst)),
    ("epoch-s", TimeFormat::Epoch(EpochUnit::Seconds)),
    ("epoch-ms", TimeFormat::Epoch(EpochUnit::Milliseconds)),
    ("epoch-us", TimeFormat::Epoch(EpochUnit::Microseconds)),
    ("epoch-ns", TimeFormat::Epoch(EpochUnit::Nanoseconds)),
];

impl fmt::Display for TimeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimeFormat::Pattern(pattern) => f.write_str(pattern),
            named => {
                f.write_str(NAMES.iter().find(|(_, format)| format == named).map_or("", |(name, _)| name))
            }
        }
    }
}

impl FromStr for TimeFormat {
    type Err = BarError;

    fn from_str(text: &str) -> Result<Self, BarError> {
        if let Some((_, format)) = NAMES.iter().find(|(name, _)| *name == text.trim()) {
            return Ok(format.clone());
        }
        if text.contains('%') {
            return Ok(TimeFormat::Pattern(text.to_owned()));
        }
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        let expected = format!("expected {} or a pattern like %d.%m.%Y %H:%M:%S%.f", names.join(", "));
        Err(BarError::option("time_format", text, expected))
    }
}

impl TryFrom<String> for TimeFormat {
    type Error = BarError;

    fn try_from(text: String) -> Result<Self, BarError> {
        text.parse()
    }
}

impl From<TimeFormat> for String {
    fn from(format: TimeFormat) -> String {
        format.to_string()
    }
}

/// Reads timestamps in one format. Remembers whether they have offsets: a file that mixes both is refused,
/// because a timestamp without offset means UTC and a mixture is surely something else.
#[derive(Debug)]
pub(crate) struct TimeReader {
    format: TimeFormat,
    zoned: Option<bool>,
}

impl TimeReader {
    pub(crate) fn new(format: TimeFormat) -> Self {
        Self { format, zoned: None }
    }

    /// Whether the timestamps read so far had offsets.
    pub(crate) fn zoned(&self) -> bool {
        self.zoned.unwrap_or(false)
    }

    /// UTC milliseconds of a trimmed field, floored.
    pub(crate) fn read(&mut self, field: &str) -> Result<i64, String> {
        let (ms, zoned) = match &self.format {
            TimeFormat::Date(order) => {
                let written = Written::parse(field)
                    .ok_or_else(|| format!("expected a date, {order:?} order, and a time of day"))?;
                let date = written.date(*order).ok_or_else(|| format!("no such date in {order:?} order"))?;
                (to_ms(DateTime::from_parts(date, written.time), written.offset)?, written.offset.is_some())
            }
            TimeFormat::Epoch(unit) => {
                let (count, thousandths) = text::epoch_count(field)
                    .ok_or_else(|| format!("expected a count of {unit:?} since 1970"))?;
                let ms = unit
                    .to_ms(count)
                    .ok_or_else(|| format!("{count} {unit:?} are no time of 1900 to 2199"))?;
                // Only of a second is a fraction worth a millisecond.
                (if *unit == EpochUnit::Seconds { ms + thousandths } else { ms }, true)
            }
            TimeFormat::Pattern(pattern) => {
                let parts = BrokenDownTime::parse(pattern, field)
                    .map_err(|error| format!("pattern {pattern:?}: {error}"))?;
                // %s gives an instant without any date fields.
                if let Ok(instant) = parts.to_timestamp() {
                    (in_range(instant.as_nanosecond().div_euclid(1_000_000))?, true)
                } else {
                    let date = parts.to_date().map_err(|error| format!("pattern {pattern:?}: {error}"))?;
                    let time = parts.to_time().unwrap_or(Time::midnight());
                    (to_ms(DateTime::from_parts(date, time), parts.offset())?, parts.offset().is_some())
                }
            }
        };
        match self.zoned {
            Some(before) if before != zoned => Err(if zoned {
                "has an offset, earlier rows have none"
            } else {
                "has no offset, earlier rows have one"
            }
            .to_owned()),
            _ => {
                self.zoned = Some(zoned);
                Ok(ms)
            }
        }
    }
}

/// UTC milliseconds of a wall clock time at an offset (none: UTC).
fn to_ms(wall: DateTime, offset: Option<Offset>) -> Result<i64, String> {
    let instant = offset.unwrap_or(Offset::UTC).to_timestamp(wall).map_err(|error| error.to_string())?;
    in_range(instant.as_nanosecond().div_euclid(1_000_000))
}

fn in_range(ms: i128) -> Result<i64, String> {
    i64::try_from(ms)
        .ok()
        .filter(|ms| RANGE_MS.contains(ms))
        .ok_or_else(|| "lies outside the years 1900 to 2199".to_owned())
}

/// A date, if it exists and lies in the years that bars may have.
fn date_in_range(year: i32, month: u32, day: u32) -> Option<Date> {
    if !(1900..=2199).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    Date::new(year as i16, month as i8, day as i8).ok()
}

/// UTC text of an instant for reports, `2017-12-25 07:00` (seconds and milliseconds only if there are any).
pub fn utc_text(ms: i64) -> String {
    let Ok(instant) = jiff::Timestamp::from_millisecond(ms) else {
        return format!("{ms} ms");
    };
    let pattern = match (ms.rem_euclid(1000), ms.rem_euclid(60_000)) {
        (0, 0) => "%Y-%m-%d %H:%M",
        (0, _) => "%Y-%m-%d %H:%M:%S",
        _ => "%Y-%m-%d %H:%M:%S%.3f",
    };
    instant.strftime(pattern).to_string()
}
