//! Finds a rustc that can build `core` for `nvptx64-nvidia-cuda`.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{BuildError, Missing, process};

/// Releases whose PTX this builder was tested with. The kernels need unstable features and a compiler flag that
/// keeps barriers single, both of which may change with any release.
pub const TESTED: &[&str] = &["1.96"];

/// Names the compiler to use, instead of a search; `none` builds the host program without kernels.
pub const RUSTC_VARIABLE: &str = "STEPGRAPH_NVPTX_RUSTC";
/// `1` admits releases that are not in [`TESTED`].
pub const UNTESTED_VARIABLE: &str = "STEPGRAPH_NVPTX_UNTESTED";

/// A usable compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiler {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    /// `1.96.0`
    pub release: String,
    /// LLVM's version.
    pub llvm: String,
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rustc {} (LLVM {}, {})", self.release, self.llvm, self.rustc.display())
    }
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// From [`RUSTC_VARIABLE`].
    pub explicit: Option<PathBuf>,
    /// Candidates in order: the active toolchain, the user's other toolchains, the distribution's.
    pub candidates: Vec<PathBuf>,
    pub allow_untested: bool,
    /// The cargo that runs this build, for compilers that have none beside them.
    pub cargo: PathBuf,
}

impl Search {
    /// From the environment of a build script.
    pub fn from_environment() -> Result<Search, BuildError> {
        let active = env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let mut candidates = vec![active];
        candidates.extend(tested_rustup_toolchains());
        candidates.push(PathBuf::from("/usr/bin/rustc"));
        let allow_untested = match env::var_os(UNTESTED_VARIABLE) {
            None => false,
            Some(value) if value == "1" => true,
            Some(value) if value == "0" || value.is_empty() => false,
            Some(value) => {
                return Err(BuildError::setting(UNTESTED_VARIABLE, &value, "must be 0 or 1"));
            }
        };
        Ok(Search {
            explicit: env::var_os(RUSTC_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from),
            candidates,
            allow_untested,
            cargo: env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from),
        })
    }

    /// The first suitable compiler, or why each candidate is not one.
    ///
    /// # Errors
    /// When a compiler is named explicitly and cannot be used: another one would be a surprise.
    pub fn find(&self) -> Result<Result<Compiler, Missing>, BuildError> {
        if let Some(rustc) = &self.explicit {
            if rustc.as_os_str() == "none" {
                return Ok(Err(Missing {
                    reason: format!("the kernel build is switched off by {RUSTC_VARIABLE}=none"),
                    install: "unset the variable and build again".to_string(),
                }));
            }
            return match self.examine(rustc) {
                Ok(compiler) => Ok(Ok(compiler)),
                Err(reason) => Err(BuildError::setting(RUSTC_VARIABLE, rustc.as_os_str(), reason)),
            };
        }
        let mut reasons: Vec<String> = Vec::new();
        for rustc in &self.candidates {
            match self.examine(rustc) {
                Ok(compiler) => return Ok(Ok(compiler)),
                Err(reason) => {
                    let reason = format!("{}: {reason}", rustc.display());
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                }
            }
        }
        Ok(Err(Missing {
            reason: format!("no compiler for the GPU kernels was found\n{}", reasons.join("\n")),
            install: install_hint(),
        }))
    }

    fn examine(&self, rustc: &Path) -> Result<Compiler, String> {
        let version = output(rustc, &["--version", "--verbose"])?;
        let field = |name: &str| {
            version
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .map(|value| value.trim().to_string())
                .ok_or_else(|| format!("its version says no `{name}`"))
        };
        let release = field("release")?;
        let llvm = field("LLVM version")?;
        let sysroot = PathBuf::from(output(rustc, &["--print", "sysroot"])?.trim());
        if !sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file() {
            return Err(format!(
                "rustc {release} has no standard library source (rust-src) in {}",
                sysroot.display()
            ));
        }
        if !self.allow_untested && !tested(&release) {
            return Err(format!(
                "rustc {release} is not among the tested releases ({}); {UNTESTED_VARIABLE}=1 admits it",
                TESTED.join(", ")
            ));
        }
        let beside = sysroot.join("bin").join("cargo");
        let cargo = if beside.is_file() { beside } else { self.cargo.clone() };
        Ok(Compiler { rustc: rustc.to_path_buf(), cargo, release, llvm })
    }
}

/// Whether a release such as `1.96.0` belongs to [`TESTED`]; nightly and beta do not.
fn tested(release: &str) -> bool {
    TESTED.iter().any(|tested| {
        release
            .strip_prefix(tested)
            .and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|c| c.is_ascii_digit()))
    })
}

/// Compilers of rustup's toolchains that are named by a tested release (`1.96.0-x86_64-unknown-linux-gnu`).
fn tested_rustup_toolchains() -> Vec<PathBuf> {
    let home = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup")));
    let Some(Ok(entries)) = home.map(|home| home.join("toolchains").read_dir()) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| tested(name.split('-').next().unwrap_or_default()))
        })
        .map(|entry| entry.path().join("bin").join("rustc"))
        .collect();
    found.sort();
    found
}

fn output(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(arguments);
    let output = process::isolated(&mut command).output().map_err(|e| format!("cannot be run: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` failed: {}", arguments.join(" "), text.trim()));
    }
    String::from_utf8(output.stdout)
        .map_err(|_| format!("`{}` answers in no known encoding", arguments.join(" ")))
}

/// What to install where no compiler was found.
fn install_hint() -> String {
    let release = TESTED[TESTED.len() - 1];
    format!(
        "run ./setup.sh, or install one of: Debian packages `rustc-web rust-web-src` (security suite); with rustup: \
         `rustup toolchain install {release}.0 --profile minimal --component rust-src`; any rustc {release} with \
         rust-src named by {RUSTC_VARIABLE}. Then `touch build.rs` and build again"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A script that answers as a rustc of the given release does.
    fn fake_rustc(dir: &Path, name: &str, release: &str, with_source: bool) -> PathBuf {
        let sysroot = dir.join(name);
        let source = sysroot.join("lib/rustlib/src/rust/library/core/src");
        fs::create_dir_all(if with_source { &source } else { &sysroot }).unwrap();
        if with_source {
            fs::write(source.join("lib.rs"), "").unwrap();
        }
        let path = sysroot.join("rustc");
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\n--version) printf 'rustc x\\nrelease: {release}\\nLLVM version: 22.1.0\\n';;\n\
             --print) echo '{}';;\nesac\n",
            sysroot.display()
        );
        // Written under another name first: a parallel test's fork could hold the file open for writing.
        fs::write(path.with_extension("new"), script).unwrap();
        fs::set_permissions(path.with_extension("new"), fs::Permissions::from_mode(0o755)).unwrap();
        let status =
            Command::new("cp").arg("-p").arg(path.with_extension("new")).arg(&path).status().unwrap();
        assert!(status.success());
        path
    }

    #[test]
    fn the_first_suitable_candidate_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let no_source = fake_rustc(dir.path(), "no_source", "1.96.0", false);
        let old = fake_rustc(dir.path(), "old", "1.80.0", true);
        let good = fake_rustc(dir.path(), "good", "1.96.1", true);
        let second = fake_rustc(dir.path(), "second", "1.96.0", true);
        let search = Search {
            candidates: vec![dir.path().join("absent"), no_source, old.clone(), good.clone(), second],
            cargo: "the-cargo".into(),
            ..Search::default()
        };
        let found = search.find().unwrap().unwrap();
        assert_eq!((found.rustc, found.release.as_str(), found.llvm.as_str()), (good, "1.96.1", "22.1.0"));
        assert_eq!(found.cargo, PathBuf::from("the-cargo"));

        let untested = Search { allow_untested: true, ..search };
        assert_eq!(untested.find().unwrap().unwrap().rustc, old);
    }

    #[test]
    fn each_unsuitable_candidate_has_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let no_source = fake_rustc(dir.path(), "no_source", "1.96.0", false);
        let nightly = fake_rustc(dir.path(), "nightly", "1.96.0-nightly", true);
        let search =
            Search { candidates: vec![dir.path().join("absent"), no_source, nightly], ..Search::default() };
        let missing = search.find().unwrap().unwrap_err();
        let reasons: Vec<&str> = missing.reason.lines().skip(1).collect();
        assert_eq!(reasons.len(), 3);
        assert!(reasons[0].contains("absent: cannot be run"), "{}", reasons[0]);
        assert!(reasons[1].contains("rust-src"), "{}", reasons[1]);
        for part in ["1.96.0-nightly", UNTESTED_VARIABLE] {
            assert!(reasons[2].contains(part), "{}", reasons[2]);
        }
        assert!(missing.install.contains("setup.sh"), "{}", missing.install);
    }

    #[test]
    fn a_named_compiler_is_used_or_refused_but_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let old = fake_rustc(dir.path(), "old", "1.80.0", true);
        let good = fake_rustc(dir.path(), "good", "1.96.0", true);
        let search = Search { explicit: Some(old), candidates: vec![good.clone()], ..Search::default() };
        let error = search.find().unwrap_err().to_string();
        assert!(error.contains(RUSTC_VARIABLE) && error.contains("1.80.0"), "{error}");
        let search = Search { explicit: Some(good.clone()), ..Search::default() };
        assert_eq!(search.find().unwrap().unwrap().rustc, good);
        let search = Search { explicit: Some("none".into()), candidates: vec![good], ..Search::default() };
        assert!(search.find().unwrap().unwrap_err().reason.contains("=none"));
    }

    #[test]
    fn tested_releases() {
        assert!(tested("1.96.0") && tested("1.96.12"));
        assert!(!tested("1.96") && !tested("1.960.0") && !tested("1.96.0-beta.1") && !tested("1.9.6"));
    }
}
