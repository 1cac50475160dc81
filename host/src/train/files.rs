//! Files that are whole or absent, also after a crash.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Ending of a file that is being written.
pub const TEMPORARY: &str = "tmp";

/// Bytes that are handed to the operating system at once.
const CHUNK: usize = 1 << 16;

/// Name under which a file is written before it gets its own.
pub fn temporary(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".");
    name.push(TEMPORARY);
    name.into()
}

/// Writes a file so that it is whole or absent, also after a crash: temporary name, sync, rename, sync of the folder.
///
/// # Errors
/// What the operating system said; then what was at `path` is still there, and nothing else is left behind.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(write_pieces(path, [bytes])?)
}

/// The same for a file in several pieces.
///
/// # Errors
/// As [`write_atomically`].
pub fn write_pieces<'a>(path: &Path, pieces: impl IntoIterator<Item = &'a [u8]>) -> io::Result<()> {
    let temporary = temporary(path);
    let written = write_all(&temporary, pieces).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // What is left of it would only take the room that the next attempt needs.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    sync_folder_of(path)
}

fn write_all<'a>(path: &Path, pieces: impl IntoIterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut file = File::create(path)?;
    for piece in pieces {
        for chunk in piece.chunks(CHUNK) {
            file.write_all(chunk)?;
            pause();
        }
    }
    file.sync_all()
}

/// Syncs the folder that holds `path`, so that a new name in it survives a crash.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Tests kill the program inside a write: a build with debug assertions waits between two chunks for as many
/// milliseconds as the variable says.
fn pause() {
    #[cfg(debug_assertions)]
    if let Some(milliseconds) =
        std::env::var("STEPGRAPH_TEST_SLOW_WRITES").ok().and_then(|text| text.parse().ok())
    {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}

/// Locks a run's folder for this process, until the handle is dropped or the process ends, however it does.
///
/// # Errors
/// If another process holds it: two runs in one folder would write each other's files.
pub fn lock(folder: &Path) -> anyhow::Result<File> {
    let name = folder.display();
    let handle = File::open(folder).with_context(|| format!("opening {name}"))?;
    match handle.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            bail!(
                "{name} is in use by another process of this program: wait for it, or choose another folder"
            )
        }
        // Some network file systems have no locks.
        Err(TryLockError::Error(error)) => {
            tracing::warn!("{name} cannot be locked ({error}): make sure that no other process trains in it");
        }
    }
    Ok(handle)
}
