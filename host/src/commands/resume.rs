//! `host train --resume RUN`: the state that a run or a walk-forward goes on from, and what has to be the same for its bits
//! to be.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use settings::Config;

use crate::cli::{DeviceArgs, DeviceChoice, MatmulChoice};
use crate::cublaslt::Choice;
use crate::train::agent::Agent;
use crate::train::market::Walk;
use crate::train::run::Resumed;
use crate::train::run_files::RunFiles;
use crate::train::same::{check_bars, check_config, check_origin};
use crate::train::saves::{self, Origin, SavedRun};
use crate::train::walk::{self, SavedWalk, fold_folders};
use crate::train::world::World;

/// What goes on.
pub enum Resuming {
    /// A run, or one fold of a walk-forward.
    Run(Box<ResumingRun>),
    /// A walk-forward with all its folds.
    Walk(Box<ResumingWalk>),
}

/// A run that goes on: its locked folder and its state.
pub struct ResumingRun {
    files: RunFiles,
    path: PathBuf,
    saved: SavedRun,
}

/// A walk-forward that goes on: its locked folder and its state.
pub struct ResumingWalk {
    /// The folder.
    pub files: RunFiles,
    /// The state.
    pub from: (PathBuf, SavedWalk),
}

impl Resuming {
    /// Opens a run's folder, or one of its states.
    ///
    /// # Errors
    /// A folder in use, one without a state, a state that is damaged.
    pub fn open(argument: &Path) -> anyhow::Result<Self> {
        // The folder of the states means the run's.
        let run = argument.parent().filter(|_| argument.is_dir() && argument.ends_with(saves::FOLDER));
        let run = run.map(|run| if run.as_os_str().is_empty() { Path::new(".") } else { run });
        let argument = run.filter(|run| saves::any(run).unwrap_or(false)).unwrap_or(argument);
        // A state is in the folder `state` of the run's.
        let of_state = || argument.parent().filter(|folder| folder.ends_with(saves::FOLDER))?.parent();
        let folder = if argument.is_dir() { Some(argument) } else { of_state() };
        let folder = folder.with_context(|| {
            format!("{} is neither a run's folder nor a saved state in one", argument.display())
        })?;
        // Of `state/000001.safetensors` the run's folder is the one that the program was started in.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let files = RunFiles::open(folder)?;
        if saves::formats(argument)?.iter().any(|format| format == walk::FORMAT) {
            let (_, path, saved) = saves::open(argument)?;
            return Ok(Self::Walk(Box::new(ResumingWalk { files, from: (path, saved) })));
        }
        if let (Some(first), Some(last)) = (fold_folders(argument).first(), fold_folders(argument).last()) {
            bail!(
                "{} is the folder of a walk-forward that has saved no state of its own (checkpoint.states was 0, or an \
                 earlier program made it), so it goes on fold by fold only: name one of {first} to {last} in it",
                argument.display()
            );
        }
        let (_, path, saved) = saves::open(argument)?;
        Ok(Self::Run(Box::new(ResumingRun { files, path, saved })))
    }

    /// The configuration that it was started with.
    pub fn config(&self) -> &Config {
        match self {
            Self::Run(run) => &run.saved.config,
            Self::Walk(walk) => &walk.from.1.config,
        }
    }

    fn origin(&self) -> &Origin {
        match self {
            Self::Run(run) => &run.saved.origin,
            Self::Walk(walk) => &walk.from.1.origin,
        }
    }

    /// Where to run: what the command line leaves open is as it was.
    pub fn device(&self, args: &DeviceArgs) -> DeviceArgs {
        let mut device = args.clone();
        if device.device == DeviceChoice::Auto {
            let on_cpu = self.origin().device.starts_with("CPU");
            device.device = if on_cpu { DeviceChoice::Cpu } else { DeviceChoice::Gpu };
        }
        if device.matmul == MatmulChoice::Auto && self.origin().plans.is_some() {
            device.matmul = MatmulChoice::Cublaslt;
        }
        device
    }

    /// cuBLASLt's algorithms, where they are used: the same ones, or an error.
    pub fn choice(&self) -> Option<Choice> {
        self.origin().plans.clone().map(Choice::Pinned)
    }
}

impl ResumingRun {
    /// The fold of a walk-forward that the run is, if any.
    pub fn walk(&self) -> Option<Walk> {
        self.saved.market.as_ref()?.walk
    }

    /// Whether configuration and bars are the run's; `config` and `world` are those of the command line.
    ///
    /// # Errors
    /// Names every key that differs and may not, or both hashes of the bars.
    pub fn check_input(&self, config: &Config, world: World<'_>) -> anyhow::Result<()> {
        check_config(&self.saved.config, config, true)?;
        if let (Some(saved), Some(data)) = (&self.saved.data_set, world.data_set()) {
            saved.check_same(&data.record).context("the run cannot go on")?;
        }
        // A control task is all in the configuration.
        let (Some(saved), Some(market)) = (&self.saved.market, world.market()) else { return Ok(()) };
        check_bars(&saved.symbols, &market.record.symbols)
    }

    /// The files and the state, if the agent computes the run's bits.
    ///
    /// # Errors
    /// Names what differs: the program, its kernels, the device.
    pub fn check_agent(self, agent: &dyn Agent, kernels: &str) -> anyhow::Result<(RunFiles, Resumed)> {
        check_origin(&self.saved.origin, &Origin::of(agent, kernels))?;
        Ok((self.files, (self.path, self.saved)))
    }

    /// What there is to say at the start.
    pub fn text(&self) -> String {
        format!("going on from {}: {}", self.path.display(), self.saved.position.text())
    }
}

/// The walk-forward that a fold's folder is in, if it can go on.
pub fn walk_of(fold: &Path) -> Option<PathBuf> {
    let whole = fold.canonicalize().ok()?.parent()?.to_path_buf();
    saves::formats(&whole).ok()?.iter().any(|format| format == walk::FORMAT).then_some(whole)
}
