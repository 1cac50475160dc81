//! The matrix product kernels in the emulator, against f64 sums.

mod case;
mod data;
#[path = "../common/random.rs"]
mod random;
mod weight;
