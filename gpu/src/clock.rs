//! Counters of the training step in device memory. A graph replays the same arguments, so all that changes from
//! step to step is read from here.
//!
//! No kernel waits for another only to count: the step's own number is advanced by `step_signals`, which runs beside
//! Adam. Adam's number of updates is in a buffer of its own and alternates between two words, chosen by the parity
//! that `gradient_norm` latched from the step before.

/// Number of steps begun, skipped ones included. Read by sampling, advanced by `step_signals`.
pub const STEP: u32 = 0;
/// Steps skipped in a row because of a non-finite gradient norm.
pub const SKIPPED_IN_A_ROW: u32 = 1;
/// Steps skipped since the start.
pub const SKIPPED: u32 = 2;
/// Steps of collection (every environment once).
pub const COLLECT: u32 = 3;
/// Words of the buffer.
pub const WORDS: u32 = 4;

/// Words of Adam's own counter.
pub mod adam {
    /// Updates so far, for an even latched step; the next word for an odd one.
    pub const UPDATES: u32 = 0;
    /// Parity of the step, latched by `gradient_norm` for `adam_ema`.
    pub const PARITY: u32 = 2;
    /// Words of the buffer.
    pub const WORDS: u32 = 4;

    /// Adam's updates so far, from the buffer and the number of steps begun.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn updates(words: &[u64], steps: u64) -> u64 {
        words[UPDATES as usize + (steps & 1) as usize]
    }
}
