//! Every kernel has its reference, its test body and its bench (ARCHITECTURE.md: one kernel, one stem).

use std::fs;
use std::path::{Path, PathBuf};

/// Stems without a reference file, with the reason.
const WITHOUT_REFERENCE: [(&str, &str); 3] = [
    ("regression", "reproduces a miscompile; its test bodies state the results"),
    ("market_observe", "copies what the CPU environment computes; its test bodies compare with that"),
    ("market_count", "three counters; its test bodies state them in closed form"),
];

/// Kernels without a bench, with the reason.
const WITHOUT_BENCH: [(&str, &str); 2] = [
    ("diverging_barrier", "reproduces a miscompile, its speed is of no interest"),
    ("diverging_shuffle", "reproduces a miscompile, its speed is of no interest"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("host lies in the repository").to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Folders of the `gpu` crate's own tests, some of whose bodies `tests/kernels` includes for every back end.
const GPU_TESTS: [&str; 7] = [
    "gpu/tests/attention",
    "gpu/tests/gemm",
    "gpu/tests/glu",
    "gpu/tests/mamba",
    "gpu/tests/market",
    "gpu/tests/spectral",
    "gpu/tests/stored",
];

/// Rust files of a folder, with their content.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// Stems of the files that declare kernels.
fn stems() -> Vec<String> {
    let declares = |text: &String| text.lines().any(|line| line.trim_start().starts_with("#[kernel("));
    let stems: Vec<String> = sources(&repository().join("gpu/src/kernels"))
        .into_iter()
        .filter(|(_, text)| declares(text))
        .map(|(path, _)| path.file_stem().expect("a file has a stem").to_string_lossy().into_owned())
        .collect();
    assert!(stems.len() >= 10, "only {stems:?} declare kernels: the search is broken");
    stems
}

/// `bias_lrelu` launches as `BiasLrelu`.
fn launch_type(kernel: &str) -> String {
    kernel.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
}

/// Whether `text` holds `name` as a word of its own.
fn mentions(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c| !word(c)).any(|found| found == name)
}

/// Whether a table of exceptions has the name.
fn listed(exceptions: &[(&str, &str)], name: &str) -> bool {
    exceptions.iter().any(|(listed, _)| *listed == name)
}

#[test]
fn every_stem_has_a_reference_and_a_listed_test_body() {
    let root = repository();
    let list = read(&root.join("tests/kernels/mod.rs"));
    for stem in stems() {
        let reference = root.join(format!("gpu/src/kernels/{stem}/reference.rs"));
        assert!(
            listed(&WITHOUT_REFERENCE, &stem) || reference.exists(),
            "{stem} has no reference: {}",
            reference.display()
        );
        let body = root.join(format!("tests/kernels/{stem}.rs"));
        assert!(body.exists(), "{stem} has no test body: {}", body.display());
        assert!(list.contains(&format!("{stem} {{")), "{stem} is not in the list of tests/kernels/mod.rs");
    }
}

#[test]
fn every_kernel_is_launched_by_a_test_and_by_a_bench() {
    let root = repository();
    let text = |folder: &str| -> String {
        sources(&root.join(folder)).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n")
    };
    // Bodies of which `tests/kernels` holds the name only.
    let included =
        ["gpu/tests/attention", "gpu/tests/glu", "gpu/tests/mamba", "gpu/tests/spectral", "gpu/tests/stored"]
            .map(text)
            .concat();
    let (tests, benches) = (text("tests/kernels") + &included, text("benches"));
    for kernel in gpu::KERNELS {
        let launch = launch_type(kernel.name);
        assert!(mentions(&tests, &launch), "no test body launches {launch}");
        let measured = listed(&WITHOUT_BENCH, kernel.name) || mentions(&benches, &launch);
        assert!(measured, "no bench launches {launch}");
    }
}

#[test]
fn every_reference_is_used_by_a_test() {
    let root = repository();
    let elsewhere: String =
        GPU_TESTS.into_iter().flat_map(|folder| sources(&root.join(folder))).map(|(_, text)| text).collect();
    for stem in stems().into_iter().filter(|stem| !listed(&WITHOUT_REFERENCE, stem)) {
        let body = read(&root.join(format!("tests/kernels/{stem}.rs")));
        let used = mentions(&body, "reference") || elsewhere.contains(&format!("{stem}::reference"));
        assert!(used, "no test uses the reference of {stem}");
    }
}
