//! Axes of plots: where the ticks are, and what is written at them.

use std::ops::Range;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

/// How an axis counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// In powers of ten; values are given as they are and have to be positive.
    Log,
    /// UTC, in seconds since the epoch.
    Time,
}

/// An axis over a range of values. On a logarithmic one the range is that of the logarithms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
}

/// Ticks aimed at.
const TICKS: f64 = 6.0;

const DAY: f64 = 86_400.0;

/// Distances of ticks on a time axis, in seconds, up to a fortnight; beyond, months.
const SECONDS: [f64; 13] = [
    1.0,
    10.0,
    60.0,
    300.0,
    900.0,
    3600.0,
    3.0 * 3600.0,
    6.0 * 3600.0,
    12.0 * 3600.0,
    DAY,
    2.0 * DAY,
    7.0 * DAY,
    14.0 * DAY,
];
const MONTHS: [i64; 8] = [1, 2, 3, 6, 12, 24, 60, 120];

impl Axis {
    /// An axis that shows all values, with a little room at the ends unless it is one of time or `tight`.
    pub fn over(values: impl Iterator<Item = f64>, scale: Scale, tight: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.map(|v| if scale == Scale::Log { v.log10() } else { v }).filter(|v| v.is_finite())
        {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low <= 1e-12 * (1.0 + high.abs()) {
            let room = if low == 0.0 { 1.0 } else { 0.1 * low.abs() };
            (low, high) = (low - room, high + room);
        } else if !tight && scale != Scale::Time {
            let room = 0.05 * (high - low);
            (low, high) = (low - room, high + room);
        }
        Self { low, high, scale }
    }

    /// The value as the axis counts it.
    pub fn place(&self, value: f64) -> f64 {
        if self.scale == Scale::Log { value.log10() } else { value }
    }

    /// Where ticks are, as the axis counts.
    pub fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Time => self.time_ticks(),
            Scale::Log if self.high - self.low >= 2.0 => {
                multiples(self.low, self.high, ((self.high - self.low) / TICKS).ceil())
            }
            Scale::Log => [1.0, 2.0, 5.0]
                .iter()
                .flat_map(|digit: &f64| {
                    let first = self.low.floor() as i32;
                    (first..=self.high.ceil() as i32).map(move |power| digit.log10() + f64::from(power))
                })
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect(),
            Scale::Linear => multiples(self.low, self.high, step(self.high - self.low)),
        }
    }

    fn time_ticks(&self) -> Vec<f64> {
        let aim = (self.high - self.low) / TICKS;
        if let Some(step) = SECONDS.iter().find(|step| **step >= aim) {
            return multiples(self.low, self.high, *step);
        }
        let months = MONTHS.into_iter().find(|m| *m as f64 * 30.4 * DAY >= aim).unwrap_or(240);
        let civil = |seconds: f64| {
            let time = Timestamp::from_second(seconds as i64).unwrap_or(Timestamp::UNIX_EPOCH);
            time.to_zoned(TimeZone::UTC).date()
        };
        let first = civil(self.low);
        let first_month = i64::from(first.year()) * 12 + i64::from(first.month()) - 1;
        let mut ticks = Vec::new();
        for number in (first_month.div_euclid(months)..).map(|n| n * months) {
            let (year, month) = (number.div_euclid(12) as i16, number.rem_euclid(12) as i8 + 1);
            let Ok(date) = jiff::civil::Date::new(year, month, 1) else { break };
            let Ok(midnight) = date.to_zoned(TimeZone::UTC) else { break };
            let tick = midnight.timestamp().as_second() as f64;
            if tick > self.high {
                break;
            }
            if tick >= self.low {
                ticks.push(tick);
            }
        }
        ticks
    }

    /// What is written at a tick.
    pub fn label(&self, tick: f64) -> String {
        match self.scale {
            Scale::Linear => linear(tick, step(self.high - self.low)),
            Scale::Log => {
                let value = 10f64.powf(tick);
                if (1e-3..1e5).contains(&value) {
                    let digits = (-tick.floor()).max(0.0) as usize;
                    format!("{value:.digits$}")
                } else {
                    format!("{value:.0e}")
                }
            }
            Scale::Time => {
                let time = Timestamp::from_second(tick as i64).unwrap_or(Timestamp::UNIX_EPOCH);
                let time = time.round(Unit::Second).unwrap_or(time).to_zoned(TimeZone::UTC);
                let span = self.high - self.low;
                let format = match span {
                    s if s < 2.0 * DAY => "%H:%M",
                    // As far apart as the ticks are days.
                    s if s / TICKS <= SECONDS[SECONDS.len() - 1] => "%b %-d",
                    _ => "%b %Y",
                };
                time.strftime(format).to_string()
            }
        }
    }
}

/// The distance of about [`TICKS`] ticks: 1, 2 or 5 times a power of ten.
fn step(span: f64) -> f64 {
    let aim = span / TICKS;
    let power = 10f64.powf(aim.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|d| d * power >= aim * 0.999).unwrap_or(10.0);
    digit * power
}

fn multiples(low: f64, high: f64, step: f64) -> Vec<f64> {
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|n| n as f64 * step).collect()
}

/// A number with the decimals of the distance of its neighbours, thousands and millions shortened.
fn linear(value: f64, step: f64) -> String {
    let (scale, suffix) = match step {
        s if s >= 999_999.0 => (1e6, "M"),
        s if s >= 999.0 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let digits = (-(step / scale).log10().floor()).clamp(0.0, 9.0) as usize;
    let value = value / scale;
    // No minus before a zero.
    let value = if value.abs() < 1e-12 { 0.0 } else { value };
    format!("{value:.digits$}{}", if value == 0.0 { "" } else { suffix })
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.low) / (self.high - self.low);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        // The chart asks a second time for lines between the ticks, of which there are none.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks() }
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.label(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|tick| axis.label(tick)).collect()
    }

    fn seconds(text: &str) -> f64 {
        text.parse::<Timestamp>().unwrap().as_second() as f64
    }

    #[test]
    fn ticks_are_round_numbers() {
        let axis = |low, high| Axis::over([low, high].into_iter(), Scale::Linear, true);
        assert_eq!(labels(axis(0.0, 10.0)), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(axis(-0.013, 0.021)), ["-0.01", "0.00", "0.01", "0.02"]);
        assert_eq!(labels(axis(0.0, 2500.0)), ["0", "500", "1000", "1500", "2000", "2500"]);
        assert_eq!(labels(axis(0.0, 12_000.0)), ["0", "2k", "4k", "6k", "8k", "10k", "12k"]);
    }

    #[test]
    fn powers_of_ten_or_parts_of_one() {
        let axis = |low, high| Axis::over([low, high].into_iter(), Scale::Log, true);
        assert_eq!(labels(axis(0.01, 100.0)), ["0.01", "0.1", "1", "10", "100"]);
        let mut close = labels(axis(1.0, 6.0));
        close.sort();
        assert_eq!(close, ["1", "2", "5"]);
        assert_eq!(labels(axis(1e-6, 1e-4)), ["1e-6", "1e-5", "1e-4"]);
    }

    #[test]
    fn times_have_the_ticks_of_a_calendar() {
        let axis =
            |low: &str, high: &str| Axis::over([seconds(low), seconds(high)].into_iter(), Scale::Time, true);
        let day = axis("2024-01-02T09:10:00Z", "2024-01-02T15:00:00Z");
        assert_eq!(labels(day), ["10:00", "11:00", "12:00", "13:00", "14:00", "15:00"].map(String::from));
        let weeks = axis("2023-11-20T00:00:00Z", "2024-01-10T00:00:00Z");
        assert_eq!(labels(weeks), ["Nov 23", "Dec 7", "Dec 21", "Jan 4"]);
        let year = axis("2023-11-20T00:00:00Z", "2025-02-10T00:00:00Z");
        assert_eq!(labels(year), ["Jan 2024", "Apr 2024", "Jul 2024", "Oct 2024", "Jan 2025"]);
    }

    #[test]
    fn nothing_and_one_value_have_an_axis_too() {
        assert_eq!(Axis::over(std::iter::empty(), Scale::Linear, true).range(), 0.0..1.0);
        let one = Axis::over([5.0, 5.0].into_iter(), Scale::Linear, false).range();
        assert!(one.start < 5.0 && one.end > 5.0);
    }
}
