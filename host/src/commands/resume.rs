//! `host train --resume RUN`: the state that a run goes on from, and what has to be the same for its bits to be.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use settings::{Config, Difference};

use crate::cli::{DeviceArgs, DeviceChoice, MatmulChoice};
use crate::cublaslt::Choice;
use crate::train::agent::Agent;
use crate::train::market::Walk;
use crate::train::run::Resumed;
use crate::train::run_files::RunFiles;
use crate::train::saves::{self, Origin, SavedRun};
use crate::train::walk::fold_folders;
use crate::train::world::World;

/// A run that goes on: its locked folder and its state.
pub struct Resuming {
    files: RunFiles,
    path: PathBuf,
    saved: SavedRun,
}

impl Resuming {
    /// Opens a run's folder, or one of its states.
    ///
    /// # Errors
    /// A folder in use, one without a state, a state that is damaged.
    pub fn open(argument: &Path) -> anyhow::Result<Self> {
        if let (Some(first), Some(last)) = (fold_folders(argument).first(), fold_folders(argument).last()) {
            bail!(
                "{} is the folder of a walk-forward, which goes on fold by fold only: name one of {first} to {last} in it \
                 (the folds behind it and the pooled result are made by a new run)",
                argument.display()
            );
        }
        // A state is in the folder `state` of the run's.
        let of_state = || argument.parent().filter(|folder| folder.ends_with(saves::FOLDER))?.parent();
        let folder = if argument.is_dir() { Some(argument) } else { of_state() };
        let folder = folder.with_context(|| {
            format!("{} is neither a run's folder nor a saved state in one", argument.display())
        })?;
        // Of `state/000001.safetensors` the run's folder is the one that the program was started in.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let files = RunFiles::open(folder)?;
        let (_, path, saved) = saves::open(argument)?;
        Ok(Self { files, path, saved })
    }

    /// The configuration that the run was started with.
    pub fn config(&self) -> &Config {
        &self.saved.config
    }

    /// The fold of a walk-forward that the run is, if any.
    pub fn walk(&self) -> Option<Walk> {
        self.saved.market.as_ref()?.walk
    }

    /// Where to run: what the command line leaves open is as it was.
    pub fn device(&self, args: &DeviceArgs) -> DeviceArgs {
        let mut device = args.clone();
        if device.device == DeviceChoice::Auto {
            let on_cpu = self.saved.origin.device.starts_with("CPU");
            device.device = if on_cpu { DeviceChoice::Cpu } else { DeviceChoice::Gpu };
        }
        if device.matmul == MatmulChoice::Auto && self.saved.origin.plans.is_some() {
            device.matmul = MatmulChoice::Cublaslt;
        }
        device
    }

    /// cuBLASLt's algorithms, where the run uses it: the same ones, or an error.
    pub fn choice(&self) -> Option<Choice> {
        self.saved.origin.plans.clone().map(Choice::Pinned)
    }

    /// Whether configuration and bars are the run's; `config` and `world` are those of the command line.
    ///
    /// # Errors
    /// Names every key that differs and may not, or both hashes of the bars.
    pub fn check_input(&self, config: &Config, world: World<'_>) -> anyhow::Result<()> {
        let before = &self.saved.config;
        let refused = |d: &Difference| match d.key.as_str() {
            "train.epochs" => config.train.epochs < before.train.epochs,
            // Another place of the same bars, which their hash tells.
            "data.file" => before.data.file.is_none() || config.data.file.is_none(),
            key => !key.starts_with("checkpoint."),
        };
        let differences: Vec<String> =
            before.differences(config).iter().filter(|d| refused(d)).map(Difference::to_string).collect();
        if !differences.is_empty() {
            bail!(
                "the run cannot go on with another configuration ({}): only train.epochs may be raised, checkpoint.* be \
                 changed, and data.file be another place of the same bars",
                differences.join("; ")
            );
        }
        // A control task is all in the configuration.
        let (Some(saved), Some(market)) = (&self.saved.market, world.market()) else { return Ok(()) };
        let (before, now) = (&saved.symbols, &market.record.symbols);
        if before.len() != now.len() {
            bail!("the run cannot go on with {} symbol(s): it was trained on {}", now.len(), before.len());
        }
        for (before, now) in before.iter().zip(now) {
            if (&before.bars_hash, before.bars) != (&now.bars_hash, now.bars) || before.fold != now.fold {
                bail!(
                    "the run cannot go on with other bars: {} has {} bars with hash {}, it was trained on {} ({} bars, \
                     hash {})",
                    now.source,
                    now.bars,
                    now.bars_hash,
                    before.source,
                    before.bars,
                    before.bars_hash
                );
            }
        }
        Ok(())
    }

    /// The files and the state, if the agent computes the run's bits.
    ///
    /// # Errors
    /// Names what differs: the program, its kernels, the device.
    pub fn check_agent(self, agent: &dyn Agent, kernels: &str) -> anyhow::Result<(RunFiles, Resumed)> {
        let differences = Origin::of(agent, kernels).differences(&self.saved.origin);
        if !differences.is_empty() {
            bail!("the run cannot go on bit for bit: {}", differences.join("; "));
        }
        Ok((self.files, (self.path, self.saved)))
    }

    /// What there is to say at the start.
    pub fn text(&self) -> String {
        let position = &self.saved.position;
        format!(
            "going on from {}: epoch {}, {} of its training steps done, {} in all",
            self.path.display(),
            position.epoch,
            position.trained,
            position.step
        )
    }
}
