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
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use cuda_std::KernelDecl;

pub use compiler::{RUSTC_VARIABLE, TESTED, UNTESTED_VARIABLE};
pub use error::BuildError;
pub use ptxas::{PTXAS_VARIABLE, Resources};

use compile::Job;
use compiler::{Compiler, Search};
use output::{RUST_FILE, Record, RecordedModule};
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
    /// What was looked for, and a line for each compiler that was looked at.
    pub reason: String,
    /// What to install.
    pub install: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}\n{}", self.reason, self.install)
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

    /// Adds an architecture, for example `sm_90`; kernels that are declared for one target alone are in that one's module.
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

    /// The folder where the inner cargo builds. When not given, `cuda_builder` in the target folder of the outer build,
    /// which its profiles, clippy and tests share: `core` for the device takes longer than the kernels.
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
        let work = self.work.clone().or_else(|| Some(shared_work_folder(&out_dir?)));
        let work =
            output::folder(&work.ok_or(BuildError::Setup("no folder to build in: call work_in(folder)"))?)?;
        let crate_folder = self.kernel_crate.canonicalize();
        let crate_folder =
            crate_folder.map_err(|e| BuildError::io("find the kernel crate", &self.kernel_crate, e))?;

        match Search::from_environment()?.find()? {
            Ok(compiler) => self.build_with(&compiler, &crate_folder, &work, &folder).map(Built::Kernels),
            Err(missing) => {
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
        let ptxas = Ptxas::find()?;
        let previous = Record::previous(folder);
        // All architectures at once; cargo's job server, inherited from the outer build, shares the cores.
        let parts: Vec<Part> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .archs
                .iter()
                .map(|arch| {
                    let job = Job {
                        compiler,
                        kernel_crate: crate_folder,
                        package: &sources.package,
                        arch,
                        target_dir: work.join(&sources.package).join(arch),
                    };
                    let (ptxas, previous) = (ptxas.as_ref(), previous.as_ref());
                    scope.spawn(move || self.part(&job, folder, ptxas, previous))
                })
                .collect();
            let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic)));
            joined.collect::<Result<_, BuildError>>()
        })?;

        let normalised =
            self.archs.iter().zip(&parts).flat_map(|(arch, part)| [arch.as_str(), &part.normalised]);
        let hash = output::fnv1a(normalised);
        let mut record = Record {
            compiler: compiler.to_string(),
            assembler: ptxas.as_ref().map(Ptxas::describe),
            hash: format!("{hash:016x}"),
            modules: Vec::new(),
            resources: Vec::new(),
        };
        let mut modules = Vec::new();
        // The architectures differ in nothing that the compiler warns about.
        let warnings = parts.first().map(|part| part.warnings.clone()).unwrap_or_default();
        for (arch, part) in self.archs.iter().zip(parts) {
            record.modules.push(part.module);
            record.resources.extend(part.resources);
            modules.push((arch.clone(), part.ptx));
        }
        record.resources.sort_by(|a, b| (&a.kernel, &a.arch).cmp(&(&b.kernel, &b.arch)));
        output::write_record(folder, &record)?;
        output::write(&folder.join(RUST_FILE), &output::rust_text(Some(&record), None))?;

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

    /// Everything that is done for one architecture.
    fn part(
        &self,
        job: &Job,
        folder: &Path,
        ptxas: Option<&Ptxas>,
        previous: Option<&Record>,
    ) -> Result<Part, BuildError> {
        let compiled = job.run()?;
        let not_understood = |e| BuildError::ptx(job.arch, e);
        let module = ptx::parse(&compiled.ptx).map_err(not_understood)?;
        let problems = check::problems(&module, &self.kernels, job.arch);
        if !problems.is_empty() {
            return Err(BuildError::Mismatch { arch: job.arch.to_string(), problems });
        }
        let ptx = check::completed(&compiled.ptx, &module, &self.kernels, job.arch);
        let normalised = ptx::normalised(&ptx).map_err(not_understood)?;
        let (module, resources) = output::module(folder, job.package, job.arch, &ptx, ptxas, previous)?;
        Ok(Part { module, resources, ptx, normalised, warnings: compiled.warnings })
    }
}

/// `<target>/cuda_builder` for `<target>/<profile>/build/<package>/out`; another layout of cargo's has no such place.
fn shared_work_folder(out_dir: &Path) -> PathBuf {
    let mut above = out_dir.ancestors().skip(2);
    match (above.next(), above.nth(1)) {
        (Some(build), Some(target)) if build.ends_with("build") => target.join("cuda_builder"),
        _ => out_dir.join("cuda_builder"),
    }
}

/// The results for one architecture.
struct Part {
    module: RecordedModule,
    resources: Vec<Resources>,
    ptx: String,
    normalised: String,
    warnings: String,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_share_the_folder_of_the_inner_build() {
        for profile in ["debug", "release"] {
            let out = PathBuf::from("/p/target").join(profile).join("build/host-0123/out");
            assert_eq!(shared_work_folder(&out), Path::new("/p/target/cuda_builder"));
        }
        assert_eq!(shared_work_folder(Path::new("/p/other/out")), Path::new("/p/other/out/cuda_builder"));
    }
}
