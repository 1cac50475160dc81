//! What the subcommands do.

pub mod check;
pub mod config;
pub mod data;
pub mod export;
pub mod folds;
pub mod inspect;
pub mod predict;
pub mod report;
pub mod resume;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::CommandFactory;
use settings::{Config, Flat, Precision, presets};
use tracing::{info, warn};

use crate::cli::{Cli, DeviceArgs, DeviceChoice, EvalArgs, MatmulChoice, ProfileArgs, TrainArgs};
use crate::commands::resume::{Resuming, ResumingRun};
use crate::cublaslt::Choice;
use crate::cublaslt::cache::PlanCache;
use crate::cublaslt::library::CublasLtLibrary;
use crate::cuda::order_cache::OrderCache;
use crate::cuda::{CudaExec, CudaOptions, Products};
use crate::embedded;
use crate::log::{self, SEEN};
use crate::profile::{ProfileOptions, profile, table};
use crate::step::Matmul;
use crate::train::Stop;
use crate::train::agent::{Agent, PartName};
use crate::train::checkpoint::{Checkpoint, write_atomically};
use crate::train::cpu::CpuAgent;
use crate::train::gpu::GpuAgent;
use crate::train::progress::{Progress, Show, write_line, write_result};
use crate::train::record::{PAGE, validated};
use crate::train::run::{Run, Tested};
use crate::train::run_files::RunFiles;
use crate::train::world::{Loaded, World};
use crate::{doctor, gemm};

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything was done.
    Done,
    /// It was stopped by a signal and saved what there was to save.
    Stopped(i32),
}

/// `host train`.
pub fn train(args: &TrainArgs) -> anyhow::Result<Ending> {
    let named = match Chosen::of(args.preset.as_deref())? {
        Chosen::Listed => return Ok(Ending::Done),
        Chosen::Preset(named) => named,
    };
    let show = args.show();
    let mut progress = Progress::new(show);
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    info!(target: SEEN, ?arguments, "Stepgraph {}", env!("CARGO_PKG_VERSION"));
    let stop = Stop::default();
    stop.on_signals()?;
    let resuming = args.resume.as_deref().map(Resuming::open).transpose()?;
    let device = resuming.as_ref().map_or_else(|| args.device.clone(), |r| r.device(&args.device));
    let gpu = open_gpu(&device, resuming.as_ref().and_then(Resuming::choice))?;
    if args.profile
        && let Err(reason) = &gpu
    {
        bail!("--profile times the graphs of a GPU, and this run would be on the CPU: {reason}");
    }
    let preset = match (&resuming, named) {
        (Some(resuming), _) => resuming.config().clone(),
        (None, Some(named)) => *named,
        (None, None) if gpu.is_ok() => Config::gpu_preset(),
        (None, None) => Config::cpu_preset(),
    };
    let mut config = configuration(&preset, args.config.as_deref(), &args.sets)?;
    set_files(&mut config.data, &args.data);
    if !args.transitions.is_empty() {
        config.task.name = settings::Task::TRANSITIONS.into();
        config.transitions.files.clone_from(&args.transitions);
    }
    if let Some(column) = &args.symbol_column {
        config.data.symbol_column = Some(column.clone());
    }
    if let Some(format) = &args.date_format {
        config.data.date_format = Some(format.clone());
    }
    if let Some(seed) = args.seed {
        config.train.seed = seed;
    }
    if let Some(epochs) = args.epochs {
        config.train.epochs = epochs;
    }
    if let Some(precision) = args.precision {
        config.train.precision = precision.into();
    }
    let resuming = match resuming {
        Some(Resuming::Run(run)) => Some(*run),
        Some(Resuming::Walk(walk)) => {
            let folds = folds::Folds { config, preset: &preset, device: &device, args, stop: &stop };
            return folds.train(gpu, &mut progress, Some(*walk));
        }
        None if config.folds.walks() => {
            let folds = folds::Folds { config, preset: &preset, device: &device, args, stop: &stop };
            return folds.train(gpu, &mut progress, None);
        }
        None => None,
    };
    let loaded = Loaded::prepare(&mut config, resuming.as_ref().and_then(ResumingRun::walk))?;
    let world = loaded.world();
    if let Some(resuming) = &resuming {
        resuming.check_input(&config, world)?;
    }
    warn_of_keys(&config, &preset);
    progress.line(&world.text());
    if world.market().is_some() {
        progress.line(&costs(&config));
    }
    let flat = Flat::new(&config.model, &config.parts());
    progress.line(&format!("network: {} parameters ({})", flat.count(), counts(&flat)));
    // Made before the run's folder: what does not fit into memory leaves no folder behind.
    let (mut agent, kernels) = agent(gpu, &config, world, &device, &progress, args.profile)?;
    progress.line(&format!("device: {}", agent.device()));
    stop.begin();
    if let Some(signal) = stop.signal() {
        return Ok(Ending::Stopped(signal));
    }
    let (files, resumed) = match resuming {
        Some(resuming) => {
            progress.line(&resuming.text());
            let (files, resumed) = resuming.check_agent(agent.as_ref(), &kernels)?;
            (files, Some(resumed))
        }
        None => (RunFiles::create(args.run.as_deref())?, None),
    };
    log::begin(&files.folder)?;
    progress.line(&format!("run: {}", files.folder.display()));
    let run = Run { config: &config, world, files: &files, kernels, stop: stop.clone(), folds_behind: 0 };
    let outcome = run.train(agent.as_mut(), &mut progress, resumed)?;
    let signal = stop.signal().filter(|_| outcome.stopped);
    if signal.is_some() {
        progress.line(&stopped_text(&files.folder, outcome.state.is_some(), config.checkpoint.states));
        if files.best().is_file() {
            progress
                .line(&format!("the best policy so far is tested by: host eval {}", files.folder.display()));
        } else {
            progress.line("no epoch has ended, so there is no policy to test yet");
        }
    }
    if let Some(whole) = world.walk().and_then(|_| resume::walk_of(&files.folder)) {
        progress.line(&format!(
            "the walk-forward of this fold goes on with: host train --resume {}",
            whole.display()
        ));
    }
    if show == Show::Json {
        return Ok(signal.map_or(Ending::Done, Ending::Stopped));
    }
    if let Some(Tested { epoch, test, last, control }) = &outcome.best {
        let best = files.best();
        if let Some(last) = last {
            write_result(&format!("test, last policy ({}):\n{last}\n", files.last().display()))?;
        }
        let finding = control.as_ref().map(|control| control.finding(test.sharpe()).to_string());
        let finding = finding.unwrap_or_default();
        let page = files.folder.join(PAGE);
        write_result(&format!(
            "test part, policy of epoch {epoch} ({}):\n{test}{finding}\n",
            best.display()
        ))?;
        progress.line(&format!("page: {}", page.display()));
    }
    Ok(signal.map_or(Ending::Done, Ending::Stopped))
}

/// What there is to say of a run that was stopped.
fn stopped_text(folder: &Path, saved: bool, states: usize) -> String {
    match (saved, states) {
        (true, _) => format!("stopped early; go on with: host train --resume {}", folder.display()),
        (false, 0) => "stopped early; checkpoint.states = 0, so the run cannot go on".into(),
        (false, _) => "stopped before the first epoch: there is nothing to go on with".into(),
    }
}

/// Names keys that were set and change nothing.
fn warn_of_keys(config: &Config, preset: &Config) {
    for key in config.without_effect(preset) {
        warn!(target: SEEN, "{key}");
        write_line(&format!("warning: {key}"));
    }
}

/// Names the bar files of a command line in the configuration, where there are any.
fn set_files(data: &mut settings::Data, files: &[String]) {
    match files {
        [] => {}
        [file] => (data.file, data.files) = (Some(file.clone()), Vec::new()),
        files => (data.file, data.files) = (None, files.to_vec()),
    }
}

/// `host eval`.
pub fn eval(args: &EvalArgs) -> anyhow::Result<()> {
    let path = Checkpoint::file_of(&args.checkpoint)?;
    let checkpoint = Checkpoint::load(&path)?;
    let mut config = checkpoint.config.clone();
    match config.task.is_transitions() {
        true if !args.data.is_empty() => config.transitions.files.clone_from(&args.data),
        true => {}
        false => set_files(&mut config.data, &args.data),
    }
    // One environment and a small ring: evaluation collects nothing.
    config.collect.environments = 1;
    config.collect.capacity = 1;
    config.collect.warmup = 1;
    config.collect.steps = 1;
    if !config.task.is_transitions() {
        // Of transitions n is a part of what is evaluated.
        config.replay = settings::Replay::default();
    }
    config.her.enabled = false;
    let loaded = Loaded::of_record(&mut config, checkpoint.market.as_ref(), checkpoint.data_set.as_ref())?;
    let world = loaded.world();
    // Held-out transitions are looked at on the CPU, whatever trained the policy.
    let gpu = match world.data_set() {
        Some(_) => Err("transitions are evaluated on the CPU".into()),
        None => open_gpu(&args.device, None)?,
    };
    let (mut agent, _) = agent(gpu, &config, world, &args.device, &Progress::new(Show::Nothing), false)?;
    agent.set_parameters(&checkpoint.online, &checkpoint.target)?;
    agent.set_kept(&checkpoint.kept)?;
    // The policies that were compared are known where the run's metrics are.
    let metrics = path.parent().unwrap_or(Path::new(".")).join("metrics.jsonl");
    let sharpes = if args.part == PartName::Test { validated(&metrics)? } else { None };
    let report =
        world.judge(agent.as_mut(), args.part, &config.report, sharpes.as_deref(), &Stop::default())?;
    let part = format!("{:?}", args.part).to_lowercase();
    if let Some(folder) = &args.csv {
        let (Some(market), Some(backtests)) = (world.market(), report.market()) else {
            bail!("--csv {}: only a market has bars and trades", folder.display());
        };
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        market.write_tables(&backtests.passes, args.part, config.model.branches.len(), folder, &part)?;
    }
    if args.json {
        return write_result(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    if agent.device() != checkpoint.provenance.device && world.data_set().is_none() {
        write_line(&format!(
            "note: trained on {}, evaluated on {}: sums are rounded in another order there, and a decision between \
             two nearly equal actions may differ",
            checkpoint.provenance.device,
            agent.device()
        ));
    }
    let epoch = checkpoint.provenance.epoch;
    let fold = world.walk().map_or(String::new(), |w| format!(" of fold {} of {}", w.fold, w.of));
    write_result(&format!("{part} part{fold}, policy of epoch {epoch} ({}):\n{report}\n", path.display()))
}

/// `host profile`.
pub fn profile_command(args: &ProfileArgs) -> anyhow::Result<()> {
    let Chosen::Preset(base) = Chosen::of(Some(args.preset.as_deref().unwrap_or(args.workload.preset())))?
    else {
        return Ok(());
    };
    let base = *base.unwrap_or_default();
    let mut config = configuration(&base, args.config.as_deref(), &args.sets)?;
    if config.model.state == 0 {
        config.model.state = 80;
    }
    config.check()?;
    let matmuls = match args.matmul {
        Some(MatmulChoice::Cublaslt) => vec![Matmul::CublasLt],
        Some(MatmulChoice::Rust) => vec![Matmul::Rust],
        Some(MatmulChoice::Auto) | None => match CublasLtLibrary::load() {
            Ok(_) => vec![Matmul::CublasLt, Matmul::Rust],
            Err(error) => {
                write_line(&format!("without cuBLASLt: {error}"));
                vec![Matmul::Rust]
            }
        },
    };
    let precisions = match args.precision.as_slice() {
        [] => vec![Precision::Fp32, Precision::Tf32, Precision::Bf16],
        chosen => chosen.iter().map(|&p| p.into()).collect(),
    };
    let options = ProfileOptions {
        gpu: args.gpu,
        replays: args.replays as usize,
        precisions,
        matmuls,
        dot: args.dot.clone(),
        nodes: args.nodes,
        search: args.orders.map(|seconds| Duration::from_secs(seconds.into())),
        recorded: args.recorded,
        copies: !args.no_copies,
        plan_cache: PlanCache::default_path(),
        order_cache: args.order_file.clone().or_else(OrderCache::default_path),
    };
    let figures = profile(embedded::images(), &config, &options)?;
    if let Some(path) = &args.json {
        write_atomically(path, serde_json::to_string_pretty(&figures)?.as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    write_result(&table(&figures))
}

/// `host doctor`.
pub fn doctor_command() -> anyhow::Result<()> {
    write_result(&doctor::doctor(embedded::images()).to_string())
}

/// `host completions`.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "host", &mut script);
    write_result(&String::from_utf8(script)?)
}

/// What `--preset` asked for.
enum Chosen {
    /// The list of the presets, which is printed; there is nothing else to do.
    Listed,
    /// The preset of that name, if one was named.
    Preset(Option<Box<Config>>),
}

impl Chosen {
    fn of(name: Option<&str>) -> anyhow::Result<Self> {
        match name {
            None => Ok(Self::Preset(None)),
            Some("list") => write_result(&presets::list()).map(|()| Self::Listed),
            Some(name) => Ok(Self::Preset(Some(Box::new(presets::find(name)?.config()?)))),
        }
    }
}

fn configuration(preset: &Config, file: Option<&Path>, sets: &[String]) -> anyhow::Result<Config> {
    let text = file
        .map(|path| {
            let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
            anyhow::Ok((path.display().to_string(), text))
        })
        .transpose()?;
    let file = text.as_ref().map(|(name, text)| (name.as_str(), text.as_str()));
    Ok(Config::layered(preset, file, sets)?)
}

/// The opened GPU; `Err` holds why there is none.
type OpenedGpu = Result<CudaExec, String>;

fn open_gpu(args: &DeviceArgs, pinned: Option<Choice>) -> anyhow::Result<OpenedGpu> {
    if args.device == DeviceChoice::Cpu {
        return Ok(Err("the CPU was asked for".into()));
    }
    let products = match args.matmul {
        MatmulChoice::Cublaslt => Products::CublasLt,
        MatmulChoice::Auto | MatmulChoice::Rust => Products::Rust,
    };
    let choice = pinned.unwrap_or(if args.deterministic { Choice::First } else { Choice::default() });
    let options = CudaOptions {
        gpu: args.gpu,
        products,
        choice,
        plan_cache: PlanCache::default_path(),
        order_cache: OrderCache::default_path(),
    };
    match CudaExec::open(embedded::images(), options) {
        Ok(mut exec) => {
            exec.set_rust_product(gemm::product);
            Ok(Ok(exec))
        }
        // With `auto` a missing GPU is no error, but an index or a backend that was named and is not there is one.
        Err(error)
            if args.device == DeviceChoice::Gpu || args.gpu != 0 || args.matmul == MatmulChoice::Cublaslt =>
        {
            Err(error).context("opening the GPU")
        }
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Who computes the training step's products. `auto` takes what was measured to be faster (docs/BENCHMARKS.md): the
/// fused and grouped kernels of this program, with a third of the library's dependent nodes.
fn backend(args: &DeviceArgs) -> Matmul {
    match args.matmul {
        MatmulChoice::Cublaslt => Matmul::CublasLt,
        MatmulChoice::Auto | MatmulChoice::Rust => Matmul::Rust,
    }
}

fn agent<'a>(
    gpu: OpenedGpu,
    config: &'a Config,
    world: World<'a>,
    args: &DeviceArgs,
    progress: &Progress,
    profile: bool,
) -> anyhow::Result<(Box<dyn Agent + 'a>, String)> {
    match gpu {
        Ok(exec) => {
            let matmul = backend(args);
            Ok((Box::new(GpuAgent::new(config, world, exec, matmul, profile)?), embedded::kernel_hash()))
        }
        Err(reason) => {
            if args.device == DeviceChoice::Auto {
                progress.line(&format!("no GPU: {reason}"));
            }
            Ok((Box::new(CpuAgent::new(config, world)?), "none".into()))
        }
    }
}

/// The market's costs, printed at the start of every run.
fn costs(config: &Config) -> String {
    let m = &config.market;
    format!(
        "costs: half spread {:.1} bp, slippage {:.1} bp, impact {:.1} bp per unit of equity, taker fee {:.1} bp, maker \
         fee {:.1} bp, financing {:.1}% and borrow {:.1}% a year, prices are {:?}",
        1e4 * m.half_spread,
        1e4 * m.slippage,
        1e4 * m.impact,
        1e4 * m.taker_fee,
        1e4 * m.maker_fee,
        100.0 * m.financing,
        100.0 * m.borrow,
        m.bar_side
    )
    .replace("Mid", "mid")
    .replace("Bid", "bid")
    .replace("Ask", "ask")
}

/// Parameters per part of the networks.
fn counts(flat: &Flat) -> String {
    let parts = flat.counts();
    parts.iter().map(|(part, count)| format!("{part} {count}")).collect::<Vec<_>>().join(", ")
}
