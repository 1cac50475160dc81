//! Conservative Q-learning's regularizer of all branches with its gradient with respect to the heads' outputs.
//! SPEC section 3; Kumar, Zhou, Tucker and Levine, "Conservative Q-Learning for Offline Reinforcement Learning" (2020),
//! equation 4, with the dataset's action as the only one of the behaviour policy.
//!
//! loss_i = alpha / D sum_d ( logsumexp_a Q_d(s, a) - Q_d(s, a_d) ), not importance-weighted.
//!
//! One warp per sample and branch d, atoms over the lanes. With w_a = softmax_a(Q) - 1[a = a_d]:
//! G[a, k] = alpha / (B D) w_a p(a, k) (z_k - Q(a)) is the gradient with respect to l[a, k]; through the dueling
//! combination d adv[a, k] = G[a, k] - mean_a' G[a', k] and d v[k] = sum over branches and actions of G, added in branch
//! order through shared memory.

use cuda_std::prelude::*;

use super::distribution::{Branch, Support, action_logits, baseline, each_action};
use crate::action;
use crate::logits::branch_column;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Warps of a block.
const WARPS: u32 = 8;

/// Floats of shared memory per warp: the branch's sum of G per atom, and its loss.
const fn warp_floats(registers: u32) -> u32 {
    32 * registers + 1
}

/// Actions that a lane keeps numbers of: action a is kept by lane a % 32 in register a / 32.
const KEPT: usize = 2;

macro_rules! cql_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `logits` [B, stride] are the online network's on s (see `crate::logits`); `gradient` [B, stride] gets
        /// d loss / d logits (padding is left alone), `loss` [B] the per-sample loss with alpha, `per_branch` [B, D]
        /// logsumexp_a Q - Q(a_d) without it.
        #[kernel(
            block = 256,
            grid = batch.div_ceil(8 / branches),
            shared = 4 * WARPS * warp_floats($registers),
            barriers = 1,
            shuffles = 73,
            requires(
                batch > 0,
                branches >= 1,
                branches <= action::MAX_BRANCHES,
                action::none_empty(sizes, branches),
                action::none_above(sizes, branches, 32 * KEPT as u32),
                atoms >= 2,
                atoms <= 32 * $registers,
                stride >= branch_column(sizes, atoms, branches),
                support.len() >= 2,
                logits.len() >= (batch as usize) * (stride as usize),
                actions.len() >= batch as usize,
                gradient.len() >= (batch as usize) * (stride as usize),
                loss.len() >= batch as usize,
                per_branch.len() >= (batch as usize) * (branches as usize),
            )
        )]
        pub fn $name(
            batch: u32,
            branches: u32,
            sizes: u64,
            atoms: u32,
            stride: u32,
            /// Weight of the regularizer.
            alpha: f32,
            support: In<f32>,
            logits: In<f32>,
            actions: In<u64>,
            gradient: InOut<f32>,
            loss: Out<f32>,
            per_branch: Out<f32>,
        ) {
            const J: usize = $registers;
            let per_block = WARPS / branches;
            let (warp, lane) = (thread::warp(), thread::lane());
            let (local, d) = (warp / branches, warp % branches);
            let sample = thread::block_idx() * per_block + local;
            let active = local < per_block && sample < batch;
            let floats = warp_floats($registers);
            let scratch = shared::array::<f32>(0, WARPS * floats);
            let mine = warp * floats;
            if active {
                let support = Support::read(&support, atoms);
                let size = action::branch(sizes, d);
                let row = Branch {
                    value: sample * stride,
                    advantage: sample * stride + branch_column(sizes, atoms, d),
                    actions: size,
                    atoms,
                };
                let taken = action::branch(actions.get(sample), d);
                let base = baseline::<J>(&logits, row);
                // Lane a % 32 keeps action a's Q, largest logit and sum: the loop below hands them round.
                let (mut q, mut top, mut sum) = ([f32::NEG_INFINITY; KEPT], [0.0f32; KEPT], [1.0f32; KEPT]);
                let mut q_taken = 0.0;
                each_action::<J>(&logits, row, &base, &support, |a, m| {
                    let value = m.weighted / m.sum;
                    if a == taken {
                        q_taken = value;
                    }
                    if a == lane {
                        (q[0], top[0], sum[0]) = (value, m.top, m.sum);
                    }
                    if a == lane + 32 {
                        (q[1], top[1], sum[1]) = (value, m.top, m.sum);
                    }
                });
                let highest = warp::max(math::max(q[0], q[1]));
                let e = [math::exp(q[0] - highest), math::exp(q[1] - highest)];
                let total = warp::sum(e[0] + e[1]);
                let scale = alpha / (batch * branches) as f32;
                // scale (softmax_a(Q) - 1[a = a_d]) / sum of a's exponentials: the factor of exp(l - top) (z - Q).
                let factor = |i: usize| {
                    let one = if lane + 32 * i as u32 == taken { 1.0 } else { 0.0 };
                    scale * (e[i] / total - one) / sum[i]
                };
                let factors = [factor(0), factor(1)];
                let mut sums = [0.0f32; J];
                let mut a = 0;
                while a < size {
                    let high = a >= 32;
                    let of = |kept: [f32; KEPT]| warp::shfl_idx(if high { kept[1] } else { kept[0] }, a % 32);
                    let (q, top, factor) = (of(q), of(top), of(factors));
                    let l = action_logits::<J>(&logits, row, &base, a);
                    let mut j = 0;
                    while j < J {
                        let k = lane + 32 * j as u32;
                        if k < atoms {
                            let g = factor * math::exp(l[j] - top) * (support.atom(k) - q);
                            sums[j] += g;
                            gradient.set(row.advantage + a * atoms + k, g);
                        }
                        j += 1;
                    }
                    a += 1;
                }
                let inverse = 1.0 / size as f32;
                a = 0;
                while a < size {
                    let mut j = 0;
                    while j < J {
                        let k = lane + 32 * j as u32;
                        if k < atoms {
                            // Each lane reads what it wrote itself.
                            let at = row.advantage + a * atoms + k;
                            gradient.set(at, gradient.get(at) - sums[j] * inverse);
                        }
                        j += 1;
                    }
                    a += 1;
                }
                let mut j = 0;
                while j < J {
                    scratch.set(mine + lane + 32 * j as u32, sums[j]);
                    j += 1;
                }
                if lane == 0 {
                    let excess = highest - q_taken + math::ln(total);
                    per_branch.set(sample * branches + d, excess);
                    scratch.set(mine + 32 * J as u32, excess);
                }
            }
            thread::sync(); // every branch's sums are in shared memory before branch 0's warp adds them
            if active && d == 0 {
                let mut j = 0;
                while j < J {
                    let k = lane + 32 * j as u32;
                    if k < atoms {
                        let mut sum = 0.0;
                        let mut other = 0;
                        while other < branches {
                            sum += scratch.get((warp + other) * floats + k);
                            other += 1;
                        }
                        gradient.set(sample * stride + k, sum);
                    }
                    j += 1;
                }
                if lane == 0 {
                    let mut sum = 0.0;
                    let mut other = 0;
                    while other < branches {
                        sum += scratch.get((warp + other) * floats + 32 * J as u32);
                        other += 1;
                    }
                    loss.set(sample, alpha * sum / branches as f32);
                }
            }
        }
    )*};
}

cql_kernels! {
    /// CQL loss and gradient for up to 64 atoms (two per lane).
    cql_loss, registers = 2;
    /// CQL loss and gradient for up to 128 atoms (four per lane).
    cql_loss_wide, registers = 4;
}
