//! Conservative Q-learning's regularizer of all branches with its gradient with respect to the heads' outputs.
//! SPEC section 3; Kumar, Zhou, Tucker and Levine, "Conservative Q-Learning for Offline Reinforcement Learning" (2020),
//! equation 4, with the dataset's action as the only one of the behaviour policy.
//!
//! loss_i = alpha / D sum_d ( logsumexp_a Q_d(s, a) - Q_d(s, a_d) ), not importance-weighted.
//!
//! With w_a = softmax_a(Q) - 1[a = a_d]: G[a, k] = alpha / (B D) w_a p(a, k) (z_k - Q(a)) is the gradient with respect to
//! l[a, k]; through the dueling combination d adv[a, k] = G[a, k] - mean_a' G[a', k] and d v[k] = sum over branches and
//! actions of G, added in branch order.
//!
//! One warp per sample (`octets`). The exponentials exp(l[a, k] - max) take the logits' place in shared memory, or the
//! gradient's where the rows are too long for it, so that none is computed twice.

use cuda_std::prelude::*;

use super::distribution::Support;
use super::octets::{
    self, OCTETS, Row, Tables, bases, dot, exponentials, largest, list, octet_max, octet_sums, own, pitch,
    stage, sum, unrolled, values,
};
use crate::action;
use crate::logits::{action_offset, branch_column};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Longest rows that [`CqlLoss`] stages in shared memory, in floats. Longer ones are for [`CqlLossWide`].
pub const LONGEST: u32 = 8192;

/// Whether [`CqlLoss`] computes rows of `stride` floats with this many atoms.
#[cfg(not(target_arch = "nvptx64"))]
pub fn is_narrow(atoms: usize, stride: usize) -> bool {
    atoms <= 56 && stride <= LONGEST as usize
}

/// Where things lie in shared memory, in elements of four bytes.
#[derive(Clone, Copy)]
struct Layout {
    /// The bases.
    bases: u32,
    /// The table of branches (u32).
    branches: u32,
    /// The list of actions (u32).
    list: u32,
    /// Of each action first Q and the sum of its exponentials, then Q and the factor of exp(l - max) (z - Q).
    pairs: u32,
    /// Of each branch logsumexp_a Q - Q(a_d).
    excesses: u32,
    /// Elements in all.
    len: u32,
}

impl Layout {
    /// Behind `rows` floats of staged rows, with `actions` of all branches together.
    #[inline(always)]
    const fn new(rows: u32, branches: u32, actions: u32, registers: u32) -> Self {
        let table = rows + branches * pitch(registers);
        let actions_list = table + 4 * branches;
        let pairs = actions_list + list(actions);
        let excesses = pairs + 2 * actions;
        Self { bases: rows, branches: table, list: actions_list, pairs, excesses, len: excesses + branches }
    }
}

macro_rules! cql_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal, staged = $staged:literal, longest = $longest:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// `logits` [B, stride] are the online network's on s (see `crate::logits`); `gradient` [B, stride] gets
        /// d loss / d logits (padding is left alone), `loss` [B] the per-sample loss with alpha, `per_branch` [B, D]
        /// logsumexp_a Q - Q(a_d) without it.
        #[kernel(
            block = crate::kernels::octets::THREADS,
            grid = batch,
            shared = 4 * Layout::new(if $staged { stride } else { 0 }, branches, action_offset(sizes, branches), $registers).len,
            shuffles = 15,
            votes = 5,
            requires(
                batch > 0,
                branches >= 1,
                branches <= action::MAX_BRANCHES,
                action::none_empty(sizes, branches),
                action::none_above(sizes, branches, 64),
                atoms >= 2,
                atoms <= 8 * $registers,
                stride >= branch_column(sizes, atoms, branches),
                stride % 4 == 0,
                stride <= $longest,
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
            const OWN: usize = own(J);
            const STAGED: bool = $staged;
            let (lane, sample) = (thread::lane(), thread::block_idx());
            let (octet, i) = (lane / 8, lane % 8);
            let count = action_offset(sizes, branches);
            let at = Layout::new(if STAGED { stride } else { 0 }, branches, count, $registers);
            let (floats, words) = (shared::array::<f32>(0, at.len), shared::array::<u32>(0, at.len));
            let row = Row::<STAGED>::new(logits, sample * stride, stride, 0);
            stage(&[row], branch_column(sizes, atoms, branches));
            let all_taken = actions.get(sample);
            let support = Support::read(&support, atoms);
            let z = values::<J>(&support);
            if STAGED {
                shared::copy_wait::<0>();
                warp::sync(); // the row is in shared memory
            }
            let tables = Tables { floats, words, bases: at.bases, list: at.list, branches: at.branches };
            bases::<1, J, OWN, STAGED>(&[row], sizes, branches, atoms, &tables);
            warp::sync(); // the bases and the tables are
            let mut r = octet;
            while r < count + octet {
                let [column, base] = words.get2(at.list + 2 * r);
                let l = octets::logits::<J, STAGED>(&row, column, atoms, floats, base);
                let e = exponentials(&l, largest(&l));
                let [weighted, total] = octet_sums([dot(&e, &z), sum(&e)]);
                warp::sync(); // the octets have read their logits before the exponentials take their places
                if r < count {
                    unrolled!(J, j, {
                        let k = i + 8 * j as u32;
                        if k < atoms {
                            if STAGED {
                                floats.set(column + k, e[j]);
                            } else {
                                gradient.set(sample * stride + column + k, e[j]);
                            }
                        }
                    });
                    if i == 0 {
                        floats.set2(at.pairs + 2 * r, [weighted / total, total]);
                    }
                }
                r += OCTETS;
            }
            warp::sync(); // all Q, sums and exponentials are
            let scale = alpha / (batch * branches) as f32;
            let mut first = 0;
            while first < branches {
                // An octet for each of four branches; one without repeats the last and writes nothing.
                let exists = first + octet < branches;
                let d = if exists { first + octet } else { branches - 1 };
                let (size, taken) = (action::branch(sizes, d), action::branch(all_taken, d));
                let [_, actions_before, _, _] = words.get4(at.branches + 4 * d);
                let pairs = at.pairs + 2 * actions_before;
                let mut highest = f32::NEG_INFINITY;
                let mut a = i;
                while a < size {
                    highest = math::max(highest, floats.get(pairs + 2 * a));
                    a += 8;
                }
                let highest = octet_max(highest);
                // Two chains: with the octet's steps none of 64 actions goes through more than seven additions.
                let (mut even, mut odd) = (0.0f32, 0.0f32);
                a = i;
                while a < size {
                    even += math::exp_down(floats.get(pairs + 2 * a) - highest);
                    if a + 8 < size {
                        odd += math::exp_down(floats.get(pairs + 2 * a + 16) - highest);
                    }
                    a += 16;
                }
                let [total] = octet_sums([even + odd]);
                let q_taken = floats.get(pairs + 2 * taken);
                if exists {
                    a = i;
                    while a < size {
                        let [q, sum] = floats.get2(pairs + 2 * a);
                        let one = if a == taken { 1.0 } else { 0.0 };
                        let factor = scale * (math::exp_down(q - highest) / total - one) / sum;
                        floats.set(pairs + 2 * a + 1, factor);
                        a += 8;
                    }
                    if i == 0 {
                        let excess = highest - q_taken + math::ln(total);
                        per_branch.set(sample * branches + d, excess);
                        floats.set(at.excesses + d, excess);
                    }
                }
                first += OCTETS;
            }
            warp::sync(); // the factors are
            let mut own_z = [0.0f32; OWN];
            unrolled!(OWN, o, {
                own_z[o] = support.atom(lane + 32 * o as u32);
            });
            let mut values = [0.0f32; OWN];
            let (mut pair, mut d) = (at.pairs, 0);
            while d < branches {
                let [column, _, inverse, _] = words.get4(at.branches + 4 * d);
                let (inverse, size) = (f32::from_bits(inverse), action::branch(sizes, d));
                // G[a, k] of the lane's own atoms, 0 beyond K.
                let gradient_of = |a: u32| {
                    let [q, factor] = floats.get2(pair + 2 * a);
                    let mut g = [0.0f32; OWN];
                    unrolled!(OWN, o, {
                        let k = lane + 32 * o as u32;
                        if k < atoms {
                            let from = column + a * atoms + k;
                            let e = if STAGED { floats.get(from) } else { gradient.get(sample * stride + from) };
                            g[o] = factor * e * (own_z[o] - q);
                        }
                    });
                    g
                };
                let mut sums = [0.0f32; OWN];
                let mut a = 0;
                while a < size {
                    let g = gradient_of(a);
                    unrolled!(OWN, o, {
                        sums[o] += g[o];
                    });
                    a += 1;
                }
                a = 0;
                while a < size {
                    let g = gradient_of(a);
                    unrolled!(OWN, o, {
                        let k = lane + 32 * o as u32;
                        if k < atoms {
                            gradient.set(sample * stride + column + a * atoms + k, g[o] - sums[o] * inverse);
                        }
                    });
                    a += 1;
                }
                unrolled!(OWN, o, {
                    values[o] += sums[o];
                });
                pair += 2 * size;
                d += 1;
            }
            unrolled!(OWN, o, {
                let k = lane + 32 * o as u32;
                if k < atoms {
                    gradient.set(sample * stride + k, values[o]);
                }
            });
            if lane == 0 {
                let mut sum = 0.0;
                d = 0;
                while d < branches {
                    sum += floats.get(at.excesses + d);
                    d += 1;
                }
                loss.set(sample, alpha * sum / branches as f32);
            }
        }
    )*};
}

cql_kernels! {
    /// CQL loss and gradient for up to 56 atoms and rows of up to 8192 floats, which are staged in shared memory.
    cql_loss, registers = 7, staged = true, longest = LONGEST;
    /// CQL loss and gradient for up to 128 atoms and rows of any length.
    cql_loss_wide, registers = 16, staged = false, longest = u32::MAX;
}
