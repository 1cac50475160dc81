//! The trainer: device layer, training step, environments, program.

pub mod cache_file;
pub mod cli;
pub mod commands;
pub mod cublaslt;
pub mod cuda;
pub mod doctor;
pub mod embedded;
pub mod emulated;
pub mod error;
pub mod exec;
pub mod export;
pub mod extent;
pub mod gemm;
pub mod installed;
pub mod log;
pub mod onnx;
pub mod order;
pub mod predict;
pub mod product;
pub mod profile;
pub mod room;
pub mod step;
pub mod tensors;
pub mod train;
