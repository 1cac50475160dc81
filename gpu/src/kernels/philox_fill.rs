//! Fills buffers with random numbers from Philox: uniform, standard normal, Bernoulli.
//!
//! Element i of step n is a function of (seed, n, i) alone (`crate::philox`), four elements a thread.

use cuda_std::prelude::*;

use crate::{clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

macro_rules! fill_kernels {
    ($($(#[$doc:meta])* $name:ident($($parameter:ident)?), |$w:ident| $values:expr;)*) => {$(
        $(#[$doc])*
        #[kernel(
            block = 256,
            grid = len.div_ceil(4).div_ceil(256),
            requires(
                len > 0,
                len % 4 == 0,
                clock_words.len() >= clock::WORDS as usize,
                out.len() >= len as usize,
            )
        )]
        pub fn $name(len: u32, seed: u64, $($parameter: f32,)? clock_words: In<u64>, out: Out<f32>) {
            let i = thread::global_index();
            if 4 * i < len {
                let $w = philox::draw(seed, clock_words.get(clock::STEP), philox::Stream::Fill, i, 0);
                out.set4(4 * i, $values);
            }
        }
    )*};
}

fill_kernels! {
    /// Uniform in [0, 1).
    philox_uniform(), |w| [philox::uniform(w[0]), philox::uniform(w[1]), philox::uniform(w[2]), philox::uniform(w[3])];
    /// Standard normal.
    philox_normal(), |w| {
        let (a, b) = (philox::normal_pair(w[0], w[1]), philox::normal_pair(w[2], w[3]));
        [a[0], a[1], b[0], b[1]]
    };
    /// 1 with probability p, else 0.
    philox_bernoulli(p), |w| [
        bernoulli(w[0], p), bernoulli(w[1], p), bernoulli(w[2], p), bernoulli(w[3], p),
    ];
}

/// 1 with probability p, else 0.
#[inline(always)]
pub fn bernoulli(word: u32, p: f32) -> f32 {
    if philox::uniform(word) < p { 1.0 } else { 0.0 }
}
