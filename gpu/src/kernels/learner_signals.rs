//! End of a step with several losses, beside the optimizer: batch means, norms, the history row and the counters.
//!
//! As `step_signals`, for the columns that the further parts fill. One block; sums run in a fixed order.

use cuda_std::prelude::*;

use super::c51_loss::stat;
use super::step_signals::signal;
use super::update_scales::scale;
use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Rows of the per-sample buffer, `[ROWS, B]`.
pub mod sample {
    /// CQL loss with alpha.
    pub const CQL: u32 = 0;
    /// IQN loss without the importance weight; its mean in the history has it.
    pub const IQN: u32 = 1;
    /// Expectile losses of the high and the low value network.
    pub const IQL_LOSS: u32 = 2;
    /// V_high, then V_low.
    pub const IQL_VALUE: u32 = 4;
    /// Rows of the buffer.
    pub const ROWS: u32 = 6;
}

/// Writes the step's history row and advances the counters.
#[kernel(
    block = 256,
    grid = 1,
    shared = 256 * 4,
    barriers = 2,
    shuffles = 5,
    requires(
        batch > 0,
        rows > 0,
        stats.len() >= (batch as usize) * (stat::COLUMNS as usize),
        weights.len() >= batch as usize,
        samples.len() >= (batch as usize) * (sample::ROWS as usize),
        scales.len() >= scale::WORDS as usize,
        history.len() >= (rows as usize) * (signal::COLUMNS as usize),
        clock_words.len() >= clock::WORDS as usize,
    )
)]
pub fn learner_signals(
    batch: u32,
    /// Rows of the history.
    rows: u32,
    /// C51 statistics [B, 8].
    stats: In<f32>,
    /// Importance weights [B].
    weights: In<f32>,
    /// Per-sample values as in [`sample`]; rows of parts that are off are zero.
    samples: In<f32>,
    /// What `update_scales` made.
    scales: In<f32>,
    history: Out<f32>,
    clock_words: InOut<u64>,
) {
    let columns = shared::array::<f32>(0, 256);
    let thread = thread::thread_idx();
    let step = clock_words.get(clock::STEP);
    let row = (step % rows as u64) as u32 * signal::COLUMNS;
    // Thread t adds column t % 8 of rows t / 8, t / 8 + 32, ...: a warp reads 128 consecutive bytes.
    let mut sum = 0.0;
    let mut i = thread;
    while i < batch * stat::COLUMNS {
        sum += stats.get(i);
        i += 256;
    }
    columns.set(thread, sum);
    // Warp w adds row w of the per-sample buffer.
    let mut sum = 0.0;
    if thread::warp() < sample::ROWS {
        i = thread::lane();
        while i < batch {
            let weight = if thread::warp() == sample::IQN { weights.get(i) } else { 1.0 };
            sum = math::fma(weight, samples.get(thread::warp() * batch + i), sum);
            i += 32;
        }
    }
    let sum = warp::sum(sum);
    if thread::lane() == 0 && thread::warp() < sample::ROWS {
        history.set(row + signal::SAMPLES + thread::warp(), sum / batch as f32);
    }
    thread::sync(); // column sums are written before they are added below
    if thread < stat::COLUMNS - 1 {
        let mut total = 0.0;
        let mut group = 0;
        while group < 32 {
            total += columns.get(group * stat::COLUMNS + thread);
            group += 1;
        }
        history.set(row + thread, total / batch as f32);
    }
    if thread >= 32 && thread < 32 + signal::NORMS {
        history.set(row + signal::NORM + thread - 32, scales.get(scale::TERM_NORM + thread - 32));
    }
    if thread == 64 {
        let finite = scales.get(scale::FINITE) != 0.0;
        history.set(row + signal::GRADIENT_NORM, scales.get(scale::GROUP_NORM));
        history.set(row + signal::SKIPPED, if finite { 0.0 } else { 1.0 });
        history.set(row + signal::LR, scales.get(scale::LR));
        let in_a_row = clock_words.get(clock::SKIPPED_IN_A_ROW);
        clock_words.set(clock::SKIPPED_IN_A_ROW, if finite { 0 } else { in_a_row + 1 });
        clock_words.set(clock::SKIPPED, clock_words.get(clock::SKIPPED) + !finite as u64);
    }
    thread::sync(); // every thread has read the step's number before it is advanced
    if thread == 0 {
        clock_words.set(clock::STEP, step + 1);
    }
}
