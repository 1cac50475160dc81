//! Which reader a file gets, and how large it may claim to be.

use std::fs::{self, File};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::error::TransitionError;
use crate::set::{Format, TransitionSet};
use crate::{minari, npz_file, parquet_file, safetensors_file};

/// Most bytes of one array. Larger data sets do not fit a device beside the networks either.
pub(crate) const LARGEST: u64 = 32 << 30;
/// Deflate makes nothing smaller than this part: what claims to unpack to more is not true.
const DEFLATE: u64 = 1032;
/// Claims up to here are believed of any file: a small file is mostly headers.
const SMALL: u64 = 1 << 20;

/// Reads and checks a transition data set: Parquet, safetensors, NPZ, or HDF5 in Minari's layout (the file, or the folder
/// of a Minari data set), known by the first bytes.
///
/// # Errors
/// What is wrong with the file, an array or a value, with file, row and value.
pub fn load(path: &Path) -> Result<TransitionSet, TransitionError> {
    let path = if path.is_dir() { minari_file(path)? } else { path.to_path_buf() };
    let name = path.display().to_string();
    let io = |error| TransitionError::Io { file: name.clone(), error };
    let facts = fs::metadata(&path).map_err(io)?;
    if !facts.is_file() {
        return Err(TransitionError::file(&name, "is not a regular file"));
    }
    let mut head = [0; 8];
    let read = File::open(&path).and_then(|mut file| {
        let mut filled = 0;
        while filled < head.len() {
            match file.read(&mut head[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        Ok(filled)
    });
    let head = &head[..read.map_err(io)?];
    let size = facts.len();
    // Decoders are other people's code and the file may be damaged or malicious: a panic in one becomes an error here.
    let decode = || match head {
        [b'P', b'A', b'R', b'1', ..] => parquet_file::read(&name, &path).map(|set| (set, Format::Parquet)),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => npz_file::read(&name, &path, size).map(|set| (set, Format::Npz)),
        [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n'] => {
            minari::read(&name, &path, size).map(|set| (set, Format::Minari))
        }
        _ => safetensors_file::read(&name, &path, size).map(|set| (set, Format::Safetensors)),
    };
    let decoded = catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(TransitionError::file(&name, "is damaged: its decoder gave up")));
    let (columns, format) = decoded?;
    TransitionSet::new(&name, format, columns)
}

/// Whether a path looks like a transition data set rather than a bar file: by its first bytes, and a Parquet file by its
/// columns. False for what cannot be read, whose error the reader of bar files gives.
pub fn looks_like_transitions(path: &Path) -> bool {
    if path.is_dir() {
        return minari_file(path).is_ok();
    }
    // Nothing else has these names; what is wrong inside is said by whom they concern.
    let named = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    if path.is_file()
        && named.is_some_and(|name| ["npz", "safetensors", "hdf5", "h5"].contains(&name.as_str()))
    {
        return true;
    }
    let mut head = [0; 9];
    let read = |file: &mut File, head: &mut [u8]| file.read_exact(head).is_ok();
    let Ok(mut file) = File::open(path) else { return false };
    if !fs::metadata(path).is_ok_and(|facts| facts.is_file()) || !read(&mut file, &mut head) {
        return false;
    }
    match head {
        [b'P', b'A', b'R', b'1', ..] => {
            catch_unwind(|| parquet_file::has_rewards(path)).is_ok_and(|has_rewards| has_rewards)
        }
        [b'P', b'K', 3 | 5, 4 | 6, ..] | [0x89, b'H', b'D', b'F', ..] => true,
        // A length of the header that the file can hold, and the JSON's brace: no text begins so.
        [length @ .., b'{'] => {
            let facts = fs::metadata(path);
            facts.is_ok_and(|facts| u64::from_le_bytes(length) < facts.len())
        }
        _ => false,
    }
}

/// The HDF5 file in the folder of a Minari data set.
fn minari_file(folder: &Path) -> Result<PathBuf, TransitionError> {
    let places = ["data/main_data.hdf5", "main_data.hdf5"].map(|place| folder.join(place));
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        TransitionError::file(
            &folder.display().to_string(),
            "is a folder without data/main_data.hdf5: expected a file, or the folder of a Minari data set in HDF5",
        )
    })
}

/// Refuses an array whose header claims more than the file can hold, before any memory is asked for.
pub(crate) fn check_claim(
    file: &str,
    name: &str,
    shape: &[u64],
    element: u64,
    file_bytes: u64,
) -> Result<Vec<usize>, TransitionError> {
    let bytes = shape.iter().try_fold(element, |bytes, &n| bytes.checked_mul(n));
    let most = file_bytes.saturating_mul(DEFLATE).clamp(SMALL, LARGEST);
    if bytes.is_none_or(|bytes| bytes > most) {
        let message = format!(
            "{name} claims shape {shape:?}, and a file of {file_bytes} bytes cannot hold more than {most} bytes of it"
        );
        return Err(TransitionError::file(file, message));
    }
    Ok(shape.iter().map(|&n| n as usize).collect())
}
