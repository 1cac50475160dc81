//! The host's side: launch types and contracts, and the kernel calls as the emulator runs them.

pub mod buffer;
pub mod contract;
pub mod kernel;
pub mod shared;
pub mod thread;
pub mod warp;
pub mod warpgroup;
