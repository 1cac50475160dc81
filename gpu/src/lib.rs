//! The device kernels of Stepgraph.
//!
//! An ordinary library on the host (launch structs, `f64` references, emulator bodies) and PTX on the device.
//! Shape letters are those of the whole project: B batch, S state features, H1/H2 trunk widths, D branches,
//! n_d actions of branch d, K atoms. See `docs/KERNEL_ABI.md` for what `#[kernel]` makes of a function.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod action;
pub mod clock;
pub mod kernels;
pub mod logits;
pub mod market;
pub mod philox;
#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;
pub mod task;

#[cfg(not(target_arch = "nvptx64"))]
pub use kernels::KERNELS;
