//! Training runs: data to market, agent on either device, the loop, checkpoints and metrics.

pub mod agent;
pub mod checkpoint;
pub mod cpu;
pub mod gpu;
pub mod market;
pub mod metrics;
pub mod progress;
pub mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A wish to stop, from Ctrl-C or a test. The loop looks at it between steps, saves, and ends.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicU8>);

impl Stop {
    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Asks; returns how many times that has been done now.
    pub fn ask(&self) -> u8 {
        self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Ctrl-C and SIGTERM ask; a second one ends the process at once, with the code of an interrupted program.
    pub fn on_signals(&self) -> anyhow::Result<()> {
        let stop = self.clone();
        ctrlc::set_handler(move || {
            if stop.ask() > 1 {
                std::process::exit(130);
            }
            eprintln!("\nstopping after this step; once more to end at once");
        })?;
        Ok(())
    }
}
