//! `host train` with walk-forward folds, from the beginning or from where one stands.

use ::gpu::market::PORTFOLIO;
use settings::Config;

use super::resume::ResumingWalk;
use super::{Ending, OpenedGpu, agent, costs, open_gpu, stopped_text, warn_of_keys};
use crate::cli::{DeviceArgs, TrainArgs};
use crate::cublaslt::Choice;
use crate::train::Stop;
use crate::train::market::{Market, load};
use crate::train::progress::{Progress, Show, write_result};
use crate::train::record::PAGE;
use crate::train::run_files::RunFiles;
use crate::train::same::check_config;
use crate::train::saves;
use crate::train::walk::WalkForward;

/// What the command line comes to.
pub struct Folds<'a> {
    /// The configuration.
    pub config: Config,
    /// What it was made from, for keys that were set without effect.
    pub preset: &'a Config,
    /// Where to run.
    pub device: &'a DeviceArgs,
    /// The rest of the command line.
    pub args: &'a TrainArgs,
    /// Wish to stop.
    pub stop: &'a Stop,
}

impl Folds<'_> {
    /// Trains and tests all folds, or those that are still to come.
    ///
    /// # Errors
    /// What keeps a fold from being trained, what would make other bits than the walk-forward that goes on.
    pub fn train(
        self,
        gpu: OpenedGpu,
        progress: &mut Progress,
        resuming: Option<ResumingWalk>,
    ) -> anyhow::Result<Ending> {
        let Self { config, preset, device, args, stop } = self;
        if let Some(ResumingWalk { from: (_, saved), .. }) = &resuming {
            check_config(&saved.config, &config, false)?;
        }
        config.check_before_data(bars::FEATURES, PORTFOLIO as usize)?;
        let symbols = load(&config.data)?;
        // Before anything is written: a part that is too short is found here.
        let folds = Market::folds(&config, &symbols)?;
        warn_of_keys(&config, preset);
        for symbol in &symbols {
            progress.line(symbol.loaded.report.to_string().trim_end());
        }
        progress.line(&costs(&config));
        // A folder for a new walk-forward is made here; what is in the folder of one that goes on stays as it is until its
        // interrupted fold is ready.
        if resuming.is_none() {
            stop.begin();
        }
        let (files, from) = match resuming {
            Some(ResumingWalk { files, from }) => (files, Some(from)),
            None => (RunFiles::create(args.run.as_deref())?, None),
        };
        progress.line(&format!("run: {}", files.folder.display()));
        let show = args.show();
        let (mut opened, states) = (Some(gpu), config.checkpoint.states);
        let walk = WalkForward { config, symbols: &symbols, folds: &folds, files: &files, stop };
        let result = walk.train(from, progress, &mut |config, market, plans| {
            let gpu = match opened.take() {
                Some(gpu) => gpu,
                // Every fold has a GPU context of its own: the one before is gone with its agent.
                None => open_gpu(device, plans.cloned().map(Choice::Pinned))?,
            };
            agent(gpu, config, market.into(), device, &Progress::new(show), args.profile)
        })?;
        let Some(result) = result else {
            progress.line(&stopped_text(&files.folder, saves::any(&files.folder)?, states));
            return Ok(stop.signal().map_or(Ending::Done, Ending::Stopped));
        };
        if show != Show::Json {
            write_result(&format!("{result}\n"))?;
            progress.line(&format!("page: {}", files.folder.join(PAGE).display()));
        }
        Ok(Ending::Done)
    }
}
