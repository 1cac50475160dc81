//! What a run tells: TensorBoard events while it trains, tables of bars and trades of the backtest, and pages.
//!
//! A page is made of the files in a run's folder and of nothing else, so that `host report` makes it anew at any time:
//! `metrics.jsonl` ([`rows`]), `test.json` ([`run::Tested`]), `test-bars.csv` and `test-trades.csv` ([`tables`]),
//! `config.toml`. A file that is not there leaves its plots out, and the page says so. Pages are one file each, without
//! scripts and without anything from a network.

#![warn(missing_docs)]

pub mod compare;
pub mod course;
pub mod events;
pub mod history;
pub mod page;
pub mod plot;
pub mod rows;
pub mod run;
pub mod tables;

mod axis;
mod plots;
mod protocol;

#[cfg(test)]
mod drawn;
#[cfg(test)]
mod sample;

use std::path::{Path, PathBuf};

/// What keeps a page, a table or an event from being written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The operating system refused a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{}{}: {problem}", path.display(), line.map_or_else(String::new, |line| format!(" line {line}")))]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1, where there is one.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// A folder that holds no run.
    #[error("{} holds no metrics.jsonl: not the folder of a run", path.display())]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// A plot that could not be drawn.
    #[error("plot {plot}: {problem}")]
    Plot {
        /// Its name.
        plot: String,
        /// What the drawing said.
        problem: String,
    },
}

impl ReportError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_path_buf(), source }
    }

    fn content(path: &Path, line: Option<usize>, problem: impl ToString) -> Self {
        Self::Content { path: path.to_path_buf(), line, problem: problem.to_string() }
    }
}
