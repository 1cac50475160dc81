//! What can go wrong.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::ptx::PtxError;

/// Why the kernels could not be built although there is a compiler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The builder was not told enough.
    #[error("the kernel build is not set up: {0}")]
    Setup(&'static str),
    /// An environment variable names something unusable.
    #[error("{variable}={value}: {problem}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file or program that should be there is not.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Cargo does not understand a manifest.
    #[error("cargo cannot read {manifest}:\n{message}")]
    Metadata {
        /// The manifest.
        manifest: PathBuf,
        /// Cargo's message.
        message: String,
    },
    /// The kernel crate does not compile for the device.
    #[error("the kernels in {kernel_crate} do not compile for {arch} with {compiler}:\n\n{message}")]
    Compile {
        /// Folder of the crate.
        kernel_crate: PathBuf,
        /// Architecture.
        arch: String,
        /// Which compiler.
        compiler: String,
        /// Its message.
        message: String,
    },
    /// The compiler wrote PTX that this builder does not understand.
    #[error("the PTX for {arch} is not understood, line {line}: {problem}")]
    Ptx {
        /// Architecture.
        arch: String,
        /// Line of the PTX, from 1.
        line: u32,
        /// What is wrong there.
        problem: String,
    },
    /// The PTX is not what the kernels declare.
    #[error("the PTX for {arch} is not what the kernels declare:\n{}", problems.join("\n"))]
    Mismatch {
        /// Architecture.
        arch: String,
        /// One text per difference.
        problems: Vec<String>,
    },
    /// The assembler refused the PTX.
    #[error("{ptxas} does not assemble {ptx} for {arch}:\n{message}")]
    Assemble {
        /// Architecture.
        arch: String,
        /// The PTX.
        ptx: PathBuf,
        /// Which assembler.
        ptxas: String,
        /// Its message.
        message: String,
    },
}

impl BuildError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> BuildError {
        BuildError::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn setting(variable: &'static str, value: &OsStr, problem: impl Into<String>) -> BuildError {
        BuildError::Setting { variable, value: value.to_string_lossy().into_owned(), problem: problem.into() }
    }

    pub(crate) fn ptx(arch: &str, error: PtxError) -> BuildError {
        BuildError::Ptx { arch: arch.to_string(), line: error.line, problem: error.problem }
    }
}
