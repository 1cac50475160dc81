//! `metrics.jsonl`: one JSON object a line, written and flushed as it happens, so that a killed run keeps its rows; and
//! the TensorBoard events that are made of the rows.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use report::events::Events;
use report::rows;
use serde::Serialize;

/// The metrics file of a run.
pub struct Metrics {
    path: PathBuf,
    file: File,
    events: Option<Events>,
}

/// A row: what kind it is, and its fields beside it.
#[derive(Serialize)]
struct Row<'a, T: Serialize> {
    kind: &'a str,
    #[serde(flatten)]
    fields: &'a T,
}

impl Metrics {
    /// Starts an empty file.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), file, events: None })
    }

    /// Writes TensorBoard events beside the rows, those of the rows that are there already too; an epoch has `steps` steps.
    pub fn with_events(mut self, steps: usize) -> anyhow::Result<Self> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut events = Events::create(folder, steps)?;
        for row in rows::read(&self.path)? {
            events.row(row)?;
        }
        self.events = Some(events);
        Ok(self)
    }

    /// Appends a row.
    pub fn write(&mut self, kind: &str, fields: &impl Serialize) -> anyhow::Result<()> {
        let row = Row { kind, fields };
        let mut line = serde_json::to_string(&row)?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).with_context(|| format!("writing {}", self.path.display()))?;
        if let Some(events) = &mut self.events
            && let Some(row) = rows::Row::of(serde_json::to_value(&row)?)
        {
            events.row(row)?;
        }
        Ok(())
    }
}
