//! `metrics.jsonl`: one JSON object a line, written and flushed as it happens, so that a killed run keeps its rows.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, bail};
use bars::Fnv64;
use report::ReportError;
use report::events::Events;
use report::rows;
use serde::{Deserialize, Serialize};

use crate::train::progress::Progress;

/// The metrics file of a run.
pub struct Metrics {
    path: PathBuf,
    file: File,
    fold: Option<usize>,
    bytes: u64,
    hash: Fnv64,
    events: Option<EventWriter>,
}

/// How far the file was written, and what was in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Bytes.
    pub bytes: u64,
    /// Their 64-bit FNV-1a, 16 hexadecimal digits.
    pub hash: String,
}

impl Mark {
    /// Of a file as it is.
    ///
    /// # Errors
    /// What keeps it from being read.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let mut file = File::open(path).with_context(|| format!("opening {name}"))?;
        let (mut hash, mut bytes, mut buffer) = (Fnv64::default(), 0, vec![0; 1 << 16]);
        loop {
            let count = file.read(&mut buffer).with_context(|| format!("reading {name}"))?;
            if count == 0 {
                return Ok(Self { bytes, hash: format!("{:016x}", hash.finish()) });
            }
            hash.update(&buffer[..count]);
            bytes += count as u64;
        }
    }
}

/// A row: what kind it is, and its fields beside it.
#[derive(Serialize)]
pub struct Row<'a, T: Serialize> {
    /// Its kind.
    pub kind: &'a str,
    /// The fold of a walk-forward that it is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fold: Option<usize>,
    /// The rest.
    #[serde(flatten)]
    pub fields: &'a T,
}

impl Metrics {
    /// Starts an empty file.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            bytes: 0,
            hash: Fnv64::default(),
            fold: None,
            events: None,
        })
    }

    /// The same file; every row says that it is of this fold of a walk-forward, if any.
    pub fn of_fold(self, fold: Option<usize>) -> Self {
        Self { fold, ..self }
    }

    /// Writes TensorBoard events beside the rows, anew for those that are there already, so that no row has two; an epoch
    /// has `steps` training steps.
    ///
    /// # Errors
    /// A file of events that cannot be written, rows that cannot be read.
    pub fn with_events(self, steps: usize) -> anyhow::Result<Self> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut events = Events::create(folder, steps)?;
        rows::visit(&self.path, |_| true, |row| events.row(row))?;
        Ok(Self { events: Some(EventWriter::new(events)?), ..self })
    }

    /// Goes on behind a mark: rows that were written after it are dropped, because the steps they are of will be done
    /// again.
    ///
    /// # Errors
    /// A file that is shorter, or was changed before the mark; then it stays as it is.
    pub fn go_on(path: &Path, mark: &Mark) -> anyhow::Result<Self> {
        let name = path.display();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(path)
            .with_context(|| format!("opening {name}"))?;
        let (mut hash, mut left) = (Fnv64::default(), mark.bytes);
        let mut buffer = vec![0; 1 << 16];
        while left > 0 {
            let most = left.min(buffer.len() as u64) as usize;
            let count = file.read(&mut buffer[..most]).with_context(|| format!("reading {name}"))?;
            if count == 0 {
                bail!(
                    "{name} has {} bytes, and {} were written when the state was saved: it was cut, so the run's rows \
                     are not complete any more",
                    mark.bytes - left,
                    mark.bytes
                );
            }
            hash.update(&buffer[..count]);
            left -= count as u64;
        }
        let found = format!("{:016x}", hash.finish());
        if found != mark.hash {
            bail!(
                "{name} was changed after the state was saved: its first {} bytes have hash {found}, they had {}",
                mark.bytes,
                mark.hash
            );
        }
        file.set_len(mark.bytes).with_context(|| format!("cutting {name} to {} bytes", mark.bytes))?;
        Ok(Self { path: path.to_path_buf(), file, bytes: mark.bytes, hash, fold: None, events: None })
    }

    /// Appends a row, and shows it to a program that listens.
    ///
    /// # Errors
    /// What keeps it from being written.
    pub fn tell(&mut self, progress: &Progress, kind: &str, fields: &impl Serialize) -> anyhow::Result<()> {
        self.write(kind, fields)?;
        progress.row(&Row { kind, fold: self.fold, fields })
    }

    /// Appends a row.
    pub fn write(&mut self, kind: &str, fields: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_string(&Row { kind, fold: self.fold, fields })?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).with_context(|| format!("writing {}", self.path.display()))?;
        self.bytes += line.len() as u64;
        self.hash.update(line.as_bytes());
        if let Some(events) = &mut self.events {
            events.send(line)?;
        }
        Ok(())
    }

    /// Waits until the events of all rows are written; rows behind them have none.
    ///
    /// # Errors
    /// What kept them from being written.
    pub fn end_events(&mut self) -> anyhow::Result<()> {
        self.events.take().map_or(Ok(()), |mut events| events.end())
    }

    /// Where the file ends now, once it is on the disk.
    pub fn mark(&self) -> anyhow::Result<Mark> {
        self.file.sync_data().with_context(|| format!("writing {}", self.path.display()))?;
        Ok(Mark { bytes: self.bytes, hash: format!("{:016x}", self.hash.finish()) })
    }
}

/// A thread that makes events of rows, so that a training step does not wait for them.
struct EventWriter {
    lines: Option<Sender<String>>,
    thread: Option<JoinHandle<Result<(), ReportError>>>,
}

impl EventWriter {
    fn new(mut events: Events) -> anyhow::Result<Self> {
        let (lines, received) = channel::<String>();
        let write = move || {
            for line in received {
                if let Some(row) = serde_json::from_str(&line).ok().and_then(rows::Row::of) {
                    events.row(row)?;
                }
            }
            events.end()
        };
        let thread = Builder::new().name("events".into()).spawn(write).context("starting a thread")?;
        Ok(Self { lines: Some(lines), thread: Some(thread) })
    }

    fn send(&mut self, line: String) -> anyhow::Result<()> {
        match &self.lines {
            Some(lines) if lines.send(line).is_ok() => Ok(()),
            // The thread has ended before its time, and knows why.
            _ => self.end(),
        }
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.lines = None;
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result.context("writing TensorBoard events"),
            Some(Err(_)) => bail!("the thread that writes TensorBoard events has panicked"),
        }
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        // The run has failed, or `end` was called: what kept events from being written is no news any more.
        let _ = self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Number {
        number: u32,
    }

    #[derive(Serialize)]
    struct Step {
        step: usize,
        loss: f32,
    }

    #[test]
    fn a_run_that_goes_on_has_the_events_of_one_that_was_never_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let length = |whole: bool| {
            let path = folder.path().join("metrics.jsonl");
            let events = folder.path().join(report::events::FILE);
            let mut metrics = Metrics::create(&path).unwrap().with_events(250).unwrap();
            let step = |step| Step { step, loss: 1.0 / step as f32 };
            (1..=100).for_each(|i| metrics.write("step", &step(i)).unwrap());
            let mark = metrics.mark().unwrap();
            if !whole {
                // Rows that are done again, up to the middle of a window of three steps.
                (101..=200).for_each(|i| metrics.write("step", &step(i)).unwrap());
                drop(metrics);
                metrics = Metrics::go_on(&path, &mark).unwrap().with_events(250).unwrap();
            }
            (101..=250).for_each(|i| metrics.write("step", &step(i)).unwrap());
            metrics.write("epoch", &Step { step: 250, loss: 0.5 }).unwrap();
            metrics.end_events().unwrap();
            std::fs::metadata(events).unwrap().len()
        };
        let whole = length(true);
        assert!(whole > 84 * 20, "84 windows and an epoch: {whole}");
        assert_eq!(length(false), whole);
    }

    #[test]
    fn events_that_cannot_be_written_are_an_error_with_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::create_dir(folder.path().join(report::events::FILE)).unwrap();
        let error = Metrics::create(&path).unwrap().with_events(1).err().unwrap().to_string();
        assert!(error.contains(report::events::FILE), "{error}");
    }

    #[test]
    fn rows_behind_a_mark_are_dropped_and_a_changed_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut metrics = Metrics::create(&path).unwrap();
        metrics.write("a", &Number { number: 1 }).unwrap();
        let mark = metrics.mark().unwrap();
        metrics.write("b", &Number { number: 2 }).unwrap();
        let mut again = Metrics::go_on(&path, &mark).unwrap();
        again.write("c", &Number { number: 3 }).unwrap();
        let text = "{\"kind\":\"a\",\"number\":1}\n{\"kind\":\"c\",\"number\":3}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(Metrics::go_on(&path, &again.mark().unwrap()).unwrap().bytes, text.len() as u64);

        std::fs::write(&path, text.replace(":1", ":7")).unwrap();
        let message = Metrics::go_on(&path, &mark).err().unwrap().to_string();
        assert!(message.contains("metrics.jsonl was changed after the state was saved"), "{message}");
        std::fs::write(&path, "{}\n").unwrap();
        let message = Metrics::go_on(&path, &mark).err().unwrap().to_string();
        assert!(message.contains("metrics.jsonl has 3 bytes, and 24 were written"), "{message}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    }
}
