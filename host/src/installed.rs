//! Where NVIDIA's software lies on a machine: toolkits, and the Python packages that bring parts of it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Roots to search, from the environment of the process.
#[derive(Clone, Debug)]
pub struct Places {
    /// Folders of programs.
    path: Vec<PathBuf>,
    /// Roots of CUDA toolkits.
    toolkits: Vec<PathBuf>,
    /// Prefixes of Python installations, beside those whose `python3` is on the path.
    pythons: Vec<PathBuf>,
}

impl Places {
    /// What variables and custom name on this machine.
    pub fn of_process() -> Self {
        let folder = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named = |names: &[&str]| names.iter().filter_map(|name| folder(name)).collect::<Vec<_>>();
        let mut toolkits = named(&["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CONDA_PREFIX"]);
        toolkits.push("/usr/local/cuda".into());
        toolkits.extend(children("/usr/local".as_ref(), "cuda-"));
        toolkits.push("/opt/cuda".into());
        let mut pythons = named(&["VIRTUAL_ENV", "CONDA_PREFIX"]);
        pythons.push(".venv".into());
        pythons.extend(folder("HOME").map(|home| home.join(".local")));
        pythons.extend(["/usr/local".into(), "/usr".into()]);
        let path = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
        Self { path, toolkits, pythons }
    }

    /// Existing folders that may hold a part of CUDA, in the order to try, without repetitions: `in_toolkit` below
    /// each toolkit, then `in_packages` below each `nvidia` folder of Python packages.
    pub fn folders(&self, in_toolkit: &[&str], in_packages: &[&str]) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for root in &self.toolkits {
            folders.extend(in_toolkit.iter().map(|part| root.join(part)));
        }
        // `<prefix>/bin` on the path with a Python in it: its packages are in `<prefix>/lib/python3.x`.
        let with_python = self.path.iter().filter(|folder| folder.join("python3").exists());
        let prefixes = with_python.filter_map(|folder| folder.parent().map(Path::to_owned));
        for prefix in self.pythons.iter().cloned().chain(prefixes) {
            for python in children(&prefix.join("lib"), "python3") {
                for packages in ["site-packages", "dist-packages"] {
                    let nvidia = python.join(packages).join("nvidia");
                    folders.extend(in_packages.iter().map(|part| nvidia.join(part)));
                }
            }
        }
        let mut unique: Vec<PathBuf> = Vec::new();
        for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
            if !unique.contains(&folder) {
                unique.push(folder);
            }
        }
        unique
    }

    /// A program on the path, in a toolkit's `bin`, or in one of the packages' folders.
    pub fn program(&self, name: &str, in_packages: &[&str]) -> Option<PathBuf> {
        let folders = self.folders(&["bin"], in_packages);
        self.path.iter().chain(&folders).map(|folder| folder.join(name)).find(|file| file.is_file())
    }
}

/// Entries of a folder whose name starts with `prefix`, last name first; none if it cannot be read.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut paths: Vec<PathBuf> = named.map(|entry| entry.path()).collect();
    paths.sort();
    paths.reverse();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolkits_and_python_packages_are_searched_in_order() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for folder in [
            "cuda/lib64",
            "cuda/bin",
            "venv/bin",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "venv/lib/python3.12/site-packages/nvidia/cublas/lib",
            "user/lib/python3.11/dist-packages/nvidia/cublas/lib",
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("venv/bin/python3"), "").unwrap();
        fs::write(at("cuda/bin/ptxas"), "").unwrap();
        let places = Places {
            path: vec![at("missing/bin"), at("venv/bin")],
            toolkits: vec![at("cuda"), at("missing")],
            pythons: vec![at("user"), at("venv")],
        };
        let expected = [
            "cuda/lib64",
            "user/lib/python3.11/dist-packages/nvidia/cublas/lib",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "venv/lib/python3.12/site-packages/nvidia/cublas/lib",
        ];
        assert_eq!(places.folders(&["lib64", "lib"], &["cu13/lib", "cublas/lib"]), expected.map(at));
        assert_eq!(places.program("ptxas", &["cu13/bin"]), Some(at("cuda/bin/ptxas")));
        assert_eq!(places.program("nvcc", &["cu13/bin"]), None);
    }
}
