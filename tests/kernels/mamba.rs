//! Bodies for the Mamba-2 block's kernels against their reference: those of `gpu/tests/mamba`, here for every back end.

use super::{machine, random};

#[path = "../../gpu/tests/mamba/bodies.rs"]
mod bodies;
#[path = "../../gpu/tests/mamba/pipeline.rs"]
mod pipeline;
#[path = "../../gpu/tests/mamba/problem.rs"]
mod problem;

pub use bodies::{
    closed_gate, default_sizes, fast_and_slow, fewer_taps, long_window, many_rows, nan_shows, odd_sizes,
    one_bar, reproducible, wide_block,
};
