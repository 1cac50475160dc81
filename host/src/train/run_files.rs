//! The folder of a run: its lock and the names of what is in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use settings::Config;

use crate::log;
use crate::train::files::{TEMPORARY, lock, write_atomically};
use crate::train::record::PAGE;
use crate::train::saves::FOLDER;

/// Files of a run.
#[derive(Clone, Debug)]
pub struct RunFiles {
    /// The folder.
    pub folder: PathBuf,
    /// Keeps other processes out of it.
    _lock: Arc<File>,
}

impl RunFiles {
    /// Creates the folder; without a name the next free `runs/0001`, `runs/0002`, ... A folder that already holds a
    /// run is refused: nothing is overwritten.
    pub fn create(folder: Option<&Path>) -> anyhow::Result<Self> {
        let folder = match folder {
            Some(folder) => {
                fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
                folder.to_path_buf()
            }
            None => next_free(Path::new("runs"))?,
        };
        // Of two runs that start at once in one folder, one is refused before it writes.
        let handle = lock(&folder)?;
        for name in OWN_FILES.into_iter().chain(RESULTS) {
            if folder.join(name).exists() {
                bail!(
                    "{} already holds {name}: choose another --run, or go on with --resume {}",
                    folder.display(),
                    folder.display()
                );
            }
        }
        let metrics = folder.join(OWN_FILES[0]);
        File::create_new(&metrics).with_context(|| format!("creating {}", metrics.display()))?;
        Ok(Self { folder, _lock: Arc::new(handle) })
    }

    /// The folder of a run that goes on.
    ///
    /// # Errors
    /// If another process uses it.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        Ok(Self { folder: folder.to_path_buf(), _lock: Arc::new(lock(folder)?) })
    }

    /// The folder of a fold that is trained anew, without what a program left in it that was killed before it had saved
    /// a state. Files that are not a run's stay.
    ///
    /// # Errors
    /// As for [`Self::create`]; what cannot be removed.
    pub fn anew(folder: &Path) -> anyhow::Result<Self> {
        if folder.is_dir() {
            let _lock = lock(folder)?;
            let reading = || format!("reading {}", folder.display());
            for entry in fs::read_dir(folder).with_context(reading)? {
                let path = entry.with_context(reading)?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name == FOLDER {
                    fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
                } else if is_own(&name) {
                    remove(&path)?;
                }
            }
        }
        Self::create(Some(folder))
    }

    /// The policy with the best validation score.
    pub fn best(&self) -> PathBuf {
        self.folder.join("best.safetensors")
    }

    /// The policy of the last finished epoch.
    pub fn last(&self) -> PathBuf {
        self.folder.join("last.safetensors")
    }

    /// An epoch's policy, where `checkpoint.every` keeps it.
    pub fn epoch(&self, epoch: usize) -> PathBuf {
        self.folder.join(format!("epoch-{epoch:04}.safetensors"))
    }

    /// Result of the best policy on the test part; of a walk-forward those of all folds.
    pub fn test(&self) -> PathBuf {
        self.folder.join("test.json")
    }

    /// A row for each step, epoch and result.
    pub fn metrics(&self) -> PathBuf {
        metrics_of(&self.folder)
    }

    /// Writes the resolved configuration, behind a comment that says what ran where.
    ///
    /// # Errors
    /// Says the folder and what the operating system said.
    pub fn write_config(&self, config: &Config, comment: &str) -> anyhow::Result<()> {
        let text = format!("{comment}{}", config.to_toml());
        write_atomically(&self.folder.join("config.toml"), text.as_bytes())
            .with_context(|| format!("writing into {}", self.folder.display()))
    }

    /// Removes what says how the run ended, because it goes on.
    ///
    /// # Errors
    /// A file that is there and cannot be removed.
    pub fn remove_results(&self) -> anyhow::Result<()> {
        RESULTS.iter().try_for_each(|name| remove(&self.folder.join(name)))
    }
}

/// What a run writes into its folder, the first one first; its results are beside them.
const OWN_FILES: [&str; 7] = [
    "metrics.jsonl",
    "config.toml",
    "best.safetensors",
    "last.safetensors",
    FOLDER,
    report::events::FILE,
    log::FILE,
];

/// What a run writes at its end.
const RESULTS: [&str; 4] = ["test.json", "test-bars.csv", "test-trades.csv", PAGE];

/// The metrics in a run's folder.
pub fn metrics_of(folder: &Path) -> PathBuf {
    folder.join(OWN_FILES[0])
}

/// Whether a run writes a file of this name, or began to.
fn is_own(name: &str) -> bool {
    let name = name.strip_suffix(TEMPORARY).and_then(|name| name.strip_suffix('.')).unwrap_or(name);
    let of_an_epoch = || name.strip_prefix("epoch-")?.strip_suffix(".safetensors")?.parse::<usize>().ok();
    OWN_FILES.contains(&name) || RESULTS.contains(&name) || of_an_epoch().is_some()
}

/// Removes a file that may be there.
///
/// # Errors
/// If it is there and cannot be removed.
pub fn remove(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn next_free(parent: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    for number in 1..100_000 {
        let folder = parent.join(format!("{number:04}"));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("creating {}", folder.display())),
        }
    }
    bail!("no free run number below {}", parent.display())
}
