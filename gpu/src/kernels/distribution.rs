//! Warp-wide pieces of the value distribution, shared by the acting and the loss kernels.
//!
//! A warp holds one distribution: atom k = lane + 32 j in register j (J registers, K <= 32 J). Dueling per atom:
//! l[a, k] = v[k] + adv[a, k] - mean_a' adv[a', k]; p = softmax over k; Q(a) = sum_k z_k p[a, k]
//! (Wang et al. 2016 with the mean per atom; Bellemare, Dabney and Munos 2017).

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Actions whose softmax reductions run side by side, to hide the latency of the shuffles.
const GROUP: usize = 4;

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
    let mut sum = [0.0f32; J];
    let mut a = 0;
    while a < b.actions {
        let adv = load_atoms::<J>(logits, b.advantage + a * b.atoms, b.atoms);
        let mut j = 0;
        while j < J {
            sum[j] += adv[j];
            j += 1;
        }
        a += 1;
    }
    let value = load_atoms::<J>(logits, b.value, b.atoms);
    let inverse = 1.0 / b.actions as f32;
    let mut j = 0;
    while j < J {
        sum[j] = value[j] - sum[j] * inverse;
        j += 1;
    }
    sum
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
    let lane = thread::lane();
    let mut top = f32::NEG_INFINITY;
    let mut j = 0;
    while j < J {
        if lane + 32 * (j as u32) < atoms {
            top = math::max(top, l[j]);
        }
        j += 1;
    }
    let top = warp::max(top);
    let mut p = [0.0; J];
    let mut sum = 0.0;
    j = 0;
    while j < J {
        if lane + 32 * (j as u32) < atoms {
            p[j] = math::exp(l[j] - top);
        }
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

/// Q of the actions `first .. first + GROUP` (an action beyond the last repeats the last).
#[inline(always)]
fn expected_group<const J: usize>(
    logits: &In<f32>,
    b: Branch,
    base: &[f32; J],
    support: &Support,
    first: u32,
) -> [f32; GROUP] {
    let lane = thread::lane();
    let mut l = [[0.0f32; J]; GROUP];
    let mut top = [f32::NEG_INFINITY; GROUP];
    let mut c = 0;
    while c < GROUP {
        let a = first + c as u32;
        l[c] = action_logits::<J>(logits, b, base, if a < b.actions { a } else { b.actions - 1 });
        let mut j = 0;
        while j < J {
            if lane + 32 * (j as u32) < b.atoms {
                top[c] = math::max(top[c], l[c][j]);
            }
            j += 1;
        }
        c += 1;
    }
    let mut mask = 16;
    while mask > 0 {
        c = 0;
        while c < GROUP {
            top[c] = math::max(top[c], warp::shfl_xor(top[c], mask));
            c += 1;
        }
        mask /= 2;
    }
    let (mut sum, mut weighted) = ([0.0f32; GROUP], [0.0f32; GROUP]);
    c = 0;
    while c < GROUP {
        let mut j = 0;
        while j < J {
            let k = lane + 32 * j as u32;
            if k < b.atoms {
                let e = math::exp(l[c][j] - top[c]);
                sum[c] += e;
                weighted[c] = math::fma(e, support.atom(k), weighted[c]);
            }
            j += 1;
        }
        c += 1;
    }
    mask = 16;
    while mask > 0 {
        c = 0;
        while c < GROUP {
            sum[c] += warp::shfl_xor(sum[c], mask);
            weighted[c] += warp::shfl_xor(weighted[c], mask);
            c += 1;
        }
        mask /= 2;
    }
    let mut q = [0.0; GROUP];
    c = 0;
    while c < GROUP {
        q[c] = weighted[c] / sum[c];
        c += 1;
    }
    q
}

/// Greedy action of a branch and its Q; ties go to the lowest index. A NaN among the values is the result: it would
/// lose every comparison and so disappear. When `q` is given, all Q values are also written to `q[at + a]`.
#[inline(always)]
pub fn greedy<const J: usize>(
    logits: &In<f32>,
    b: Branch,
    support: &Support,
    q: Option<(&Out<f32>, u32)>,
) -> (u32, f32) {
    let base = baseline::<J>(logits, b);
    let (mut best, mut best_q) = (0, f32::NEG_INFINITY);
    let mut first = 0;
    while first < b.actions {
        let group = expected_group::<J>(logits, b, &base, support, first);
        let mut c = 0;
        while c < GROUP {
            let a = first + c as u32;
            if a < b.actions {
                if group[c] > best_q || group[c].is_nan() {
                    (best, best_q) = (a, group[c]);
                }
                if let Some((out, at)) = q
                    && thread::lane() == 0
                {
                    out.set(at + a, group[c]);
                }
            }
            c += 1;
        }
        first += GROUP as u32;
    }
    (best, best_q)
}
