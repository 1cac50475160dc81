//! `metrics.jsonl`: one JSON object a line, written and flushed as it happens, so that a killed run keeps its rows.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use bars::Fnv64;
use report::events::Events;
use report::rows;
use serde::{Deserialize, Serialize};

/// The metrics file of a run.
pub struct Metrics {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Fnv64,
    events: Option<Events>,
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

/// A row: what kind it is, and its fields beside it.
#[derive(Serialize)]
struct Row<'a, T: Serialize> {
    kind: &'a str,
    #[serde(flatten)]
    fields: &'a T,
}

impl Metrics {
    /// Starts an empty file.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), file, bytes: 0, hash: Fnv64::default(), events: None })
    }

    /// Writes TensorBoard events beside the rows, those of the rows that are there already too; an epoch has `steps` steps.
    pub fn with_events(mut self, steps: usize) -> anyhow::Result<Self> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut events = Events::create(folder, steps)?;
        for row in rows::read(&self.path)? {
            events.row(row)?;
        }
        self.events = Some(events);
        Ok(self)
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
        Ok(Self { path: path.to_path_buf(), file, bytes: mark.bytes, hash, events: None })
    }

    /// Appends a row.
    pub fn write(&mut self, kind: &str, fields: &impl Serialize) -> anyhow::Result<()> {
        let row = Row { kind, fields };
        let mut line = serde_json::to_string(&row)?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).with_context(|| format!("writing {}", self.path.display()))?;
        self.bytes += line.len() as u64;
        self.hash.update(line.as_bytes());
        if let Some(events) = &mut self.events
            && let Some(row) = rows::Row::of(serde_json::to_value(&row)?)
        {
            events.row(row)?;
        }
        Ok(())
    }

    /// Where the file ends now, once it is on the disk.
    pub fn mark(&self) -> anyhow::Result<Mark> {
        self.file.sync_data().with_context(|| format!("writing {}", self.path.display()))?;
        Ok(Mark { bytes: self.bytes, hash: format!("{:016x}", self.hash.finish()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Number {
        number: u32,
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
