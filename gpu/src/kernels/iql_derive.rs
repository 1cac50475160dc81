//! What a step derives from the two value networks (SPEC section 3; Kostrikov, Nair and Levine 2022, equation 7 for the
//! weights): advantage weights, branch scales, the gap, exploration, and a support that follows the values.
//!
//! With q_id = Q_target_d(s_i)(a_id), H_i = V_high(s_i), L_i = V_low(s_i), all of this step's batch and before the step's
//! update:
//! - `iql_derive`: A_i = mean_d q_id - H_i; omega_i = min(exp(beta A_i), 100) over its batch mean; the losses' weights are
//!   w_i omega_i. sigma_d = mean_i |q_id - H_i| over the mean of these over the branches, clamped to [0.5, 2]. gap =
//!   mean_i (H_i - L_i), size = mean_i |H_i|. The losses of the same step use weights and scales.
//! - `iql_quantiles`: l = the floor(0.01 (B - 1))-th smallest L_i, h = the ceil(0.99 (B - 1))-th smallest H_i, from 0.
//! - `iql_state`, after the norms are known: unless the step was skipped, gap and size go into their moving averages (the
//!   first such step starts them); epsilon = eps_min + (eps_max - eps_min) clamp(ema gap / (ema size + 1e-6), 0, 1); with
//!   c = (l + h) / 2 and r = max((h - l) (1 + 2 margin), floor) / 2 the support moves by v_min += rate (c - r - v_min),
//!   v_max += rate (c + r - v_max). The next step is the first that uses the new support, the next collection the first
//!   that uses the new epsilon.
//!
//! omega does not change when all exponents are shifted alike, so the largest is subtracted: no mean underflows, and
//! nothing is divided by zero. A NaN stays one: the step's norm shows it and the step is skipped.

use cuda_std::prelude::*;

use super::distribution::warp_sums;
use super::step_signals::signal;
use super::update_scales::scale;
use crate::{action, clock};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Values of one step's batch, not kept.
pub mod derived {
    /// Mean over the batch of V_high - V_low.
    pub const GAP: u32 = 0;
    /// Mean over the batch of |V_high|.
    pub const SIZE: u32 = 1;
    /// Low quantile of V_low, then the high quantile of V_high.
    pub const QUANTILES: u32 = 2;
    /// Scale of each branch's loss; 1 beyond the last branch.
    pub const BRANCH_SCALE: u32 = 4;
    /// Words of the buffer.
    pub const WORDS: u32 = 12;
}

/// What is kept from step to step (f32).
pub mod state {
    /// Moving average of the gap.
    pub const GAP: u32 = 0;
    /// Moving average of |V_high|.
    pub const SIZE: u32 = 1;
    /// 1 once the averages have started.
    pub const STARTED: u32 = 2;
    /// Words of the buffer.
    pub const WORDS: u32 = 3;
}

/// ln 100: the cap of the exponents.
const LN_CAP: f32 = 4.605_170_2;
const THREADS: u32 = 1024;
const WARPS: u32 = THREADS / 32;
const BRANCHES: usize = action::MAX_BRANCHES as usize;
/// Sums over the batch: gap, size, and one a branch.
const SUMS: usize = 2 + BRANCHES;
const SUM_WORDS: u32 = SUMS as u32;
/// Floats of shared memory: every warp's sums, every warp's largest exponent, every warp's sum of exponentials.
const SHARED: u32 = WARPS * (SUM_WORDS + 2);
/// Counts of `iql_quantiles` in a pass, three for each of the two quantiles.
const COUNTS: u32 = 6;

/// Loss weights, branch scales, gap and size of a batch, in one block: its sums have one order whatever the GPU.
#[kernel(
    block = THREADS,
    grid = 1,
    shared = 4 * SHARED,
    barriers = 2,
    shuffles = 70,
    requires(
        batch > 0,
        batch <= 1 << 24,
        branches >= 1,
        branches <= action::MAX_BRANCHES,
        q.len() >= (batch as usize) * (branches as usize),
        values.len() >= 2 * (batch as usize),
        weights.len() >= batch as usize,
        loss_weights.len() >= batch as usize,
        clock_words.len() >= clock::WORDS as usize,
        means.len() >= 2,
        branch_scales.len() >= BRANCHES,
        step.len() >= 1,
    )
)]
pub fn iql_derive(
    batch: u32,
    branches: u32,
    /// Inverse temperature of the advantage weights.
    beta: f32,
    /// Target network's Q of the taken actions [B, D].
    q: In<f32>,
    /// V_high, then V_low [2, B].
    values: In<f32>,
    /// w [B].
    weights: In<f32>,
    clock_words: In<u64>,
    /// w omega [B].
    loss_weights: Out<f32>,
    /// Gap and size.
    means: Out<f32>,
    /// sigma [8]; 1 beyond the last branch.
    branch_scales: Out<f32>,
    /// The step's number, for `iql_state`.
    step: Out<u64>,
) {
    let scratch = shared::array::<f32>(0, SHARED);
    let (tops, totals) = (WARPS * SUM_WORDS, WARPS * (SUM_WORDS + 1));
    let (thread, lane, warp) = (thread::thread_idx(), thread::lane(), thread::warp());
    let mut sums = [0.0f32; SUMS];
    let mut top = f32::NEG_INFINITY;
    let mut i = thread;
    while i < batch {
        let (high, low) = (values.get(i), values.get(batch + i));
        sums[0] += high - low;
        sums[1] += math::abs(high);
        let mut d = 0;
        while d < BRANCHES {
            if (d as u32) < branches {
                sums[2 + d] += math::abs(q.get(i * branches + d as u32) - high);
            }
            d += 1;
        }
        top = math::max(top, exponent(&q, branches, beta, high, i));
        i += THREADS;
    }
    let sums = warp_sums(sums);
    let top = warp::max(top);
    if lane == 0 {
        let mut s = 0;
        while s < SUMS {
            scratch.set(warp * SUM_WORDS + s as u32, sums[s]);
            s += 1;
        }
        scratch.set(tops + warp, top);
    }
    thread::sync(); // every warp's sums and largest exponent are written before they are read
    let top = warp::max(scratch.get(tops + lane));
    let mut total = 0.0;
    i = thread;
    while i < batch {
        total += math::exp(exponent(&q, branches, beta, values.get(i), i) - top);
        i += THREADS;
    }
    let total = warp::sum(total);
    if lane == 0 {
        scratch.set(totals + warp, total);
    }
    thread::sync(); // every warp's sum of exponentials is written before it is read
    let mean = warp::sum(scratch.get(totals + lane)) / batch as f32;
    i = thread;
    while i < batch {
        let omega = math::exp(exponent(&q, branches, beta, values.get(i), i) - top) / mean;
        loss_weights.set(i, weights.get(i) * omega);
        i += THREADS;
    }
    if thread < SUM_WORDS {
        // Thread 0 and 1 have the means, each further one its branch.
        let mean_of = |s: u32| {
            let mut sum = 0.0;
            let mut w = 0;
            while w < WARPS {
                sum += scratch.get(w * SUM_WORDS + s);
                w += 1;
            }
            sum / batch as f32
        };
        if thread == 0 {
            step.set(0, clock_words.get(clock::STEP));
        }
        if thread < 2 {
            means.set(thread, mean_of(thread));
        } else {
            let branch = thread - 2;
            let mut scale = 1.0;
            if branch < branches {
                let mut sum = 0.0;
                let mut d = 0;
                while d < branches {
                    sum += mean_of(2 + d);
                    d += 1;
                }
                let mean = sum / branches as f32;
                let share = mean_of(thread) / mean;
                // Where all differences are zero no branch stands out. A NaN fails every comparison and stays.
                scale = if mean == 0.0 { 1.0 } else { share };
                scale = if scale < 0.5 { 0.5 } else { scale };
                scale = if scale > 2.0 { 2.0 } else { scale };
            }
            branch_scales.set(branch, scale);
        }
    }
}

/// min(beta A, ln 100) of a sample; NaN where A is.
#[inline(always)]
fn exponent(q: &In<f32>, branches: u32, beta: f32, high: f32, sample: u32) -> f32 {
    let mut sum = 0.0;
    let mut d = 0;
    while d < branches {
        sum += q.get(sample * branches + d);
        d += 1;
    }
    let exponent = beta * (sum / branches as f32 - high);
    if exponent > LN_CAP { LN_CAP } else { exponent }
}

/// An order-preserving integer of a float: -0 comes before 0, NaNs at the ends.
#[inline(always)]
fn key(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// The float of a key.
#[inline(always)]
fn value_of(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & 0x7fff_ffff } else { !key })
}

/// Position of the low quantile among the sorted values, from 0: floor((B - 1) / 100).
#[inline(always)]
pub const fn low_rank(batch: u32) -> u32 {
    (batch - 1) / 100
}

/// Position of the high quantile, from 0: ceil(99 (B - 1) / 100).
#[inline(always)]
pub const fn high_rank(batch: u32) -> u32 {
    batch - 1 - low_rank(batch)
}

/// Both quantiles, exactly, two bits of their keys a pass: of four candidates for the next bits the largest of which no
/// more values than the rank lie below. Counts are exact in f32. One block.
#[kernel(
    block = THREADS,
    grid = 1,
    shared = 4 * 2 * WARPS * COUNTS,
    barriers = 2,
    shuffles = 120,
    requires(
        batch > 0,
        batch <= 1 << 24,
        values.len() >= 2 * (batch as usize),
        quantiles.len() >= 2,
    )
)]
pub fn iql_quantiles(
    batch: u32,
    /// V_high, then V_low [2, B].
    values: In<f32>,
    /// Low quantile of V_low, high quantile of V_high.
    quantiles: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, 2 * WARPS * COUNTS);
    let (thread, lane, warp) = (thread::thread_idx(), thread::lane(), thread::warp());
    let ranks = [low_rank(batch) as f32, high_rank(batch) as f32];
    let mut found = [0u32; 2];
    let mut pass = 0;
    while pass < 16 {
        let shift = 30 - 2 * pass;
        let mut counts = [0.0f32; COUNTS as usize];
        let mut i = thread;
        while i < batch {
            let keys = [key(values.get(batch + i)), key(values.get(i))];
            let mut n = 0;
            while n < 2 {
                let mut c = 0;
                while c < 3 {
                    let candidate = found[n] + ((c as u32 + 1) << shift);
                    counts[3 * n + c] += if keys[n] < candidate { 1.0 } else { 0.0 };
                    c += 1;
                }
                n += 1;
            }
            i += THREADS;
        }
        let counts = warp_sums(counts);
        // Two buffers take turns: a pass writes the one that no thread reads until the barrier after the next.
        let first = (pass % 2) * WARPS * COUNTS;
        if lane == 0 {
            let mut c = 0;
            while c < COUNTS {
                scratch.set(first + warp * COUNTS + c, counts[c as usize]);
                c += 1;
            }
        }
        thread::sync(); // every warp's counts of this pass are written
        let mut all = [0.0f32; COUNTS as usize];
        let mut c = 0;
        while c < COUNTS {
            all[c as usize] = scratch.get(first + lane * COUNTS + c);
            c += 1;
        }
        let all = warp_sums(all);
        let mut n = 0;
        while n < 2 {
            let mut steps = 0;
            let mut c = 0;
            while c < 3 {
                steps += (all[3 * n + c] <= ranks[n]) as u32;
                c += 1;
            }
            found[n] += steps << shift;
            n += 1;
        }
        pass += 1;
    }
    if thread == 0 {
        quantiles.set(0, value_of(found[0]));
        quantiles.set(1, value_of(found[1]));
    }
}

/// Moves averages, epsilon and support, and writes their columns of the step's history row. The step's number comes from
/// `iql_derive`: beside this kernel `learner_signals` advances the clock's.
#[kernel(
    block = 32,
    grid = 1,
    requires(
        rows > 0,
        means.len() >= derived::BRANCH_SCALE as usize,
        scales.len() >= scale::WORDS as usize,
        step.len() >= 1,
        averages.len() >= state::WORDS as usize,
        epsilon.len() >= 1,
        support.len() >= 2,
        history.len() >= (rows as usize) * (signal::COLUMNS as usize),
    )
)]
pub fn iql_state(
    /// Rows of the history.
    rows: u32,
    /// Rate of the averages.
    rate: f32,
    /// Epsilon's range.
    epsilon_min: f32,
    epsilon_max: f32,
    /// Whether the support moves.
    adaptive_support: u32,
    support_rate: f32,
    support_margin: f32,
    /// Least width of what the support moves to.
    support_floor: f32,
    /// Gap, size and quantiles, as in [`derived`].
    means: In<f32>,
    /// What `update_scales` made.
    scales: In<f32>,
    /// The step's number.
    step: In<u64>,
    /// As in [`state`].
    averages: InOut<f32>,
    epsilon: InOut<f32>,
    /// [v_min, v_max].
    support: InOut<f32>,
    history: Out<f32>,
) {
    if thread::global_index() != 0 {
        return;
    }
    if scales.get(scale::FINITE) != 0.0 {
        let started = averages.get(state::STARTED) != 0.0;
        let average = |word: u32, x: f32| {
            let old = averages.get(word);
            if started { math::fma(rate, x - old, old) } else { x }
        };
        let gap = average(state::GAP, means.get(derived::GAP));
        let size = average(state::SIZE, means.get(derived::SIZE));
        averages.set(state::GAP, gap);
        averages.set(state::SIZE, size);
        averages.set(state::STARTED, 1.0);
        let mut share = gap / (size + 1e-6);
        share = if share < 0.0 { 0.0 } else { share };
        share = if share > 1.0 { 1.0 } else { share };
        epsilon.set(0, math::fma(epsilon_max - epsilon_min, share, epsilon_min));
        if adaptive_support != 0 {
            let (low, high) = (means.get(derived::QUANTILES), means.get(derived::QUANTILES + 1));
            let width = (high - low) * math::fma(2.0, support_margin, 1.0);
            let half = 0.5 * if width < support_floor { support_floor } else { width };
            let centre = 0.5 * (low + high);
            let (v_min, v_max) = (support.get(0), support.get(1));
            support.set(0, math::fma(support_rate, centre - half - v_min, v_min));
            support.set(1, math::fma(support_rate, centre + half - v_max, v_max));
        }
    }
    let row = (step.get(0) % rows as u64) as u32 * signal::COLUMNS;
    history.set(row + signal::IQL_GAP, means.get(derived::GAP));
    history.set(row + signal::IQL_EPSILON, epsilon.get(0));
    history.set(row + signal::V_MIN, support.get(0));
    history.set(row + signal::V_MAX, support.get(1));
}
