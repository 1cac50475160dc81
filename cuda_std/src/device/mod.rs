//! The device side. Barriers, shuffles, votes and matrix products are LLVM's convergent intrinsics, never
//! `asm!`: LLVM may copy or move `asm!` into divergent flow (it has no convergent marker).

pub mod buffer;
mod panic;
pub mod shared;
pub mod thread;
pub mod warp;
pub mod warpgroup;
