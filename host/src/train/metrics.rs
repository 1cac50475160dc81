//! `metrics.jsonl`: one JSON object a line, written and flushed as it happens, so that a killed run keeps its rows.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

/// The metrics file of a run.
pub struct Metrics {
    path: PathBuf,
    file: File,
    fold: Option<usize>,
}

/// A row: what kind it is, and its fields beside it.
#[derive(Serialize)]
struct Row<'a, T: Serialize> {
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fold: Option<usize>,
    #[serde(flatten)]
    fields: &'a T,
}

impl Metrics {
    /// Starts an empty file.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), file, fold: None })
    }

    /// The same file; every row says that it is of this fold of a walk-forward, if any.
    pub fn of_fold(self, fold: Option<usize>) -> Self {
        Self { fold, ..self }
    }

    /// Appends a row.
    pub fn write(&mut self, kind: &str, fields: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&Row { kind, fold: self.fold, fields })?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).with_context(|| format!("writing {}", self.path.display()))
    }
}
