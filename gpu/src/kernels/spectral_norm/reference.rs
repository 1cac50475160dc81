//! Reference of the spectral norm: one power iteration of one matrix.

use crate::reference::Bounded;

/// What one step gives for a matrix [rows, columns].
#[derive(Clone, Debug)]
pub struct Iteration {
    /// W^T u / |W^T u|, zero where that is 0 / 0. [columns]
    pub v: Vec<Bounded>,
    /// W v / |W v|; the old u where that is 0 / 0. [rows]
    pub u: Vec<Bounded>,
    /// |W v|.
    pub sigma: Bounded,
    /// W min(1, sigma_max / sigma). [rows, columns]
    pub weight: Vec<Bounded>,
}

/// One power iteration. No sum is longer than its number of terms plus the 8 additions that join partial sums.
pub fn iterate(weight: &[f32], u: &[f32], sigma_max: f32) -> Iteration {
    let (rows, columns) = (u.len(), weight.len() / u.len());
    let w = |r: usize, c: usize| Bounded::exact(weight[r * columns + c]);
    let norm = |x: &[Bounded]| Bounded::sum(x.iter().map(|&x| x * x), x.len() + 8).sqrt();
    let divide = |x: &[Bounded], by: Bounded| x.iter().map(|&x| x / by).collect::<Vec<_>>();

    let y: Vec<_> = (0..columns)
        .map(|c| Bounded::sum((0..rows).map(|r| w(r, c) * Bounded::exact(u[r])), rows + 8))
        .collect();
    let length = norm(&y);
    let v = if length.value == 0.0 { vec![Bounded::ZERO; columns] } else { divide(&y, length) };
    let z: Vec<_> =
        (0..rows).map(|r| Bounded::sum((0..columns).map(|c| w(r, c) * v[c]), columns + 8)).collect();
    let sigma = norm(&z);
    let old = || u.iter().map(|&u| Bounded::exact(u)).collect();
    let u = if sigma.value == 0.0 { old() } else { divide(&z, sigma) };
    let factor = Bounded::exact(sigma_max) / sigma;
    // Within the error of sigma the kernel may or may not scale; both factors are 1 within that error.
    let near = (sigma.value - f64::from(sigma_max)).abs() <= sigma.tolerance();
    let factor = match (sigma.value > f64::from(sigma_max), near) {
        (true, _) => factor,
        (false, true) => Bounded { value: 1.0, ..factor },
        (false, false) => Bounded::exact(1.0),
    };
    let scaled =
        |w: f32| if factor == Bounded::exact(1.0) { Bounded::exact(w) } else { Bounded::exact(w) * factor };
    Iteration { v, u, sigma, weight: weight.iter().map(|&w| scaled(w)).collect() }
}
