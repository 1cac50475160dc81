//! From timestamps to interval, recurring closures, gaps and segments.
//!
//! The interval is the most frequent step. A longer step leaves bars out; whether that is the market's
//! calendar or a hole in the file is decided by [`closures`](self): what is missing in the same hour of
//! most neighbouring weeks (weekend, night, lunch break, daily break) is a closure, and so is what extends
//! such a closure (early close, late open, holiday) or leaves out a whole day of a market that has closures.
//! Everything else is a gap: bars on both sides of it never share a window or an episode.

mod closures;
mod sessions;

use std::collections::BTreeMap;

pub use closures::ClosureKind;

use crate::error::BarError;

/// Milliseconds of a day.
pub(crate) const DAY_MS: i64 = 86_400_000;
/// Milliseconds of a mean Gregorian year, 365.2425 days.
pub const YEAR_MS: f64 = 365.2425 * DAY_MS as f64;

/// A run of missing bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Index of the last bar before.
    pub after_bar: usize,
    /// Time of the last bar before.
    pub after_ms: i64,
    /// Time of the first bar behind.
    pub before_ms: i64,
    /// Number of missing bars.
    pub bars: u64,
}

/// A run of missing bars that belongs to the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closure {
    /// Where.
    pub run: Missing,
    /// Why it is taken for a closure.
    pub kind: ClosureKind,
}

/// Bars `start..end` without a gap between them; closures may lie inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First bar.
    pub start: usize,
    /// One behind the last bar.
    pub end: usize,
}

/// When the market is open, as far as the file shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    /// Bar interval.
    pub interval_ms: i64,
    /// Share of the steps that are one interval long (to within half an interval).
    pub regular: f64,
    /// Steps of less than half an interval (a session that starts off the grid).
    pub short_steps: u64,
    /// Closures in time order.
    pub closures: Vec<Closure>,
    /// Gaps in time order.
    pub gaps: Vec<Missing>,
    /// Bars between gaps, in time order; they cover all bars.
    pub segments: Vec<Segment>,
    /// Bars per calendar year within the segments: closures count as time, gaps do not.
    pub bars_per_year: f64,
}

/// A closure shape and how often it occurs, for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    /// Day of the week it starts, 0 = Monday; none for closures shorter than a day, which recur daily.
    pub weekday: Option<u8>,
    /// Millisecond of the day at which the closure starts (the last bar has ended).
    pub start_of_day_ms: i64,
    /// Its length.
    pub length_ms: i64,
}

impl Calendar {
    /// Reads the calendar off strictly increasing times.
    ///
    /// # Errors
    /// If there are fewer than two bars, or no step is frequent enough to be the interval.
    pub fn infer(file: &str, times: &[i64], interval: Option<i64>) -> Result<Calendar, BarError> {
        if times.len() < 2 {
            let message = format!("{} usable bar(s): at least 2 are needed", times.len());
            return Err(BarError::file(file, message));
        }
        let interval_ms = match interval {
            Some(interval) => interval,
            None => most_frequent_step(file, times)?,
        };
        let mut runs = Vec::new();
        let (mut regular, mut short_steps) = (0_u64, 0);
        for (i, pair) in times.windows(2).enumerate() {
            match steps(pair[1] - pair[0], interval_ms) {
                0 => short_steps += 1,
                1 => regular += 1,
                n => runs.push(Missing { after_bar: i, after_ms: pair[0], before_ms: pair[1], bars: n - 1 }),
            }
        }
        let (closures, gaps) = closures::divide(times, interval_ms, runs);
        let mut segments = Vec::with_capacity(gaps.len() + 1);
        let mut start = 0;
        for gap in &gaps {
            segments.push(Segment { start, end: gap.after_bar + 1 });
            start = gap.after_bar + 1;
        }
        segments.push(Segment { start, end: times.len() });
        let (mut bars, mut time) = (0.0, 0.0);
        for segment in &segments {
            bars += (segment.end - segment.start - 1) as f64;
            time += (times[segment.end - 1] - times[segment.start]) as f64;
        }
        // Only gaps between single bars leave no time at all; then the interval is all there is to go by.
        let bars_per_year = if time > 0.0 { bars / time * YEAR_MS } else { YEAR_MS / interval_ms as f64 };
        let regular = regular as f64 / (times.len() - 1) as f64;
        Ok(Calendar { interval_ms, regular, short_steps, closures, gaps, segments, bars_per_year })
    }

    /// The closures' shapes with their counts, most frequent first.
    pub fn patterns(&self) -> Vec<(Pattern, usize)> {
        let mut counts = BTreeMap::<Pattern, usize>::new();
        for closure in self.closures.iter().filter(|closure| closure.kind == ClosureKind::Recurring) {
            let start = closure.run.after_ms + self.interval_ms;
            let length_ms = closure.run.before_ms - start;
            let weekday = (length_ms >= DAY_MS).then(|| weekday(start));
            let pattern = Pattern { weekday, start_of_day_ms: start.rem_euclid(DAY_MS), length_ms };
            *counts.entry(pattern).or_default() += 1;
        }
        let mut patterns: Vec<_> = counts.into_iter().collect();
        patterns.sort_by_key(|&(pattern, count)| (std::cmp::Reverse(count), pattern));
        patterns
    }

    /// Missing bars in gaps.
    pub fn missing(&self) -> u64 {
        self.gaps.iter().map(|gap| gap.bars).sum()
    }
}

/// Day of the week of an instant in UTC, 0 = Monday (1970 began on a Thursday).
pub(crate) fn weekday(ms: i64) -> u8 {
    (ms.div_euclid(DAY_MS) + 3).rem_euclid(7) as u8
}

/// The step in intervals, rounded half up.
fn steps(step: i64, interval: i64) -> u64 {
    let (step, interval) = (i128::from(step), i128::from(interval));
    ((2 * step + interval) / (2 * interval)) as u64
}

/// The most frequent step, the smallest of several.
fn most_frequent_step(file: &str, times: &[i64]) -> Result<i64, BarError> {
    let mut all: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    all.sort_unstable();
    let (mut best, mut most) = (0, 0);
    for equal in all.chunk_by(|a, b| a == b) {
        if equal.len() > most {
            (best, most) = (equal[0], equal.len());
        }
    }
    // Bars of one interval have it as their step nearly always; even two bars a session give a half.
    if most * 4 < all.len() {
        let message = format!(
            "no bar interval: the most frequent step, {best} ms, occurs in only {most} of {} steps (ticks instead \
             of bars?); give interval_ms",
            all.len()
        );
        return Err(BarError::file(file, message));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_round_half_up() {
        let cases = [(1, 10, 0), (4, 10, 0), (5, 10, 1), (14, 10, 1), (15, 10, 2), (25, 10, 3), (7, 7, 1)];
        for (step, interval, expected) in cases {
            assert_eq!(steps(step, interval), expected, "{step} / {interval}");
        }
    }

    #[test]
    fn weekday_counts_from_monday() {
        assert_eq!(weekday(0), 3, "1970-01-01 was a Thursday");
        assert_eq!(weekday(1_514_160_000_000), 0, "2017-12-25 was a Monday");
        assert_eq!(weekday(-1), 2);
    }

    #[test]
    fn ticks_are_no_bars() {
        // Squares: every step differs.
        let times: Vec<i64> = (0..50).map(|i| i * i * 1000 + i).collect();
        let error = Calendar::infer("t.csv", &times, None).unwrap_err().to_string();
        assert!(error.contains("interval_ms"), "{error}");
        assert!(Calendar::infer("t.csv", &times, Some(60_000)).is_ok());
    }
}
