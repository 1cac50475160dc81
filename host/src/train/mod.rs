//! Training runs: data to market or a control task, agent on either device, the loop, checkpoints and metrics.

pub mod agent;
pub mod checkpoint;
pub mod control;
pub mod cpu;
pub mod files;
pub mod gpu;
pub mod gpu_task;
pub mod hindsight;
pub mod host_environments;
pub mod market;
pub mod metrics;
pub mod offline;
pub mod oracle;
pub mod position;
pub mod profiler;
pub mod progress;
pub mod record;
pub mod replay;
pub mod run;
pub mod run_files;
pub mod same;
pub mod saves;
pub mod task;
pub mod tensor_file;
pub mod walk;
pub mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};

/// What was under way was left undone, because a stop was asked for. What it would have come to is made by whoever goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped before it was done")]
pub struct Stopped;

impl Stopped {
    /// What something came to, or none if it was left undone.
    ///
    /// # Errors
    /// Any other error.
    pub fn none<T>(result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is::<Stopped>() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A wish to stop, from Ctrl-C, a signal or a test. The loop looks at it between steps, saves, and ends.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Wish>);

#[derive(Debug, Default)]
struct Wish {
    /// The signal that asked first; 0 for none.
    signal: AtomicI32,
    /// Whether there is anything to save.
    begun: AtomicBool,
}

impl Stop {
    /// Whether somebody asked.
    pub fn asked(&self) -> bool {
        self.signal().is_some()
    }

    /// The signal that asked first.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.signal.load(Ordering::SeqCst)).filter(|&signal| signal != 0)
    }

    /// For what may be left undone.
    ///
    /// # Errors
    /// [`Stopped`] if somebody asked.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.asked() { Err(Stopped) } else { Ok(()) }
    }

    /// Asks as a signal does; false if somebody had asked before.
    pub fn ask(&self, signal: i32) -> bool {
        self.0.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Says that something will be written from now on. Up to here a signal ends the process at once: loading bars may take
    /// minutes, and nothing is lost. Whoever calls it looks at [`Stop::asked`] afterwards.
    pub fn begin(&self) {
        self.0.begun.store(true, Ordering::SeqCst);
    }

    /// Ctrl-C, SIGTERM and SIGHUP ask; a second one, or one before [`Stop::begin`], ends the process at once, with the code
    /// that shells give such an end.
    ///
    /// To be called before any other thread is started: the signals are taken out of this thread and those that it will
    /// start, and a thread waits for them.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn on_signals(&self) -> anyhow::Result<()> {
        let stop = self.clone();
        // Whoever started the program with a signal ignored (nohup) does not want to be stopped by it.
        let wanted: SigSet = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM]
            .into_iter()
            .filter(|&signal| !is_ignored(signal as i32))
            .collect();
        wanted.thread_block().context("listening to signals")?;
        let listen = move || {
            while let Ok(signal) = wanted.wait() {
                let first = stop.ask(signal as i32);
                let begun = stop.0.begun.load(Ordering::SeqCst);
                if first && !begun {
                    progress::write_line("\nstopped before the first epoch: nothing was written");
                }
                if !first || !begun {
                    std::process::exit(exit_code(signal as i32));
                }
                progress::write_line("\nstopping after this step; once more to end at once");
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(listen).context("listening to signals")?;
        Ok(())
    }
}

/// What shells say of a program that a signal ended: 130 for Ctrl-C, 143 for SIGTERM (`docs/ERRORS.md`).
pub fn exit_code(signal: i32) -> i32 {
    128 + signal
}

/// Whether the process inherited the signal as ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero `sigaction` is a valid value, and with a null pointer for the new action the call only reads.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
