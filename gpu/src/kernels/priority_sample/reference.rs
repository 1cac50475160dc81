//! Reference of prioritized sampling: one walk over all leaves, and the weights as they are written in the paper.

use crate::kernels::philox_fill::reference::words;
use crate::reference::Bounded;

/// Number of the stream of sample indices.
const STREAM: u32 = 1;

/// Sum of all leaves.
pub fn total(leaves: &[f32]) -> f64 {
    leaves.iter().map(|&leaf| f64::from(leaf)).sum()
}

/// Where sample `index` of `batch` falls on [0, total).
pub fn place(seed: u64, step: u64, index: u32, batch: u32, total: f64) -> f64 {
    let [high, low, ..] = words(seed, step, STREAM, index, 0);
    let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
    total * (f64::from(index) + bits as f64 / 2f64.powi(53)) / f64::from(batch)
}

/// The slot that owns `place`: the first with place < sum of the leaves up to it. `None` if another one is within
/// `margin`, so that rounding decides.
pub fn slot(leaves: &[f32], place: f64, margin: f64) -> Option<usize> {
    let mut sum = 0.0;
    for (slot, &leaf) in leaves.iter().enumerate() {
        let before = sum;
        sum += f64::from(leaf);
        if place < sum {
            let clear = place - before >= margin && sum - place >= margin;
            return clear.then_some(slot);
        }
    }
    None
}

/// beta of a step.
pub fn beta(step: u64, steps: u64, start: f64, end: f64) -> f64 {
    let way = if steps == 0 { 1.0 } else { (step as f64 / steps as f64).min(1.0) };
    start * (1.0 - way) + end * way
}

/// (N P_i)^-beta over the largest of them, P_i = leaf_i / total. The bound is that of the kernel's form,
/// exp(beta ln(least / leaf_i)).
pub fn weights(chosen: &[f32], written: usize, total: f64, beta: f64) -> Vec<Bounded> {
    let raw = |leaf: f32| (written as f64 * f64::from(leaf) / total).powf(-beta);
    let largest = chosen.iter().map(|&leaf| raw(leaf)).fold(0.0, f64::max);
    let least = chosen.iter().copied().fold(f32::INFINITY, f32::min);
    let bound = |leaf: f32| {
        let exponent = Bounded::rounded(beta) * (Bounded::exact(least) / Bounded::exact(leaf)).ln();
        exponent.exp().scale
    };
    chosen.iter().map(|&leaf| Bounded { value: raw(leaf) / largest, scale: bound(leaf) }).collect()
}
