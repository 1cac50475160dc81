//! Compiles a kernel crate to PTX with rustc's NVPTX back end, checks what came out against the kernels'
//! declarations, and writes it where a build script can embed it.
//!
//! ```no_run
//! # static KERNELS: &[&cuda_std::KernelDecl] = &[];
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     let out = std::env::var("OUT_DIR").expect("cargo sets it for build scripts");
//!     match cuda_builder::CudaBuilder::new("../gpu").arch("sm_90").kernels(KERNELS).copy_to(out).build() {
//!         Ok(built) => {
//!             built.tell_cargo();
//!             ExitCode::SUCCESS
//!         }
//!         Err(error) => {
//!             eprintln!("{error}");
//!             ExitCode::FAILURE
//!         }
//!     }
//! }
//! ```
//!
//! The host program then holds `include!(concat!(env!("OUT_DIR"), "/kernels.rs"));`, which defines
//! - `MODULES: &[Module]`, `Module { arch, ptx: &str, cubin: Option<&[u8]> }`, one per architecture,
//! - `RESOURCES: &[Resources]`, `Resources { kernel, arch, registers, spill_bytes, stack_bytes, shared_bytes }`,
//! - `MISSING: Option<&str>`: why there are no kernels, with what to install,
//! - `COMPILER: Option<&str>`, `ASSEMBLER: Option<&str>`, `HASH: u64`.
//!
//! Beside it lie `<package>_<arch>.ptx`, `<package>_<arch>.cubin` and the same facts as `kernels.json`.
//!
//! # Variables
//! - `STEPGRAPH_NVPTX_RUSTC`: the compiler, instead of a search, or `none` for a host program without kernels. Without
//!   it: the active toolchain if it has `rust-src`, a toolchain of rustup that bears the name of a tested release,
//!   `/usr/bin/rustc`.
//! - `STEPGRAPH_NVPTX_UNTESTED=1`: admits compiler releases that are not in [`TESTED`].
//! - `STEPGRAPH_PTXAS`: the assembler, or `none`.

mod check;
mod compile;
mod compiler;
mod error;
mod output;
mod process;
mod ptx;
mod ptxas;
mod sources;

use std::env;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use cuda_std::KernelDecl;

pub use compiler::{RUSTC_VARIABLE, TESTED, UNTESTED_VARIABLE};
pub use error::BuildError;
pub use ptxas::{PTXAS_VARIABLE, Resources};

use compile::{Compiled, Job};
use compiler::{Compiler, Search};
use output::{RECORD_FILE, RUST_FILE, Record};
use ptxas::Ptxas;
use sources::Sources;

/// Builds one kernel crate.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    kernel_crate: PathBuf,
    archs: Vec<String>,
    kernels: Vec<&'static KernelDecl>,
    copy_to: Option<PathBuf>,
    work: Option<PathBuf>,
}

/// The end of a build that did not fail.
#[derive(Clone, Debug)]
pub enum Built {
    /// The kernels are there.
    Kernels(Kernels),
    /// No suitable compiler was found; the host program can be built without kernels.
    Missing(Missing),
}

/// What was built.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kernels {
    /// Folder of the files.
    pub folder: PathBuf,
    /// Architectures in order, with the PTX as it was written.
    pub modules: Vec<(String, String)>,
    /// The compiler that made the PTX.
    pub compiler: String,
    /// The assembler, when one was found.
    pub assembler: Option<String>,
    /// What each kernel uses of the device; empty without an assembler. By kernel, then architecture.
    pub resources: Vec<Resources>,
    /// Hash of the instructions of all modules, independent of comments and source lines.
    pub hash: u64,
    /// The compiler's warnings about the kernel crate, or empty.
    pub warnings: String,
    watched: Vec<PathBuf>,
}

/// Why there are no kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// One line per compiler that was looked at.
    pub reason: String,
    /// What to install.
    pub install: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "no compiler for the GPU kernels was found\n{}\n{}", self.reason, self.install)
    }
}

impl CudaBuilder {
    /// For the kernel crate in a folder; a relative path is relative to the working directory, which for a build
    /// script is its package's folder.
    pub fn new(kernel_crate: impl Into<PathBuf>) -> CudaBuilder {
        CudaBuilder {
            kernel_crate: kernel_crate.into(),
            archs: Vec::new(),
            kernels: Vec::new(),
            copy_to: None,
            work: None,
        }
    }

    /// Adds an architecture, for example `sm_90`.
    pub fn arch(mut self, arch: impl Into<String>) -> CudaBuilder {
        self.archs.push(arch.into());
        self
    }

    /// The declarations that the PTX must match: no entry more, none less.
    pub fn kernels(mut self, kernels: &[&'static KernelDecl]) -> CudaBuilder {
        self.kernels = kernels.to_vec();
        self
    }

    /// The folder for the results; OUT_DIR when not given.
    pub fn copy_to(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.copy_to = Some(folder.into());
        self
    }

    /// The folder where the inner cargo builds; below OUT_DIR when not given. Kept between builds, it saves compiling
    /// `core` again.
    pub fn work_in(mut self, folder: impl Into<PathBuf>) -> CudaBuilder {
        self.work = Some(folder.into());
        self
    }

    /// Finds a compiler, compiles for every architecture, checks, assembles, writes.
    ///
    /// # Errors
    /// See [`BuildError`]. That no suitable compiler was found is [`Built::Missing`], unless
    /// `STEPGRAPH_NVPTX_RUSTC` names one that cannot be used.
    pub fn build(self) -> Result<Built, BuildError> {
        if self.archs.is_empty() {
            return Err(BuildError::Setup("no architecture: call arch(\"sm_90\")"));
        }
        if self.kernels.is_empty() {
            return Err(BuildError::Setup("no kernels: call kernels(..) with the crate's declarations"));
        }
        let out_dir = env::var_os("OUT_DIR").map(PathBuf::from);
        let folder = self.copy_to.clone().or_else(|| out_dir.clone());
        let folder = folder.ok_or(BuildError::Setup("no folder for the results: call copy_to(folder)"))?;
        let folder = output::folder(&folder)?;
        let work = self.work.clone().or_else(|| Some(out_dir?.join("cuda_builder")));
        let work =
            output::folder(&work.ok_or(BuildError::Setup("no folder to build in: call work_in(folder)"))?)?;
        let crate_folder = self.kernel_crate.canonicalize();
        let crate_folder =
            crate_folder.map_err(|e| BuildError::io("find the kernel crate", &self.kernel_crate, e))?;

        match Search::from_environment()?.find()? {
            Ok(compiler) => self.build_with(&compiler, &crate_folder, &work, &folder).map(Built::Kernels),
            Err(reasons) => {
                let missing = Missing { reason: reasons.join("\n"), install: compiler::install_hint() };
                output::write(&folder.join(RUST_FILE), &output::rust_text(None, Some(&missing)))?;
                Ok(Built::Missing(missing))
            }
        }
    }

    fn build_with(
        &self,
        compiler: &Compiler,
        crate_folder: &Path,
        work: &Path,
        folder: &Path,
    ) -> Result<Kernels, BuildError> {
        let sources = Sources::find(&compiler.cargo, crate_folder)?;
        let jobs: Vec<Job> = self
            .archs
            .iter()
            .map(|arch| Job {
                compiler,
                kernel_crate: crate_folder,
                package: &sources.package,
                arch,
                target_dir: work.join(arch),
            })
            .collect();
        let compiled = run_all(&jobs)?;

        let ptxas = Ptxas::find()?;
        let previous = Record::previous(folder);
        let mut record = Record {
            compiler: compiler.to_string(),
            assembler: ptxas.as_ref().map(Ptxas::describe),
            hash: String::new(),
            modules: Vec::new(),
            resources: Vec::new(),
        };
        let mut modules = Vec::new();
        let mut normalised = Vec::new();
        for (arch, compiled) in self.archs.iter().zip(&compiled) {
            let text = self.checked(arch, &compiled.ptx)?;
            let (module, resources) =
                output::module(folder, &sources.package, arch, &text, ptxas.as_ref(), previous.as_ref())?;
            record.modules.push(module);
            record.resources.extend(resources);
            normalised.extend([arch.clone(), ptx::normalised(&text).map_err(|e| BuildError::ptx(arch, e))?]);
            modules.push((arch.clone(), text));
        }
        record.resources.sort_by(|a, b| (&a.kernel, &a.arch).cmp(&(&b.kernel, &b.arch)));
        let hash = output::fnv1a(normalised.iter().map(String::as_str));
        record.hash = format!("{hash:016x}");
        let json = serde_json::to_string_pretty(&record)
            .map_err(|e| BuildError::io("write", &folder.join(RECORD_FILE), io::Error::other(e)))?;
        output::write(&folder.join(RECORD_FILE), &(json + "\n"))?;
        output::write(&folder.join(RUST_FILE), &output::rust_text(Some(&record), None))?;

        // The architectures differ in nothing that the compiler warns about.
        let warnings = compiled.into_iter().next().map(|c| c.warnings).unwrap_or_default();
        Ok(Kernels {
            folder: folder.to_path_buf(),
            modules,
            compiler: record.compiler,
            assembler: record.assembler,
            resources: record.resources,
            hash,
            warnings,
            watched: sources.watched,
        })
    }

    /// The PTX with block sizes, if it is what the kernels declare.
    fn checked(&self, arch: &str, text: &str) -> Result<String, BuildError> {
        let module = ptx::parse(text).map_err(|e| BuildError::ptx(arch, e))?;
        let problems = check::problems(&module, &self.kernels);
        if !problems.is_empty() {
            return Err(BuildError::Mismatch { arch: arch.to_string(), problems });
        }
        Ok(check::with_block_sizes(text, &module, &self.kernels))
    }
}

/// Compiles for all architectures at once; cargo's job server, inherited from the outer build, shares the cores.
fn run_all(jobs: &[Job]) -> Result<Vec<Compiled>, BuildError> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = jobs.iter().map(|job| scope.spawn(|| job.run())).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

impl Built {
    /// Prints what cargo reads from a build script: when to run it again, and warnings.
    pub fn tell_cargo(&self) {
        for variable in [RUSTC_VARIABLE, UNTESTED_VARIABLE, PTXAS_VARIABLE, "CUDA_HOME", "CUDA_PATH"] {
            println!("cargo:rerun-if-env-changed={variable}");
        }
        match self {
            Built::Kernels(kernels) => kernels.tell_cargo(),
            Built::Missing(missing) => {
                // Something must be watched, or every change of the package would run the script again.
                println!("cargo:rerun-if-changed=Cargo.toml");
                for line in missing.to_string().lines() {
                    println!("cargo:warning={line}");
                }
            }
        }
    }
}

impl Kernels {
    fn tell_cargo(&self) {
        for path in &self.watched {
            println!("cargo:rerun-if-changed={}", path.display());
        }
        for line in self.warnings.lines() {
            println!("cargo:warning={line}");
        }
        for r in self.resources.iter().filter(|r| r.spill_store_bytes + r.spill_load_bytes > 0) {
            println!(
                "cargo:warning=kernel `{}` spills registers on {}: {} bytes stored, {} bytes loaded a thread",
                r.kernel, r.arch, r.spill_store_bytes, r.spill_load_bytes
            );
        }
    }
}
