//! The program's commands as a person runs them: what they print, where, and with which code they end.

mod check;
mod completions;
mod config;
mod data;
mod errors;
mod export;
mod folds;
mod inspect;
mod predict;
mod report;
#[path = "../resumable/mod.rs"]
mod resumable;
mod resume;
mod task;
mod transitions;
mod walk;

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a command did.
pub struct Done {
    /// Its code; -1 for a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Done {
    /// The output of a command that succeeded.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!(self.code, 0, "output:\n{}\nerrors:\n{}", self.out, self.err);
        self.out
    }

    /// Standard error of a command that ended with code 1, and its output.
    #[track_caller]
    pub fn refused(self) -> (String, String) {
        assert_eq!(self.code, 1, "output:\n{}\nerrors:\n{}", self.out, self.err);
        assert!(self.err.starts_with("error: "), "{}", self.err);
        (self.err, self.out)
    }
}

/// Runs the program.
pub fn host(arguments: &[&str]) -> Done {
    let output =
        Command::new(env!("CARGO_BIN_EXE_host")).args(arguments).output().expect("the program starts");
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

/// A file of `tests/data`.
pub fn sample(name: &str) -> String {
    text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data").join(name))
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    let mut names: Vec<String> = paths
        .iter()
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
