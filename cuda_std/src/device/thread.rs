//! Which thread the kernel is, and the block barrier.

use core::arch::nvptx;

macro_rules! register {
    ($($(#[$doc:meta])* $name:ident = $read:ident;)*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            // SAFETY: reads a special register.
            unsafe { nvptx::$read() as u32 }
        }
    )* };
}

register! {
    /// Index of the thread in its block.
    thread_idx = _thread_idx_x;
    /// Index of the block in x.
    block_idx = _block_idx_x;
    /// Index of the block in y.
    block_idx_y = _block_idx_y;
    /// Index of the block in z.
    block_idx_z = _block_idx_z;
    /// Threads per block.
    block_dim = _block_dim_x;
    /// Blocks of the grid in x.
    grid_dim = _grid_dim_x;
    /// Blocks of the grid in y.
    grid_dim_y = _grid_dim_y;
    /// Blocks of the grid in z.
    grid_dim_z = _grid_dim_z;
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
    block_idx().wrapping_mul(block_dim()).wrapping_add(thread_idx())
}

/// Waits until every thread of the block is here; what they wrote before is then visible to all of them.
#[inline(always)]
pub fn sync() {
    // SAFETY: the emulator checks that all threads of a block reach it.
    unsafe { nvptx::_syncthreads() }
}
