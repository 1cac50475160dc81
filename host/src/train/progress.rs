//! What a person or a program sees of a run: a bar on a terminal, plain lines otherwise, nothing with `--quiet`, JSON
//! lines on standard output with `--json`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use tracing::info;

use crate::error::printable;
use crate::log::SEEN;
use crate::train::market::Walk;
use crate::train::metrics::Row;

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
    bars: Option<Bars>,
    last_line: Instant,
    pace: Pace,
    /// Before the names of phases, in a walk-forward.
    fold: String,
    /// The phase that is running.
    phase: String,
    /// Loss and validation of the last epoch.
    status: String,
}

/// On a terminal: the run, and under it the phase that is running.
struct Bars {
    all: MultiProgress,
    run: ProgressBar,
    phase: ProgressBar,
    /// Between the first phase's begin and the end; bars without a length are not to be seen.
    shown: bool,
}

/// How fast the run's training steps go.
struct Pace {
    /// Training steps that are to come, from [`Progress::plan`] on; 0 before they are known.
    planned: usize,
    /// Of these, done in finished phases.
    before: usize,
    /// Of these, done in the phase that is running.
    done: usize,
    /// When the first of them was begun.
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
    /// Bars if standard error is a terminal.
    pub fn new(show: Show) -> Self {
        let terminal = show == Show::Text && io::stderr().is_terminal();
        let now = Instant::now();
        let pace = Pace { planned: 0, before: 0, done: 0, start: None, phase: now };
        Self {
            show,
            bars: terminal.then(Bars::new),
            last_line: now,
            pace,
            fold: String::new(),
            phase: String::new(),
            status: String::new(),
        }
    }

    /// A run, or a fold of one, begins with `steps` training steps to come; `further` are those of the folds behind it.
    pub fn plan(&mut self, steps: usize, walk: Option<Walk>, further: usize) {
        let now = Instant::now();
        self.pace = Pace { planned: steps + further, before: 0, done: 0, start: None, phase: now };
        self.fold = walk.map_or_else(String::new, |walk| format!("fold {}/{} ", walk.fold, walk.of));
        self.status.clear();
    }

    /// Begins a phase of `total` steps.
    pub fn begin(&mut self, name: &str, total: usize) {
        self.last_line = Instant::now();
        self.pace.begin();
        self.phase = format!("{}{name}", self.fold);
        if let Some(bars) = &mut self.bars {
            bars.begin(&self.phase, total, &self.pace, &self.status);
        }
    }

    /// `done` of the phase's training steps are finished, `now` of them since it began here: a resumed epoch has more.
    pub fn advance(&mut self, now: usize, done: usize, total: usize) {
        self.pace.done = now;
        self.pace.start.get_or_insert(self.pace.phase);
        let (speed, left) = (self.pace.per_second(), self.pace.left());
        if let Some(bars) = &self.bars {
            bars.phase.set_position(done as u64);
            bars.phase.set_message(speed_text(speed));
            bars.run.set_position((self.pace.before + now) as u64);
            bars.run.set_message(format!("{}{}", left_text(left), self.status));
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
                phase: &self.phase,
                done,
                total,
                steps_per_second: speed,
                seconds_left,
            };
            // A reader that went away is no reason to stop training.
            let _ = self.json(&row);
        } else {
            let (speed, left) = (speed_text(speed), left_text(left));
            write_line(&format!("{}: {done} of {total} steps  {speed}{left}{}", self.phase, self.status));
        }
    }

    /// What the last epoch came to, shown beside the pace.
    pub fn status(&mut self, loss: f32, validation: &str) {
        self.status = format!("  loss {loss:.4}  {validation}");
    }

    /// A row for a program, as in the metrics.
    pub fn row(&self, row: &Row<'_, impl Serialize>) -> anyhow::Result<()> {
        if self.show == Show::Json { self.json(row) } else { Ok(()) }
    }

    fn json(&self, row: &impl Serialize) -> anyhow::Result<()> {
        write_result(&format!("{}\n", serde_json::to_string(row)?))
    }

    /// A line that stays, on the screen and in the log.
    pub fn line(&self, text: &str) {
        for line in text.lines() {
            info!(target: SEEN, "{line}");
        }
        match &self.bars {
            Some(bars) if bars.shown => bars.all.suspend(|| write_line(text)),
            _ if self.show == Show::Text => write_line(text),
            _ => {}
        }
    }

    /// Removes the bars, until a phase begins again.
    pub fn end(&mut self) {
        if let Some(bars) = &mut self.bars {
            bars.shown = false;
            bars.phase.finish_and_clear();
            bars.run.finish_and_clear();
        }
    }
}

impl Bars {
    fn new() -> Self {
        let bar = |template| {
            let style = ProgressStyle::with_template(template);
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        };
        let all = MultiProgress::new();
        let run = all.add(bar("{prefix:16} {bar:24} {pos}/{len} steps{msg}"));
        let phase = all.add(bar("{prefix:16} {bar:24} {pos}/{len}  {msg}"));
        Self { all, run, phase, shown: false }
    }

    fn begin(&mut self, name: &str, total: usize, pace: &Pace, status: &str) {
        for (bar, length, position) in [(&self.run, pace.planned, pace.before), (&self.phase, total, 0)] {
            bar.reset();
            bar.set_length(length as u64);
            bar.set_position(position as u64);
        }
        self.shown = true;
        self.run.set_prefix("all");
        self.phase.set_prefix(name.to_owned());
        self.phase.set_message("");
        self.run.set_message(format!("{}{status}", left_text(pace.left())));
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

fn speed_text(per_second: f64) -> String {
    let digits = if per_second < 100.0 { 1 } else { 0 };
    format!("{per_second:.digits$} steps/s")
}

fn left_text(left: Option<Duration>) -> String {
    left.map_or_else(String::new, |left| format!("  {} left", HumanDuration(left)))
}

/// A line on standard error. One that cannot be written (a closed terminal, a full disk) must not stop a run.
pub fn write_line(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
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
        assert_eq!((speed_text(12.34), speed_text(8123.4)), ("12.3 steps/s".into(), "8123 steps/s".into()));
        assert_eq!(
            (left_text(None), left_text(Some(Duration::from_secs(30)))),
            ("".into(), "  30 seconds left".into())
        );
    }
}
