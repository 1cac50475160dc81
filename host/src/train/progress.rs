//! What a person or a program sees of a run: a bar on a terminal, plain lines otherwise, nothing with `--quiet`, JSON
//! lines on standard output with `--json`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Shortest time between two plain lines of one phase.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// To a person, on standard error.
    Text,
    /// Not at all.
    Nothing,
    /// To a program: JSON objects on standard output, one a line, as in `metrics.jsonl`, and nothing else there.
    Json,
}

/// Shows progress on standard error; results go to standard output.
pub struct Progress {
    show: Show,
    bar: Option<ProgressBar>,
    last_line: Instant,
    pace: Pace,
    /// Loss and Sharpe ratio of the last epoch.
    status: String,
}

/// How fast the run's training steps go.
struct Pace {
    /// Training steps of the whole run from here on; 0 before they are known.
    planned: usize,
    /// Of finished phases.
    before: usize,
    /// Of the phase that is running.
    done: usize,
    /// Time spent since the first training step was begun.
    start: Option<Instant>,
    /// When the phase began.
    phase: Instant,
}

/// A line of progress for a program.
#[derive(Serialize)]
struct ProgressRow<'a> {
    kind: &'a str,
    phase: &'a str,
    done: usize,
    total: usize,
    steps_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<f64>,
}

impl Progress {
    /// A bar if standard error is a terminal.
    pub fn new(show: Show) -> Self {
        let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let terminal = show == Show::Text && std::io::stderr().is_terminal();
        let bar = terminal.then(|| ProgressBar::new(0).with_style(style));
        let now = Instant::now();
        let pace = Pace { planned: 0, before: 0, done: 0, start: None, phase: now };
        Self { show, bar, last_line: now, pace, status: String::new() }
    }

    /// How many training steps are to come, for the time left.
    pub fn plan(&mut self, steps: usize) {
        self.pace.planned = steps;
    }

    /// Begins a phase of `total` steps.
    pub fn begin(&mut self, name: &str, total: usize) {
        self.last_line = Instant::now();
        self.pace.begin();
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_prefix(name.to_string());
            bar.set_length(total as u64);
            bar.set_message(self.status.clone());
        }
    }

    /// `done` of the phase's training steps are finished.
    pub fn advance(&mut self, name: &str, done: usize, total: usize) {
        self.pace.done = done;
        self.pace.start.get_or_insert(self.pace.phase);
        let (speed, left) = (self.pace.per_second(), self.pace.left());
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
            bar.set_message(format!("{}{}", pace_text(speed, left), self.status));
            return;
        }
        if self.show == Show::Nothing || done >= total || self.last_line.elapsed() < LINE_EVERY {
            return;
        }
        self.last_line = Instant::now();
        if self.show == Show::Json {
            let seconds_left = left.map(|left| left.as_secs_f64());
            let row = ProgressRow {
                kind: "progress",
                phase: name,
                done,
                total,
                steps_per_second: speed,
                seconds_left,
            };
            // A reader that went away is no reason to stop training.
            let _ = self.json(&row);
        } else {
            write_line(&format!(
                "{name}: {done} of {total} steps  {}{}",
                pace_text(speed, left),
                self.status
            ));
        }
    }

    /// What the last epoch came to, shown beside the pace.
    pub fn status(&mut self, loss: f32, sharpe: Option<f64>) {
        let sharpe = sharpe.map_or("undefined".into(), |sharpe| format!("{sharpe:.2}"));
        self.status = format!("  loss {loss:.4}  validation Sharpe {sharpe}");
    }

    /// A row for a program.
    pub fn row(&self, kind: &str, fields: &impl Serialize) -> anyhow::Result<()> {
        #[derive(Serialize)]
        struct Row<'a, T: Serialize> {
            kind: &'a str,
            #[serde(flatten)]
            fields: &'a T,
        }
        if self.show == Show::Json { self.json(&Row { kind, fields }) } else { Ok(()) }
    }

    fn json(&self, row: &impl Serialize) -> anyhow::Result<()> {
        write_result(&format!("{}\n", serde_json::to_string(row)?))
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| write_line(text)),
            None if self.show == Show::Text => write_line(text),
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

impl Pace {
    fn begin(&mut self) {
        self.before += std::mem::take(&mut self.done);
        self.phase = Instant::now();
    }

    /// Training steps a second in this phase.
    fn per_second(&self) -> f64 {
        self.done as f64 / self.phase.elapsed().as_secs_f64().max(1e-9)
    }

    /// Time left of the run, at the speed so far with everything between the training steps.
    fn left(&self) -> Option<Duration> {
        let done = self.before + self.done;
        let spent = self.start?.elapsed().as_secs_f64();
        let left = self.planned.checked_sub(done)? as f64;
        (done > 0).then(|| Duration::from_secs_f64(spent / done as f64 * left))
    }
}

fn pace_text(per_second: f64, left: Option<Duration>) -> String {
    let left = left.map_or(String::new(), |left| format!("  {} left", indicatif::HumanDuration(left)));
    let digits = if per_second < 100.0 { 1 } else { 0 };
    format!("{per_second:.digits$} steps/s{left}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_of_all_epochs() {
        let mut pace = Pace { planned: 0, before: 0, done: 0, start: None, phase: Instant::now() };
        assert_eq!(pace.left(), None, "nothing is known before the first step");
        pace.planned = 400;
        pace.start = Instant::now().checked_sub(Duration::from_secs(10));
        pace.done = 60;
        pace.begin();
        pace.done = 40;
        // 100 of 400 steps in 10 seconds.
        let left = pace.left().unwrap().as_secs_f64();
        assert!((left - 30.0).abs() < 1.0, "{left}");
        assert_eq!((pace.before, pace.done), (60, 40));
    }

    #[test]
    fn the_pace_has_a_unit() {
        assert_eq!(pace_text(12.34, None), "12.3 steps/s");
        assert_eq!(pace_text(8123.4, Some(Duration::from_secs(30))), "8123 steps/s  30 seconds left");
    }
}
