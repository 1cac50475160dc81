//! `host train --transitions`: learning from a data set.

use anyhow::bail;
use settings::{Config, Flat};

use crate::cli::{DeviceChoice, TrainArgs};
use crate::commands::{OpenedGpu, backend, counts};
use crate::embedded;
use crate::train::Stop;
use crate::train::offline::{self, CpuOffline, GpuOffline, OfflineAgent, OfflineData};
use crate::train::progress::{Progress, write_result};
use crate::train::run::RunFiles;

/// Trains on the data set that the configuration names.
pub(super) fn train(
    args: &TrainArgs,
    mut config: Config,
    gpu: OpenedGpu,
    stop: &Stop,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    if args.profile {
        bail!(
            "--profile times the steps of a run with environments; `host profile` times the step of any configuration"
        );
    }
    let data = OfflineData::prepare(&mut config)?;
    progress.line(data.text.trim_end());
    let flat = Flat::new(&config.model, &config.parts());
    progress.line(&format!("network: {} parameters ({})", flat.count(), counts(&flat)));
    let files = RunFiles::create(args.run.as_deref())?;
    progress.line(&format!("run: {}", files.folder.display()));
    let (mut agent, kernels): (Box<dyn OfflineAgent + '_>, String) = match gpu {
        Ok(exec) => {
            let agent = GpuOffline::new(&config, &data, exec, backend(&args.device))?;
            (Box::new(agent), embedded::kernel_hash())
        }
        Err(reason) => {
            if args.device.device == DeviceChoice::Auto {
                progress.line(&format!("no GPU: {reason}"));
            }
            (Box::new(CpuOffline::new(&config, &data)?), "none".into())
        }
    };
    progress.line(&format!("device: {}", agent.device()));
    let outcome = offline::train(&config, &data, agent.as_mut(), &files, &kernels, stop, progress)?;
    if outcome.stopped {
        progress.line("stopped early");
    }
    write_result(&format!(
        "held-out transitions, policy of epoch {} ({}):\n  C51 loss {:.4}, |td| {:.4}\n",
        outcome.best_epoch,
        files.best().display(),
        outcome.validation_loss,
        outcome.validation_td
    ))
}
