//! Magnitude pruning (SPEC section 3; Zhu and Gupta 2017, "To prune, or not to prune", equation 1): of every weight
//! matrix the smallest weights become zero, as many as the step's sparsity asks for, and stay zero.
//!
//! The k-th smallest magnitude of each matrix is found by its digits, the highest first: `prune_digits` counts, among the
//! elements that agree with the digits found so far, how often each next digit occurs. Counts are integers, so their
//! order does not matter; equal magnitudes are taken in the order of their index, so exactly k elements are zero. What
//! was pruned before comes first in the order: a mask only grows.
//!
//! A pruned weight's moments become zero too and its gradient is multiplied with its mask (`gradient_norm`), so Adam
//! leaves it at zero; the target network's copy follows by its moving average.

use cuda_std::prelude::*;

use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Words that describe one matrix (u32).
pub mod matrix {
    /// First element in the parameters.
    pub const FIRST: u32 = 0;
    /// Elements, without padding.
    pub const LEN: u32 = 1;
    /// Words of a description.
    pub const WORDS: u32 = 2;
}

/// Most matrices: two of the trunk, two for each head.
pub const MATRICES: u32 = 32;
/// Bits of a digit: one lane counts one digit.
const BITS: u32 = 5;
/// Digits of a key of 32 bits.
pub const ROUNDS: u32 = 7;
/// Different digits.
pub const DIGITS: u32 = 1 << BITS;
/// Warps of a block.
pub const WARPS: u32 = 8;

/// Place of a digit's lowest bit in the key.
#[inline(always)]
fn shift(round: u32) -> u32 {
    (ROUNDS - 1 - round) * BITS
}

/// Order of the elements: what is masked, then by magnitude (NaN last).
#[inline(always)]
fn key(value: f32, mask: f32) -> u32 {
    if mask == 0.0 { 0 } else { (value.to_bits() & 0x7fff_ffff) + 1 }
}

/// The leading digits of the key of the element of rank `rank` (from 1; 0 gives 0), from the counts of the rounds
/// before, and its rank among the elements that agree with them.
#[inline(always)]
fn selected(digits: &InOut<u32>, matrices: u32, matrix: u32, rounds: u32, rank: u32) -> (u32, u32) {
    let (mut prefix, mut rank) = (0, rank);
    let mut round = 0;
    while round < rounds {
        let first = (round * matrices + matrix) * DIGITS;
        let (mut digit, mut before, mut sum) = (0, 0, 0);
        let mut d = 0;
        while d < DIGITS - 1 {
            sum += digits.get(first + d);
            if sum < rank {
                (digit, before) = (d + 1, sum);
            }
            d += 1;
        }
        prefix |= digit << shift(round);
        rank -= before;
        round += 1;
    }
    (prefix, rank)
}

/// The elements of a matrix that a warp looks at, first and behind the last: warps share it in order, in multiples of 32.
#[inline(always)]
fn chunk(len: u32, blocks: u32) -> (u32, u32) {
    let (warp, warps) = (thread::block_idx() * WARPS + thread::warp(), blocks * WARPS);
    let chunk = len.div_ceil(32 * warps) * 32;
    let cut = |at: u32| if at < len { at } else { len };
    (cut(warp * chunk), cut((warp + 1) * chunk))
}

/// Lanes below this one.
#[inline(always)]
fn lanes_below() -> u32 {
    (1 << thread::lane()) - 1
}

/// Begins a pruning: how many elements of each matrix shall be zero, and zero counts.
///
/// With x the fraction of the way from step `begin` to `end`, at most 1, the sparsity is final (1 - (1 - x)^3), and the
/// number the nearest integer.
#[kernel(
    block = 256,
    grid = (ROUNDS * matrices * DIGITS).div_ceil(256),
    requires(
        matrices >= 1,
        matrices <= MATRICES,
        begin < end,
        table.len() >= (matrices as usize) * (matrix::WORDS as usize),
        clock_words.len() >= clock::WORDS as usize,
        targets.len() >= matrices as usize,
        zeros.len() >= matrices as usize,
        digits.len() >= (ROUNDS as usize) * (matrices as usize) * (DIGITS as usize),
    )
)]
pub fn prune_begin(
    matrices: u32,
    /// Steps.
    begin: u64,
    end: u64,
    /// Fraction of zeros from `end` on.
    sparsity: f64,
    /// [matrices, matrix::WORDS]
    table: In<u32>,
    clock_words: In<u64>,
    /// [matrices]
    targets: Out<u32>,
    /// [matrices]
    zeros: Out<u32>,
    /// [ROUNDS, matrices, DIGITS]
    digits: Out<u32>,
) {
    let i = thread::global_index();
    if i < matrices {
        let step = clock_words.get(clock::STEP);
        let left = if step >= end {
            0.0
        } else if step <= begin {
            1.0
        } else {
            (end - step) as f64 / (end - begin) as f64
        };
        let share = sparsity * (1.0 - left * left * left);
        let len = table.get(i * matrix::WORDS + matrix::LEN);
        targets.set(i, (share * len as f64 + 0.5) as u32);
        zeros.set(i, 0);
    }
    if i < ROUNDS * matrices * DIGITS {
        digits.set(i, 0);
    }
}

/// Counts the digits of one round, after those of the rounds before: launched ROUNDS times.
#[kernel(
    block = 32 * WARPS,
    grid = (blocks, matrices),
    votes = 6,
    requires(
        blocks >= 1,
        blocks <= 1024,
        matrices >= 1,
        matrices <= MATRICES,
        round < ROUNDS,
        len > 0,
        table.len() >= (matrices as usize) * (matrix::WORDS as usize),
        targets.len() >= matrices as usize,
        params.len() >= len as usize,
        mask.len() >= len as usize,
        digits.len() >= (ROUNDS as usize) * (matrices as usize) * (DIGITS as usize),
    )
)]
pub fn prune_digits(
    /// Blocks that share a matrix; the result does not depend on it.
    blocks: u32,
    matrices: u32,
    round: u32,
    /// Parameters, among which the matrices are.
    len: u32,
    table: In<u32>,
    targets: In<u32>,
    params: In<f32>,
    /// 0 for a pruned parameter [len]
    mask: In<f32>,
    digits: InOut<u32>,
) {
    let matrix = thread::block_idx_y();
    let first = table.get(matrix * matrix::WORDS + matrix::FIRST);
    let (start, end) = chunk(table.get(matrix * matrix::WORDS + matrix::LEN), blocks);
    let (prefix, _) = selected(&digits, matrices, matrix, round, targets.get(matrix));
    let (shift, lane) = (shift(round), thread::lane());
    let mut count = 0;
    let mut i = start;
    while i < end && first + i < len {
        let at = first + i + lane;
        let inside = i + lane < end;
        let key = if inside { key(params.get(at), mask.get(at)) } else { 0 };
        let agrees = inside && (round == 0 || (key ^ prefix) >> (shift + BITS) == 0);
        // Lane d gets the lanes whose digit is d: those that agree with d in each of its bits.
        let digit = (key >> shift) & (DIGITS - 1);
        let mut same = warp::ballot(agrees);
        let mut bit = 0;
        while bit < BITS {
            let set = warp::ballot((digit >> bit) & 1 == 1);
            same &= if (lane >> bit) & 1 == 1 { set } else { !set };
            bit += 1;
        }
        count += same.count_ones();
        i += 32;
    }
    if count > 0 {
        digits.atomic_add((round * matrices + matrix) * DIGITS + lane, count);
    }
}

/// Counts the elements of exactly the selected magnitude in every warp's share.
#[kernel(
    block = 32 * WARPS,
    grid = (blocks, matrices),
    votes = 1,
    requires(
        blocks >= 1,
        blocks <= 1024,
        matrices >= 1,
        matrices <= MATRICES,
        len > 0,
        table.len() >= (matrices as usize) * (matrix::WORDS as usize),
        targets.len() >= matrices as usize,
        params.len() >= len as usize,
        mask.len() >= len as usize,
        digits.len() >= (ROUNDS as usize) * (matrices as usize) * (DIGITS as usize),
        ties.len() >= (matrices as usize) * (blocks as usize) * (WARPS as usize),
    )
)]
pub fn prune_ties(
    blocks: u32,
    matrices: u32,
    len: u32,
    table: In<u32>,
    targets: In<u32>,
    params: In<f32>,
    mask: In<f32>,
    digits: InOut<u32>,
    /// [matrices, blocks WARPS]
    ties: Out<u32>,
) {
    let matrix = thread::block_idx_y();
    let first = table.get(matrix * matrix::WORDS + matrix::FIRST);
    let (start, end) = chunk(table.get(matrix * matrix::WORDS + matrix::LEN), blocks);
    let (limit, _) = selected(&digits, matrices, matrix, ROUNDS, targets.get(matrix));
    let mut count = 0;
    let mut i = start;
    while i < end && first + i < len {
        let (at, inside) = (first + i + thread::lane(), i + thread::lane() < end);
        count += warp::ballot(inside && key(params.get(at), mask.get(at)) == limit).count_ones();
        i += 32;
    }
    if thread::lane() == 0 {
        ties.set((matrix * blocks + thread::block_idx()) * WARPS + thread::warp(), count);
    }
}

/// Prunes: mask, weight and moments of the selected elements become zero.
#[kernel(
    block = 32 * WARPS,
    grid = (blocks, matrices),
    shuffles = 5,
    votes = 2,
    requires(
        blocks >= 1,
        blocks <= 1024,
        matrices >= 1,
        matrices <= MATRICES,
        len > 0,
        table.len() >= (matrices as usize) * (matrix::WORDS as usize),
        targets.len() >= matrices as usize,
        digits.len() >= (ROUNDS as usize) * (matrices as usize) * (DIGITS as usize),
        ties.len() >= (matrices as usize) * (blocks as usize) * (WARPS as usize),
        params.len() >= len as usize,
        m.len() >= len as usize,
        v.len() >= len as usize,
        mask.len() >= len as usize,
        zeros.len() >= matrices as usize,
    )
)]
pub fn prune_apply(
    blocks: u32,
    matrices: u32,
    len: u32,
    table: In<u32>,
    targets: In<u32>,
    digits: InOut<u32>,
    ties: In<u32>,
    params: InOut<f32>,
    m: InOut<f32>,
    v: InOut<f32>,
    mask: InOut<f32>,
    /// Pruned elements of every matrix, zero before.
    zeros: InOut<u32>,
) {
    let (matrix, lane) = (thread::block_idx_y(), thread::lane());
    let first = table.get(matrix * matrix::WORDS + matrix::FIRST);
    let (start, end) = chunk(table.get(matrix * matrix::WORDS + matrix::LEN), blocks);
    let (limit, rank) = selected(&digits, matrices, matrix, ROUNDS, targets.get(matrix));
    // Elements of the selected magnitude before this warp's share.
    let all = matrix * blocks * WARPS;
    let own = all + thread::block_idx() * WARPS + thread::warp();
    let mut before = 0;
    let mut i = all + lane;
    while i < own {
        before += ties.get(i);
        i += 32;
    }
    let mut distance = 16;
    while distance > 0 {
        before += warp::shfl_xor(before, distance);
        distance /= 2;
    }
    let mut pruned = 0;
    i = start;
    while i < end && first + i < len {
        let (at, inside) = (first + i + lane, i + lane < end);
        let (value, kept) = if inside { (params.get(at), mask.get(at)) } else { (0.0, 1.0) };
        let key = key(value, kept);
        let tie = inside && key == limit;
        let ties = warp::ballot(tie);
        let order = before + (ties & lanes_below()).count_ones();
        // A NaN stays to be seen.
        let chosen = inside && !value.is_nan() && (key < limit || (tie && order < rank));
        if chosen && kept != 0.0 {
            params.set(at, 0.0);
            m.set(at, 0.0);
            v.set(at, 0.0);
            mask.set(at, 0.0);
        }
        pruned += warp::ballot(inside && (chosen || kept == 0.0)).count_ones();
        before += ties.count_ones();
        i += 32;
    }
    if lane == 0 && pruned > 0 {
        zeros.atomic_add(matrix, pruned);
    }
}
