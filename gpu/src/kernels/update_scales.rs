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

/// Shared memory: inner products, then the groups' squares.
const SHARED: u32 = PAIRS + GROUPS;

#[cfg(not(target_arch = "nvptx64"))]
/// 32 threads a sum: one warp for each pair of terms and for each group after the main one.
const WARPS: u32 = PAIRS + GROUPS - 1;

/// Makes the factors of one update.
#[kernel(
    block = 32 * WARPS,
    grid = 1,
    shared = 4 * SHARED,
    barriers = 1,
    shuffles = 5,
    requires(
        blocks > 0,
        groups >= 1,
        groups <= GROUPS,
        ends.len() >= groups as usize,
        sums.len() >= (PAIRS as usize) * (blocks as usize),
        squares.len() >= (total_blocks as usize),
        total_blocks >= blocks,
        budgets.len() >= TERMS as usize,
        hypers.len() >= hyper::WORDS as usize,
        adam_words.len() >= clock::adam::WORDS as usize,
        scales.len() >= scale::WORDS as usize,
    )
)]
pub fn update_scales(
    /// Blocks of the main parameters.
    blocks: u32,
    /// Blocks of all groups.
    total_blocks: u32,
    /// Parameter groups, the main one included.
    groups: u32,
    /// First block of 1024 floats after each group, in the order of the flat buffer, the main group first.
    ends: In<u32>,
    /// Inner products of the terms [PAIRS, blocks].
    sums: In<f32>,
    /// Sums of squares of the other groups' blocks [total_blocks]; the main group's are not read.
    squares: In<f32>,
    /// f_t c of each term; infinity for no budget.
    budgets: In<f32>,
    hypers: In<f64>,
    /// Adam's counter.
    adam_words: InOut<u64>,
    scales: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, SHARED);
    let warp = thread::warp();
    let is_pair = warp < PAIRS;
    let group = if is_pair { 0 } else { warp - PAIRS + 1 };
    let (mut i, end) = if is_pair {
        (warp * blocks, (warp + 1) * blocks)
    } else if group < groups {
        let (start, end) = (ends.get(group - 1), ends.get(group));
        (start, if end < total_blocks { end } else { total_blocks })
    } else {
        (0, 0)
    };
    i += thread::lane();
    let mut sum = 0.0;
    while i < end {
        sum += if is_pair { sums.get(i) } else { squares.get(i) };
        i += 32;
    }
    let sum = warp::sum(sum);
    if thread::lane() == 0 {
        scratch.set(if is_pair { warp } else { PAIRS + group }, sum);
    }
    let updates = adam_words.get(clock::adam::UPDATES);
    thread::sync(); // all sums are written before thread 0 reads them, and the counter is read before it writes it
    if thread::thread_idx() == 0 {
        let max_norm = hypers.get(hyper::MAX_NORM) as f32;
        let mut finite = true;
        let mut t = 0;
        while t < TERMS {
            let norm = math::sqrt(scratch.get(pair(t, t)));
            finite &= norm < f32::INFINITY; // false for NaN too
            scales.set(scale::TERM_NORM + t, norm);
            t += 1;
        }
        // |sum_t s_t g_t|^2, smallest terms' products in a fixed order.
        let budget = |t: u32| math::min(1.0, budgets.get(t) / (math::sqrt(scratch.get(pair(t, t))) + 1e-6));
        let mut square = 0.0;
        t = 0;
        while t < TERMS {
            let s = budget(t);
            square = math::fma(s * s, scratch.get(pair(t, t)), square);
            let mut u = t + 1;
            while u < TERMS {
                square = math::fma(2.0 * s * budget(u), scratch.get(pair(t, u)), square);
                u += 1;
            }
            t += 1;
        }
        // Terms that cancel may leave a rounding error below zero. A NaN stays one, and `finite` has seen it.
        let norm = math::sqrt(if square < 0.0 { 0.0 } else { square });
        finite &= norm < f32::INFINITY;
        let clip = math::min(1.0, max_norm / (norm + 1e-6));
        scales.set(scale::GROUP_NORM, norm);
        scales.set(scale::GROUP, clip);
        t = 0;
        while t < TERMS {
            scales.set(scale::TERM + t, budget(t) * clip);
            t += 1;
        }
        let mut g = 1;
        while g < GROUPS {
            let norm = if g < groups { math::sqrt(scratch.get(PAIRS + g)) } else { 0.0 };
            finite &= norm < f32::INFINITY;
            scales.set(scale::GROUP_NORM + g, norm);
            scales.set(scale::GROUP + g, math::min(1.0, max_norm / (norm + 1e-6)));
            g += 1;
        }
        scales.set(scale::FINITE, if finite { 1.0 } else { 0.0 });
        // Both words, so that a reader of the counter need not know the step's parity.
        let next = updates + finite as u64;
        adam_words.set(clock::adam::UPDATES, next);
        adam_words.set(clock::adam::UPDATES + 1, next);
        scales.set(scale::LR, learning_rate(&hypers, updates));
    }
    // Two other warps compute the bias corrections meanwhile.
    if thread::lane() == 0 && (warp == 1 || warp == 2) {
        let ln_beta = hypers.get(hyper::LN_BETA1 + (warp - 1));
        let correction = -libm::expm1((updates + 1) as f64 * ln_beta);
        scales.set(scale::INVERSE1 + (warp - 1), (1.0 / correction) as f32);
    }
}
