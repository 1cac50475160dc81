//! Which files the PTX is made of: the kernel crate and the path crates it is built with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::{BuildError, process};

/// The kernel crate as cargo sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    /// Name of the kernel crate's package.
    pub package: String,
    /// Files and folders whose change makes the PTX stale.
    pub watched: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    path: Option<PathBuf>,
    kind: Option<String>,
}

impl Sources {
    /// Asks cargo about the crate in `folder`, which is an absolute path.
    pub fn find(cargo: &Path, folder: &Path) -> Result<Sources, BuildError> {
        let mut known: Vec<Package> = Vec::new();
        let mut watched = BTreeSet::new();
        let mut package = None;
        let mut queue = vec![folder.to_path_buf()];
        let mut visited = BTreeSet::new();
        while let Some(folder) = queue.pop() {
            if !visited.insert(folder.clone()) {
                continue;
            }
            let manifest = folder.join("Cargo.toml");
            if !known.iter().any(|p| p.manifest_path == manifest) {
                let metadata = metadata(cargo, &manifest)?;
                for file in ["Cargo.toml", "Cargo.lock"] {
                    watched.insert(metadata.workspace_root.join(file));
                }
                known.extend(metadata.packages);
            }
            let Some(found) = known.iter().find(|p| p.manifest_path == manifest) else {
                return Err(BuildError::Metadata {
                    manifest,
                    message: "cargo lists no package with this manifest".to_string(),
                });
            };
            package.get_or_insert_with(|| found.name.clone());
            watched.extend([manifest, folder.join("src"), folder.join("build.rs")]);
            let used = found.dependencies.iter().filter(|d| d.kind.as_deref() != Some("dev"));
            queue.extend(used.filter_map(|d| d.path.clone()));
        }
        // A watched file that does not exist would make every build a changed one.
        let watched = watched.into_iter().filter(|path| path.exists()).collect();
        Ok(Sources { package: package.unwrap_or_default(), watched })
    }
}

fn metadata(cargo: &Path, manifest: &Path) -> Result<Metadata, BuildError> {
    let mut command = Command::new(cargo);
    process::isolated(&mut command)
        .args(["metadata", "--no-deps", "--format-version=1", "--color=never", "--manifest-path"])
        .arg(manifest);
    let output = command.output().map_err(|e| BuildError::io("run cargo", cargo, e))?;
    let failed = |message: String| BuildError::Metadata { manifest: manifest.to_path_buf(), message };
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| failed(format!("cargo's answer is not understood: {e}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn path_crates_are_followed_and_dev_dependencies_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for (name, dependencies) in [
            (
                "kernels",
                "[dependencies]\nlibrary = { path = \"../library\" }\n[dev-dependencies]\ntools = { path = \"../tools\" }",
            ),
            ("library", "[dependencies]\nmacros = { path = \"../macros\" }"),
            ("macros", ""),
            ("tools", ""),
        ] {
            fs::create_dir_all(root.join(name).join("src")).unwrap();
            fs::write(root.join(name).join("src/lib.rs"), "").unwrap();
            let manifest =
                format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\n{dependencies}\n[workspace]\n");
            fs::write(root.join(name).join("Cargo.toml"), manifest).unwrap();
        }
        fs::write(root.join("macros/build.rs"), "fn main() {}").unwrap();
        let cargo = std::env::var_os("CARGO").expect("cargo runs the tests");
        let found = Sources::find(Path::new(&cargo), &root.join("kernels")).unwrap();
        assert_eq!(found.package, "kernels");
        let expected = [
            "kernels/Cargo.toml",
            "kernels/src",
            "library/Cargo.toml",
            "library/src",
            "macros/Cargo.toml",
            "macros/build.rs",
            "macros/src",
        ];
        assert_eq!(found.watched, expected.map(|path| root.join(path)));

        fs::write(root.join("library/Cargo.toml"), "[package]\nname = 3\n").unwrap();
        let error = Sources::find(Path::new(&cargo), &root.join("kernels")).unwrap_err().to_string();
        assert!(error.contains("library"), "{error}");
    }
}
