//! Counters of the training step in device memory. A graph replays the same arguments, so all that changes from
//! step to step is read from here.
//!
//! The counters are written so that no kernel waits for another only to count: the step's own number is advanced
//! by `step_signals`, which runs beside Adam; Adam's number of updates alternates between two words, chosen by the
//! parity that `gradient_norm` latched from the step before.

/// Number of steps begun, skipped ones included. Read by sampling, advanced by `step_signals`.
pub const STEP: u32 = 0;
/// Adam's updates so far, for even latched steps; word `ADAM + 1` for odd ones.
pub const ADAM: u32 = 1;
/// Parity of the step, latched by `gradient_norm` for `adam_ema`.
pub const PARITY: u32 = 3;
/// Steps skipped in a row because of a non-finite gradient norm.
pub const SKIPPED_IN_A_ROW: u32 = 4;
/// Steps skipped since the start.
pub const SKIPPED: u32 = 5;
/// Steps of collection (every environment once), advanced by `collect_end`.
pub const COLLECT: u32 = 6;
/// Words of the buffer.
pub const WORDS: u32 = 8;
