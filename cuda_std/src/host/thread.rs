//! Which thread the kernel is, and the block barrier.

use std::panic::Location;

use crate::emulator::context;
use crate::emulator::sync;

/// Index of the thread in its block.
pub fn thread_idx() -> u32 {
    context::with(|context| context.thread)
}

/// Index of the block in x.
pub fn block_idx() -> u32 {
    context::with(|context| context.block_idx.x)
}

/// Index of the block in y.
pub fn block_idx_y() -> u32 {
    context::with(|context| context.block_idx.y)
}

/// Index of the block in z.
pub fn block_idx_z() -> u32 {
    context::with(|context| context.block_idx.z)
}

/// Threads per block.
pub fn block_dim() -> u32 {
    context::with(|context| context.decl.block)
}

/// Blocks of the grid in x.
pub fn grid_dim() -> u32 {
    context::with(|context| context.grid.x)
}

/// Blocks of the grid in y.
pub fn grid_dim_y() -> u32 {
    context::with(|context| context.grid.y)
}

/// Blocks of the grid in z.
pub fn grid_dim_z() -> u32 {
    context::with(|context| context.grid.z)
}

/// Index of the thread in its warp, 0 to 31.
pub fn lane() -> u32 {
    thread_idx() % 32
}

/// Index of the warp in its block.
pub fn warp() -> u32 {
    thread_idx() / 32
}

/// `block_idx * block_dim + thread_idx` in x.
pub fn global_index() -> u32 {
    context::with(|c| c.block_idx.x.wrapping_mul(c.decl.block).wrapping_add(c.thread))
}

/// Waits until every thread of the block is here; what they wrote before is then visible to all of them.
#[track_caller]
pub fn sync() {
    sync::barrier(Location::caller());
}
