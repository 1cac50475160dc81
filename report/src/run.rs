//! Everything in a run's folder that a page is made of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use backtest::Report;
use serde::Deserialize;
use serde_json::Value;

use crate::course::Course;
use crate::history::History;
use crate::rows::Row;
use crate::tables::{self, BarLine, TradeLine};
use crate::{ReportError, events};

/// A run as it lies in its folder.
#[derive(Clone, Debug)]
pub struct RunData {
    /// The folder.
    pub folder: PathBuf,
    /// Rows of `metrics.jsonl`; of a walk-forward those of all folds, and then its own.
    pub history: History,
    /// `test.json`; a run that has not ended has none, and neither has one on a control task.
    pub test: Option<Tested>,
    /// The tables of the tested bars: one, of a walk-forward one for each fold that was tested.
    pub parts: Vec<Part>,
    /// Keys of `config.toml` with their values as text.
    pub config: BTreeMap<String, String>,
}

/// What was tested.
#[derive(Clone, Debug)]
pub struct Tested {
    /// The result: of the one symbol, of the portfolio, or the pooled one of all folds.
    pub report: Report,
    /// Results of the symbols, where there are several.
    pub symbols: Vec<SymbolTest>,
    /// Results of the folds of a walk-forward.
    pub folds: Vec<FoldTest>,
}

/// Result of one symbol of several.
#[derive(Clone, Debug, Deserialize)]
pub struct SymbolTest {
    /// Its name.
    pub symbol: String,
    /// Its result.
    #[serde(flatten)]
    pub report: Report,
}

/// Result of one fold of a walk-forward.
#[derive(Clone, Debug, Deserialize)]
pub struct FoldTest {
    /// Its number, from 1.
    pub fold: usize,
    /// First and last bar of its test part, UTC in milliseconds.
    pub test_ms: [i64; 2],
    /// Epoch of the policy that was tested.
    pub best_epoch: usize,
    /// Its result.
    pub test: Report,
}

/// Tables of the bars of one test.
#[derive(Clone, Debug)]
pub struct Part {
    /// The fold that it is of, if any.
    pub fold: Option<usize>,
    /// `test-bars.csv`.
    pub bars: Vec<BarLine>,
    /// `test-trades.csv`.
    pub trades: Vec<TradeLine>,
    /// The backtest over time, all symbols together.
    pub course: Course,
}

/// Name of a fold's folder in the run's.
pub fn fold_name(fold: usize) -> String {
    format!("fold-{fold:02}")
}

impl RunData {
    /// Reads a run's folder, and those of its folds where it has some.
    ///
    /// # Errors
    /// [`ReportError`] for a folder without metrics, or with the file and line that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ReportError> {
        let metrics = folder.join("metrics.jsonl");
        if !metrics.exists() {
            return Err(ReportError::NoRun { path: folder.to_path_buf() });
        }
        let test = test(&folder.join("test.json"))?;
        let (mut history, mut parts) = (History::default(), Vec::new());
        for fold in 1.. {
            let own = folder.join(fold_name(fold));
            let metrics = own.join("metrics.jsonl");
            if !metrics.exists() {
                break;
            }
            history.read(&metrics)?;
            let test = self::test(&own.join("test.json"))?;
            parts.extend(Part::read(&own, Some(fold), test.as_ref())?);
        }
        history.read(&metrics)?;
        parts.extend(Part::read(folder, None, test.as_ref())?);
        let config = config(&folder.join("config.toml"))?;
        Ok(Self { folder: folder.to_path_buf(), history, test, parts, config })
    }

    /// The folder's name.
    pub fn name(&self) -> String {
        let absolute = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        absolute.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
    }

    /// The first row, which says what ran where.
    pub fn about(&self) -> Option<&Row> {
        self.history.of("run").next()
    }

    /// Names of the state's features, as far as the run says them.
    pub fn features(&self) -> Vec<String> {
        self.about().map(events::names).unwrap_or_default()
    }
}

impl Part {
    /// Reads the tables of a folder; `None` where they or the result they belong to are not there.
    fn read(folder: &Path, fold: Option<usize>, test: Option<&Tested>) -> Result<Option<Self>, ReportError> {
        let Some(test) = test else { return Ok(None) };
        let Some(bars) = tables::read::<BarLine>(&tables::bars_file(folder, "test"))? else {
            return Ok(None);
        };
        if bars.is_empty() {
            return Err(ReportError::content(
                &tables::bars_file(folder, "test"),
                None,
                "it has no bar, and the test has some",
            ));
        }
        let trades = tables::read(&tables::trades_file(folder, "test"))?.unwrap_or_default();
        // Every symbol's account starts with the same money.
        let start = test.report.strategy.start_equity / test.symbols.len().max(1) as f64;
        let course = Course::new(&bars, start);
        Ok(Some(Self { fold, bars, trades, course }))
    }
}

/// The result of a run, or the pooled one of several folds.
fn test(path: &Path) -> Result<Option<Tested>, ReportError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path).map_err(ReportError::io(path))?;
    let content = |e: serde_json::Error| ReportError::content(path, Some(e.line()).filter(|l| *l > 0), e);
    let mut value: Value = serde_json::from_str(&text).map_err(content)?;
    let mut list = |name: &str| value.get_mut(name).map_or_else(|| Value::Array(Vec::new()), Value::take);
    let (symbols, folds) = (list("symbols"), list("folds"));
    // Of a control task, which has no bars.
    if value.get("task").is_some() || value.get("best").is_some() {
        return Ok(None);
    }
    let report = match value.get_mut("pooled") {
        Some(pooled) => pooled.take(),
        None => value,
    };
    Ok(Some(Tested {
        report: serde_json::from_value(report).map_err(content)?,
        symbols: serde_json::from_value(symbols).map_err(content)?,
        folds: serde_json::from_value(folds).map_err(content)?,
    }))
}

fn config(path: &Path) -> Result<BTreeMap<String, String>, ReportError> {
    let mut keys = BTreeMap::new();
    if path.exists() {
        let text = std::fs::read_to_string(path).map_err(ReportError::io(path))?;
        let table: toml::Table = toml::from_str(&text).map_err(|e| {
            let line =
                e.span().map(|span| text.bytes().take(span.start).filter(|&byte| byte == b'\n').count() + 1);
            ReportError::content(path, line, e.message().replace('\n', ", "))
        })?;
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
