//! `host data`: bar files checked, converted, made; data sets of transitions checked.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bars::synthetic::{Kind, Synthetic};
use bars::{Bars, LoadOptions};
use clap::{Args, Subcommand, ValueEnum};
use settings::Config;

use crate::commands::{check, configuration};
use crate::train::market::{by_key, load_options};
use crate::train::progress::write_result;

/// What to do with a bar file.
#[derive(Clone, Debug, Subcommand)]
pub enum DataCommand {
    /// Say what a bar file (or a data set of transitions) holds, what is wrong with it, and what would help; code 1 if `train`
    /// would refuse it.
    Check(CheckArgs),
    /// Write the bars of a file as CSV or Parquet: times in UTC, plain column names, every value exactly.
    ///
    /// The bars are those that `train` would use with the same options: repaired, adjusted and filled where that was
    /// asked for, else as they are.
    Convert(ConvertArgs),
    /// Write the built-in synthetic market; the same seed gives the same file on every machine.
    Synth(SynthArgs),
}

/// How a bar file is read, as for `train`.
#[derive(Clone, Debug, Args)]
pub struct ReadArgs {
    /// How timestamps are written, strptime notation or epoch-s, epoch-ms, epoch-us, epoch-ns; found when absent.
    #[arg(long, value_name = "FORMAT")]
    pub date_format: Option<String>,
    /// Configuration file (TOML) of a run.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Overrides one key, for example --set data.repair=sort; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
}

impl ReadArgs {
    /// The configuration with which `train` would read the file. Which of its two presets lies below makes no
    /// difference to the data.
    pub(super) fn configuration(&self, file: &str) -> anyhow::Result<Config> {
        let mut config = configuration(&Config::cpu_preset(), self.config.as_deref(), &self.sets)?;
        config.data.file = Some(file.to_owned());
        if let Some(format) = &self.date_format {
            config.data.date_format = Some(format.clone());
        }
        Ok(config)
    }
}

/// `data check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Bar file, CSV or Parquet; or a data set of transitions.
    #[arg(value_name = "FILE")]
    pub file: String,
    /// How it is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Print the findings as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `data convert`.
#[derive(Clone, Debug, Args)]
pub struct ConvertArgs {
    /// Bar file, CSV or Parquet, known by its content.
    #[arg(value_name = "IN")]
    pub input: String,
    /// File to write, .csv or .parquet; must not exist.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// How it is read.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// The synthetic markets as an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KindChoice {
    /// A small part of the returns can be predicted.
    #[default]
    Regimes,
    /// Nothing can be predicted.
    Martingale,
}

/// `data synth`.
#[derive(Clone, Debug, Args)]
pub struct SynthArgs {
    /// File to write, .csv or .parquet; must not exist.
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// Seed of everything random (data.synthetic_seed).
    #[arg(long, default_value_t = settings::Data::default().synthetic_seed)]
    pub seed: u64,
    /// Number of bars (data.synthetic_bars).
    #[arg(long, default_value_t = settings::Data::default().synthetic_bars)]
    pub bars: usize,
    /// Which market (data.synthetic).
    #[arg(long, value_enum, default_value_t)]
    pub kind: KindChoice,
}

/// `host data`.
pub fn run(command: &DataCommand) -> anyhow::Result<()> {
    match command {
        DataCommand::Check(args) => check::check(args),
        DataCommand::Convert(args) => convert(args),
        DataCommand::Synth(args) => synth(args),
    }
}

fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let format = FileFormat::of(&args.output)?;
    let config = args.read.configuration(&args.input)?;
    let loaded = bars::load(Path::new(&args.input), &load_options(&config.data)?).map_err(by_key)?;
    write_bars(&loaded.bars, format, &args.output)?;
    let report = &loaded.report;
    let mut text = format!("{}: {} bars of {}\n", args.output.display(), report.bars, args.input);
    let repaired = &report.repaired;
    let counts = [
        (repaired.dropped_rows(), "row(s) left out"),
        (repaired.widened, "row(s) with a widened high or low"),
        (repaired.out_of_order, "row(s) sorted"),
        (repaired.filled, "bar(s) filled into gaps"),
    ];
    for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!("  repaired as asked for: {count} {what}\n");
    }
    write_result(&text)
}

fn synth(args: &SynthArgs) -> anyhow::Result<()> {
    let format = FileFormat::of(&args.output)?;
    let kind = match args.kind {
        KindChoice::Regimes => Kind::Regimes,
        KindChoice::Martingale => Kind::Martingale,
    };
    // Here the option is called as in the crate.
    let made = Synthetic { seed: args.seed, bars: args.bars, kind }.generate()?;
    write_bars(&made, format, &args.output)?;
    write_result(&format!("{}: {} bars, seed {}\n", args.output.display(), made.len(), args.seed))
}

/// What a file to be written is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileFormat {
    Csv,
    Parquet,
}

impl FileFormat {
    /// By the name's ending. A file that is there already is refused here, before any work.
    fn of(path: &Path) -> anyhow::Result<Self> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let format = match ending.as_deref() {
            Some("csv") => Self::Csv,
            Some("parquet") => Self::Parquet,
            _ => bail!("{}: the name has to end with .csv or .parquet", path.display()),
        };
        if path.symlink_metadata().is_ok() {
            bail!("{} exists already: nothing is overwritten", path.display());
        }
        Ok(format)
    }
}

/// Writes bars after making sure that the text or table reads back as the same bits.
fn write_bars(bars: &Bars, format: FileFormat, path: &Path) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    match format {
        FileFormat::Csv => bars::write_csv(&name, bars, &mut bytes)?,
        FileFormat::Parquet => bars::write_parquet(&name, bars, &mut bytes)?,
    }
    let (again, _) =
        bars::read(&name, &bytes, &LoadOptions::default()).context("reading back what was to be written")?;
    if again.content_hash() != bars.content_hash() || again.has_volume != bars.has_volume {
        bail!("{name} would not hold the same bars (hash {:016x})", bars.content_hash());
    }
    write_new(path, &bytes).with_context(|| format!("writing {name}"))
}

/// Writes a file that must not exist, so that it is whole or absent: temporary name, sync, then a link, which unlike a
/// renaming never replaces a file.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let result = File::create_new(temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| match fs::hard_link(temporary, path) {
            // Some file systems have no links; there a renaming after a look is the best there is.
            Err(error)
                if error.kind() != io::ErrorKind::AlreadyExists && path.symlink_metadata().is_err() =>
            {
                fs::rename(temporary, path)
            }
            other => other,
        });
    // Gone already after a renaming, and never made if its creation failed.
    let _ = fs::remove_file(temporary);
    result?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
