//! End of a step, beside Adam: batch means, gradient norm, the history row and the counters.
//!
//! One block. Sums run in a fixed order. The row of step n is `history[n % rows]`, so the host reads a whole epoch's
//! curves with one copy and without stopping the replays.

use cuda_std::prelude::*;

use super::c51_loss::stat;
use super::gradient_norm::partials;
use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Columns of a history row: batch means of the C51 statistics in their order ([`stat`]), then these. `step_signals`
/// writes the columns up to SKIPPED, `learner_signals` all; the others stay zero.
pub mod signal {
    /// Columns 0 to 6 are `c51_loss::stat`'s.
    pub const GRADIENT_NORM: u32 = 7;
    /// 1 if the step was skipped because a norm is not finite.
    pub const SKIPPED: u32 = 8;
    /// Learning rate of the step.
    pub const LR: u32 = 9;
    /// Batch means of `learner_signals::sample`'s rows, in their order.
    pub const SAMPLES: u32 = 10;
    /// Unclipped norms of the terms and of the groups, as from `update_scales::scale::TERM_NORM` on.
    pub const NORM: u32 = 20;
    /// Number of norms.
    pub const NORMS: u32 = 12;
    /// Mean of V_high - V_low; this and the next three are `iql_state`'s.
    pub const IQL_GAP: u32 = 32;
    /// Exploration by the value networks, after the step.
    pub const IQL_EPSILON: u32 = 33;
    /// Lower end of the support, after the step.
    pub const V_MIN: u32 = 34;
    /// Upper end of the support, after the step.
    pub const V_MAX: u32 = 35;
    /// Running median of td after the step; this and the next are `confidence_state`'s.
    pub const TD_MEDIAN: u32 = 36;
    /// Fraction of the batch whose td is above the median before the step.
    pub const TD_ABOVE: u32 = 37;
    /// Cosine of the gradient and that of held-out data, in the steps that have it; `vaccine_apply`'s.
    pub const VACCINE_COSINE: u32 = 38;
    /// Columns of a row.
    pub const COLUMNS: u32 = 48;
}

/// Writes the step's history row and advances the counters.
#[kernel(
    block = 256,
    grid = 1,
    shared = 256 * 4 + 8 * 4,
    barriers = 2,
    shuffles = 5,
    requires(
        batch > 0,
        rows > 0,
        len > 0,
        stats.len() >= (batch as usize) * (stat::COLUMNS as usize),
        sums.len() >= partials(len) as usize,
        history.len() >= (rows as usize) * (signal::COLUMNS as usize),
        clock_words.len() >= clock::WORDS as usize,
    )
)]
pub fn step_signals(
    batch: u32,
    len: u32,
    rows: u32,
    stats: In<f32>,
    sums: In<f32>,
    history: Out<f32>,
    clock_words: InOut<u64>,
) {
    let columns = shared::array::<f32>(0, 256);
    let squares = shared::array::<f32>(256 * 4, 8);
    let thread = thread::thread_idx();
    // Thread t adds column t % 8 of rows t / 8, t / 8 + 32, ...: a warp reads 128 consecutive bytes.
    let mut sum = 0.0;
    let mut i = thread;
    while i < batch * stat::COLUMNS {
        sum += stats.get(i);
        i += 256;
    }
    columns.set(thread, sum);
    let mut square = 0.0;
    i = thread;
    while i < partials(len) {
        square += sums.get(i);
        i += 256;
    }
    let square = warp::sum(square);
    if thread::lane() == 0 {
        squares.set(thread::warp(), square);
    }
    thread::sync(); // column sums and squares are written before they are added below
    let step = clock_words.get(clock::STEP);
    let row = (step % rows as u64) as u32 * signal::COLUMNS;
    if thread < stat::COLUMNS - 1 {
        let mut total = 0.0;
        let mut group = 0;
        while group < 32 {
            total += columns.get(group * stat::COLUMNS + thread);
            group += 1;
        }
        history.set(row + thread, total / batch as f32);
    }
    if thread == 32 {
        let mut total = 0.0;
        let mut w = 0;
        while w < 8 {
            total += squares.get(w);
            w += 1;
        }
        let norm = math::sqrt(total);
        let finite = norm < f32::INFINITY; // false for NaN too
        history.set(row + signal::GRADIENT_NORM, norm);
        history.set(row + signal::SKIPPED, if finite { 0.0 } else { 1.0 });
        let in_a_row = clock_words.get(clock::SKIPPED_IN_A_ROW);
        clock_words.set(clock::SKIPPED_IN_A_ROW, if finite { 0 } else { in_a_row + 1 });
        clock_words.set(clock::SKIPPED, clock_words.get(clock::SKIPPED) + !finite as u64);
    }
    thread::sync(); // every thread has read the step's number before it is advanced
    if thread == 0 {
        clock_words.set(clock::STEP, step + 1);
    }
}
