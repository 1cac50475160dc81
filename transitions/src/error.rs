//! What is wrong with a data set.

use std::fmt::Display;

/// An error of a data set; the text names the file, and the place and value where there are any.
#[derive(Debug, thiserror::Error)]
pub enum TransitionError {
    /// The file cannot be read.
    #[error("{file}: {error}")]
    Io {
        /// The file.
        file: String,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// The file as a whole.
    #[error("{file}: {message}")]
    File {
        /// The file.
        file: String,
        /// What is wrong, and what would help.
        message: String,
    },
    /// One value.
    #[error(transparent)]
    Value(Box<WrongValue>),
}

/// A value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {name}, row {row}{column}: {value}, expected {expected}")]
pub struct WrongValue {
    /// The file.
    pub file: String,
    /// Array or column.
    pub name: String,
    /// Row, from 0, as NumPy counts.
    pub row: usize,
    /// `, column 3` in a row of several values.
    pub column: String,
    /// The value.
    pub value: String,
    /// What it has to be.
    pub expected: String,
}

impl TransitionError {
    pub(crate) fn file(file: &str, message: impl Into<String>) -> Self {
        Self::File { file: file.into(), message: message.into() }
    }

    pub(crate) fn value(
        file: &str,
        name: &str,
        (row, column): (usize, Option<usize>),
        value: impl Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Value(Box::new(WrongValue {
            file: file.into(),
            name: name.into(),
            row,
            column: column.map_or(String::new(), |column| format!(", column {column}")),
            value: value.to_string(),
            expected: expected.into(),
        }))
    }
}
