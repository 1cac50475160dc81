//! A SIMT emulator: runs a kernel's body for every thread of every block, on one OS thread, one emulated thread
//! at a time, in an order drawn from a seed, and reports what a GPU would leave undefined.
//!
//! Threads of a block are coroutines that switch at block barriers and warp operations; a kernel that declares
//! neither runs as a plain loop. Blocks run one after the other, so a kernel that waits for another block never
//! ends here.

pub(crate) mod access;
mod alias;
pub(crate) mod collective;
pub(crate) mod context;
mod fault;
mod global;
mod host_buf;
mod order;
mod panics;
mod random;
mod schedule;
pub(crate) mod shadow;
pub(crate) mod shared_access;
mod stacks;
pub(crate) mod sync;

pub use fault::{Elsewhere, Fault, Place, Site};
pub use host_buf::HostBuf;
pub use schedule::{Emulator, LaunchStats};
pub use sync::Operation;
