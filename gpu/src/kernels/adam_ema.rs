//! Second stage of the gradient norm, clip, Adam and the target's moving average, in one pass over the flat buffers.
//!
//! SPEC section 4; Kingma and Ba (2015), Loshchilov and Hutter (2019) for the decoupled decay:
//! g *= min(1, c / (norm + 1e-6)); m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
//! p -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd p); target += tau (p - target).
//! lr follows its schedule (`schedule`). 1 - b^t is computed in f64 as -expm1(t ln b): in f32 it loses most of its digits
//! in the first steps.
//!
//! A norm that is not finite skips the whole update, target included, and Adam's counter; `step_signals` counts it.

use cuda_std::prelude::*;

use super::gradient_norm::partials;
use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;
pub mod schedule;

/// Entries of the hyper-parameter buffer (f64), which a schedule may change between replays.
pub mod hyper {
    /// Learning rate.
    pub const LR: u32 = 0;
    /// Decay of the first moment.
    pub const BETA1: u32 = 1;
    /// Decay of the second moment.
    pub const BETA2: u32 = 2;
    /// Added outside the root.
    pub const EPS: u32 = 3;
    /// Decoupled weight decay.
    pub const WEIGHT_DECAY: u32 = 4;
    /// Norm to which the gradient is clipped.
    pub const MAX_NORM: u32 = 5;
    /// Rate of the target's moving average.
    pub const TAU: u32 = 6;
    /// ln beta1.
    pub const LN_BETA1: u32 = 7;
    /// ln beta2.
    pub const LN_BETA2: u32 = 8;
    /// Updates over which the rate rises linearly, 0 for none.
    pub const WARMUP: u32 = 9;
    /// Updates after the warm-up over which the rate falls, 0 for a constant rate.
    pub const DECAY: u32 = 10;
    /// Fraction of the rate at the end of the decay.
    pub const LR_END: u32 = 11;
    /// 1 if it falls on a line, else as a cosine.
    pub const LINEAR: u32 = 12;
    /// Entries of the buffer.
    pub const WORDS: u32 = 16;
}

/// One Adam step and EMA over `len` parameters (a multiple of 4). `sums` are the partial sums of squares of `grad`.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 16 * 4,
    barriers = 1,
    shuffles = 5,
    requires(
        len > 0,
        len % 4 == 0,
        hypers.len() >= hyper::WORDS as usize,
        adam_words.len() >= clock::adam::WORDS as usize,
        sums.len() >= partials(len) as usize,
        grad.len() >= len as usize,
        params.len() >= len as usize,
        m.len() >= len as usize,
        v.len() >= len as usize,
        target.len() >= len as usize,
    )
)]
pub fn adam_ema(
    len: u32,
    hypers: In<f64>,
    adam_words: InOut<u64>,
    sums: In<f32>,
    grad: In<f32>,
    params: InOut<f32>,
    m: InOut<f32>,
    v: InOut<f32>,
    target: InOut<f32>,
) {
    let shared = shared::array::<f32>(0, 16);
    let at = 4 * thread::global_index();
    // Loads first: they are in flight while the norm is added up.
    let zero = [0.0f32; 4];
    let inside = at < len;
    let (g, p, m0, v0, t0) = if inside {
        (grad.get4(at), params.get4(at), m.get4(at), v.get4(at), target.get4(at))
    } else {
        (zero, zero, zero, zero, zero)
    };
    let parity = adam_words.get(clock::adam::PARITY) as u32;
    let updates = adam_words.get(clock::adam::UPDATES + parity);
    let mut square = 0.0;
    let mut i = thread::thread_idx();
    while i < partials(len) {
        square += sums.get(i);
        i += 256;
    }
    let square = warp::sum(square);
    if thread::lane() == 0 {
        shared.set(thread::warp(), square);
    }
    if thread::thread_idx() < 2 {
        // Threads 0 and 1 compute the two bias corrections side by side.
        let ln_beta = hypers.get(hyper::LN_BETA1 + thread::thread_idx());
        let correction = -libm::expm1((updates + 1) as f64 * ln_beta);
        shared.set(8 + thread::thread_idx(), correction as f32);
    }
    if thread::thread_idx() == 32 {
        // Another warp, beside the first one's corrections.
        shared.set(10, schedule::learning_rate(|word| hypers.get(word), updates));
    }
    thread::sync(); // warp sums, bias corrections and the rate are written before all threads read them
    let mut total = 0.0;
    let mut w = 0;
    while w < 8 {
        total += shared.get(w);
        w += 1;
    }
    let norm = math::sqrt(total);
    let finite = norm < f32::INFINITY; // false for NaN too
    if thread::block_idx() == 0 && thread::thread_idx() == 0 {
        adam_words.set(clock::adam::UPDATES + (parity ^ 1), updates + finite as u64);
    }
    if inside && finite {
        let scale = math::min(1.0, hypers.get(hyper::MAX_NORM) as f32 / (norm + 1e-6));
        let (beta1, beta2) = (hypers.get(hyper::BETA1), hypers.get(hyper::BETA2));
        let (one_beta1, one_beta2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
        let (beta1, beta2) = (beta1 as f32, beta2 as f32);
        let (inverse1, inverse2) = (1.0 / shared.get(8), 1.0 / shared.get(9));
        let (lr, eps) = (shared.get(10), hypers.get(hyper::EPS) as f32);
        let (decay, tau) = (hypers.get(hyper::WEIGHT_DECAY) as f32, hypers.get(hyper::TAU) as f32);
        let (mut m1, mut v1, mut p1, mut t1) = (m0, v0, p, t0);
        let mut e = 0;
        while e < 4 {
            let g = g[e] * scale;
            m1[e] = math::fma(beta1, m0[e], one_beta1 * g);
            v1[e] = math::fma(beta2, v0[e], one_beta2 * g * g);
            let direction = m1[e] * inverse1 / (math::sqrt(v1[e] * inverse2) + eps);
            p1[e] = p[e] - lr * math::fma(decay, p[e], direction);
            t1[e] = math::fma(tau, p1[e] - t0[e], t0[e]);
            e += 1;
        }
        m.set4(at, m1);
        v.set4(at, v1);
        params.set4(at, p1);
        target.set4(at, t1);
    }
}
