//! Gradient norm, clip, Adam and the target's moving average over flat vectors (SPEC section 4).
//!
//! Plain loops rather than candle_nn's AdamW, which computes the same formula: its moments are private, so a
//! checkpoint cannot hold them, it passes over a tensor without a gradient in silence, and every operation of it
//! is a pass of its own over the parameters.

use crate::hyper::Hyper;
use crate::real::Real;

/// Euclidean norm of a gradient, in f64 whatever the type of its elements.
///
/// Eight partial sums, then a fixed tree: the order does not depend on the machine, so equal gradients give equal
/// bits, and the compiler can use vector instructions. NaN or infinity in any element makes the result non-finite.
pub fn norm<T: Real>(gradient: &[T]) -> f64 {
    let mut sums = [0.0_f64; 8];
    let mut chunks = gradient.chunks_exact(8);
    for chunk in &mut chunks {
        for (sum, &g) in sums.iter_mut().zip(chunk) {
            *sum += g.to_f64() * g.to_f64();
        }
    }
    for (sum, &g) in sums.iter_mut().zip(chunks.remainder()) {
        *sum += g.to_f64() * g.to_f64();
    }
    let [a, b, c, d, e, f, g, h] = sums;
    (((a + b) + (c + d)) + ((e + f) + (g + h))).sqrt()
}

/// Factor that clips a gradient of that norm: min(1, max_norm / (norm + 1e-6)).
///
/// Exactly 1 when nothing has to be clipped, finite for a zero gradient.
pub fn clip_scale(norm: f64, max_norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// First and second moments of one parameter group.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam<T> {
    /// m, the moving mean of the gradient, in the group's flat layout.
    pub m: Vec<T>,
    /// v, the moving mean of the squared gradient, in the group's flat layout.
    pub v: Vec<T>,
}

impl<T: Real> Adam<T> {
    /// Zero moments for `len` parameters.
    pub fn new(len: usize) -> Self {
        Self { m: vec![T::default(); len], v: vec![T::default(); len] }
    }

    /// One step of Adam with decoupled decay (Kingma and Ba, algorithm 1; Loshchilov and Hutter, algorithm 2):
    ///
    /// g' = scale g; m = beta1 m + (1 - beta1) g'; v = beta2 v + (1 - beta2) g'^2;
    /// p -= lr ( (m / (1 - beta1^t)) / ( sqrt(v / (1 - beta2^t)) + eps ) + weight_decay p ).
    ///
    /// `t` counts steps from 1. The bias corrections are formed in f64, where 1 - beta2^t does not cancel.
    pub fn update(&mut self, hyper: &Hyper, t: u64, gradient: &[T], scale: f64, parameters: &mut [T]) {
        assert!(t > 0, "Adam counts steps from 1");
        assert!(gradient.len() == self.m.len() && parameters.len() == self.m.len());
        let correction1 = T::from_f64(1.0 - hyper.beta1.powf(t as f64));
        let correction2 = T::from_f64(1.0 - hyper.beta2.powf(t as f64));
        let (beta1, one_minus_beta1) = (T::from_f64(hyper.beta1), T::from_f64(1.0 - hyper.beta1));
        let (beta2, one_minus_beta2) = (T::from_f64(hyper.beta2), T::from_f64(1.0 - hyper.beta2));
        let (lr, eps) = (T::from_f64(hyper.lr), T::from_f64(hyper.eps));
        let (decay, scale) = (T::from_f64(hyper.weight_decay), T::from_f64(scale));
        let state = self.m.iter_mut().zip(&mut self.v).zip(gradient).zip(parameters);
        for (((m, v), &gradient), p) in state {
            let g = scale * gradient;
            *m = beta1 * *m + one_minus_beta1 * g;
            *v = beta2 * *v + one_minus_beta2 * (g * g);
            let step = (*m / correction1) / ((*v / correction2).sqrt() + eps);
            *p -= lr * (step + decay * *p);
        }
    }
}

/// target += tau (online - target), element by element.
pub fn ema<T: Real>(target: &mut [T], online: &[T], tau: f64) {
    assert_eq!(target.len(), online.len());
    let tau = T::from_f64(tau);
    for (target, &online) in target.iter_mut().zip(online) {
        *target += tau * (online - *target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_norm_counts_every_element_and_shows_a_nan_anywhere() {
        for len in [1, 7, 8, 9, 17, 64] {
            let gradient: Vec<f32> = (1..=len).map(|i| i as f32).collect();
            let expected = (1..=len).map(|i| f64::from(i * i)).sum::<f64>().sqrt();
            assert_eq!(norm(&gradient), expected, "{len}");
            for i in 0..gradient.len() {
                let mut broken = gradient.clone();
                broken[i] = f32::NAN;
                assert!(norm(&broken).is_nan(), "NaN at {i} of {len}");
            }
        }
    }

    #[test]
    fn squares_beyond_f32_do_not_overflow_the_norm() {
        assert_eq!(norm(&[3e30_f32, 4e30]), (3e30_f32 as f64).hypot(4e30_f32 as f64));
    }
}
