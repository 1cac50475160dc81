//! Warp-wide pieces of the value distribution, shared by the acting and the loss kernels.
//!
//! A warp holds one distribution: atom k = lane + 32 j in register j (J registers, K <= 32 J). Dueling per atom:
//! l[a, k] = v[k] + adv[a, k] - mean_a' adv[a', k]; p = softmax over k; Q(a) = sum_k z_k p[a, k]
//! (Wang et al. 2016 with the mean per atom; Bellemare, Dabney and Munos 2017).

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Actions whose softmax reductions run side by side, to hide the latency of the shuffles. The last group of a branch
/// repeats its last action: with three, branches of 3 and 9 actions (the default) waste nothing.
const GROUP: usize = 3;

/// Ends of the support and its spacing, read from device memory because the support may adapt.
#[derive(Clone, Copy)]
pub struct Support {
    /// Lowest atom.
    pub v_min: f32,
    /// Highest atom.
    pub v_max: f32,
    /// Distance of two atoms.
    pub dz: f32,
}

impl Support {
    /// From a buffer [v_min, v_max] and the number of atoms.
    #[inline(always)]
    pub fn read(support: &In<f32>, atoms: u32) -> Self {
        let (v_min, v_max) = (support.get(0), support.get(1));
        Self { v_min, v_max, dz: (v_max - v_min) / (atoms - 1) as f32 }
    }

    /// z_k. The spacing is rounded, so the last atom could come out beyond v_max, and its mass would count as outside
    /// the support where nothing is: the minimum keeps it inside.
    #[inline(always)]
    pub fn atom(&self, k: u32) -> f32 {
        math::min(math::fma(k as f32, self.dz, self.v_min), self.v_max)
    }
}

/// One row's branch in a logits buffer.
#[derive(Clone, Copy)]
pub struct Branch {
    /// First element of the row's value block.
    pub value: u32,
    /// First element of the row's branch block.
    pub advantage: u32,
    /// n_d.
    pub actions: u32,
    /// K.
    pub atoms: u32,
}

/// K consecutive floats from `at`, zero beyond K.
#[inline(always)]
pub fn load_atoms<const J: usize>(logits: &In<f32>, at: u32, atoms: u32) -> [f32; J] {
    let lane = thread::lane();
    let mut out = [0.0; J];
    let mut j = 0;
    while j < J {
        let k = lane + 32 * j as u32;
        if k < atoms {
            out[j] = logits.get(at + k);
        }
        j += 1;
    }
    out
}

/// v[k] - mean_a adv[a, k]: what every action's advantage is added to.
#[inline(always)]
pub fn baseline<const J: usize>(logits: &In<f32>, b: Branch) -> [f32; J] {
    let value = load_atoms::<J>(logits, b.value, b.atoms);
    let mut sum = [0.0f32; J];
    let mut first = 0;
    while first < b.actions {
        sum = add_group(sum, load_group(logits, b, first), first, b.actions);
        first += GROUP as u32;
    }
    less_mean(value, sum, b.actions)
}

/// Advantages of the actions `first .. first + GROUP`; an action beyond the last is loaded as the last one, so that no
/// load waits for a branch.
#[inline(always)]
fn load_group<const J: usize>(logits: &In<f32>, b: Branch, first: u32) -> [[f32; J]; GROUP] {
    each(|c| {
        let a = first + c as u32;
        let row = if a < b.actions { a } else { b.actions - 1 };
        load_atoms::<J>(logits, b.advantage + row * b.atoms, b.atoms)
    })
}

/// Adds the group's actions that exist, in order.
#[inline(always)]
fn add_group<const J: usize>(sum: [f32; J], group: [[f32; J]; GROUP], first: u32, actions: u32) -> [f32; J] {
    let mut out = sum;
    let mut j = 0;
    while j < J {
        out[j] += group[0][j];
        out[j] += if first + 1 < actions { group[1][j] } else { 0.0 };
        out[j] += if first + 2 < actions { group[2][j] } else { 0.0 };
        j += 1;
    }
    out
}

/// value - sum / actions.
#[inline(always)]
fn less_mean<const J: usize>(value: [f32; J], sum: [f32; J], actions: u32) -> [f32; J] {
    let inverse = 1.0 / actions as f32;
    let mut out = [0.0; J];
    let mut j = 0;
    while j < J {
        out[j] = value[j] - sum[j] * inverse;
        j += 1;
    }
    out
}

/// Sums over the warp, side by side; every lane gets the same bits.
#[inline(always)]
pub fn warp_sums<const N: usize>(mut values: [f32; N]) -> [f32; N] {
    let mut mask = 16;
    while mask > 0 {
        let mut n = 0;
        while n < N {
            values[n] += warp::shfl_xor(values[n], mask);
            n += 1;
        }
        mask /= 2;
    }
    values
}

/// l[a, k] of one action.
#[inline(always)]
pub fn action_logits<const J: usize>(logits: &In<f32>, b: Branch, base: &[f32; J], a: u32) -> [f32; J] {
    let mut l = load_atoms::<J>(logits, b.advantage + a * b.atoms, b.atoms);
    let mut j = 0;
    while j < J {
        l[j] += base[j];
        j += 1;
    }
    l
}

/// Softmax of one distribution with the maximum subtracted.
pub struct Softmax<const J: usize> {
    /// p_k, zero beyond K.
    pub p: [f32; J],
    /// log p_k, unspecified beyond K.
    pub log_p: [f32; J],
}

/// p and log p; log p = l - max - ln(sum), so it is finite wherever the logits are.
#[inline(always)]
pub fn softmax<const J: usize>(l: &[f32; J], atoms: u32) -> Softmax<J> {
    // Beyond K a logit counts as -inf and its p is exp(-inf) = 0: no branch stands between the exponentials.
    let l = masked(l, atoms);
    let mut top = l[0];
    let mut j = 1;
    while j < J {
        top = math::max(top, l[j]);
        j += 1;
    }
    let top = warp::max(top);
    let mut p = [0.0; J];
    let mut sum = 0.0;
    j = 0;
    while j < J {
        p[j] = math::exp(l[j] - top);
        sum += p[j];
        j += 1;
    }
    let sum = warp::sum(sum);
    let (inverse, log_sum) = (1.0 / sum, math::ln(sum));
    let mut log_p = [0.0; J];
    j = 0;
    while j < J {
        p[j] *= inverse;
        log_p[j] = l[j] - top - log_sum;
        j += 1;
    }
    Softmax { p, log_p }
}

/// The lane's logits, -inf beyond K.
#[inline(always)]
fn masked<const J: usize>(l: &[f32; J], atoms: u32) -> [f32; J] {
    let mut out = *l;
    let mut j = 0;
    while j < J {
        out[j] = if thread::lane() + 32 * (j as u32) < atoms { l[j] } else { f32::NEG_INFINITY };
        j += 1;
    }
    out
}

/// f of every action of a group, written out: a loop of bodies this long stays a loop, and the arrays that it indexes
/// then lie in local memory.
#[inline(always)]
fn each<T>(f: impl Fn(usize) -> T) -> [T; GROUP] {
    [f(0), f(1), f(2)]
}

/// One action's distribution, summed up: p_k = exp(l_k - top) / sum, Q = weighted / sum.
#[derive(Clone, Copy)]
pub struct Moments {
    /// Largest logit.
    pub top: f32,
    /// Sum over k of exp(l_k - top).
    pub sum: f32,
    /// Sum over k of z_k exp(l_k - top).
    pub weighted: f32,
}

/// The actions `first .. first + GROUP` (an action beyond the last repeats the last).
#[inline(always)]
fn moments_group<const J: usize>(
    logits: &In<f32>,
    b: Branch,
    base: &[f32; J],
    support: &Support,
    first: u32,
) -> [Moments; GROUP] {
    let lane = thread::lane();
    let l = each(|c| {
        let a = first + c as u32;
        masked(&action_logits::<J>(logits, b, base, if a < b.actions { a } else { b.actions - 1 }), b.atoms)
    });
    let mut top = each(|c| {
        let mut top = l[c][0];
        let mut j = 1;
        while j < J {
            top = math::max(top, l[c][j]);
            j += 1;
        }
        top
    });
    let mut mask = 16;
    while mask > 0 {
        top = each(|c| math::max(top[c], warp::shfl_xor(top[c], mask)));
        mask /= 2;
    }
    let mut sums = each(|c| {
        let (mut sum, mut weighted) = (0.0, 0.0);
        let mut j = 0;
        while j < J {
            let e = math::exp(l[c][j] - top[c]);
            sum += e;
            weighted = math::fma(e, support.atom(lane + 32 * j as u32), weighted);
            j += 1;
        }
        [sum, weighted]
    });
    mask = 16;
    while mask > 0 {
        sums = each(|c| {
            let [sum, weighted] = sums[c];
            [sum + warp::shfl_xor(sum, mask), weighted + warp::shfl_xor(weighted, mask)]
        });
        mask /= 2;
    }
    each(|c| Moments { top: top[c], sum: sums[c][0], weighted: sums[c][1] })
}

/// Calls `take(a, moments)` for every action of a branch in order; all lanes get the same bits. `base` is the row's
/// [`baseline`].
#[inline(always)]
pub fn each_action<const J: usize>(
    logits: &In<f32>,
    b: Branch,
    base: &[f32; J],
    support: &Support,
    mut take: impl FnMut(u32, Moments),
) {
    let mut first = 0;
    while first < b.actions {
        let [m0, m1, m2] = moments_group::<J>(logits, b, base, support, first);
        take(first, m0);
        if first + 1 < b.actions {
            take(first + 1, m1);
        }
        if first + 2 < b.actions {
            take(first + 2, m2);
        }
        first += GROUP as u32;
    }
}

/// Greedy action of a branch and its Q; ties go to the lowest index. A NaN among the values is the result: it would
/// lose every comparison and so disappear. `base` is the row's [`baseline`]. When `q` is given, all Q
/// values are also written to `q[at + a]`.
#[inline(always)]
pub fn greedy<const J: usize>(
    logits: &In<f32>,
    b: Branch,
    base: &[f32; J],
    support: &Support,
    q: Option<(&Out<f32>, u32)>,
) -> (u32, f32) {
    let (mut best, mut best_q) = (0, f32::NEG_INFINITY);
    each_action::<J>(logits, b, base, support, |a, m| {
        let value = m.weighted / m.sum;
        if value > best_q || value.is_nan() {
            (best, best_q) = (a, value);
        }
        if let Some((out, at)) = q
            && thread::lane() == 0
        {
            out.set(at + a, value);
        }
    });
    (best, best_q)
}
