//! What there is to say about a loaded file.

use std::fmt;

use crate::calendar::{Calendar, ClosureKind, DAY_MS, Missing};
use crate::checks::Repaired;
use crate::csv_file::CsvFormat;
use crate::parquet_file::ParquetFormat;
use crate::time::utc_text;

/// Gaps and closure shapes listed one by one; the rest is counted.
const LISTED: usize = 6;

/// How the file was written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Format {
    Csv(CsvFormat),
    Parquet(ParquetFormat),
}

/// Rows, interval, span, calendar, gaps, zero volumes and repairs of a file; `Display` is for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// File name as given.
    pub file: String,
    pub(crate) format: Option<Format>,
    /// Data rows in the file.
    pub rows: u64,
    /// Bars after repairs.
    pub bars: usize,
    /// First bar.
    pub first_ms: i64,
    /// Last bar.
    pub last_ms: i64,
    /// Whether there is a volume column.
    pub has_volume: bool,
    /// Bars of zero volume in the file.
    pub zero_volume: u64,
    /// What repairs did.
    pub repaired: Repaired,
    /// Interval, closures, gaps.
    pub calendar: Calendar,
    /// 64-bit FNV-1a of the file's bytes; none for bars that are not from a file.
    pub file_hash: Option<u64>,
    /// [`crate::Bars::content_hash`] of the bars as used.
    pub content_hash: u64,
}

impl Report {
    /// What a user should think about before trusting the data.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let span = self.last_ms - self.first_ms;
        if span < 14 * DAY_MS {
            warnings.push(format!(
                "the file spans {:.1} days: too short to see weekly closures, so the {:.0} bars a year used to \
                 annualise may be wrong",
                span as f64 / DAY_MS as f64,
                self.calendar.bars_per_year
            ));
        }
        let expected = self.bars as u64 + self.calendar.missing();
        if self.calendar.missing() * 20 > expected {
            warnings.push(format!(
                "{:.1}% of the expected bars are missing; if the source omits bars without trades, gaps = fill \
                 closes the short gaps",
                100.0 * self.calendar.missing() as f64 / expected as f64
            ));
        }
        if self.calendar.regular < 0.9
            && self.calendar.interval_ms < DAY_MS
            && self.calendar.closures.is_empty()
        {
            warnings.push(format!(
                "only {:.0}% of the steps are one bar interval and no closures recur",
                100.0 * self.calendar.regular
            ));
        }
        if self.has_volume && self.zero_volume as usize * 2 > self.bars {
            warnings.push("most bars have zero volume: the volume features say little".to_owned());
        }
        warnings
    }

    fn fmt_format(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = match &self.format {
            None => return Ok(()),
            Some(Format::Csv(csv)) => {
                let header = if csv.header { "header" } else { "no header" };
                writeln!(
                    f,
                    "  format      CSV, delimiter {:?}, {header}, numbers like {}",
                    csv.delimiter,
                    csv.numbers.name()
                )?;
                let zone = if csv.zoned { "" } else { ", no offset: taken as UTC" };
                writeln!(f, "  timestamps  {}{zone}", csv.time)?;
                &csv.columns
            }
            Some(Format::Parquet(parquet)) => {
                writeln!(f, "  format      Parquet")?;
                writeln!(f, "  timestamps  {}", parquet.time)?;
                &parquet.columns
            }
        };
        if let Some(adjusted) = columns.adjusted {
            writeln!(
                f,
                "  adjusted    column {:?} is there; price = adjusted uses it",
                columns.names[adjusted]
            )?;
        }
        let ignored = columns.ignored();
        if !ignored.is_empty() {
            writeln!(
                f,
                "  ignored     {} column(s): {}",
                ignored.len(),
                ignored[..ignored.len().min(LISTED)].join(", ").escape_debug()
            )?;
        }
        Ok(())
    }

    fn fmt_calendar(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calendar = &self.calendar;
        writeln!(
            f,
            "  interval    {}, {:.1}% of the steps; {:.0} bars per year",
            length(calendar.interval_ms),
            100.0 * calendar.regular,
            calendar.bars_per_year
        )?;
        if calendar.short_steps > 0 {
            writeln!(f, "  off grid    {} step(s) shorter than half an interval", calendar.short_steps)?;
        }
        let count = |kind| calendar.closures.iter().filter(|closure| closure.kind == kind).count();
        if calendar.closures.is_empty() {
            writeln!(f, "  calendar    no recurring closures")?;
        } else {
            writeln!(
                f,
                "  calendar    {} recurring closures, {} longer than usual, {} holidays",
                count(ClosureKind::Recurring),
                count(ClosureKind::Extended),
                count(ClosureKind::Holiday)
            )?;
        }
        let patterns = calendar.patterns();
        for (pattern, times) in patterns.iter().take(LISTED) {
            const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
            let day = pattern.weekday.map_or("daily", |day| DAYS[usize::from(day)]);
            writeln!(
                f,
                "              {day} {} UTC for {}: {times} times",
                clock(pattern.start_of_day_ms),
                length(pattern.length_ms)
            )?;
        }
        if patterns.len() > LISTED {
            let rest: usize = patterns[LISTED..].iter().map(|(_, times)| times).sum();
            writeln!(f, "              and {rest} of other shapes")?;
        }
        if calendar.gaps.is_empty() {
            return writeln!(f, "  gaps        none");
        }
        writeln!(
            f,
            "  gaps        {} ({} bars missing): {} segments, no window spans a gap",
            calendar.gaps.len(),
            calendar.missing(),
            calendar.segments.len()
        )?;
        let mut longest: Vec<&Missing> = calendar.gaps.iter().collect();
        longest.sort_by_key(|gap| std::cmp::Reverse(gap.bars));
        for gap in longest.iter().take(LISTED) {
            let (after, before) = (utc_text(gap.after_ms), utc_text(gap.before_ms));
            writeln!(f, "              {} missing between {after} and {before}", gap.bars)?;
        }
        if longest.len() > LISTED {
            writeln!(f, "              and {} shorter ones", longest.len() - LISTED)?;
        }
        Ok(())
    }

    fn fmt_repairs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repaired = &self.repaired;
        if *repaired == Repaired::default() {
            return writeln!(f, "  repairs     none");
        }
        for (problem, dropped) in &repaired.dropped {
            let places: Vec<_> = dropped.examples.iter().map(ToString::to_string).collect();
            let more = if dropped.count > places.len() as u64 { ", …" } else { "" };
            writeln!(
                f,
                "  repairs     {} left out, {}: {}{more}",
                dropped.count,
                problem.text(),
                places.join(", ")
            )?;
        }
        let counts = [
            (repaired.out_of_order, "row(s) stood behind a later one and were sorted"),
            (repaired.widened, "row(s) had their high or low widened to open or close"),
            (repaired.filled, "missing bar(s) filled at the previous close"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            writeln!(f, "  repairs     {count} {what}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.file)?;
        self.fmt_format(f)?;
        writeln!(f, "  rows        {} in the file, {} bars", self.rows, self.bars)?;
        writeln!(f, "  span        {} to {} UTC", utc_text(self.first_ms), utc_text(self.last_ms))?;
        self.fmt_calendar(f)?;
        match (self.has_volume, self.zero_volume) {
            (false, _) => writeln!(f, "  volume      none in the file")?,
            (true, zero) => writeln!(f, "  volume      {zero} bar(s) of zero volume")?,
        }
        self.fmt_repairs(f)?;
        for warning in self.warnings() {
            writeln!(f, "  warning     {warning}")?;
        }
        match self.file_hash {
            Some(hash) => writeln!(f, "  fnv1a       file {hash:016x}, bars {:016x}", self.content_hash),
            None => writeln!(f, "  fnv1a       bars {:016x}", self.content_hash),
        }
    }
}

/// `1 h`, `2 d 1 h`, `15 min`, `250 ms`.
fn length(ms: i64) -> String {
    let units = [(DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, name) in units {
        if rest >= unit {
            parts.push(format!("{} {name}", rest / unit));
            rest %= unit;
        }
    }
    if parts.is_empty() { "0 ms".to_owned() } else { parts.join(" ") }
}

/// `22:00` of a millisecond of the day.
fn clock(ms: i64) -> String {
    format!("{:02}:{:02}", ms / 3_600_000, ms / 60_000 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_readable() {
        assert_eq!(length(2 * DAY_MS + 3_600_000), "2 d 1 h");
        assert_eq!(length(900_000), "15 min");
        assert_eq!(length(61_250), "1 min 1 s 250 ms");
        assert_eq!(length(0), "0 ms");
    }
}
