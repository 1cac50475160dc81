//! Bodies for products of operands that lie in memory as bf16: those of `gpu/tests/stored`, here for every back end. On a GPU
//! whose image is without these kernels the launches fail with the reason.

use super::{machine, random};

#[path = "../../gpu/tests/stored/bodies.rs"]
pub mod bodies;

pub use bodies::{nn, nt, tn};
