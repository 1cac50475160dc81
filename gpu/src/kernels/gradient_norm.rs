//! First stage of the global gradient norm, which also adds up the partial weight gradients.
//!
//! grad[i] = sum_s parts[s, i] over the batch splits in order; partials[b] = sum of grad[i]^2 over block b's 1024
//! elements. The second stage (adding the partials, in order) is the first thing that every block of `adam_ema` does:
//! a fixed order in both stages gives the same bits in every run.

use cuda_std::prelude::*;

use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Elements per block, and so per partial sum of squares.
pub const ELEMENTS_PER_BLOCK: u32 = 1024;

/// Number of partial sums for a flat buffer.
pub fn partials(len: u32) -> u32 {
    len.div_ceil(ELEMENTS_PER_BLOCK)
}

/// Where the partial gradients of parameters `at` .. `at` + 4 are: the products wrote those of the first `products` of
/// `len` parameters; the rest are the sigma of as many of them (`noisy`), and their gradient is the same before its factor.
#[inline(always)]
pub(crate) fn source(at: u32, len: u32, products: u32) -> u32 {
    if at < products { at } else { at - (len - products) }
}

/// g times the factors of parameters `at` .. `at` + 4: a mask (`pruning`), noise (`noisy`), or 1. They begin at parameter
/// `scaled`. A factor 0 does not hide a NaN.
#[inline(always)]
pub(crate) fn with_factors(g: [f32; 4], at: u32, scaled: u32, factors: &In<f32>) -> [f32; 4] {
    if at < scaled {
        return g;
    }
    let f = factors.get4(at - scaled);
    [g[0] * f[0], g[1] * f[1], g[2] * f[2], g[3] * f[3]]
}

/// Adds `splits` partial gradients parts [splits, len] into grad [len] and writes the partial sums of squares. Latches
/// the step's parity for Adam. `len` is a multiple of 4.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 8 * 4,
    barriers = 1,
    shuffles = 5,
    requires(
        len > 0,
        len % 4 == 0,
        splits > 0,
        products <= len,
        products % 4 == 0,
        len - products <= products,
        scaled <= len,
        scaled % 4 == 0,
        parts.len() >= (splits as usize) * (len as usize),
        factors.len() >= (len - scaled) as usize,
        grad.len() >= len as usize,
        sums.len() >= partials(len) as usize,
        clock_words.len() >= clock::WORDS as usize,
        adam_words.len() >= clock::adam::WORDS as usize,
    )
)]
pub fn gradient_reduce(
    len: u32,
    splits: u32,
    /// Parameters whose gradient is in `parts`; `len` where no head is noisy.
    products: u32,
    /// First parameter with a factor; `len` for none.
    scaled: u32,
    parts: In<f32>,
    /// [len - scaled]
    factors: In<f32>,
    grad: Out<f32>,
    sums: Out<f32>,
    clock_words: In<u64>,
    adam_words: Out<u64>,
) {
    let at = 4 * thread::global_index();
    let mut g = [0.0f32; 4];
    if at < len {
        let source = source(at, len, products);
        g = parts.get4(source);
        let mut s = 1;
        while s < splits {
            let p = parts.get4(s * len + source);
            g = [g[0] + p[0], g[1] + p[1], g[2] + p[2], g[3] + p[3]];
            s += 1;
        }
        g = with_factors(g, at, scaled, &factors);
        grad.set4(at, g);
    }
    block_square_sum(g, &sums, &clock_words, &adam_words);
}

/// The same for a gradient that is already whole.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 8 * 4,
    barriers = 1,
    shuffles = 5,
    requires(
        len > 0,
        len % 4 == 0,
        grad.len() >= len as usize,
        sums.len() >= partials(len) as usize,
        clock_words.len() >= clock::WORDS as usize,
        adam_words.len() >= clock::adam::WORDS as usize,
    )
)]
pub fn gradient_norm(len: u32, grad: In<f32>, sums: Out<f32>, clock_words: In<u64>, adam_words: Out<u64>) {
    let at = 4 * thread::global_index();
    let g = if at < len { grad.get4(at) } else { [0.0; 4] };
    block_square_sum(g, &sums, &clock_words, &adam_words);
}

/// Sum of squares over the block, and the parity latch by the first thread of the grid.
#[inline(always)]
fn block_square_sum(g: [f32; 4], sums: &Out<f32>, clock_words: &In<u64>, adam_words: &Out<u64>) {
    let partial = shared::array::<f32>(0, 8);
    let square = math::fma(g[0], g[0], g[1] * g[1]) + math::fma(g[2], g[2], g[3] * g[3]);
    let sum = warp::sum(square);
    if thread::lane() == 0 {
        partial.set(thread::warp(), sum);
    }
    thread::sync(); // all eight warps' sums are written before thread 0 adds them
    if thread::thread_idx() == 0 {
        let mut total = 0.0;
        let mut w = 0;
        while w < 8 {
            total += partial.get(w);
            w += 1;
        }
        sums.set(thread::block_idx(), total);
        if thread::block_idx() == 0 {
            adam_words.set(clock::adam::PARITY, clock_words.get(clock::STEP) & 1);
        }
    }
}
