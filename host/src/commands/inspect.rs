//! `host inspect`: what a checkpoint holds.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use settings::Flat;

use crate::train::checkpoint::Checkpoint;
use crate::train::market::Walk;
use crate::train::progress::write_result;

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
    if args.json {
        let value = as_json(&file, &checkpoint, checksum.as_deref())?;
        return write_result(&format!("{}\n", serde_json::to_string_pretty(&value)?));
    }
    write_result(&as_text(&file, &checkpoint, checksum.as_deref())?)
}

fn as_json(file: &str, checkpoint: &Checkpoint, checksum: Option<&str>) -> anyhow::Result<Value> {
    let flat = Flat::new(&checkpoint.config.model, &checkpoint.config.parts());
    let parts: Map<String, Value> =
        flat.counts().into_iter().map(|(part, count)| (part.to_owned(), count.into())).collect();
    let tensors: Vec<Value> = checkpoint
        .tensors()
        .into_iter()
        .map(|(name, t)| json!({ "name": name, "shape": t.shape, "parameters": t.values.len() }))
        .collect();
    Ok(json!({
        "file": file,
        "checksum": checksum,
        "provenance": checkpoint.provenance,
        "market": checkpoint.market,
        "parameters": { "total": flat.count(), "parts": parts },
        "tensors": tensors,
        "config": checkpoint.config,
    }))
}

fn as_text(file: &str, checkpoint: &Checkpoint, checksum: Option<&str>) -> Result<String, std::fmt::Error> {
    let (provenance, market) = (&checkpoint.provenance, &checkpoint.market);
    let flat = Flat::new(&checkpoint.config.model, &checkpoint.config.parts());
    let mut text = String::new();
    let out = &mut text;
    writeln!(out, "{file}")?;
    writeln!(out, "  epoch       {}", provenance.epoch)?;
    let score = provenance.score.map_or("undefined".into(), |score| score.to_string());
    writeln!(out, "  score       {score} (Sharpe ratio of the validation part)")?;
    writeln!(out, "  device      {}", provenance.device)?;
    writeln!(out, "  kernels     {}", provenance.kernels)?;
    writeln!(out, "  program     {}", provenance.program)?;
    writeln!(
        out,
        "  checksum    {}",
        checksum.map_or("none: written by an earlier program".into(), |sum| format!("{sum}, right"))
    )?;
    if let Some(Walk { fold, of }) = market.walk {
        writeln!(out, "  fold        {fold} of {of}")?;
    }
    for symbol in &market.symbols {
        writeln!(out, "  trained on  {}: {} bars, hash {}", symbol.source, symbol.bars, symbol.bars_hash)?;
        for (name, part) in symbol.fold.parts() {
            writeln!(out, "              {name}: decisions at bars {} to {}", part.start, part.end)?;
        }
    }
    writeln!(out, "  parameters  {}", flat.count())?;
    for (part, count) in flat.counts() {
        writeln!(out, "              {part} {count}")?;
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
