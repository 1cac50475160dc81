//! Training runs: data to market, agent on either device, the loop, checkpoints and metrics.

pub mod agent;
pub mod checkpoint;
pub mod cpu;
pub mod gpu;
pub mod market;
pub mod metrics;
pub mod profiler;
pub mod progress;
pub mod record;
pub mod replay;
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
        // Whoever started the program with a signal ignored (nohup) does not want to be stopped by it.
        let signals = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
        let ignored: Vec<i32> = signals.into_iter().filter(|&signal| is_ignored(signal)).collect();
        ctrlc::set_handler(move || {
            if stop.ask() > 1 {
                std::process::exit(130);
            }
            progress::write_line("\nstopping after this step; once more to end at once");
        })?;
        for signal in ignored {
            // SAFETY: sets a disposition that has no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        Ok(())
    }
}

/// Whether the process inherited the signal as ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero `sigaction` is a valid value, and with a null pointer for the new action the call only reads.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
