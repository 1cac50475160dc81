//! `host config`: the resolved configuration, with what every key means.

use std::path::PathBuf;

use clap::Args;
use settings::keys;

use crate::commands::{Chosen, configuration};
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
    let Chosen::Preset(base) = Chosen::of(args.preset.as_deref())? else { return Ok(()) };
    let config = configuration(&base.unwrap_or_default(), args.config.as_deref(), &args.sets)?;
    write_result(&if args.plain { config.to_toml() } else { keys::commented(&config) })
}
