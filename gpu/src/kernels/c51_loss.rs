//! The C51 loss of all branches with Double-DQN selection, projection, cross-entropy and the gradient with respect
//! to the heads' outputs, in one launch. SPEC section 3; Bellemare, Dabney and Munos, "A Distributional Perspective
//! on Reinforcement Learning" (2017), algorithm 1; van Hasselt, Guez and Silver (2016) for the selection.
//!
//! One warp per sample and branch d, atoms over the lanes:
//! 1. a* = argmax_a Q_online(s')(a);
//! 2. p' = softmax of the target network's logits at (s', a*); T z_k = clamp(r + discount * z_k), b_k its position on
//!    the grid; m_j = sum_k p'_k * max(0, 1 - |b_k - j|), the same linear interpolation as the paper's, written as a
//!    gather so that no two lanes add to one atom (an integer b_k gives all its mass to that atom by itself);
//! 3. log p at (s, a_d); ce = -sum_k m_k log p_k; td = E_m[z] - Q(s, a_d);
//! 4. g_k = w s_d / (B D) (p_k - m_k), s_d the branch's scale, 1 unless the value networks set it; d adv[a, k] =
//!    g_k (1[a = a_d] - 1 / n_d); d v[k] = sum_d g_k, added over the sample's warps in branch order through shared memory;
//!    where the ensemble asks for it, also mean_d m_k.
//!
//! `discount` is gamma^m (1 - terminated), m the number of rewards really summed: a truncated transition bootstraps.

use cuda_std::prelude::*;

use super::distribution::{Branch, Support, action_logits, baseline, baselines, greedy, softmax, warp_sums};
use crate::action;
use crate::logits::branch_column;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Columns of a row of `stats`, one row per sample.
pub mod stat {
    /// Importance-weighted loss, with the branches' scales.
    pub const WEIGHTED_LOSS: u32 = 0;
    /// Loss without weight and scales: mean over branches of the cross-entropy.
    pub const LOSS: u32 = 1;
    /// Mean over branches of |E_m\[z\] - Q(s, a_d)|.
    pub const TD: u32 = 2;
    /// Mean over branches of Q(s, a_d).
    pub const Q_TAKEN: u32 = 3;
    /// Mean over branches of the greedy Q_online(s').
    pub const Q_NEXT: u32 = 4;
    /// Target mass strictly below v_min before clipping, mean over branches.
    pub const CLIPPED_LOW: u32 = 5;
    /// Target mass strictly above v_max before clipping, mean over branches.
    pub const CLIPPED_HIGH: u32 = 6;
    /// Columns of a row; the last is zero.
    pub const COLUMNS: u32 = 8;
}

/// Warps of a block.
const WARPS: u32 = 8;
/// Floats of shared memory per warp: pairs (b_k, p'_k), or g_k and behind them m_k, and eight scalars.
const fn warp_floats(registers: u32) -> u32 {
    2 * 32 * registers + 8
}

/// Samples that one block works on.
pub fn samples_per_block(branches: u32) -> u32 {
    WARPS / branches
}

macro_rules! c51_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Logits rows have `stride` floats (see `crate::logits`): `online` [2B, stride] on s and s', `target`
        /// [B, stride] on s'; `gradient` [B, stride] gets d loss / d logits (padding is left alone), `stats`
        /// [B, 8] as in [`stat`], `cross_entropy` and `td_error` [B, D] per branch. With `keep_target` 1, `mean_target`
        /// [B, K] gets the targets' mean over the branches; with 0 it is not touched.
        #[kernel(
            block = 256,
            grid = batch.div_ceil(8 / branches),
            shared = 4 * WARPS * warp_floats($registers),
            barriers = 1,
            shuffles = 105,
            votes = 2, // the two warp barriers of the projection
            requires(
                batch > 0,
                branches >= 1,
                branches <= action::MAX_BRANCHES,
                action::none_empty(sizes, branches),
                atoms >= 2,
                atoms <= 32 * $registers,
                stride >= branch_column(sizes, atoms, branches),
                support.len() >= 2,
                online.len() >= 2 * (batch as usize) * (stride as usize),
                target.len() >= (batch as usize) * (stride as usize),
                actions.len() >= batch as usize,
                rewards.len() >= batch as usize,
                discounts.len() >= batch as usize,
                weights.len() >= batch as usize,
                branch_scales.len() >= branches as usize,
                keep_target <= 1,
                mean_target.len() >= (keep_target as usize) * (batch as usize) * (atoms as usize),
                gradient.len() >= (batch as usize) * (stride as usize),
                stats.len() >= (batch as usize) * (stat::COLUMNS as usize),
                cross_entropy.len() >= (batch as usize) * (branches as usize),
                td_error.len() >= (batch as usize) * (branches as usize),
            )
        )]
        pub fn $name(
            batch: u32,
            branches: u32,
            sizes: u64,
            atoms: u32,
            stride: u32,
            keep_target: u32,
            support: In<f32>,
            online: In<f32>,
            target: In<f32>,
            actions: In<u64>,
            rewards: In<f32>,
            discounts: In<f32>,
            weights: In<f32>,
            branch_scales: In<f32>,
            gradient: Out<f32>,
            stats: Out<f32>,
            cross_entropy: Out<f32>,
            td_error: Out<f32>,
            mean_target: Out<f32>,
        ) {
            let per_block = WARPS / branches;
            let (warp, lane) = (thread::warp(), thread::lane());
            let (local, d) = (warp / branches, warp % branches);
            let sample = thread::block_idx() * per_block + local;
            let active = local < per_block && sample < batch;
            let floats = warp_floats($registers);
            let scratch = shared::array::<f32>(0, WARPS * floats);
            let (mine, scalars) = (warp * floats, warp * floats + 2 * 32 * $registers);
            if active {
                let support = Support::read(&support, atoms);
                let (value, size) = (sample * stride, action::branch(sizes, d));
                let column = branch_column(sizes, atoms, d);
                let at = |row: u32| Branch {
                    value: row * stride,
                    advantage: row * stride + column,
                    actions: size,
                    atoms,
                };
                let (here, there) = (at(sample), at(batch + sample));
                let (reward, discount) = (rewards.get(sample), discounts.get(sample));
                let taken = action::branch(actions.get(sample), d);
                let branch_scale = branch_scales.get(d);
                let scale = weights.get(sample) * branch_scale / (batch * branches) as f32;
                let (base_next, base_target) = baselines::<$registers>((&online, there), (&target, here));
                let next = greedy::<$registers>(&online, there, &base_next, &support, None);
                let base_here = baseline::<$registers>(&online, here);
                let taken_logits = action_logits::<$registers>(&online, here, &base_here, taken);
                let target_logits = action_logits::<$registers>(&target, here, &base_target, next.0);
                let now = softmax(&taken_logits, atoms);
                let m = project::<$registers>(
                    &softmax(&target_logits, atoms).p, atoms, next.1, &support, reward, discount, scratch, mine,
                );
                let (mut ce, mut q, mut mean) = (0.0f32, 0.0f32, 0.0f32);
                let inverse = 1.0 / size as f32;
                let mut g = [0.0f32; $registers];
                let mut j = 0;
                while j < $registers {
                    let k = lane + 32 * j as u32;
                    if k < atoms {
                        ce -= m.mass[j] * now.log_p[j];
                        q = math::fma(now.p[j], support.atom(k), q);
                        mean = math::fma(m.mass[j], support.atom(k), mean);
                        g[j] = scale * (now.p[j] - m.mass[j]);
                        scratch.set(mine + k, g[j]);
                        scratch.set(mine + 32 * $registers + k, m.mass[j]);
                    }
                    j += 1;
                }
                let mut a = 0;
                while a < size {
                    let factor = if a == taken { 1.0 - inverse } else { -inverse };
                    j = 0;
                    while j < $registers {
                        let k = lane + 32 * j as u32;
                        if k < atoms {
                            gradient.set(value + column + a * atoms + k, g[j] * factor);
                        }
                        j += 1;
                    }
                    a += 1;
                }
                let [ce, q, mean, low, high] = warp_sums([ce, q, mean, m.low, m.high]);
                if lane == 0 {
                    cross_entropy.set(sample * branches + d, ce);
                    td_error.set(sample * branches + d, mean - q);
                    scratch.set4(scalars, [ce, math::abs(mean - q), q, next.1]);
                    scratch.set4(scalars + 4, [low, high, branch_scale * ce, 0.0]);
                }
            }
            thread::sync(); // every branch's g and scalars are in shared memory before branch 0's warp adds them
            if active && d == 0 {
                let mut j = 0;
                while j < $registers {
                    let k = lane + 32 * j as u32;
                    if k < atoms {
                        let mut sum = 0.0;
                        let mut other = 0;
                        while other < branches {
                            sum += scratch.get((warp + other) * floats + k);
                            other += 1;
                        }
                        gradient.set(sample * stride + k, sum);
                        if keep_target == 1 {
                            let mut mass = 0.0;
                            let mut other = 0;
                            while other < branches {
                                mass += scratch.get((warp + other) * floats + 32 * $registers + k);
                                other += 1;
                            }
                            mean_target.set(sample * atoms + k, mass / branches as f32);
                        }
                    }
                    j += 1;
                }
                if lane < 7 {
                    // Lane i averages scalar i over the branches; the seventh is the scaled cross-entropy.
                    let mut sum = 0.0;
                    let mut other = 0;
                    while other < branches {
                        sum += scratch.get(scalars + other * floats + lane);
                        other += 1;
                    }
                    let mean = sum / branches as f32;
                    if lane < 6 {
                        stats.set(sample * stat::COLUMNS + stat::LOSS + lane, mean);
                    } else {
                        stats.set(sample * stat::COLUMNS + stat::WEIGHTED_LOSS, weights.get(sample) * mean);
                    }
                }
                if lane == 7 {
                    stats.set(sample * stat::COLUMNS + stat::COLUMNS - 1, 0.0);
                }
            }
        }
    )*};
}

c51_kernels! {
    /// C51 loss and gradient for up to 64 atoms (two per lane).
    c51_loss, registers = 2;
    /// C51 loss and gradient for up to 128 atoms (four per lane).
    c51_loss_wide, registers = 4;
}

/// The projected target of one warp.
struct Projected<const J: usize> {
    /// m_k of the lane's atoms.
    mass: [f32; J],
    /// The lane's part of the mass strictly below v_min.
    low: f32,
    /// The lane's part of the mass strictly above v_max.
    high: f32,
}

/// Projection of r + discount * z under p (the target network's distribution of the greedy action, whose Q is
/// `greedy_q`) onto the support. Uses 2 * 32 J floats of shared memory from `mine`, which only this warp touches.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // all of them are registers; a struct would only rename them
fn project<const J: usize>(
    p: &[f32; J],
    atoms: u32,
    greedy_q: f32,
    support: &Support,
    reward: f32,
    discount: f32,
    scratch: Shared<f32>,
    mine: u32,
) -> Projected<J> {
    let lane = thread::lane();
    let (mut low, mut high) = (0.0f32, 0.0f32);
    let last = (atoms - 1) as f32;
    let mut j = 0;
    while j < J {
        let k = lane + 32 * j as u32;
        let tz = math::fma(discount, support.atom(k), reward);
        if tz < support.v_min {
            low += p[j];
        }
        if tz > support.v_max {
            high += p[j];
        }
        let position = math::min(math::max((tz - support.v_min) / support.dz, 0.0), last);
        // Beyond K the mass is zero: the loop below may read on to a multiple of four.
        scratch.set2(mine + 2 * k, [position, p[j]]);
        j += 1;
    }
    warp::sync(); // the warp's pairs are written before its lanes read each other's
    // The clamp would turn a NaN or infinite target into an end of the support, and a NaN among the next values only
    // decides the action. 0 * x keeps both visible: the mass, the gradient and its norm become NaN, and the step is
    // skipped and counted.
    let mut mass = [0.0 * reward + 0.0 * discount + 0.0 * greedy_q; J];
    let mut k = 0;
    while k < atoms {
        // Four pairs, loaded before the first is used: their latencies overlap.
        let [b0, p0, b1, p1] = scratch.get4(mine + 2 * k);
        let [b2, p2, b3, p3] = scratch.get4(mine + 2 * k + 4);
        j = 0;
        while j < J {
            let atom = (lane + 32 * j as u32) as f32;
            let near = |position: f32| math::max(1.0 - math::abs(position - atom), 0.0);
            mass[j] = math::fma(p0, near(b0), mass[j]);
            mass[j] = math::fma(p1, near(b1), mass[j]);
            mass[j] = math::fma(p2, near(b2), mass[j]);
            mass[j] = math::fma(p3, near(b3), mass[j]);
            j += 1;
        }
        k += 4;
    }
    warp::sync(); // all lanes have read the pairs before the caller writes g over them
    Projected { mass, low, high }
}
