//! What can be wrong with a bar file, an option or a split. Every text says where, which value, and what to do.

use std::fmt;

/// What is wrong with one row. The kinds are what reports count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// The field is empty, null, NaN or one of the usual texts for "no value".
    Missing,
    /// The field is not a number in the file's number format.
    NotANumber,
    /// The field is an infinity, or a number too large for f64.
    NotFinite,
    /// The price is zero or negative.
    NonPositivePrice,
    /// The price or volume is beyond [`crate::checks::LARGEST`] or below its inverse.
    OutOfRange,
    /// The price is more than [`crate::checks::LARGEST_JUMP`] times the close before, or less than a like part of it.
    Jump,
    /// high < low.
    HighBelowLow,
    /// The open or the close lies outside low..high.
    OutsideRange,
    /// The volume is negative.
    NegativeVolume,
    /// The volume is zero and zero volumes were declared to be errors.
    ZeroVolume,
    /// The row has more or fewer fields than the header.
    Ragged,
    /// The timestamp cannot be read in the file's timestamp format.
    Timestamp,
    /// The timestamp lies before its predecessor's.
    OutOfOrder,
    /// The timestamp equals its predecessor's.
    Duplicate,
}

impl Problem {
    /// Short text, the same in errors and reports.
    pub fn text(self) -> &'static str {
        match self {
            Problem::Missing => "no value",
            Problem::NotANumber => "not a number",
            Problem::NotFinite => "not finite",
            Problem::NonPositivePrice => "price is not positive",
            Problem::OutOfRange => "out of range",
            Problem::Jump => "price jumps",
            Problem::HighBelowLow => "high below low",
            Problem::OutsideRange => "outside low..high",
            Problem::NegativeVolume => "negative volume",
            Problem::ZeroVolume => "zero volume",
            Problem::Ragged => "wrong number of fields",
            Problem::Timestamp => "timestamp not readable",
            Problem::OutOfOrder => "out of order",
            Problem::Duplicate => "duplicate timestamp",
        }
    }

    /// The repair policies that deal with this problem, for the end of the error text.
    fn remedy(self) -> &'static str {
        match self {
            Problem::OutOfOrder => "repair = sort",
            Problem::Duplicate => "repair = drop-duplicates (equal rows), keep-first or keep-last",
            Problem::OutsideRange => "repair = widen-range (small excess) or drop-bad-rows",
            Problem::ZeroVolume => "zero_volume = report or drop",
            _ => "repair = drop-bad-rows",
        }
    }
}

/// Where a row is: CSV files have lines (the header counts), Parquet files have rows. Both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Line of a text file.
    Line(u64),
    /// Row of a table.
    Row(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(n) => write!(f, "line {n}"),
            Place::Row(n) => write!(f, "row {n}"),
        }
    }
}

/// A row that cannot be used as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct RowError {
    /// File name as given.
    pub file: String,
    /// Line or row.
    pub place: Place,
    /// Column as the file names it.
    pub column: String,
    /// The offending text, shortened.
    pub value: String,
    /// Kind.
    pub problem: Problem,
    /// What the value was compared with; empty when the kind says it all.
    pub detail: String,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, column {}: {:?}", self.file, self.place, self.column, self.value)?;
        write!(f, " {}", self.problem.text())?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        write!(f, " (to go on anyway: {})", self.problem.remedy())
    }
}

impl std::error::Error for RowError {}

/// Everything this crate refuses.
#[derive(Debug, thiserror::Error)]
pub enum BarError {
    /// The file cannot be opened or read.
    #[error("{file}: {source}")]
    Io {
        /// File name as given.
        file: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// One row is bad and no repair policy covers it.
    #[error(transparent)]
    Row(#[from] Box<RowError>),
    /// The file as a whole cannot be understood: delimiter, columns, formats, size, too few rows.
    #[error("{file}: {message}")]
    File {
        /// File name as given.
        file: String,
        /// What is wrong, and which option settles it.
        message: String,
    },
    /// An option has a value that cannot work.
    #[error("{option} = {value}: {expected}")]
    Option {
        /// Name of the option.
        option: std::borrow::Cow<'static, str>,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// A part of the split is too short, or the data cannot be normalised.
    #[error("{0}")]
    Split(String),
}

impl BarError {
    /// A [`BarError::File`].
    pub(crate) fn file(file: &str, message: impl Into<String>) -> Self {
        BarError::File { file: file.to_owned(), message: message.into() }
    }

    /// A [`BarError::Option`].
    pub(crate) fn option(
        option: impl Into<std::borrow::Cow<'static, str>>,
        value: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        BarError::Option { option: option.into(), value: value.to_string(), expected: expected.into() }
    }

    /// The row error inside, if it is one.
    pub fn row(&self) -> Option<&RowError> {
        match self {
            BarError::Row(row) => Some(row),
            _ => None,
        }
    }
}

/// A field of a file as error text: lossy UTF-8, at most 40 characters.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    const MOST: usize = 40;
    // Four bytes are the longest character, so this prefix holds at least MOST characters if there are so many.
    let prefix = &bytes[..bytes.len().min(4 * MOST + 4)];
    let text = String::from_utf8_lossy(prefix);
    if text.chars().count() <= MOST {
        return text.into_owned();
    }
    let mut short: String = text.chars().take(MOST).collect();
    short.push('…');
    short
}
