//! Bodies for the temporal attention's kernels against their reference, an independent program's values and each other:
//! those of `gpu/tests/attention`, here for every back end.

use super::{machine, random};

#[path = "../../gpu/tests/attention/bodies.rs"]
mod bodies;
#[path = "../../gpu/tests/attention/check.rs"]
mod check;
#[path = "../../gpu/tests/attention/golden.rs"]
mod golden;
#[path = "../../gpu/tests/attention/pipeline.rs"]
mod pipeline;
#[path = "../../gpu/tests/attention/problem.rs"]
mod problem;

pub use bodies::{
    closed_gate, default_window, large_scores, long_window, many_rows, nan_shows, odd_sizes, one_bar,
    reproducible, tensor_cores, wide_trunk,
};
pub use golden::golden_steps;
