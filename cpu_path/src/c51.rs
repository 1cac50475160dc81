//! The C51 loss over several action branches (SPEC section 3; Bellemare et al. 2017, algorithm 1).
//!
//! Targets have no gradient, so they are plain loops over host vectors, in f64 for either element type; the
//! cross-entropy goes through autograd.

use candle_core::{D, Result, Tensor};
use settings::ModelShape;

use crate::hyper::decimal;
use crate::ops::log_softmax;
use crate::real::Real;

/// The atoms z_k = v_min + k dz of the value distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Support {
    v_min: f64,
    v_max: f64,
    atoms: Vec<f64>,
}

impl Support {
    /// The support of a checked shape.
    pub fn new(shape: &ModelShape) -> Self {
        Self::between(decimal(shape.v_min), decimal(shape.v_max), shape.atoms)
    }

    /// The support of that many atoms, 2 or more, from `v_min` to `v_max`.
    pub fn between(v_min: f64, v_max: f64, atoms: usize) -> Self {
        let last = atoms - 1;
        let dz = (v_max - v_min) / last as f64;
        let mut atoms: Vec<f64> = (0..last).map(|k| v_min + k as f64 * dz).collect();
        // Not v_min + last * dz: one rounding above v_max and its own mass would count as outside.
        atoms.push(v_max);
        Self { v_min, v_max, atoms }
    }

    /// Lowest and highest atom.
    pub fn ends(&self) -> [f64; 2] {
        [self.v_min, self.v_max]
    }

    /// z, [atoms].
    pub fn atoms(&self) -> &[f64] {
        &self.atoms
    }

    /// Where a return lies on the support, in atoms: 0 to atoms - 1, clipped at the ends. NaN stays NaN.
    fn position(&self, value: f64) -> f64 {
        let last = (self.atoms.len() - 1) as f64;
        ((value - self.v_min) / (self.v_max - self.v_min) * last).clamp(0.0, last)
    }

    /// sum_k z_k p_k.
    pub fn expectation<T: Real>(&self, probabilities: &[T]) -> f64 {
        self.atoms.iter().zip(probabilities).map(|(z, p)| z * p.to_f64()).sum()
    }
}

/// Projected target distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection<T> {
    /// m, [rows, atoms]; each row sums to 1 as far as the given probabilities do.
    pub mass: Vec<T>,
    /// Target mass strictly below v_min before clipping, [rows].
    pub clipped_low: Vec<T>,
    /// Target mass strictly above v_max before clipping, [rows].
    pub clipped_high: Vec<T>,
}

/// Projects the distribution of r + discount * z, with z distributed by `probabilities`, onto the support.
///
/// `probabilities` is [batch * branches, atoms]; the reward and the discount of row i are those of sample
/// i / branches. Each atom's return is clipped to the support and its mass shared between the two nearest atoms
/// in proportion to closeness; when the position is an integer, all of it goes to that atom (the share of the
/// upper neighbour is then exactly 0, and the neighbour's index never leaves the support).
pub fn project<T: Real>(
    support: &Support,
    probabilities: &[T],
    branches: usize,
    rewards: &[T],
    discounts: &[T],
) -> Projection<T> {
    let atoms = support.atoms.len();
    let rows = rewards.len() * branches;
    assert!(probabilities.len() == rows * atoms && discounts.len() == rewards.len());
    let mut projection = Projection {
        mass: Vec::with_capacity(probabilities.len()),
        clipped_low: Vec::with_capacity(rows),
        clipped_high: Vec::with_capacity(rows),
    };
    let mut mass = vec![0.0; atoms];
    for (row, probabilities) in probabilities.chunks_exact(atoms).enumerate() {
        let (reward, discount) = (rewards[row / branches].to_f64(), discounts[row / branches].to_f64());
        let (mut low, mut high) = (0.0, 0.0);
        mass.fill(0.0);
        for (&z, p) in support.atoms.iter().zip(probabilities) {
            let (value, p) = (reward + discount * z, p.to_f64());
            if value < support.v_min {
                low += p;
            } else if value > support.v_max {
                high += p;
            }
            let position = support.position(value);
            let lower = position.floor();
            let upper_share = position - lower;
            // `as` maps NaN to 0; the mass that lands there is NaN, so the step shows as non-finite.
            let lower = lower as usize;
            mass[lower] += p * (1.0 - upper_share);
            mass[(lower + 1).min(atoms - 1)] += p * upper_share;
        }
        projection.mass.extend(mass.iter().map(|&m| T::from_f64(m)));
        projection.clipped_low.push(T::from_f64(low));
        projection.clipped_high.push(T::from_f64(high));
    }
    projection
}

/// Index of the largest value, the lowest one among equals. NaN is never larger.
pub fn argmax<T: Real>(values: &[T]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] {
            best = i;
        }
    }
    best
}

/// Cross-entropy per sample and branch, and the log-probabilities it was taken of.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// - sum_k m[k] log p[k], [batch, branches].
    pub per_branch: Tensor,
    /// log p, [batch, branches, atoms].
    pub log_probabilities: Tensor,
}

/// Cross-entropy of target mass m against logits, both [batch, branches, atoms].
pub fn cross_entropy(logits: &Tensor, mass: &Tensor) -> Result<CrossEntropy> {
    let log_probabilities = log_softmax(logits)?;
    let per_branch = (&log_probabilities * mass)?.sum(D::Minus1)?.neg()?;
    Ok(CrossEntropy { per_branch, log_probabilities })
}

/// Mean over the branches, [batch, branches] to [batch]: what priorities may read, never importance-weighted.
pub fn per_sample(per_branch: &Tensor) -> Result<Tensor> {
    per_branch.mean(D::Minus1)
}

/// Mean over the batch of w_i times the per-sample loss; not divided by the sum of the weights.
pub fn weighted_mean(per_sample: &Tensor, weights: &Tensor) -> Result<Tensor> {
    (per_sample * weights)?.mean(0)
}
