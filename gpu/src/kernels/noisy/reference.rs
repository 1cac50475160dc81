//! Factors, noisy weights and their derivatives in f64, layer by layer.

use crate::kernels::philox_fill::reference::{normal_pair, words};
use crate::reference::Bounded;

/// sign(x) sqrt|x|. Near zero the derivative of the root is large: an error d of x moves f(x) by at most sqrt(d), for
/// |sqrt(a) - sqrt(b)| <= sqrt|a - b|, and there the bound is that instead of the first-order one.
pub fn factor(x: Bounded) -> Bounded {
    let size = x.abs();
    let value = size.value.sqrt();
    let first_order = if size.scale == 0.0 { 0.0 } else { size.scale / (2.0 * value) };
    let most = (size.scale / crate::reference::UNIT).sqrt();
    let scale = if first_order.is_finite() { first_order.min(most) } else { most } + value;
    Bounded { value: value.copysign(x.value), scale }
}

/// `count` factors of a network; `stream` by its number.
pub fn factors(seed: u64, step: u64, stream: u32, count: usize) -> Vec<Bounded> {
    let four = |index: u32| {
        let w = words(seed, step, stream, index, 0);
        normal_pair(w[0], w[1]).into_iter().chain(normal_pair(w[2], w[3])).map(factor)
    };
    (0..count as u32 / 4).flat_map(four).collect()
}

/// f(e_out) f(e_in)^T, row by row.
pub fn weight_noise(out: &[f32], input: &[f32]) -> Vec<Bounded> {
    out.iter().flat_map(|&o| input.iter().map(move |&i| Bounded::exact(o) * Bounded::exact(i))).collect()
}

/// mu + sigma * noise of one element.
pub fn weight(mu: f32, sigma: f32, noise: Bounded) -> Bounded {
    Bounded::exact(mu) + Bounded::exact(sigma) * noise
}
