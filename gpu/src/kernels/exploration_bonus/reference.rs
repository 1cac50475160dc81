//! The exploration bonus of one state in f64.

use crate::kernels::distribution::reference::{atoms, expectation, softmax};
use crate::reference::Bounded;

/// The root of the variance over the members of their expected values; `logits` is [M][K].
pub fn uncertainty(support: [f32; 2], logits: &[Vec<f32>]) -> Bounded {
    let z = atoms(support, logits[0].len());
    let member = |l: &Vec<f32>| {
        let l: Vec<Bounded> = l.iter().map(|&x| Bounded::exact(x)).collect();
        expectation(&z, &softmax(&l).p)
    };
    let values: Vec<Bounded> = logits.iter().map(member).collect();
    let members = Bounded::exact(values.len() as f32);
    let mean = Bounded::sum(values.iter().copied(), values.len()) / members;
    let squares = values.iter().map(|&e| (e - mean) * (e - mean));
    (Bounded::sum(squares, values.len()) / members).sqrt()
}

/// The reward with its bonus, of weight `first (1 - step / steps)`, not below 0; with `steps` 0 it is `first`.
pub fn rewarded(reward: f32, uncertainty: Bounded, first: f32, steps: u64, step: u64) -> Bounded {
    let left = if steps == 0 { 1.0 } else { (1.0 - step as f64 / steps as f64).max(0.0) };
    let weight = Bounded::exact(first) * Bounded::rounded(left);
    Bounded::exact(reward) + weight * uncertainty
}
