//! What a kernel in Rust is written with. On the device (`nvptx64`) the calls are PTX; everywhere else they
//! are a SIMT emulator with the same names, so that one kernel source runs on a GPU and under `cargo test`.
//!
//! `docs/KERNEL_ABI.md` is the reference: the `#[kernel]` attribute, buffers, shared memory, warp operations,
//! and what the emulator detects. A kernel file starts with `use cuda_std::prelude::*;`.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_unadjusted, asm_experimental_arch, core_float_math, link_llvm_intrinsics, stdarch_nvptx)
)]
// The device side stands in for a part of the compiler's own library: it needs what that one uses.
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]
#![warn(missing_docs)]

mod element;
mod halves;
pub mod math;

#[cfg(target_arch = "nvptx64")]
mod device;
#[cfg(target_arch = "nvptx64")]
pub use device::{buffer, shared, thread, warp, warpgroup};

#[cfg(not(target_arch = "nvptx64"))]
pub mod emulator;
#[cfg(not(target_arch = "nvptx64"))]
mod host;
#[cfg(not(target_arch = "nvptx64"))]
pub use host::{
    buffer::{self, Buf},
    contract::{self, ArgumentValue, ContractError},
    kernel::{
        Access, AccessKind, Dim3, ElementType, Kernel, KernelDecl, Param, ParamPointers, ParamType,
        ParamWords,
    },
    shared, thread, warp, warpgroup,
};

pub use buffer::{In, InOut, Out};
pub use cuda_std_macros::kernel;
pub use element::Element;
pub use shared::Shared;

/// Everything a kernel file uses.
pub mod prelude {
    pub use crate::buffer::{In, InOut, Out};
    pub use crate::shared::{self, Shared};
    pub use crate::{kernel, math, thread, warp, warpgroup};
}
