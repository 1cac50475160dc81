//! `host config`: the resolved configuration, with what every key means.

use std::path::PathBuf;

use clap::Args;
use settings::{keys, presets};

use crate::commands::{configuration, preset};
use crate::train::progress::write_result;

/// `config`.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// Preset to start from; `list` lists them. The defaults when absent.
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Configuration file (TOML) over the preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Overrides one key, for example --set train.batch=512; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Without the comments.
    #[arg(long)]
    pub plain: bool,
}

/// `host config`.
pub fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    if args.preset.as_deref() == Some("list") {
        return write_result(&presets::list());
    }
    let base = preset(args.preset.as_deref())?.unwrap_or_default();
    let config = configuration(&base, args.config.as_deref(), &args.sets)?;
    write_result(&if args.plain { config.to_toml() } else { keys::commented(&config) })
}
