//! The learning rate of an update (SPEC section 4): linear warm-up, then constant, half a cosine (Loshchilov and Hutter
//! 2017, equation 5, without restarts) or a line down to a fraction of the rate.

use cuda_std::prelude::*;

use super::hyper;

/// Rate of update number t = `updates` + 1: lr t / warm-up while t <= warm-up, then lr (end + (1 - end) c), where c is
/// (1 + cos(pi x)) / 2 or 1 - x, and x the fraction of the decay's updates that have begun, at most 1.
///
/// `hyper` gives a word of the optimizer's numbers.
///
/// (1 + cos(pi x)) / 2 is computed as sin^2(pi (1 - x) / 2), which keeps its digits where x is near 1.
#[inline(always)]
pub fn learning_rate(hyper: impl Fn(u32) -> f64, updates: u64) -> f32 {
    let lr = hyper(hyper::LR);
    let (warmup, decay) = (hyper(hyper::WARMUP), hyper(hyper::DECAY));
    let t = (updates + 1) as f64;
    let rise = if t < warmup { t / warmup } else { 1.0 };
    let mut fall = 1.0;
    if decay > 0.0 && t > warmup {
        let left = (warmup + decay - t) / decay;
        let left = if left > 0.0 { left } else { 0.0 };
        let end = hyper(hyper::LR_END);
        let share = if hyper(hyper::LINEAR) == 1.0 {
            left
        } else {
            let sine = math::sin_2pi((0.25 * left) as f32) as f64;
            sine * sine
        };
        fall = end + (1.0 - end) * share;
    }
    (lr * rise * fall) as f32
}
