//! Child processes that must not see the cargo build that runs this one.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

/// Variables of cargo that configure the network, the registry and the number of jobs: they hold for the inner
/// build as well.
const KEPT: &[&str] = &[
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_MAKEFLAGS",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
];

/// Variables without that prefix which cargo, clippy and the user's outer build set.
const DROPPED: &[&str] = &[
    "CLIPPY_ARGS",
    "CLIPPY_CONF_DIR",
    "DEBUG",
    "HOST",
    "NUM_JOBS",
    "OPT_LEVEL",
    "OUT_DIR",
    "PROFILE",
    "RUSTC",
    "RUSTC_LINKER",
    "RUSTC_LOG",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "TARGET",
];

/// Removes what the outer cargo build says about itself: its flags, compiler, wrappers, profile and folders.
pub(crate) fn isolated(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_dropped) {
            command.env_remove(&name);
        }
    }
    if let Some(paths) = env::var_os("LD_LIBRARY_PATH") {
        match own_libraries(&paths, &outer_folders()) {
            Some(rest) => command.env("LD_LIBRARY_PATH", rest),
            None => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
    command
}

fn is_dropped(name: &str) -> bool {
    let kept =
        KEPT.iter().any(|kept| if kept.ends_with('_') { name.starts_with(kept) } else { name == *kept });
    let cargo = name == "CARGO" || name.starts_with("CARGO_") || name.starts_with("DEP_");
    (cargo && !kept) || DROPPED.contains(&name)
}

/// The folders whose libraries cargo adds to the search path: those of its rustc, and of the build.
fn outer_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    // `<toolchain>/bin/cargo`, whose libraries are in `<toolchain>/lib`. A compiler of another release must not
    // load them.
    folders.extend(
        env::var_os("CARGO").and_then(|cargo| Some(PathBuf::from(cargo).parent()?.parent()?.to_path_buf())),
    );
    // `<target>/<profile>/build/<package>/out`.
    folders.extend(
        env::var_os("OUT_DIR").and_then(|out| Some(PathBuf::from(out).ancestors().nth(3)?.to_path_buf())),
    );
    // A cargo of the distribution says nothing: /usr holds everybody's libraries.
    folders.retain(|folder| folder.as_os_str() != "/usr" && folder.as_os_str() != "/");
    folders
}

/// A search path without the folders below the given ones; `None` when nothing is left.
fn own_libraries(paths: &OsString, without: &[PathBuf]) -> Option<OsString> {
    let rest: Vec<PathBuf> = env::split_paths(paths)
        .filter(|path| !path.as_os_str().is_empty() && !without.iter().any(|folder| path.starts_with(folder)))
        .collect();
    if rest.is_empty() { None } else { env::join_paths(rest).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_build_is_hidden_and_the_network_is_not() {
        for name in [
            "CARGO",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "CARGO_TARGET_DIR",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_MANIFEST_DIR",
            "CARGO_HOME_OTHER",
            "RUSTFLAGS",
            "RUSTC_WORKSPACE_WRAPPER",
            "CLIPPY_ARGS",
            "DEP_CUDA_ROOT",
        ] {
            assert!(is_dropped(name), "{name}");
        }
        for name in [
            "PATH",
            "HOME",
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "CARGO_HTTP_PROXY",
            "CARGO_MAKEFLAGS",
            "RUSTUP_HOME",
        ] {
            assert!(!is_dropped(name), "{name}");
        }
    }

    #[test]
    fn library_folders_of_the_outer_toolchain_are_left_out() {
        let without = [PathBuf::from("/home/u/.rustup/toolchains/stable"), PathBuf::from("/p/target/debug")];
        let paths = OsString::from("/p/target/debug/deps:/home/u/.rustup/toolchains/stable/lib:/opt/lib:");
        assert_eq!(own_libraries(&paths, &without), Some(OsString::from("/opt/lib")));
        assert_eq!(own_libraries(&OsString::from("/p/target/debug"), &without), None);
    }
}
