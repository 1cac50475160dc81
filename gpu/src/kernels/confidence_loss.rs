//! The confidence head: whether a sample's td is above its running median, from the features and the signals of the steps
//! before (SPEC section 3).
//!
//! With s the signals and med the median that the previous accepted step left: c_i = w_h . h2'_i + w_s . s + b, y_i =
//! 1[td_i > med], loss_i = ln(1 + e^c_i) - y_i c_i, not importance-weighted; the step's loss is its mean over the batch.
//! d c_i = (sigmoid(c_i) - y_i) / B; d w_h = sum_i d c_i h2'_i, d w_s = s sum_i d c_i, d b = sum_i d c_i. `confidence_loss`
//! adds d c_i w_h to what the ensemble says of h2'_i and takes both through h2's activation: one gradient, one budget.
//!
//! `confidence_state` ends the step. Unless it was skipped, with a = mean of 1[td > med] and t = mean td: the first such
//! step sets mean = med = t; each later one mean += rate (t - mean), then med += rate mean (2 a - 1). So med rises while
//! more than half of the batch is above it, whatever td's unit. The signals become the step's own: weighted loss, td, Q of
//! the taken and of the next actions, mass clipped below and above, gradient norm, V gap, each x as sign(x) ln(1 + |x|),
//! because norms and losses have long tails. One that is not finite keeps its value. Before the first step all are 0.

use cuda_std::prelude::*;

use super::c51_loss::stat;
use super::step_signals::signal;
use super::update_scales::scale;
use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// What is kept from step to step (f32).
pub mod state {
    /// Running median of td.
    pub const MEDIAN: u32 = 0;
    /// Running mean of td.
    pub const MEAN: u32 = 1;
    /// 1 once both have started.
    pub const STARTED: u32 = 2;
    /// Signals of the last accepted step, compressed.
    pub const SIGNAL: u32 = 4;
    /// Number of signals.
    pub const SIGNALS: u32 = 8;
    /// Words of the buffer.
    pub const WORDS: u32 = 12;
}

/// Column of the history that a signal is made of.
#[inline(always)]
pub const fn source(signal: u32) -> u32 {
    match signal {
        0 => stat::WEIGHTED_LOSS,
        1 => stat::TD,
        2 => stat::Q_TAKEN,
        3 => stat::Q_NEXT,
        4 => stat::CLIPPED_LOW,
        5 => stat::CLIPPED_HIGH,
        6 => signal::GRADIENT_NORM,
        _ => signal::IQL_GAP,
    }
}

const THREADS: u32 = 1024;
const WARPS: u32 = THREADS / 32;

/// Loss and the gradient with respect to h2's argument. One warp per sample.
#[kernel(
    block = 256,
    grid = batch.div_ceil(8),
    shuffles = 5,
    requires(
        batch > 0,
        width > 0,
        accumulate <= 1,
        features.len() >= (batch as usize) * (width as usize),
        hidden.len() >= (batch as usize) * (width as usize),
        stats.len() >= (batch as usize) * (stat::COLUMNS as usize),
        weight.len() >= width as usize,
        signal_weight.len() >= state::SIGNALS as usize,
        bias.len() >= 1,
        kept.len() >= state::WORDS as usize,
        loss.len() >= batch as usize,
        d_logit.len() >= batch as usize,
        d_hidden.len() >= (batch as usize) * (width as usize),
    )
)]
pub fn confidence_loss(
    batch: u32,
    /// H2.
    width: u32,
    /// Negative slope of h2's activation.
    slope: f32,
    /// 1 if `d_hidden` holds the ensemble's gradient of h2', 0 if it holds nothing.
    accumulate: u32,
    /// h2' [B, H2].
    features: In<f32>,
    /// h2 [B, H2].
    hidden: In<f32>,
    /// C51 statistics [B, 8].
    stats: In<f32>,
    /// w_h [H2].
    weight: In<f32>,
    /// w_s [8].
    signal_weight: In<f32>,
    /// b [1].
    bias: In<f32>,
    /// As in [`state`].
    kept: In<f32>,
    /// [B].
    loss: Out<f32>,
    /// d loss / d c [B].
    d_logit: Out<f32>,
    /// d loss / d (h2's argument) [B, H2].
    d_hidden: InOut<f32>,
) {
    let sample = thread::block_idx() * 8 + thread::warp();
    let lane = thread::lane();
    if sample < batch {
        let row = sample * width;
        let mut sum = 0.0;
        let mut i = lane;
        while i < width {
            sum = math::fma(features.get(row + i), weight.get(i), sum);
            i += 32;
        }
        if lane < state::SIGNALS {
            sum = math::fma(kept.get(state::SIGNAL + lane), signal_weight.get(lane), sum);
        }
        let c = warp::sum(sum) + bias.get(0);
        let above = stats.get(sample * stat::COLUMNS + stat::TD) > kept.get(state::MEDIAN);
        let label = if above { 1.0 } else { 0.0 };
        // e = exp(-|c|) overflows nowhere: sigmoid(c) = 1 / (1 + e) for c >= 0, e / (1 + e) below.
        let e = math::exp(-math::abs(c));
        let sigmoid = (if c < 0.0 { e } else { 1.0 }) / (1.0 + e);
        let d_c = (sigmoid - label) / batch as f32;
        if lane == 0 {
            let positive = if c > 0.0 { c } else { 0.0 };
            loss.set(sample, positive + math::ln(1.0 + e) - label * c);
            d_logit.set(sample, d_c);
        }
        i = lane;
        while i < width {
            let before = if accumulate == 1 { d_hidden.get(row + i) } else { 0.0 };
            let factor = if hidden.get(row + i) > 0.0 { 1.0 } else { slope };
            d_hidden.set(row + i, math::fma(d_c, weight.get(i), before) * factor);
            i += 32;
        }
    }
}

/// The head's gradient: a block for each 32 columns of the features, and one for signals and bias; rows in a fixed order.
#[kernel(
    block = THREADS,
    grid = width.div_ceil(32) + 1,
    shared = 4 * THREADS,
    barriers = 1,
    requires(
        batch > 0,
        width > 0,
        features.len() >= (batch as usize) * (width as usize),
        d_logit.len() >= batch as usize,
        kept.len() >= state::WORDS as usize,
        d_weight.len() >= width as usize,
        d_signal_weight.len() >= state::SIGNALS as usize,
        d_bias.len() >= 1,
    )
)]
pub fn confidence_reduce(
    batch: u32,
    /// H2.
    width: u32,
    /// h2' [B, H2].
    features: In<f32>,
    /// d loss / d c [B].
    d_logit: In<f32>,
    /// As in [`state`].
    kept: In<f32>,
    d_weight: Out<f32>,
    d_signal_weight: Out<f32>,
    d_bias: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, THREADS);
    let (thread, lane, warp) = (thread::thread_idx(), thread::lane(), thread::warp());
    let last = thread::block_idx() + 1 == thread::grid_dim();
    let column = thread::block_idx() * 32 + lane;
    let mut sum = 0.0;
    // The last block's lanes share the rows out, the others' lanes are columns.
    let (mut row, step) = if last { (thread, THREADS) } else { (warp, WARPS) };
    while row < batch {
        if last {
            sum += d_logit.get(row);
        } else if column < width {
            sum = math::fma(d_logit.get(row), features.get(row * width + column), sum);
        }
        row += step;
    }
    scratch.set(thread, sum);
    thread::sync(); // every thread's sum is written before they are added
    if warp == 0 {
        let mut total = 0.0;
        if last {
            // Every lane adds all of them, in the same order.
            let mut t = 0;
            while t < THREADS {
                total += scratch.get(t);
                t += 1;
            }
            if lane < state::SIGNALS {
                d_signal_weight.set(lane, total * kept.get(state::SIGNAL + lane));
            }
            if lane == 0 {
                d_bias.set(0, total);
            }
        } else {
            let mut w = 0;
            while w < WARPS {
                total += scratch.get(w * 32 + lane);
                w += 1;
            }
            if column < width {
                d_weight.set(column, total);
            }
        }
    }
}

/// Median, mean and signals at the end of a step, after `learner_signals` has written the step's history row and advanced
/// its number.
#[kernel(
    block = THREADS,
    grid = 1,
    shared = 4 * 2 * WARPS,
    barriers = 1,
    shuffles = 10,
    requires(
        batch > 0,
        batch <= 1 << 24,
        rows > 0,
        stats.len() >= (batch as usize) * (stat::COLUMNS as usize),
        scales.len() >= scale::WORDS as usize,
        clock_words.len() >= clock::WORDS as usize,
        kept.len() >= state::WORDS as usize,
        history.len() >= (rows as usize) * (signal::COLUMNS as usize),
    )
)]
pub fn confidence_state(
    batch: u32,
    /// Rows of the history.
    rows: u32,
    rate: f32,
    /// C51 statistics [B, 8].
    stats: In<f32>,
    /// What `update_scales` made.
    scales: In<f32>,
    clock_words: In<u64>,
    /// As in [`state`].
    kept: InOut<f32>,
    history: InOut<f32>,
) {
    let scratch = shared::array::<f32>(0, 2 * WARPS);
    let (thread, lane, warp) = (thread::thread_idx(), thread::lane(), thread::warp());
    let median = kept.get(state::MEDIAN);
    let (mut count, mut sum) = (0.0f32, 0.0f32);
    let mut i = thread;
    while i < batch {
        let td = stats.get(i * stat::COLUMNS + stat::TD);
        count += if td > median { 1.0 } else { 0.0 };
        sum += td;
        i += THREADS;
    }
    let (count, sum) = (warp::sum(count), warp::sum(sum));
    if lane == 0 {
        scratch.set2(2 * warp, [count, sum]);
    }
    thread::sync(); // every warp's sums are written, and every thread has read the median, before either is used
    if warp != 0 {
        return;
    }
    let (mut count, mut sum) = (0.0, 0.0);
    let mut w = 0;
    while w < WARPS {
        let [c, s] = scratch.get2(2 * w);
        count += c;
        sum += s;
        w += 1;
    }
    let (above, td) = (count / batch as f32, sum / batch as f32);
    let row = ((clock_words.get(clock::STEP) - 1) % rows as u64) as u32 * signal::COLUMNS;
    let finite = scales.get(scale::FINITE) != 0.0;
    if lane == 0 {
        let mut next = median;
        if finite {
            let started = kept.get(state::STARTED) != 0.0;
            let old = kept.get(state::MEAN);
            let mean = if started { math::fma(rate, td - old, old) } else { td };
            next = if started { math::fma(rate * mean, 2.0 * above - 1.0, median) } else { td };
            kept.set(state::MEAN, mean);
            kept.set(state::MEDIAN, next);
            kept.set(state::STARTED, 1.0);
        }
        history.set(row + signal::TD_MEDIAN, next);
        history.set(row + signal::TD_ABOVE, above);
    }
    if finite && lane < state::SIGNALS {
        let x = history.get(row + source(lane));
        let size = math::ln(1.0 + math::abs(x));
        if size < f32::INFINITY {
            kept.set(state::SIGNAL + lane, if x < 0.0 { -size } else { size });
        }
    }
}
