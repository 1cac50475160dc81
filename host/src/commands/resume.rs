//! `host train --resume RUN`: the state that a run goes on from, and what has to be the same for its bits to be.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use settings::{Config, Difference};

use crate::cli::{DeviceArgs, DeviceChoice, MatmulChoice};
use crate::cublaslt::Choice;
use crate::train::agent::Agent;
use crate::train::market::Market;
use crate::train::run::{Resumed, RunFiles};
use crate::train::saves::{self, Origin, SavedRun};

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
        // The folder of a state is two above it.
        let folder = match argument.is_dir() {
            true => Some(argument),
            false => argument.parent().and_then(Path::parent).filter(|folder| folder.is_dir()),
        };
        let folder = folder
            .with_context(|| format!("{} is neither a run's folder nor a state", argument.display()))?;
        let files = RunFiles::open(folder)?;
        let (_, path, saved) = saves::open(argument)?;
        Ok(Self { files, path, saved })
    }

    /// The configuration that the run was started with.
    pub fn config(&self) -> &Config {
        &self.saved.config
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

    /// Whether configuration and bars are the run's; `config` and `market` are those of the command line.
    ///
    /// # Errors
    /// Names every key that differs and may not, or both hashes of the bars.
    pub fn check_input(&self, config: &Config, market: &Market) -> anyhow::Result<()> {
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
        let (before, now) = (&self.saved.market, &market.record);
        if (&before.bars_hash, before.bars) != (&now.bars_hash, now.bars) || before.fold != now.fold {
            bail!(
                "the run cannot go on with other bars: {} has {} bars with hash {}, it was trained on {} ({} bars, hash {})",
                now.source,
                now.bars,
                now.bars_hash,
                before.source,
                before.bars,
                before.bars_hash
            );
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
