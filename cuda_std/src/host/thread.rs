//! Which thread the kernel is, and the block barrier.

use std::panic::Location;

use crate::emulator::context;
use crate::emulator::sync;

/// Index of the thread in its block.
#[inline(always)]
pub fn thread_idx() -> u32 {
    context::with(|context| context.thread)
}

/// Index of the block in x.
#[inline(always)]
pub fn block_idx() -> u32 {
    context::with(|context| context.block_idx.x)
}

/// Index of the block in y.
#[inline(always)]
pub fn block_idx_y() -> u32 {
    context::with(|context| context.block_idx.y)
}

/// Index of the block in z.
#[inline(always)]
pub fn block_idx_z() -> u32 {
    context::with(|context| context.block_idx.z)
}

/// Threads per block.
#[inline(always)]
pub fn block_dim() -> u32 {
    context::with(|context| context.decl.block)
}

/// Blocks of the grid in x.
#[inline(always)]
pub fn grid_dim() -> u32 {
    context::with(|context| context.grid.x)
}

/// Blocks of the grid in y.
#[inline(always)]
pub fn grid_dim_y() -> u32 {
    context::with(|context| context.grid.y)
}

/// Blocks of the grid in z.
#[inline(always)]
pub fn grid_dim_z() -> u32 {
    context::with(|context| context.grid.z)
}

/// Index of the thread in its warp, 0 to 31.
#[inline(always)]
pub fn lane() -> u32 {
    thread_idx() % 32
}

/// Index of the warp in its block.
#[inline(always)]
pub fn warp() -> u32 {
    thread_idx() / 32
}

/// `block_idx * block_dim + thread_idx` in x.
#[inline(always)]
pub fn global_index() -> u32 {
    context::with(|c| c.block_idx.x.wrapping_mul(c.decl.block).wrapping_add(c.thread))
}

/// Waits until every thread of the block is here; what they wrote before is then visible to all of them.
#[track_caller]
pub fn sync() {
    sync::barrier(Location::caller());
}
