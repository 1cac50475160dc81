//! Bodies for the spectral norm against its reference, an independent program's values and case C42: those of
//! `gpu/tests/spectral`, here for every back end.

use super::machine;

#[path = "../../gpu/tests/spectral/bodies.rs"]
mod bodies;

pub use bodies::{
    a_matrix_within_the_bound_keeps_its_bits, c42_power_iteration, golden_steps, random_matrices,
    what_is_not_finite_shows_and_changes_nothing, zero_gives_sigma_zero_and_keeps_u,
};
