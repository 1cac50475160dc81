//! What a person sees of a run: a bar on a terminal, plain lines otherwise, nothing with `--quiet`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};

/// Shortest time between two plain lines of one phase.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows progress on standard error; results go to standard output.
pub struct Progress {
    quiet: bool,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Progress {
    /// A bar if standard error is a terminal.
    pub fn new(quiet: bool) -> Self {
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {per_sec} {eta} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| ProgressBar::new(0).with_style(style));
        Self { quiet, bar, last_line: Instant::now() }
    }

    /// Begins a phase of `total` steps.
    pub fn begin(&mut self, name: &str, total: usize) {
        self.last_line = Instant::now();
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_prefix(name.to_string());
            bar.set_length(total as u64);
            bar.set_message("");
        }
    }

    /// `done` of the phase's steps are finished.
    pub fn advance(&mut self, name: &str, done: usize, total: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        } else if !self.quiet && done < total && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            write_line(&format!("{name}: {done} of {total} steps"));
        }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| write_line(text)),
            None if !self.quiet => write_line(text),
            None => {}
        }
    }

    /// Removes the bar.
    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A line on standard error. One that cannot be written (a closed terminal, a full disk) must not stop a run.
pub fn write_line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Text on standard output.
///
/// # Errors
/// What the operating system said, unless the reader went away: that is its own decision.
pub fn write_result(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other.context("writing the result")?),
    }
}
