//! JSON files in the user's cache folder: what was measured here and can be measured again.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ExecError;

/// `stepgraph/NAME` in the user's cache folder; `None` when the system names no home.
pub fn default_path(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(folder.join("stepgraph").join(name))
}

/// What a file holds; nothing where it is missing. An error says that it cannot be read or is damaged, without its name.
pub fn read<T: DeserializeOwned + Default>(path: &Path) -> Result<T, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(T::default()),
        Err(error) => return Err(error.to_string()),
    };
    serde_json::from_str(&text).map_err(|error| format!("damaged ({error})"))
}

/// [`ExecError::File`] of a file that could not be used.
pub fn failed(path: &Path, problem: String) -> ExecError {
    ExecError::File { path: path.display().to_string(), problem }
}

/// Writes a file, with the folders that it lies in.
pub fn write(path: &Path, content: &impl Serialize) -> Result<(), ExecError> {
    let fail = |problem: String| failed(path, problem);
    let text = serde_json::to_string_pretty(content).map_err(|error| fail(error.to_string()))?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|error| fail(error.to_string()))?;
    }
    // Written beside and renamed, so that a reader never sees half a file.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, text + "\n")
        .and_then(|()| fs::rename(&new, path))
        .map_err(|error| fail(error.to_string()))
}
