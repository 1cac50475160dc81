//! Spectral norm of a weight matrix by one power iteration per step (SPEC section 3; Miyato et al. 2018).

use crate::real::Real;

/// What one power iteration found.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerStep {
    /// |W v|: the estimate of the largest singular value, from the fresh v (and so from the fresh u = W v / |W v|).
    pub sigma: f64,
    /// v = W^T u / |W^T u| with the u that was kept, [columns].
    pub v: Vec<f64>,
}

/// One power iteration on `weight` [rows, columns]; `u` [rows] is the kept vector and becomes the fresh one.
///
/// Sums in f64 whatever the type of the elements. Where W^T u or W v is zero or not finite there is no direction to
/// go on from: `u` stays, and sigma is 0 or not finite.
pub fn power_iteration<T: Real>(weight: &[T], columns: usize, u: &mut [T]) -> PowerStep {
    let mut v = vec![0.0; columns];
    for (row, u) in weight.chunks_exact(columns).zip(&*u) {
        v.iter_mut().zip(row).for_each(|(v, w)| *v += w.to_f64() * u.to_f64());
    }
    let length = norm(&v);
    if length == 0.0 {
        return PowerStep { sigma: 0.0, v };
    }
    v.iter_mut().for_each(|v| *v /= length);
    let dot = |row: &[T]| row.iter().zip(&v).map(|(w, v)| w.to_f64() * v).sum::<f64>();
    let image: Vec<f64> = weight.chunks_exact(columns).map(dot).collect();
    let sigma = norm(&image);
    if sigma.is_finite() && sigma > 0.0 {
        u.iter_mut().zip(&image).for_each(|(u, x)| *u = T::from_f64(x / sigma));
    }
    PowerStep { sigma, v }
}

/// W *= min(1, sigma_max / sigma), in place; a sigma that is not finite leaves W as it is, for the step to be refused.
pub fn limit<T: Real>(weight: &mut [T], sigma: f64, sigma_max: f64) {
    if sigma.is_finite() && sigma > sigma_max {
        let scale = sigma_max / sigma;
        weight.iter_mut().for_each(|w| *w = T::from_f64(w.to_f64() * scale));
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_without_a_direction_keeps_the_vector() {
        for weight in [[0.0_f32; 4], [f32::NAN; 4]] {
            let mut u = [0.6_f32, 0.8];
            let (mut scaled, step) = (weight, power_iteration(&weight, 2, &mut u));
            limit(&mut scaled, step.sigma, 0.1);
            assert_eq!((u, scaled.map(f32::to_bits)), ([0.6, 0.8], weight.map(f32::to_bits)));
        }
    }

    #[test]
    fn only_a_sigma_above_the_limit_scales() {
        let mut weight = [3.0_f64, 4.0];
        limit(&mut weight, 5.0, 5.0);
        assert_eq!(weight, [3.0, 4.0]);
        limit(&mut weight, 5.0, 2.5);
        assert_eq!(weight, [1.5, 2.0]);
    }
}
