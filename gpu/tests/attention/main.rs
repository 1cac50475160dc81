//! The temporal attention's kernels in the emulator, against the definition in f64 and an independent program's values.

mod contract;
mod golden;
mod pipeline;
mod problem;
mod random;
mod reference;
