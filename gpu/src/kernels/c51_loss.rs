//! The C51 loss of all branches with Double-DQN selection, projection, cross-entropy and the gradient with respect
//! to the heads' outputs, in one launch. SPEC section 3; Bellemare, Dabney and Munos, "A Distributional Perspective
//! on Reinforcement Learning" (2017), algorithm 1; van Hasselt, Guez and Silver (2016) for the selection.
//!
//! For each branch d:
//! 1. a* = argmax_a Q_online(s')(a);
//! 2. p' = softmax of the target network's logits at (s', a*); T z_k = clamp(r + discount * z_k), b_k its position on
//!    the grid; m_j = sum_k p'_k * max(0, 1 - |b_k - j|), the same linear interpolation as the paper's, written as a
//!    gather so that no two lanes add to one atom (an integer b_k gives all its mass to that atom by itself);
//! 3. log p at (s, a_d); ce = -sum_k m_k log p_k; td = E_m[z] - Q(s, a_d);
//! 4. g_k = w s_d / (B D) (p_k - m_k), s_d the branch's scale, 1 unless the value networks set it; d adv[a, k] =
//!    g_k (1[a = a_d] - 1 / n_d); d v[k] = sum_d g_k in branch order; where the ensemble asks for it, also mean_d m_k.
//!
//! One warp per sample (`octets`). The three rows of logits are staged in shared memory where they fit, so that memory is
//! waited for once. b_k is the same for all branches, and it never falls with k: the atoms k of which b_k lies between two
//! neighbours are consecutive, a table holds the first of each (`cells`), and atom j adds those between j - 1 and j + 1 only,
//! two or three with a discount near 1, for four branches at a time (`project`).
//!
//! `discount` is gamma^m (1 - terminated), m the number of rewards really summed: a truncated transition bootstraps.

use cuda_std::prelude::*;

use super::distribution::Support;
use super::octets::{
    OCTETS, Row, Tables, bases, dot, exponentials, largest, list, logits, octet_sums, own, pitch, stage, sum,
    unrolled, values,
};
use crate::action;
use crate::logits::{action_offset, branch_column};

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

/// Longest rows that [`C51Loss`] stages, in floats: three of them are 48 KiB. Longer ones are for [`C51LossWide`].
pub const LONGEST: u32 = 4096;

/// Whether [`C51Loss`] computes rows of `stride` floats with this many atoms.
#[cfg(not(target_arch = "nvptx64"))]
pub fn is_narrow(atoms: usize, stride: usize) -> bool {
    atoms <= 56 && stride <= LONGEST as usize
}

/// Numbers of a branch that are averaged at the end, and a free place.
const SCALARS: u32 = 8;

/// Where things lie in shared memory, in elements of four bytes.
#[derive(Clone, Copy)]
struct Layout {
    /// The bases of the online network at s, later g; of the online and of the target network at s'.
    bases: u32,
    /// p' of four branches for each atom.
    p: u32,
    /// m of four branches for each atom.
    mass: u32,
    /// What four branches' masses begin with, and the parts of them strictly below and above the support.
    ends: u32,
    /// b_k.
    positions: u32,
    /// The first atom of each cell (u32).
    firsts: u32,
    /// [`SCALARS`] of each branch.
    scalars: u32,
    /// The table of branches (u32).
    branches: u32,
    /// The list of actions (u32).
    list: u32,
    /// Q_online(s') of every action.
    q: u32,
    /// Elements in all.
    len: u32,
}

impl Layout {
    /// Behind `rows` floats of staged rows, with `actions` of all branches together.
    #[inline(always)]
    const fn new(rows: u32, branches: u32, actions: u32, registers: u32) -> Self {
        let own = pitch(registers) - 8;
        let bases = rows;
        let p = bases + 3 * branches * pitch(registers);
        let mass = p + OCTETS * own;
        let ends = mass + OCTETS * own;
        let positions = ends + 3 * OCTETS;
        let firsts = positions + own;
        let scalars = firsts + own + 4;
        let table = scalars + SCALARS * branches;
        let actions_list = table + 4 * branches;
        let q = actions_list + list(actions);
        Self {
            bases,
            p,
            mass,
            ends,
            positions,
            firsts,
            scalars,
            branches: table,
            list: actions_list,
            q,
            len: q + actions,
        }
    }
}

macro_rules! c51_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal, staged = $staged:literal, longest = $longest:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// Logits rows have `stride` floats (see `crate::logits`): `online` [2B, stride] on s and s', `target`
        /// [B, stride] on s'; `gradient` [B, stride] gets d loss / d logits (padding is left alone), `stats`
        /// [B, 8] as in [`stat`], `cross_entropy` and `td_error` [B, D] per branch. Discounts are 0 or more. With
        /// `keep_target` 1, `mean_target` [B, K] gets the targets' mean over the branches; with 0 it is not touched.
        #[kernel(
            block = crate::kernels::octets::THREADS,
            grid = batch,
            shared = 4 * Layout::new(if $staged { 3 * stride } else { 0 }, branches, action_offset(sizes, branches), $registers).len,
            shuffles = 49, // 45 with two atoms of a lane's own, 49 with four
            votes = 6,
            requires(
                batch > 0,
                branches >= 1,
                branches <= action::MAX_BRANCHES,
                action::none_empty(sizes, branches),
                atoms >= 2,
                atoms <= 8 * $registers,
                stride >= branch_column(sizes, atoms, branches),
                stride % 4 == 0,
                stride <= $longest,
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
            const J: usize = $registers;
            const OWN: usize = own(J);
            const STAGED: bool = $staged;
            let (lane, sample) = (thread::lane(), thread::block_idx());
            let (octet, i) = (lane / 8, lane % 8);
            let count = action_offset(sizes, branches);
            let at = Layout::new(if STAGED { 3 * stride } else { 0 }, branches, count, $registers);
            let (floats, words) = (shared::array::<f32>(0, at.len), shared::array::<u32>(0, at.len));
            let row = |of: In<f32>, row: u32, n: u32| Row::<STAGED>::new(of, row * stride, stride, n);
            let here = row(online, sample, 0);
            let (there, aim) = (row(online, batch + sample, 1), row(target, sample, 2));
            stage(&[here, there, aim], branch_column(sizes, atoms, branches));
            let support = Support::read(&support, atoms);
            let (reward, discount) = (rewards.get(sample), discounts.get(sample));
            let (all_taken, weight) = (actions.get(sample), weights.get(sample));
            let z = values::<J>(&support);
            // A negative discount is an error that shows (below); the table needs one that keeps the order.
            let rising = if discount >= 0.0 { discount } else { 0.0 };
            let mut cell = [0; OWN];
            unrolled!(OWN, o, {
                let k = lane + 32 * o as u32;
                let tz = math::fma(rising, support.atom(k), reward);
                let position = math::max((tz - support.v_min) / support.dz, 0.0);
                let position = math::min(position, (atoms - 1) as f32);
                floats.set(at.positions + k, position);
                cell[o] = cell_of(tz, position, &support, atoms);
            });
            cells(&words, at.firsts, &cell, atoms);
            if STAGED {
                shared::copy_wait::<0>();
                warp::sync(); // the rows are in shared memory
            }
            let tables = Tables { floats, words, bases: at.bases, list: at.list, branches: at.branches };
            bases::<3, J, OWN, STAGED>(&[here, there, aim], sizes, branches, atoms, &tables);
            warp::sync(); // the bases and the tables are
            let network = branches * pitch($registers);
            let mut r = octet;
            while r < count + octet {
                let [column, base] = words.get2(at.list + 2 * r);
                let l = logits::<J, STAGED>(&there, column, atoms, floats, base + network);
                let e = exponentials(&l, largest(&l));
                let [weighted, total] = octet_sums([dot(&e, &z), sum(&e)]);
                if r < count && i == 0 {
                    floats.set(at.q + r, weighted / total);
                }
                r += OCTETS;
            }
            warp::sync(); // all Q are
            let mut mean_mass = [0.0f32; OWN];
            let mut first = 0;
            while first < branches {
                // An octet for each of four branches; one without repeats the last and writes nothing.
                let exists = first + octet < branches;
                let d = if exists { first + octet } else { branches - 1 };
                let [column, actions_before, _, _] = words.get4(at.branches + 4 * d);
                let (taken, branch_scale) = (action::branch(all_taken, d), branch_scales.get(d));
                let (best, best_q) = best(&floats, at.q + actions_before, action::branch(sizes, d));
                let base = at.bases + d * pitch($registers);
                let l = logits::<J, STAGED>(&aim, column + best * atoms, atoms, floats, base + 2 * network);
                let mut p = exponentials(&l, largest(&l));
                let [total] = octet_sums([sum(&p)]);
                let inverse = 1.0 / total;
                let (inside, above) = (words.get(at.firsts + 1), words.get(at.firsts + atoms + 1));
                let (mut low, mut high) = ([0.0f32; J], [0.0f32; J]);
                unrolled!(J, j, {
                    let k = i + 8 * j as u32;
                    p[j] *= inverse;
                    low[j] = if k < inside { p[j] } else { 0.0 };
                    high[j] = if k >= above { p[j] } else { 0.0 };
                    floats.set(at.p + OCTETS * k + octet, p[j]);
                });
                let [low, high] = octet_sums([sum(&low), sum(&high)]);
                if i == 0 {
                    // The clamp turns a NaN or infinite target into an end of the support, a NaN among the next values only
                    // decides the action, and a NaN distribution reaches some of the atoms. 0 * x keeps all of them visible:
                    // the mass, the gradient and its norm become NaN, and the step is skipped and counted. So does a negative
                    // discount, which no transition has.
                    let shown = if discount >= 0.0 { 0.0 * reward + 0.0 * discount } else { f32::NAN };
                    floats.set(at.ends + octet, shown + 0.0 * best_q + 0.0 * total);
                    floats.set(at.ends + OCTETS + octet, low);
                    floats.set(at.ends + 2 * OCTETS + octet, high);
                }
                let l = logits::<J, STAGED>(&here, column + taken * atoms, atoms, floats, base);
                let top = largest(&l);
                let mut p = exponentials(&l, top);
                let [total] = octet_sums([sum(&p)]);
                let (inverse, log_total) = (1.0 / total, math::ln(total));
                warp::sync(); // p' and the masses outside are
                unrolled!(OWN, o, {
                    let m = project(&floats, &words, &at, lane + 32 * o as u32, atoms);
                    floats.set4(at.mass + OCTETS * (lane + 32 * o as u32), m);
                    let left = branches - first;
                    mean_mass[o] += m[0];
                    mean_mass[o] += if left > 1 { m[1] } else { 0.0 };
                    mean_mass[o] += if left > 2 { m[2] } else { 0.0 };
                    mean_mass[o] += if left > 3 { m[3] } else { 0.0 };
                });
                warp::sync(); // m is
                let scale = weight * branch_scale / (batch * branches) as f32;
                let (mut m, mut ce) = ([0.0f32; J], [0.0f32; J]);
                unrolled!(J, j, {
                    let k = i + 8 * j as u32;
                    p[j] *= inverse;
                    m[j] = floats.get(at.mass + OCTETS * k + octet);
                    // Beyond K log p is -infinity.
                    ce[j] = if k < atoms { m[j] * (l[j] - top - log_total) } else { 0.0 };
                    if exists {
                        floats.set(base + k, scale * (p[j] - m[j]));
                    }
                });
                let [ce, q, mean] = octet_sums([-sum(&ce), dot(&p, &z), dot(&m, &z)]);
                if i == 0 && exists {
                    cross_entropy.set(sample * branches + d, ce);
                    td_error.set(sample * branches + d, mean - q);
                    floats.set4(at.scalars + SCALARS * d, [ce, math::abs(mean - q), q, best_q]);
                    floats.set4(at.scalars + SCALARS * d + 4, [low, high, branch_scale * ce, 0.0]);
                }
                warp::sync(); // g and the scalars are; what the next four branches write over has been read
                first += OCTETS;
            }
            let mut sums = [0.0f32; OWN];
            let mut d = 0;
            while d < branches {
                let [column, _, inverse, _] = words.get4(at.branches + 4 * d);
                let (inverse, taken) = (f32::from_bits(inverse), action::branch(all_taken, d));
                let size = action::branch(sizes, d);
                let mut g = [0.0f32; OWN];
                unrolled!(OWN, o, {
                    g[o] = floats.get(at.bases + d * pitch($registers) + lane + 32 * o as u32);
                    sums[o] += g[o];
                });
                let mut to = sample * stride + column + lane;
                let mut a = 0;
                while a < size {
                    let factor = if a == taken { 1.0 - inverse } else { -inverse };
                    unrolled!(OWN, o, {
                        if lane + 32 * (o as u32) < atoms {
                            gradient.set(to + 32 * o as u32, g[o] * factor);
                        }
                    });
                    to += atoms;
                    a += 1;
                }
                d += 1;
            }
            unrolled!(OWN, o, {
                let k = lane + 32 * o as u32;
                if k < atoms {
                    gradient.set(sample * stride + k, sums[o]);
                    if keep_target == 1 {
                        mean_target.set(sample * atoms + k, mean_mass[o] / branches as f32);
                    }
                }
            });
            if lane < 7 {
                // Lane i averages scalar i over the branches; the seventh is the scaled cross-entropy.
                let mut sum = 0.0;
                let mut d = 0;
                while d < branches {
                    sum += floats.get(at.scalars + SCALARS * d + lane);
                    d += 1;
                }
                let mean = sum / branches as f32;
                if lane < 6 {
                    stats.set(sample * stat::COLUMNS + stat::LOSS + lane, mean);
                } else {
                    stats.set(sample * stat::COLUMNS + stat::WEIGHTED_LOSS, weight * mean);
                }
            }
            if lane == 7 {
                stats.set(sample * stat::COLUMNS + stat::COLUMNS - 1, 0.0);
            }
        }
    )*};
}

c51_kernels! {
    /// C51 loss and gradient for up to 56 atoms and rows of up to 4096 floats, which are staged in shared memory.
    c51_loss, registers = 7, staged = true, longest = LONGEST;
    /// C51 loss and gradient for up to 128 atoms and rows of any length.
    c51_loss_wide, registers = 16, staged = false, longest = u32::MAX;
}

/// Between which atoms T z at `position` lies: 1 + j between j and j + 1, 0 strictly below the support, K + 1 strictly above. It
/// does not fall with k, because multiplying by what is not negative, adding and dividing keep the order in f32 too. (NaN is cell
/// 1: its mass is NaN.)
#[inline(always)]
fn cell_of(tz: f32, position: f32, support: &Support, atoms: u32) -> u32 {
    if tz < support.v_min {
        0
    } else if tz > support.v_max {
        atoms + 1
    } else {
        1 + position as u32
    }
}

/// The table of the first atom k in each cell from 1 to K + 1 or one above it, from the lanes' own atoms' cells: atom k writes
/// itself for the cells after its predecessor's up to its own, the last one K for those that come behind.
#[inline(always)]
fn cells<const OWN: usize>(words: &Shared<u32>, firsts: u32, cell: &[u32; OWN], atoms: u32) {
    let lane = thread::lane();
    unrolled!(OWN, o, {
        let k = lane + 32 * o as u32;
        let left = warp::shfl_up(cell[o], 1);
        let before = if o > 0 { warp::shfl_idx(cell[o.saturating_sub(1)], 31) } else { 0 };
        let mut c = if lane == 0 { before } else { left } + 1;
        if k < atoms {
            while c <= cell[o] {
                words.set(firsts + c, k);
                c += 1;
            }
        }
        if k == atoms - 1 {
            while c <= atoms + 1 {
                words.set(firsts + c, atoms);
                c += 1;
            }
        }
    });
}

/// m_j of four branches: the mass of the atoms in the cells on both sides of j, in ascending order, and at the ends what lies
/// outside. 0 beyond K.
#[inline(always)]
fn project(floats: &Shared<f32>, words: &Shared<u32>, at: &Layout, j: u32, atoms: u32) -> [f32; 4] {
    let mut m = [0.0f32; 4];
    if j < atoms {
        m = floats.get4(at.ends);
        if j == 0 {
            m = plus(m, floats.get4(at.ends + OCTETS));
        }
        let mut k = words.get(at.firsts + if j == 0 { 1 } else { j });
        let end = words.get(at.firsts + j + 2);
        // Three written out: with a discount near 1 that is all, and no loop.
        unrolled!(3, n, {
            if k + (n as u32) < end {
                m = reached(m, floats, at, j, k + n as u32);
            }
        });
        k += 3;
        while k < end {
            m = reached(m, floats, at, j, k);
            k += 1;
        }
        if j == atoms - 1 {
            m = plus(m, floats.get4(at.ends + 2 * OCTETS));
        }
    }
    m
}

/// The masses with what atom k's give to j, whose neighbour it is.
#[inline(always)]
fn reached(m: [f32; 4], floats: &Shared<f32>, at: &Layout, j: u32, k: u32) -> [f32; 4] {
    let near = 1.0 - math::abs(floats.get(at.positions + k) - j as f32);
    let p = floats.get4(at.p + OCTETS * k);
    [
        math::fma(p[0], near, m[0]),
        math::fma(p[1], near, m[1]),
        math::fma(p[2], near, m[2]),
        math::fma(p[3], near, m[3]),
    ]
}

/// Sum of four pairs.
#[inline(always)]
fn plus(x: [f32; 4], y: [f32; 4]) -> [f32; 4] {
    [x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3]]
}

/// The greedy action among the `count` values from element `at` and its Q, the lowest of equal ones, found by the octet. A NaN
/// among the values is the result: it would lose every comparison and so disappear.
#[inline(always)]
fn best(floats: &Shared<f32>, at: u32, count: u32) -> (u32, f32) {
    let mut a = thread::lane() % 8;
    let (mut best, mut best_q) = (if a < count { a } else { 0 }, f32::NEG_INFINITY);
    while a < count {
        let q = floats.get(at + a);
        if q > best_q || (q.is_nan() && !best_q.is_nan()) {
            (best, best_q) = (a, q);
        }
        a += 8;
    }
    let mut mask = 4;
    while mask > 0 {
        let (a, q) = (warp::shfl_xor(best, mask), warp::shfl_xor(best_q, mask));
        let equal = q == best_q || (q.is_nan() && best_q.is_nan());
        if q > best_q || (q.is_nan() && !best_q.is_nan()) || (equal && a < best) {
            (best, best_q) = (a, q);
        }
        mask /= 2;
    }
    (best, best_q)
}
