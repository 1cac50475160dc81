//! The IQN kernels in the emulator, against the f64 reference and against golden values of an independent program.

mod case;
mod contracts;
mod golden;
mod loss;
#[path = "../common/random.rs"]
mod random;
mod target;
