//! What a user may say about a bar file. Everything defaults to "find out" and "repair nothing".

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::BarError;
use crate::numbers::NumberFormat;
use crate::time::TimeFormat;

/// Which price the environment trades at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Price {
    /// As in the file.
    #[default]
    Raw,
    /// Open, high, low and close times adjusted close / close, so that splits and dividends are no jumps.
    Adjusted,
}

/// A named repair. None is ever applied unless the user asks for it, and each is counted in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Sort rows by time; rows of equal time keep their order.
    Sort,
    /// Of rows with equal time *and* equal values keep one; differing ones stay an error.
    DropDuplicates,
    /// Of rows with equal time keep the first in file order.
    KeepFirst,
    /// Of rows with equal time keep the last in file order.
    KeepLast,
    /// Leave out rows with unreadable, missing, non-finite, non-positive or inconsistent values.
    DropBadRows,
    /// Where the open or close exceeds high or low by at most [`crate::checks::WIDEN_LIMIT`] of the price,
    /// widen high or low to it.
    WidenRange,
}

impl Repair {
    const ALL: [(Repair, &'static str); 6] = [
        (Repair::Sort, "sort"),
        (Repair::DropDuplicates, "drop-duplicates"),
        (Repair::KeepFirst, "keep-first"),
        (Repair::KeepLast, "keep-last"),
        (Repair::DropBadRows, "drop-bad-rows"),
        (Repair::WidenRange, "widen-range"),
    ];
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Repair::ALL.iter().find(|(repair, _)| repair == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Repair {
    type Err = BarError;

    fn from_str(text: &str) -> Result<Self, BarError> {
        let names: Vec<_> = Repair::ALL.iter().map(|(_, name)| *name).collect();
        Repair::ALL
            .iter()
            .find(|(_, name)| *name == text.trim())
            .map(|(repair, _)| *repair)
            .ok_or_else(|| BarError::option("repair", text, format!("expected one of {}", names.join(", "))))
    }
}

/// What to do with bars of zero volume. They are ordinary in real currency and equity data (quiet hours,
/// indices without volume), so they load by default, are counted, and every feature is defined for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroVolume {
    /// Keep and count.
    #[default]
    Report,
    /// Refuse the file.
    Error,
    /// Leave the bars out and count them; what remains may have gaps.
    Drop,
}

/// What to do with missing bars that are not part of the calendar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gaps {
    /// Report them and start a new segment after each: no window and no episode spans one.
    #[default]
    Split,
    /// Refuse the file.
    Error,
    /// Insert bars with open = high = low = close = previous close and zero volume into gaps of at most
    /// that many missing bars (count them); split at longer ones.
    Fill(u32),
}

/// How to read a bar file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadOptions {
    /// Field delimiter of a CSV file, one ASCII character; found among `,` `;` tab `|` when not given.
    pub delimiter: Option<char>,
    /// Whether a CSV file has a header line; found when not given.
    pub header: Option<bool>,
    /// Lines of a CSV file before the header or the first row.
    pub skip_lines: usize,
    /// Names for the columns in file order, in place of the header's: `time` (or `date` and `time`), `open`,
    /// `high`, `low`, `close`, `volume`, `adj_close`; `-` for a column to ignore.
    pub columns: Option<Vec<String>>,
    /// The column that says which symbol a row belongs to, by its name (case does not matter). Without it a file is
    /// one symbol.
    pub symbol_column: Option<String>,
    /// How timestamps are written; found over the whole file when not given.
    pub time_format: Option<TimeFormat>,
    /// How numbers are written; found over the whole file when not given.
    pub numbers: Option<NumberFormat>,
    /// Raw or adjusted prices.
    pub price: Price,
    /// Repairs to apply.
    pub repair: BTreeSet<Repair>,
    /// Policy for zero volume.
    pub zero_volume: ZeroVolume,
    /// Policy for gaps.
    pub gaps: Gaps,
    /// Bar interval in milliseconds; the most frequent step when not given.
    pub interval_ms: Option<i64>,
    /// Rows after which the file is refused (a bar takes 56 bytes of memory while loading).
    pub max_rows: u64,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            delimiter: None,
            header: None,
            skip_lines: 0,
            columns: None,
            symbol_column: None,
            time_format: None,
            numbers: None,
            price: Price::Raw,
            repair: BTreeSet::new(),
            zero_volume: ZeroVolume::Report,
            gaps: Gaps::Split,
            interval_ms: None,
            max_rows: 20_000_000,
        }
    }
}

impl LoadOptions {
    /// The same options with these repairs; handy in tests and from a command line.
    pub fn with_repairs(mut self, repairs: impl IntoIterator<Item = Repair>) -> Self {
        self.repair.extend(repairs);
        self
    }

    /// Whether the repair was asked for.
    pub fn repairs(&self, repair: Repair) -> bool {
        self.repair.contains(&repair)
    }

    /// Refuses combinations that contradict each other.
    pub(crate) fn check(&self) -> Result<(), BarError> {
        let duplicates = [Repair::DropDuplicates, Repair::KeepFirst, Repair::KeepLast];
        if duplicates.iter().filter(|repair| self.repairs(**repair)).count() > 1 {
            let asked: Vec<_> = self.repair.iter().map(Repair::to_string).collect();
            let expected = "expected at most one of drop-duplicates, keep-first, keep-last";
            return Err(BarError::option("repair", asked.join(","), expected));
        }
        if let Some(delimiter) = self.delimiter
            && (!delimiter.is_ascii() || delimiter.is_ascii_alphanumeric() || "\"\r\n".contains(delimiter))
        {
            let expected = "expected one ASCII character that is no letter, digit, quote or line end";
            return Err(BarError::option("delimiter", format!("{delimiter:?}"), expected));
        }
        const YEAR_MS: i64 = 366 * 86_400_000;
        if let Some(interval) = self.interval_ms
            && !(1..=YEAR_MS).contains(&interval)
        {
            let expected = format!("expected 1 to {YEAR_MS} (a year)");
            return Err(BarError::option("interval_ms", interval, expected));
        }
        // Indices of bars are u32 on the device.
        if self.max_rows == 0 || self.max_rows > u64::from(u32::MAX) {
            return Err(BarError::option("max_rows", self.max_rows, format!("expected 1 to {}", u32::MAX)));
        }
        Ok(())
    }
}
