//! Dueling, softmax over the atoms and expected values of one row, in f64.

use crate::reference::{Bounded, WARP_CHAIN};

/// Outputs of the heads for one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    /// v [K].
    pub value: Vec<f32>,
    /// adv [D, n_d, K].
    pub advantage: Vec<Vec<Vec<f32>>>,
}

/// z_k = v_min + k (v_max - v_min) / (K - 1) for all k.
pub fn atoms(support: [f32; 2], count: usize) -> Vec<Bounded> {
    let spacing = spacing(support, count);
    (0..count).map(|k| Bounded::exact(k as f32) * spacing + Bounded::exact(support[0])).collect()
}

/// dz.
pub fn spacing(support: [f32; 2], count: usize) -> Bounded {
    (Bounded::exact(support[1]) - Bounded::exact(support[0])) / Bounded::exact((count - 1) as f32)
}

/// l[a, k] = v[k] + adv[a, k] - mean_a' adv[a', k] of one branch, [n_d, K].
pub fn dueling(value: &[f32], advantage: &[Vec<f32>]) -> Vec<Vec<Bounded>> {
    let mut logits = vec![vec![Bounded::ZERO; value.len()]; advantage.len()];
    for k in 0..value.len() {
        let column = advantage.iter().map(|row| Bounded::exact(row[k]));
        let inverse = Bounded::rounded(1.0 / advantage.len() as f64);
        let mean = Bounded::sum(column, advantage.len()) * inverse;
        for a in 0..advantage.len() {
            logits[a][k] = Bounded::exact(advantage[a][k]) + (Bounded::exact(value[k]) - mean);
        }
    }
    logits
}

/// A distribution over the atoms.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// p [K].
    pub p: Vec<Bounded>,
    /// log p [K].
    pub log_p: Vec<Bounded>,
}

/// Softmax of one action's logits.
pub fn softmax(logits: &[Bounded]) -> Distribution {
    // Any shift gives the same distribution, so the rounding of the maximum itself does not matter.
    let top = logits.iter().fold(f64::NEG_INFINITY, |top, l| top.max(l.value));
    let shifted: Vec<Bounded> = logits.iter().map(|&l| l - Bounded { value: top, scale: 0.0 }).collect();
    let sum = Bounded::sum(shifted.iter().map(|x| x.exp()), WARP_CHAIN);
    let one = Bounded::exact(1.0);
    Distribution {
        p: shifted.iter().map(|x| x.exp() * (one / sum)).collect(),
        log_p: shifted.iter().map(|&x| x - sum.ln()).collect(),
    }
}

/// sum_k z_k p_k.
pub fn expectation(atoms: &[Bounded], p: &[Bounded]) -> Bounded {
    Bounded::sum(atoms.iter().zip(p).map(|(&z, &p)| z * p), WARP_CHAIN)
}

/// The action with the largest value, the lowest of equal ones, and whether f32 must find the same one: whether every
/// other action's value is either further below than both errors or equal because its logits are.
pub fn greedy(q: &[Bounded]) -> (usize, bool) {
    let mut best = 0;
    for a in 1..q.len() {
        if q[a].value > q[best].value {
            best = a;
        }
    }
    let certain = (0..q.len()).all(|a| {
        let gap = q[best].value - q[a].value;
        a == best || gap == 0.0 || gap > q[best].tolerance() + q[a].tolerance()
    });
    (best, certain)
}
