//! Bodies for the gated linear units against their reference: those of `gpu/tests/glu`, here for every back end.

use super::machine;

#[path = "../../gpu/tests/glu/bodies.rs"]
mod bodies;

pub use bodies::{forward_and_backward, nan_shows};
