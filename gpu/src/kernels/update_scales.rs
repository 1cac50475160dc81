//! Second stage of the update: norms of all terms and groups, budgets, clips, and the optimizer's numbers of this step.
//!
//! SPEC section 3, "Gradient budgets", and section 4. Term t of the main parameters is scaled by
//! s_t = min(1, f_t c / (|g_t| + 1e-6)), the sum of the terms by min(1, c / (|sum| + 1e-6)), each further group (IQN,
//! attention, the IQL networks) by min(1, c / (norm + 1e-6)), c = max_grad_norm. A norm that is not finite, in any of
//! them, skips the whole update and Adam's counter; it is counted by `learner_signals`.
//!
//! The learning rate's schedule is evaluated here, from the number of updates (`adam_ema::schedule`). One block.

use cuda_std::prelude::*;

use super::adam_ema::hyper;
use super::adam_ema::schedule::learning_rate;
use super::term_reduce::{PAIRS, TERMS, pair};
use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Most parameter groups, the main one included.
pub const GROUPS: u32 = 8;

/// What the kernel writes and `adam_groups` reads (f32).
pub mod scale {
    /// Factors of the terms, their budget and the clip of the sum together.
    pub const TERM: u32 = 0;
    /// Factor of group g at GROUP + g; the main group's place is not used.
    pub const GROUP: u32 = 4;
    /// 1 when every norm is finite, else 0.
    pub const FINITE: u32 = 12;
    /// 1 / (1 - beta1^t).
    pub const INVERSE1: u32 = 13;
    /// 1 / (1 - beta2^t).
    pub const INVERSE2: u32 = 14;
    /// Learning rate of this step.
    pub const LR: u32 = 15;
    /// Unclipped norms of the terms.
    pub const TERM_NORM: u32 = 16;
    /// Unclipped norm of group g at GROUP_NORM + g; the main group's is that of the terms' scaled sum, before its clip.
    pub const GROUP_NORM: u32 = 20;
    /// Words of the buffer.
    pub const WORDS: u32 = 28;
}

/// Floats of shared memory: inner products, then the groups' squares; the optimizer's numbers lie behind them.
const SHARED: u32 = PAIRS + GROUPS;
const _: () = assert!(SHARED.is_multiple_of(2));
/// One warp for each pair of terms and for each group after the main one.
const SUMS: u32 = PAIRS + GROUPS - 1;

#[cfg(not(target_arch = "nvptx64"))]
/// And three for what depends on the number of updates alone: the rate and the two bias corrections.
const WARPS: u32 = SUMS + 3;

/// Loads of a thread that are on their way at once.
const AT_ONCE: u32 = 8;

/// Makes the factors of one update.
#[kernel(
    block = 32 * WARPS,
    grid = 1,
    shared = 4 * SHARED + 8 * hyper::WORDS,
    barriers = 1,
    shuffles = 9,
    votes = 2, // one of them a warp barrier
    requires(
        blocks > 0,
        groups >= 1,
        groups <= GROUPS,
        ranges.len() >= 2 * groups as usize,
        sums.len() >= (PAIRS as usize) * (blocks as usize),
        squares.len() >= total as usize,
        budgets.len() >= TERMS as usize,
        hypers.len() >= hyper::WORDS as usize,
        adam_words.len() >= clock::adam::WORDS as usize,
        scales.len() >= scale::WORDS as usize,
    )
)]
pub fn update_scales(
    /// Blocks of the main parameters.
    blocks: u32,
    /// Sums of squares of all groups.
    total: u32,
    /// Parameter groups, the main one included.
    groups: u32,
    /// First of each group's sums of squares and the first after its last [groups, 2]; the main group's are not read.
    ranges: In<u32>,
    /// Inner products of the terms [PAIRS, blocks].
    sums: In<f32>,
    /// Sums of squares over parts of the other groups' gradients [total].
    squares: In<f32>,
    /// f_t c of each term; infinity for no budget.
    budgets: In<f32>,
    hypers: In<f64>,
    /// Adam's counter.
    adam_words: InOut<u64>,
    scales: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, SHARED);
    let (warp, lane) = (thread::warp(), thread::lane());
    let updates = adam_words.get(clock::adam::UPDATES);
    if warp == SUMS {
        // All numbers are loaded at once; the schedule asks for one after the other.
        let numbers = shared::array::<f64>(4 * SHARED, hyper::WORDS);
        if lane < hyper::WORDS {
            numbers.set(lane, hypers.get(lane));
        }
        warp::sync();
        if lane == 0 {
            scales.set(scale::LR, learning_rate(|word| numbers.get(word), updates));
        }
    } else if warp > SUMS {
        if lane == 0 {
            let beta = warp - SUMS - 1;
            let correction = -libm::expm1((updates + 1) as f64 * hypers.get(hyper::LN_BETA1 + beta));
            scales.set(scale::INVERSE1 + beta, (1.0 / correction) as f32);
        }
    } else {
        let is_pair = warp < PAIRS;
        let group = if is_pair { 0 } else { warp - PAIRS + 1 };
        let (start, end) = if is_pair {
            (warp * blocks, (warp + 1) * blocks)
        } else if group < groups {
            let (start, end) = (ranges.get(2 * group), ranges.get(2 * group + 1));
            (start, if end < total { end } else { total })
        } else {
            (0, 0)
        };
        let part = if is_pair { sums } else { squares };
        let mut sum = 0.0;
        let mut i = start + lane;
        while i < end {
            // All loads are on their way before the first is added; the order of additions is that of one after the other.
            let mut values = [0.0f32; AT_ONCE as usize];
            let mut j = 0;
            while j < AT_ONCE {
                let at = i + 32 * j;
                values[j as usize] = if at < end { part.get(at) } else { 0.0 };
                j += 1;
            }
            j = 0;
            while j < AT_ONCE {
                sum += values[j as usize];
                j += 1;
            }
            i += 32 * AT_ONCE;
        }
        let sum = warp::sum(sum);
        if lane == 0 {
            scratch.set(if is_pair { warp } else { PAIRS + group }, sum);
        }
    }
    // The first warp's lanes: four terms, then the groups behind the main one.
    let is_term = lane < TERMS;
    let group = if is_term { 0 } else { lane - TERMS + 1 };
    let (mut max_norm, mut limit) = (0.0, 0.0);
    if warp == 0 {
        max_norm = hypers.get(hyper::MAX_NORM) as f32;
        limit = if is_term { budgets.get(lane) } else { max_norm };
    }
    thread::sync(); // all sums are written before the first warp reads them, and the counter is read before it writes it
    if warp == 0 {
        let square = if is_term {
            scratch.get(pair(lane, lane))
        } else if group < groups {
            scratch.get(PAIRS + group)
        } else {
            0.0
        };
        let norm = math::sqrt(square);
        let factor = math::min(1.0, limit / (norm + 1e-6));
        let budget = [
            warp::shfl_idx(factor, 0),
            warp::shfl_idx(factor, 1),
            warp::shfl_idx(factor, 2),
            warp::shfl_idx(factor, 3),
        ];
        // |sum_t s_t g_t|^2, smallest terms' products in a fixed order.
        let mut square = 0.0;
        let mut t = 0;
        while t < TERMS {
            let s = budget[t as usize];
            square = math::fma(s * s, scratch.get(pair(t, t)), square);
            let mut u = t + 1;
            while u < TERMS {
                square = math::fma(2.0 * s * budget[u as usize], scratch.get(pair(t, u)), square);
                u += 1;
            }
            t += 1;
        }
        // Terms that cancel may leave a rounding error below zero. A NaN stays one, and the terms' norms have seen it.
        let whole = math::sqrt(if square < 0.0 { 0.0 } else { square });
        let clip = math::min(1.0, max_norm / (whole + 1e-6));
        // False for NaN too.
        let finite = warp::all(norm < f32::INFINITY && whole < f32::INFINITY);
        if is_term {
            scales.set(scale::TERM_NORM + lane, norm);
            scales.set(scale::TERM + lane, factor * clip);
        } else if group < GROUPS {
            scales.set(scale::GROUP_NORM + group, norm);
            scales.set(scale::GROUP + group, factor);
        }
        if lane == 0 {
            scales.set(scale::GROUP_NORM, whole);
            scales.set(scale::GROUP, clip);
            scales.set(scale::FINITE, if finite { 1.0 } else { 0.0 });
            // Both words, so that a reader of the counter need not know the step's parity.
            let next = updates + finite as u64;
            adam_words.set(clock::adam::UPDATES, next);
            adam_words.set(clock::adam::UPDATES + 1, next);
        }
    }
}
