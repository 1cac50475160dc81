//! `host export`: a policy for other programs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;

use crate::export::Policy;
use crate::train::checkpoint::{Checkpoint, write_atomically};
use crate::train::progress::write_result;

/// `export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Policy: a checkpoint, or the folder of a run (its best one).
    #[arg(value_name = "CHECKPOINT|RUN")]
    pub checkpoint: PathBuf,
    /// Folder to write policy.safetensors, policy.onnx and policy.json into; made if it is not there.
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// `host export`.
pub fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let path = Checkpoint::file_of(&args.checkpoint)?;
    let policy = Policy::of(&Checkpoint::load(&path)?)?;
    let files = [
        ("policy.safetensors", policy.safetensors()?),
        ("policy.onnx", policy.onnx()?),
        ("policy.json", policy.json()?.into_bytes()),
    ];
    let folder = args.folder.display();
    let ending = args.folder.extension().and_then(|ending| ending.to_str());
    if ending.is_some_and(|ending| ["onnx", "safetensors", "json"].contains(&ending)) && !args.folder.is_dir()
    {
        bail!(
            "{folder} is called as a file: the folder is wanted that gets {}, {} and {}",
            files[0].0,
            files[1].0,
            files[2].0
        );
    }
    fs::create_dir_all(&args.folder).with_context(|| format!("creating {folder}"))?;
    for (name, _) in &files {
        if args.folder.join(name).symlink_metadata().is_ok() {
            bail!("{folder} already holds {name}: nothing is overwritten");
        }
    }
    let mut text = format!("{} to {folder}:\n", path.display());
    for (name, bytes) in &files {
        write_atomically(&args.folder.join(name), bytes)
            .with_context(|| format!("writing {}", args.folder.join(name).display()))?;
        text += &format!("  {name:<20} {} bytes\n", bytes.len());
    }
    if !policy.left_out.is_empty() {
        text += &format!("  left out: {}\n", policy.left_out.join(", "));
    }
    write_result(&text)
}
