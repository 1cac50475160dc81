//! The trainer: device layer, training step, environments, program.

pub mod cublaslt;
pub mod cuda;
pub mod doctor;
pub mod emulated;
pub mod error;
pub mod exec;
pub mod extent;
pub mod installed;
pub mod order;
pub mod product;
