//! Everything in a run's folder that a page is made of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backtest::Report;
use serde_json::Value;

use crate::rows::{self, Row};
use crate::tables::{self, BarLine, TradeLine};
use crate::{ReportError, events};

/// A run as it lies in its folder.
#[derive(Clone, Debug)]
pub struct RunData {
    /// The folder.
    pub folder: PathBuf,
    /// Rows of `metrics.jsonl`.
    pub rows: Vec<Row>,
    /// `test.json`; a run that has not ended has none.
    pub test: Option<Report>,
    /// `test-bars.csv`.
    pub bars: Option<Vec<BarLine>>,
    /// `test-trades.csv`.
    pub trades: Option<Vec<TradeLine>>,
    /// Keys of `config.toml` with their values as text.
    pub config: BTreeMap<String, String>,
}

impl RunData {
    /// Reads a run's folder.
    ///
    /// # Errors
    /// [`ReportError`] for a folder without metrics, or with the file and line that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let metrics = folder.join("metrics.jsonl");
        if !metrics.exists() {
            return Err(ReportError::NoRun { path: folder.to_path_buf() });
        }
        Ok(Self {
            folder: folder.to_path_buf(),
            rows: rows::read(&metrics)?,
            test: test(&folder.join("test.json"))?,
            bars: tables::read(&tables::bars_file(folder, "test"))?,
            trades: tables::read(&tables::trades_file(folder, "test"))?,
            config: config(&folder.join("config.toml"))?,
        })
    }

    /// The folder's name.
    pub fn name(&self) -> String {
        let absolute = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        absolute.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
    }

    /// The first row, which says what ran where.
    pub fn about(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == "run")
    }

    /// Names of the state's features, as far as the run says them.
    pub fn features(&self) -> Vec<String> {
        self.about().map(events::names).unwrap_or_default()
    }

    /// The last row of a kind.
    pub fn last(&self, kind: &str) -> Option<&Row> {
        self.rows.iter().rev().find(|row| row.kind == kind)
    }
}

/// A report, or the pooled one of several.
fn test(path: &Path) -> Result<Option<Report>, ReportError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(ReportError::io(path))?;
    let content = |e: serde_json::Error| ReportError::content(path, Some(e.line()).filter(|l| *l > 0), e);
    let mut value: Value = serde_json::from_str(&text).map_err(content)?;
    if let Some(pooled) = value.get_mut("pooled") {
        value = pooled.take();
    }
    serde_json::from_value(value).map(Some).map_err(content)
}

fn config(path: &Path) -> Result<BTreeMap<String, String>, ReportError> {
    let mut keys = BTreeMap::new();
    if path.exists() {
        let text = std::fs::read_to_string(path).map_err(ReportError::io(path))?;
        let table: toml::Table = toml::from_str(&text).map_err(|e| ReportError::content(path, None, e))?;
        flatten("", &table, &mut keys);
    }
    Ok(keys)
}

fn flatten(prefix: &str, table: &toml::Table, keys: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(inner) => flatten(&format!("{prefix}{key}."), inner, keys),
            value => {
                keys.insert(format!("{prefix}{key}"), value.to_string());
            }
        }
    }
}
