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
    /// Ensemble's loss, weight and bonus included.
    pub const ENSEMBLE: u32 = 6;
    /// Variance over the ensemble's members of their expected values: the uncertainty.
    pub const UNCERTAINTY: u32 = 7;
    /// Confidence head's cross-entropy.
    pub const CONFIDENCE: u32 = 8;
    /// Rows of the buffer.
    pub const ROWS: u32 = 9;
}

/// Threads of the block: one multiprocessor reads the whole batch, so many loads have to be in flight.
const THREADS: u32 = 1024;
const WARPS: u32 = THREADS / 32;
/// Warps that share a row of the per-sample buffer.
const SHARE: u32 = WARPS / sample::ROWS;

/// Writes the step's history row and advances the counters.
#[kernel(
    block = THREADS,
    grid = 1,
    shared = 4 * (WARPS * stat::COLUMNS + WARPS),
    barriers = 2,
    shuffles = 21,
    requires(
        batch > 0,
        rows > 0,
        batch <= 1 << 24,
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
    let columns = shared::array::<f32>(0, WARPS * stat::COLUMNS);
    let parts = shared::array::<f32>(4 * WARPS * stat::COLUMNS, WARPS);
    let (thread, lane, warp) = (thread::thread_idx(), thread::lane(), thread::warp());
    let step = clock_words.get(clock::STEP);
    let row = (step % rows as u64) as u32 * signal::COLUMNS;

    // An even thread adds the first four columns of every 512th sample, its neighbour the last four.
    let half = 4 * (thread % 2);
    let mut sums = [0.0f32; 4];
    let mut i = thread / 2;
    while i < batch {
        // Two loads are in flight; a sample beyond the last counts as zero.
        let one = stats.get4(i * stat::COLUMNS + half);
        let next = i + THREADS / 2;
        let two = if next < batch { stats.get4(next * stat::COLUMNS + half) } else { [0.0; 4] };
        let mut e = 0;
        while e < 4 {
            sums[e] += one[e];
            sums[e] += two[e];
            e += 1;
        }
        i += THREADS;
    }
    let mut mask = 16;
    while mask >= 2 {
        let mut e = 0;
        while e < 4 {
            sums[e] += warp::shfl_xor(sums[e], mask);
            e += 1;
        }
        mask /= 2;
    }
    if lane < 2 {
        columns.set4(warp * stat::COLUMNS + half, sums);
    }

    // SHARE warps take turns with 32 samples of a row.
    let (kind, turn) = (warp / SHARE, warp % SHARE);
    let mut sum = 0.0;
    if kind < sample::ROWS {
        i = turn * 32 + lane;
        while i < batch {
            let weight = if kind == sample::IQN { weights.get(i) } else { 1.0 };
            sum = math::fma(weight, samples.get(kind * batch + i), sum);
            i += SHARE * 32;
        }
    }
    let sum = warp::sum(sum);
    if lane == 0 {
        parts.set(warp, sum);
    }
    thread::sync(); // all warps' sums are written before they are added below
    if thread < stat::COLUMNS - 1 {
        let mut total = 0.0;
        let mut w = 0;
        while w < WARPS {
            total += columns.get(w * stat::COLUMNS + thread);
            w += 1;
        }
        history.set(row + thread, total / batch as f32);
    }
    if (32..32 + sample::ROWS).contains(&thread) {
        let kind = thread - 32;
        let mut total = 0.0;
        let mut t = 0;
        while t < SHARE {
            total += parts.get(kind * SHARE + t);
            t += 1;
        }
        history.set(row + signal::SAMPLES + kind, total / batch as f32);
    }
    if (64..64 + signal::NORMS).contains(&thread) {
        history.set(row + signal::NORM + (thread - 64), scales.get(scale::TERM_NORM + (thread - 64)));
    }
    if thread == 96 {
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
