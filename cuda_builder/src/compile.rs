//! Runs cargo on the kernel crate: from Rust to PTX text.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compiler::Compiler;
use crate::{BuildError, process};

/// rustc's name of the device target.
const TARGET: &str = "nvptx64-nvidia-cuda";

/// One run of the compiler.
#[derive(Clone, Debug)]
pub(crate) struct Job<'a> {
    pub compiler: &'a Compiler,
    /// Folder of the kernel crate.
    pub kernel_crate: &'a Path,
    /// Name of its package.
    pub package: &'a str,
    /// `sm_90`
    pub arch: &'a str,
    /// Where cargo keeps what it builds. One folder for each architecture, so that they build side by side, and none
    /// that the outer cargo has locked: that one waits for us.
    pub target_dir: PathBuf,
}

/// The PTX text, and the compiler's warnings about the workspace's crates.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub ptx: String,
    pub warnings: String,
}

impl Job<'_> {
    pub fn run(&self) -> Result<Compiled, BuildError> {
        fs::create_dir_all(&self.target_dir)
            .map_err(|e| BuildError::io("create the folder", &self.target_dir, e))?;
        // Outer builds of several profiles may run at once. Cargo's own lock ends before we have read the PTX.
        let lock_path = self.target_dir.join("lock");
        let lock = File::create(&lock_path).map_err(|e| BuildError::io("create", &lock_path, e))?;
        lock.lock().map_err(|e| BuildError::io("lock", &lock_path, e))?;

        let ptx = self.target_dir.join("kernels.ptx");
        let mut warnings = self.cargo(&ptx)?;
        if !ptx.is_file() {
            // The file was deleted, which cargo does not notice: its record of the crate goes as well.
            self.forget()?;
            warnings = self.cargo(&ptx)?;
        }
        let text =
            fs::read_to_string(&ptx).map_err(|e| BuildError::io("read the PTX that rustc wrote", &ptx, e))?;
        Ok(Compiled { ptx: text, warnings })
    }

    fn cargo(&self, ptx: &Path) -> Result<String, BuildError> {
        let mut emit = std::ffi::OsString::from("--emit=asm=");
        emit.push(ptx);
        let mut command = Command::new(&self.compiler.cargo);
        process::isolated(&mut command)
            .current_dir(self.kernel_crate)
            .args([
                "rustc",
                "--quiet",
                "--color=never",
                "--release",
                "--lib",
                "--crate-type=cdylib",
                "-Zbuild-std=core",
            ])
            .arg(format!("--target={TARGET}"))
            .arg("--target-dir")
            .arg(&self.target_dir)
            .arg("--")
            .arg(emit)
            .env("RUSTC", &self.compiler.rustc)
            // Stable compilers accept the unstable features that the device needs.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags().join("\x1f"))
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            // Source lines for the profiler and compute-sanitizer; more would mark the PTX as a debug build.
            .env("CARGO_PROFILE_RELEASE_DEBUG", "line-directives-only")
            .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false")
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
            .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false")
            .env("CARGO_PROFILE_RELEASE_PANIC", "abort");
        let output = command.output().map_err(|e| BuildError::io("run cargo", &self.compiler.cargo, e))?;
        let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
        if output.status.success() {
            return Ok(text);
        }
        Err(BuildError::Compile {
            kernel_crate: self.kernel_crate.to_path_buf(),
            arch: self.arch.to_string(),
            compiler: self.compiler.to_string(),
            message: text,
        })
    }

    fn flags(&self) -> Vec<String> {
        vec![
            format!("-Ctarget-cpu={}", self.arch),
            // The PTX is the output; there is nothing to link.
            format!("-Clinker={}", if Path::new("/bin/true").exists() { "/bin/true" } else { "true" }),
            // JumpThreading copies a barrier into both arms of a repeated condition.
            "-Zmir-enable-passes=-JumpThreading".to_string(),
        ]
    }

    /// Removes cargo's record of the kernel crate, so that it is compiled again.
    fn forget(&self) -> Result<(), BuildError> {
        let records = self.target_dir.join(TARGET).join("release").join(".fingerprint");
        let entries = fs::read_dir(&records).map_err(|e| BuildError::io("list", &records, e))?;
        let prefix = format!("{}-", self.package);
        for entry in entries {
            let entry = entry.map_err(|e| BuildError::io("list", &records, e))?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_dir_all(entry.path()).map_err(|e| BuildError::io("remove", &entry.path(), e))?;
            }
        }
        Ok(())
    }
}
