//! Where cuBLASLt is found: an environment variable, the loader's path, toolkits, Python packages.

use std::env;
use std::ffi::{CStr, OsStr};
use std::path::{Path, PathBuf};
use std::ptr;
use std::rc::Rc;

use libloading::Library;

use super::ffi::{self, Api, Status};
use crate::error::CublasLtError;
use crate::installed::Places;

/// Names the library under; newest first.
const SONAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];
/// Path of the library or of the folder that holds it.
pub const PATH_VARIABLE: &str = "STEPGRAPH_CUBLASLT";

/// A loaded cuBLASLt.
pub struct CublasLtLibrary {
    /// Its functions.
    pub api: Api,
    /// Where it was found: a path, or the soname where the loader found it.
    pub path: PathBuf,
}

/// No cuBLASLt that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The variable names something that does not load.
    #[error("{PATH_VARIABLE}={path}: {problem}")]
    Variable {
        /// Its value.
        path: String,
        /// Why not.
        problem: String,
    },
    /// Nothing was found.
    #[error(
        "cuBLASLt ({}) was not found on the loader's path nor in {tried} likely folders; install it with the CUDA \
         toolkit or `pip install nvidia-cublas`, or set {PATH_VARIABLE} to its path",
        SONAMES.join(" or ")
    )]
    NotFound {
        /// Folders looked in.
        tried: usize,
    },
    /// A file was found that does not load.
    #[error("{path}: {problem}")]
    Unusable {
        /// The file.
        path: String,
        /// Why not.
        problem: String,
    },
}

impl CublasLtLibrary {
    /// Finds and loads the library. Set but wrong, the variable is an error, never a reason to look elsewhere.
    pub fn load() -> Result<Self, LibraryError> {
        if let Some(value) = env::var_os(PATH_VARIABLE).filter(|value| !value.is_empty()) {
            return Self::load_from_variable(&value);
        }
        for soname in SONAMES {
            if let Ok(library) = Self::open(Path::new(soname)) {
                return Ok(library);
            }
        }
        let folders = Places::of_process()
            .folders(&["lib64", "lib", "targets/x86_64-linux/lib"], &["cu13/lib", "cublas/lib"]);
        for path in folders.iter().flat_map(|folder| SONAMES.map(|soname| folder.join(soname))) {
            if path.is_file() {
                return Self::open(&path)
                    .map_err(|problem| LibraryError::Unusable { path: path.display().to_string(), problem });
            }
        }
        Err(LibraryError::NotFound { tried: folders.len() })
    }

    fn load_from_variable(value: &OsStr) -> Result<Self, LibraryError> {
        let fail = |problem| LibraryError::Variable { path: value.to_string_lossy().into_owned(), problem };
        let path = PathBuf::from(value);
        if !path.is_dir() {
            return Self::open(&path).map_err(fail);
        }
        match SONAMES.iter().map(|soname| path.join(soname)).find(|path| path.is_file()) {
            Some(file) => Self::open(&file).map_err(fail),
            None => Err(fail(format!("the folder holds neither {}", SONAMES.join(" nor ")))),
        }
    }

    fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: loading runs the library's initialisers; the name is that of NVIDIA's library.
        let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
        Ok(Self { api: Api::new(library)?, path: path.to_owned() })
    }

    /// Version as the library tells it (10000 * major + 100 * minor + patch), for example `13.0.2`.
    pub fn version(&self) -> String {
        // SAFETY: takes no arguments and returns a number.
        let version = unsafe { (self.api.version)() };
        format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// Turns a status into `Ok` or an error with the library's name for it.
    pub fn check(
        &self,
        status: Status,
        operation: &'static str,
        subject: impl FnOnce() -> String,
    ) -> Result<(), CublasLtError> {
        if status == ffi::SUCCESS { Ok(()) } else { Err(self.error(status, operation, subject())) }
    }

    /// The error of a status.
    pub fn error(&self, status: Status, operation: &'static str, subject: String) -> CublasLtError {
        let text = |get: unsafe extern "C" fn(Status) -> *const std::ffi::c_char| {
            // SAFETY: the library returns a static NUL-terminated string for any value, or null.
            let text = unsafe { get(status) };
            if text.is_null() {
                return String::new();
            }
            // SAFETY: not null, so a static NUL-terminated string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let (name, text) = (text(self.api.status_name), text(self.api.status_string));
        CublasLtError { status, name, text, operation, subject }
    }
}

/// A cuBLASLt handle on the GPU whose context was current when it was made.
pub struct Handle {
    library: Rc<CublasLtLibrary>,
    raw: ffi::Handle,
}

impl Handle {
    /// Makes a handle; `subject` names the GPU in an error.
    pub fn new(
        library: Rc<CublasLtLibrary>,
        subject: impl FnOnce() -> String,
    ) -> Result<Self, CublasLtError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a live out-parameter.
        let status = unsafe { (library.api.create)(&mut raw) };
        library.check(status, "cublasLtCreate", subject)?;
        Ok(Self { library, raw })
    }

    /// The library.
    pub fn library(&self) -> &Rc<CublasLtLibrary> {
        &self.library
    }

    /// The library's handle, alive as long as this value.
    pub fn raw(&self) -> ffi::Handle {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; the executor has waited for the work that uses it.
        let status = unsafe { (self.library.api.destroy)(self.raw) };
        if let Err(error) = self.library.check(status, "cublasLtDestroy", String::new) {
            tracing::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_variable_is_an_error_that_names_it() {
        let empty = tempfile::tempdir().unwrap();
        let error = CublasLtLibrary::load_from_variable(empty.path().as_os_str()).err().unwrap().to_string();
        assert!(error.starts_with("STEPGRAPH_CUBLASLT="), "{error}");
        assert!(
            error.ends_with("the folder holds neither libcublasLt.so.13 nor libcublasLt.so.12"),
            "{error}"
        );
        let error = CublasLtLibrary::load_from_variable(OsStr::new("/no/such/lib.so")).err().unwrap();
        assert!(matches!(error, LibraryError::Variable { .. }), "{error:?}");
    }
}
