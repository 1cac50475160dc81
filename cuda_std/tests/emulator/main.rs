//! The emulator and the kernel attribute, from outside: what is correct runs the same under every seed, and each
//! kind of mistake is reported with kernel, block, thread and source line.

mod atomics;
mod barriers;
mod bounds;
mod contracts;
mod copies;
mod launches;
mod math;
mod races;
mod warpgroups;
mod warps;

use cuda_std::Kernel;
use cuda_std::emulator::{Emulator, Fault, LaunchStats, Place, Site};

/// Seeds under which a test runs its kernel.
const SEEDS: std::ops::Range<u64> = 0..64;

/// Runs a launch under every seed and returns the last one's statistics; all must succeed.
#[track_caller]
fn passes(kernel: &impl Kernel) -> LaunchStats {
    let mut stats = LaunchStats::default();
    for seed in SEEDS {
        match Emulator::new(seed).launch(kernel) {
            Ok(s) => stats = s,
            Err(fault) => panic!("seed {seed}: {fault}"),
        }
    }
    stats
}

/// Runs a launch under every seed; all must fail, and the faults are returned.
#[track_caller]
fn faults(kernel: &impl Kernel) -> Vec<Fault> {
    SEEDS
        .map(|seed| match Emulator::new(seed).launch(kernel) {
            Ok(_) => panic!("seed {seed}: the fault was not found"),
            Err(fault) => fault,
        })
        .collect()
}

/// The line of `source` that ends with the comment `// <mark>`.
#[track_caller]
fn line(source: &str, mark: &str) -> u32 {
    let mark = format!("// <{mark}>");
    let lines: Vec<usize> =
        (1..).zip(source.lines()).filter(|(_, l)| l.ends_with(&mark)).map(|(i, _)| i).collect();
    assert_eq!(lines.len(), 1, "the mark {mark} is on lines {lines:?}");
    lines[0] as u32
}

/// Asserts that a place is the marked line of a test's source file.
#[track_caller]
fn assert_place(place: Place, file: &str, source: &str, mark: &str) {
    assert_eq!(place, Place { file: place.file, line: line(source, mark) });
    assert!(place.file.ends_with(file), "{} is not {file}", place.file);
}

/// Asserts kernel and line of a site.
#[track_caller]
fn assert_site(site: &Site, kernel: &str, file: &str, source: &str, mark: &str) {
    assert_eq!(site.kernel, kernel);
    assert_place(site.place, file, source, mark);
}
