//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use settings::Precision;

use crate::commands::config::ConfigArgs;
use crate::commands::data::DataCommand;
use crate::commands::export::ExportArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::predict::PredictArgs;
use crate::commands::report::ReportArgs;
use crate::train::agent::PartName;
use crate::train::progress::Show;

/// Trains distributional Q-learning agents on bar data, every training step one CUDA graph launch.
#[derive(Debug, Parser)]
#[command(name = "host", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train on a bar file (or the built-in synthetic market, a task, or transitions), keep the best policy, test it.
    Train(TrainArgs),
    /// Evaluate a policy; reproduces the result that `train` printed.
    Eval(EvalArgs),
    /// Decide at the newest bar of a file: the order, Q values, distributions, uncertainty.
    Predict(PredictArgs),
    /// Write a policy for other programs: safetensors that PyTorch loads, and ONNX.
    Export(ExportArgs),
    /// Check, convert or make a bar file; check a data set of transitions.
    #[command(subcommand)]
    Data(DataCommand),
    /// Make a run's page (report.html) anew, or compare several runs: mean and spread of every result.
    Report(ReportArgs),
    /// Say what a checkpoint holds: tensors, parameters, configuration, origin, history of its run.
    Inspect(InspectArgs),
    /// Print the configuration that a preset, a file and --set make, with what every key means.
    Config(ConfigArgs),
    /// Print a script that completes this program's commands and options in a shell.
    Completions {
        /// The shell.
        #[arg(value_enum, value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Time the training step and its sections on the GPU.
    Profile(ProfileArgs),
    /// Say what this machine has: driver, GPU, cuBLASLt, kernels, and what follows.
    Doctor,
}

/// Which device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The GPU if there is a usable one, else the CPU.
    #[default]
    Auto,
    /// The GPU, or an error.
    Gpu,
    /// The CPU.
    Cpu,
}

/// Who computes products on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MatmulChoice {
    /// What was measured to be faster, given what is installed.
    #[default]
    Auto,
    /// cuBLASLt, or an error.
    Cublaslt,
    /// The kernels of this program.
    Rust,
}

/// Options that choose where things run.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// Where to run.
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
    /// Index of the GPU.
    #[arg(long, default_value_t = 0)]
    pub gpu: usize,
    /// Who computes matrix products on the GPU.
    #[arg(long, value_enum, default_value_t)]
    pub matmul: MatmulChoice,
    /// Take cuBLASLt's first algorithm instead of measuring: the choice is the same on every start.
    #[arg(long)]
    pub deterministic: bool,
}

/// `train`.
#[derive(Clone, Debug, Args)]
pub struct TrainArgs {
    /// Bar file, CSV or Parquet; repeated for several symbols that are traded together. Without it: the synthetic market.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<String>,
    /// Data set of transitions to learn from in place of an environment: Parquet, safetensors, NPZ or Minari's HDF5 (the
    /// file or the data set's folder); repeated for several (transitions.files).
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    pub transitions: Vec<String>,
    /// Column of the bar file that says which symbol a row belongs to (data.symbol_column).
    #[arg(long, value_name = "NAME")]
    pub symbol_column: Option<String>,
    /// How timestamps are written, strptime notation or epoch-s, epoch-ms, epoch-us, epoch-ns; found when absent.
    #[arg(long, value_name = "FORMAT")]
    pub date_format: Option<String>,
    /// Preset to start from; `list` lists them. Without it one for the device: the defaults on a GPU, market-cpu else.
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    pub preset: Option<String>,
    /// Configuration file (TOML), over the preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Overrides one key, for example --set train.batch=512; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Seed of every random stream (train.seed).
    #[arg(long)]
    pub seed: Option<u64>,
    /// Epochs (train.epochs).
    #[arg(long)]
    pub epochs: Option<usize>,
    /// Arithmetic of the matrix products on a GPU (train.precision).
    #[arg(long, value_enum)]
    pub precision: Option<PrecisionChoice>,
    /// Folder of the run; the next free runs/NNNN when absent.
    #[arg(long, value_name = "FOLDER")]
    pub run: Option<PathBuf>,
    /// Go on with a stopped or killed run or walk-forward, bit for bit as if it had not been: its folder, or one of its
    /// saved states. Of its configuration only train.epochs may be raised (not of a walk-forward's) and checkpoint.* be
    /// changed.
    #[arg(long, value_name = "RUN", conflicts_with = "run")]
    pub resume: Option<PathBuf>,
    /// Only the result.
    #[arg(long, short)]
    pub quiet: bool,
    /// Progress and result as JSON objects on standard output, one a line.
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Time the sections of the training step, on the last steps of every epoch; needs a GPU.
    #[arg(long)]
    pub profile: bool,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArgs,
}

impl TrainArgs {
    /// How progress is shown.
    pub fn show(&self) -> Show {
        match (self.quiet, self.json) {
            (true, _) => Show::Nothing,
            (false, true) => Show::Json,
            (false, false) => Show::Text,
        }
    }
}

/// `eval`.
#[derive(Clone, Debug, Args)]
pub struct EvalArgs {
    /// Policy: a checkpoint, or the folder of a run (its best one).
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,
    /// Bar file (or transitions), if it is not where it was at training; repeated for several, in the order of the training.
    #[arg(long, value_name = "FILE")]
    pub data: Vec<String>,
    /// Part of the bars.
    #[arg(long, value_enum, default_value = "test")]
    pub part: PartName,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the bars and the closed trades of the backtest as CSV into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub csv: Option<PathBuf>,
    /// Where to run.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Precision as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionChoice {
    /// IEEE fp32.
    Fp32,
    /// tf32.
    Tf32,
    /// bf16.
    Bf16,
}

impl From<PrecisionChoice> for Precision {
    fn from(choice: PrecisionChoice) -> Self {
        match choice {
            PrecisionChoice::Fp32 => Precision::Fp32,
            PrecisionChoice::Tf32 => Precision::Tf32,
            PrecisionChoice::Bf16 => Precision::Bf16,
        }
    }
}

/// Reference workloads for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Batch 1024, C51 alone with Adam and the target's average.
    P1Core,
    /// Batch 1024 with CQL, IQN, the IQL networks, attention, spectral norm and budgets.
    P1,
    /// Batch 16384, wider trunk, four branches, gated heads, and everything of P1.
    P2,
    /// P2 with the Mamba-2 block, ensemble, confidence head, noisy heads and pruning masks.
    P2Full,
}

impl Workload {
    /// The preset that the workload is.
    pub fn preset(self) -> &'static str {
        match self {
            Self::P1Core => "p1-core",
            Self::P1 => "p1",
            Self::P2 => "p2",
            Self::P2Full => "p2-full",
        }
    }
}

/// `profile`.
#[derive(Clone, Debug, Args)]
pub struct ProfileArgs {
    /// Index of the GPU.
    #[arg(long, default_value_t = 0)]
    pub gpu: usize,
    /// Timed replays of each graph.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(10..))]
    pub replays: u32,
    /// Precisions to time; all of them when absent.
    #[arg(long, value_enum)]
    pub precision: Vec<PrecisionChoice>,
    /// Backends of products to time; all that are there when absent.
    #[arg(long, value_enum)]
    pub matmul: Option<MatmulChoice>,
    /// Workload to start from; a file and overrides lie over it.
    #[arg(long, value_enum, default_value_t = Workload::P1Core)]
    pub workload: Workload,
    /// Preset to start from instead of a workload; `list` lists them.
    #[arg(long, value_name = "NAME", conflicts_with = "workload")]
    pub preset: Option<String>,
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Overrides one key.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Write the step's graph in DOT's language.
    #[arg(long, value_name = "FILE")]
    pub dot: Option<PathBuf>,
    /// List the graph's nodes.
    #[arg(long)]
    pub nodes: bool,
    /// Look for a faster order of the step's nodes for so many seconds, print the best one and keep it: training takes it
    /// from then on, and so does this command (Rust products).
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub orders: Option<u32>,
    /// Time the step's nodes in the order in which they are recorded, whatever order is known.
    #[arg(long, conflicts_with = "orders")]
    pub recorded: bool,
    /// Where orders are kept; orders.json in the user's cache folder when absent.
    #[arg(long, value_name = "FILE")]
    pub order_file: Option<PathBuf>,
    /// Time the step without copies in bf16 of what the largest products read, where training has them.
    #[arg(long)]
    pub no_copies: bool,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
