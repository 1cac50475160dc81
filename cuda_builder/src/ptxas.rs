//! NVIDIA's assembler, where there is one: PTX to a cubin, and what each kernel uses of the device.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::{BuildError, process};

/// Names the assembler to use; `none` for no cubins.
pub const PTXAS_VARIABLE: &str = "STEPGRAPH_PTXAS";

/// An assembler that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ptxas {
    pub path: PathBuf,
    /// `release 13.0, V13.0.88`
    pub version: String,
}

/// What a kernel uses of the device, as the assembler reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Resources {
    /// Name of the kernel.
    pub kernel: String,
    /// `sm_90`
    pub arch: String,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes per thread that did not fit the registers: stored, and loaded back.
    pub spill_store_bytes: u32,
    /// See `spill_store_bytes`.
    pub spill_load_bytes: u32,
    /// Bytes of local memory per thread, spills included.
    pub stack_bytes: u32,
    /// Bytes of static shared memory per block.
    pub shared_bytes: u32,
}

impl Ptxas {
    /// Searches `STEPGRAPH_PTXAS`, PATH, CUDA_HOME, CUDA_PATH, /usr/local/cuda and where pip installs it.
    ///
    /// # Errors
    /// When the variable names one that does not run.
    pub fn find() -> Result<Option<Ptxas>, BuildError> {
        if let Some(named) = env::var_os(PTXAS_VARIABLE).filter(|v| !v.is_empty()) {
            if named == "none" {
                return Ok(None);
            }
            return match Ptxas::examine(Path::new(&named)) {
                Ok(found) => Ok(Some(found)),
                Err(reason) => Err(BuildError::setting(PTXAS_VARIABLE, &named, reason)),
            };
        }
        // The first that is there and runs; a broken one elsewhere on the path is not this build's concern.
        Ok(candidates().into_iter().filter(|path| path.is_file()).find_map(|path| Ptxas::examine(&path).ok()))
    }

    fn examine(path: &Path) -> Result<Ptxas, String> {
        let mut command = Command::new(path);
        command.arg("--version");
        let output = process::isolated(&mut command).output().map_err(|e| format!("cannot be run: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        // `Cuda compilation tools, release 13.0, V13.0.88`
        let version = text.lines().find_map(|line| Some(line[line.find("release ")?..].trim().to_string()));
        match version {
            Some(version) if output.status.success() => Ok(Ptxas { path: path.to_path_buf(), version }),
            _ => Err("does not answer --version as ptxas does".to_string()),
        }
    }

    /// For the record and for messages.
    pub fn describe(&self) -> String {
        format!("ptxas {} ({})", self.version, self.path.display())
    }

    /// Assembles `ptx` for `arch` into `cubin`.
    pub fn assemble(&self, ptx: &Path, cubin: &Path, arch: &str) -> Result<Vec<Resources>, BuildError> {
        let mut command = Command::new(&self.path);
        command
            .args(["--verbose", "--generate-line-info", "--gpu-name", arch, "--output-file"])
            .arg(cubin)
            .arg(ptx);
        let output = process::isolated(&mut command)
            .output()
            .map_err(|e| BuildError::io("run ptxas", &self.path, e))?;
        // The report is on standard error, in some releases on standard output.
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let failed = |message: String| BuildError::Assemble {
            arch: arch.to_string(),
            ptx: ptx.to_path_buf(),
            ptxas: self.describe(),
            message,
        };
        if !output.status.success() {
            return Err(failed(text.trim().to_string()));
        }
        let resources =
            report(&text, arch).map_err(|line| failed(format!("its report is not understood: {line}")))?;
        if resources.is_empty() {
            return Err(failed("it reports no kernels".to_string()));
        }
        Ok(resources)
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = env::var_os("PATH")
        .map(|path| env::split_paths(&path).map(|dir| dir.join("ptxas")).collect())
        .unwrap_or_default();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        out.extend(env::var_os(variable).map(|home| PathBuf::from(home).join("bin").join("ptxas")));
    }
    out.push(PathBuf::from("/usr/local/cuda/bin/ptxas"));
    for packages in python_packages() {
        // The package nvidia-cuda-nvcc of CUDA 13, and nvidia-cuda-nvcc-cu12.
        out.push(packages.join("nvidia/cu13/bin/ptxas"));
        out.push(packages.join("nvidia/cuda_nvcc/bin/ptxas"));
    }
    out
}

/// The folders that hold Python packages: of the active environment, of the user, of the system.
fn python_packages() -> Vec<PathBuf> {
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(env::var_os)
        .map(PathBuf::from)
        .chain(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")))
        .chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
    let mut out = Vec::new();
    for prefix in prefixes {
        let Ok(entries) = prefix.join("lib").read_dir() else { continue };
        let mut pythons: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok())
            .filter(|entry| is_python(&entry.file_name()))
            .map(|entry| entry.path())
            .collect();
        pythons.sort();
        out.extend(pythons.iter().flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]));
    }
    out
}

fn is_python(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("python3"))
}

/// Reads what `ptxas --verbose` says; the error is the line that is not understood.
fn report(text: &str, arch: &str) -> Result<Vec<Resources>, String> {
    let mut out: Vec<Resources> = Vec::new();
    // Properties follow for entries and for functions; only those that name the entry being compiled are its own.
    let mut own_properties = false;
    for line in text.lines() {
        let info = line.strip_prefix("ptxas info").map(|rest| rest.trim_start_matches([' ', ':']));
        if let Some(rest) = info.and_then(|info| info.strip_prefix("Compiling entry function '")) {
            let kernel = rest.split('\'').next().unwrap_or_default().to_string();
            out.push(Resources { kernel, arch: arch.to_string(), ..Resources::default() });
            own_properties = false;
        } else if let Some(name) = info.and_then(|info| info.strip_prefix("Function properties for ")) {
            own_properties = out.last().is_some_and(|entry| entry.kernel == name.trim());
        } else if line.contains("bytes stack frame") {
            if let (true, Some(entry)) = (own_properties, out.last_mut()) {
                entry.stack_bytes = before(line, " bytes stack frame")?;
                entry.spill_store_bytes = before(line, " bytes spill stores")?;
                entry.spill_load_bytes = before(line, " bytes spill loads")?;
            }
        } else if let Some(used) = info.filter(|info| info.starts_with("Used ")) {
            let entry = out.last_mut().ok_or_else(|| line.to_string())?;
            entry.registers = before(used, " registers")?;
            if used.contains(" bytes smem") {
                entry.shared_bytes = before(used, " bytes smem")?;
            }
            // With functions called, the whole chain's stack is given here.
            if used.contains(" bytes cumulative stack size") {
                entry.stack_bytes = before(used, " bytes cumulative stack size")?;
            }
        }
    }
    Ok(out)
}

/// The number that stands before `unit`.
fn before(line: &str, unit: &str) -> Result<u32, String> {
    let number = line.find(unit).and_then(|end| line[..end].rsplit([' ', ',']).next()?.parse().ok());
    number.ok_or_else(|| line.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'jump' for 'sm_90'
ptxas info    : Function properties for jump
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 4096 bytes smem
ptxas info    : Compile time = 2.683 ms
ptxas info    : Compiling entry function 'calls' for 'sm_90'
ptxas info    : Function properties for calls
    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size
ptxas info    : Function properties for helper
    104 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";

    #[test]
    fn the_report_is_read_per_kernel() {
        let all = report(TEXT, "sm_90").unwrap();
        let jump = Resources {
            kernel: "jump".into(),
            arch: "sm_90".into(),
            registers: 10,
            shared_bytes: 4096,
            ..Resources::default()
        };
        let calls = Resources {
            kernel: "calls".into(),
            arch: "sm_90".into(),
            registers: 255,
            spill_store_bytes: 8,
            spill_load_bytes: 12,
            stack_bytes: 40,
            shared_bytes: 0,
        };
        assert_eq!(all, [jump, calls]);
    }

    #[test]
    fn a_report_in_other_words_is_an_error() {
        let line = "ptxas info    : Used many registers";
        assert_eq!(
            report(&format!("ptxas info : Compiling entry function 'a' for 'sm_90'\n{line}"), "sm_90"),
            Err(line.to_string().replacen("ptxas info    : ", "", 1))
        );
        assert!(report(line, "sm_90").is_err());
    }
}
