//! `host inspect`: what a checkpoint holds, and the history of its run.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};
use settings::{Config, Flat};

use crate::train::checkpoint::{Checkpoint, Provenance};
use crate::train::market::{MarketRecord, Walk};
use crate::train::offline::OfflineRecord;
use crate::train::progress::write_result;
use crate::train::world::Evaluation;

/// Longest line of a run's metrics that is read, in bytes; the longest that is written is a thousand times shorter.
const LONGEST: u64 = 1 << 24;

/// `inspect`.
#[derive(Clone, Debug, Args)]
pub struct InspectArgs {
    /// Policy: a checkpoint, or the folder of a run (its best one).
    #[arg(value_name = "CHECKPOINT|RUN")]
    pub checkpoint: PathBuf,
    /// Print everything as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `host inspect`.
pub fn inspect(args: &InspectArgs) -> anyhow::Result<()> {
    let path = Checkpoint::file_of(&args.checkpoint)?;
    let (checkpoint, checksum) = Checkpoint::load_with_checksum(&path)?;
    let file = path.display().to_string();
    let history = history(&path)?;
    if args.json {
        let inspected = Inspected::of(&file, &checkpoint, checksum.as_deref(), history);
        return write_result(&format!("{}\n", serde_json::to_string_pretty(&inspected)?));
    }
    write_result(&(as_text(&file, &checkpoint, checksum.as_deref())? + &history_text(&history)))
}

/// The rows of the epochs in the metrics of the run that a checkpoint lies in; empty where it lies alone.
///
/// # Errors
/// A row that is no JSON, with file and line. The last one may be cut: a run may be writing it.
fn history(checkpoint: &Path) -> anyhow::Result<Vec<Value>> {
    let path = checkpoint.with_file_name("metrics.jsonl");
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let name = path.display();
    let mut file = BufReader::new(File::open(&path).with_context(|| format!("reading {name}"))?);
    let (mut rows, mut line) = (Vec::new(), Vec::new());
    for number in 1.. {
        line.clear();
        file.by_ref()
            .take(LONGEST)
            .read_until(b'\n', &mut line)
            .with_context(|| format!("reading {name}"))?;
        if line.last() != Some(&b'\n') {
            if line.len() as u64 == LONGEST {
                bail!(
                    "{name}, line {number}: it has {LONGEST} bytes or more, so these are not a run's metrics"
                );
            }
            break;
        }
        // A run has a hundred times as many rows of steps.
        if line.starts_with(br#"{"kind":"epoch","#) {
            let row = serde_json::from_slice(&line).with_context(|| format!("{name}, line {number}"))?;
            rows.push(row);
        }
    }
    Ok(rows)
}

/// A line for each epoch.
fn history_text(rows: &[Value]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    // Of a data set the loss of its validation part.
    let offline = rows.iter().any(|row| row.get("validation_loss").is_some());
    let columns = if offline { ["held-out loss", "held-out td"] } else { ["validation", "Sharpe"] };
    let mut text = format!(
        "  history\n    {:>5} {:>11} {:>11} {:>9} {:>13} {:>12}\n",
        "epoch", "loss", "td", "epsilon", columns[0], columns[1]
    );
    for row in rows {
        let number = |key: &str, digits: usize| match row[key].as_f64() {
            Some(value) => format!("{value:.digits$}"),
            None => "-".into(),
        };
        let gain = row["validation_return"].as_f64().map_or("-".into(), |x| format!("{:+.2}%", 100.0 * x));
        let validated = match offline {
            true => [number("validation_loss", 5), number("validation_td", 5)],
            false => [gain, number("validation_sharpe", 3)],
        };
        text += &format!(
            "    {:>5} {:>11} {:>11} {:>9} {:>13} {:>12}{}\n",
            number("epoch", 0),
            number("loss", 5),
            number("td", 5),
            number("epsilon", 3),
            validated[0],
            validated[1],
            if row["best"] == true { "  best so far" } else { "" }
        );
    }
    text
}

/// Everything of a checkpoint for programs. Not a [`Value`], which would show f32 numbers with the digits of f64.
#[derive(Serialize)]
struct Inspected<'a> {
    file: &'a str,
    checksum: Option<&'a str>,
    provenance: &'a Provenance,
    market: Option<&'a MarketRecord>,
    transitions: Option<&'a OfflineRecord>,
    parameters: Value,
    sparsity: Map<String, Value>,
    tensors: Vec<Value>,
    config: &'a Config,
    history: Vec<Value>,
}

impl<'a> Inspected<'a> {
    fn of(file: &'a str, checkpoint: &'a Checkpoint, checksum: Option<&'a str>, history: Vec<Value>) -> Self {
        let flat = Flat::new(&checkpoint.config.model, &checkpoint.config.parts());
        let parts: Map<String, Value> =
            flat.counts().into_iter().map(|(part, count)| (part.to_owned(), count.into())).collect();
        let tensors = checkpoint
            .tensors()
            .into_iter()
            .map(|(name, t)| json!({ "name": name, "shape": t.shape, "parameters": t.values.len() }))
            .collect();
        Self {
            file,
            checksum,
            provenance: &checkpoint.provenance,
            market: checkpoint.market.as_ref(),
            transitions: checkpoint.data_set.as_ref(),
            parameters: json!({ "total": flat.count(), "parts": parts }),
            sparsity: sparsity(checkpoint).into_iter().map(|(name, share)| (name, share.into())).collect(),
            tensors,
            config: &checkpoint.config,
            history,
        }
    }
}

/// The fraction of pruned weights of every matrix that has a mask.
fn sparsity(checkpoint: &Checkpoint) -> Vec<(String, f64)> {
    let share = |mask: &[f32]| mask.iter().filter(|&&kept| kept == 0.0).count() as f64 / mask.len() as f64;
    checkpoint.masks().into_iter().map(|(t, mask)| (t.name, share(mask))).collect()
}

/// The bars of a market, and their parts.
fn trained_on(out: &mut String, market: &MarketRecord) -> std::fmt::Result {
    if let Some(Walk { fold, of }) = market.walk {
        writeln!(out, "  fold        {fold} of {of}")?;
    }
    for symbol in &market.symbols {
        writeln!(out, "  trained on  {}: {} bars, hash {}", symbol.source, symbol.bars, symbol.bars_hash)?;
        for (name, part) in symbol.fold.parts() {
            writeln!(out, "              {name}: decisions at bars {} to {}", part.start, part.end)?;
        }
    }
    Ok(())
}

/// The files of a data set, and its parts.
fn trained_on_transitions(out: &mut String, data_set: &OfflineRecord) -> std::fmt::Result {
    for file in &data_set.files {
        writeln!(out, "  trained on  {}: {} transitions, hash {}", file.file, file.transitions, file.hash)?;
    }
    let OfflineRecord { files: _, learned, validation, test } = data_set;
    writeln!(out, "              {learned} learned from, {validation} for validation, {test} for the test")
}

fn as_text(file: &str, checkpoint: &Checkpoint, checksum: Option<&str>) -> Result<String, std::fmt::Error> {
    let provenance = &checkpoint.provenance;
    let flat = Flat::new(&checkpoint.config.model, &checkpoint.config.parts());
    let mut text = String::new();
    let out = &mut text;
    writeln!(out, "{file}")?;
    writeln!(out, "  epoch       {}", provenance.epoch)?;
    let score = provenance.score.map_or("undefined".into(), |score| score.to_string());
    writeln!(out, "  score       {score} ({})", Evaluation::score_name(&checkpoint.config))?;
    writeln!(out, "  device      {}", provenance.device)?;
    writeln!(out, "  kernels     {}", provenance.kernels)?;
    writeln!(out, "  program     {}", provenance.program)?;
    writeln!(
        out,
        "  checksum    {}",
        checksum.map_or("none: written by an earlier program".into(), |sum| format!("{sum}, right"))
    )?;
    match (&checkpoint.market, &checkpoint.data_set) {
        (Some(market), _) => trained_on(out, market)?,
        (None, Some(data_set)) => trained_on_transitions(out, data_set)?,
        (None, None) => writeln!(out, "  trained on  the task {}", checkpoint.config.task.name)?,
    }
    writeln!(out, "  parameters  {}", flat.count())?;
    for (part, count) in flat.counts() {
        writeln!(out, "              {part} {count}")?;
    }
    let sparsity = sparsity(checkpoint);
    if !sparsity.is_empty() {
        writeln!(out, "  pruned      of each matrix")?;
    } else if checkpoint.config.pruning.enabled {
        writeln!(out, "  pruned      not said: written by an earlier program")?;
    }
    for (name, share) in &sparsity {
        writeln!(out, "              {name} {:.2}%", 100.0 * share)?;
    }
    let tensors = checkpoint.tensors();
    writeln!(out, "  tensors     {} (f32)", tensors.len())?;
    let width = tensors.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, tensor) in &tensors {
        writeln!(out, "              {name:width$}  {:?}", tensor.shape)?;
    }
    writeln!(out, "  configuration")?;
    for line in checkpoint.config.to_toml().lines() {
        writeln!(out, "{}", format!("    {line}").trim_end())?;
    }
    Ok(text)
}
