//! Data sets as people write them, damaged ones, and what is made of them.

mod checks;
mod formats;
mod mutated;
mod split;
mod windows;

use std::path::{Path, PathBuf};

use transitions::{TransitionError, TransitionSet, load};

/// A file of `tests/data/transitions`; `scripts/record-transitions.py` made them and says what they hold.
pub fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/transitions").join(name)
}

/// What is in all of them.
pub fn small() -> TransitionSet {
    load(&sample("plain.npz")).unwrap()
}

/// The text of a refusal.
#[track_caller]
pub fn refused(result: Result<impl std::fmt::Debug, TransitionError>) -> String {
    result.unwrap_err().to_string()
}
