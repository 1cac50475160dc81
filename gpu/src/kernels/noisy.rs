//! Noise of the heads' linear layers (SPEC section 2; Fortunato et al. 2018, "Noisy Networks for Exploration", equations
//! 10 and 11): W = mu + sigma * f(e_out) f(e_in)^T, b = mu + sigma * f(e_out), f(x) = sign(x) sqrt|x|.
//!
//! `noisy_factors` draws the f(e) of every layer, for both networks of a step independently; `noisy_compose` makes the
//! weights that the products read. The derivative with respect to sigma is that with respect to mu times the same
//! product of factors, which is kept for `gradient_reduce` and `term_reduce`.

use cuda_std::prelude::*;

use crate::{clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Words that describe one tensor of the heads (u32).
pub mod piece {
    /// First element, counted from the first of the heads.
    pub const FIRST: u32 = 0;
    /// Behind its last element; padding follows up to the next tensor.
    pub const END: u32 = 1;
    /// Columns of a weight; 1 for a bias.
    pub const INPUTS: u32 = 2;
    /// First f(e_in), or [`BIAS`].
    pub const INPUT_FACTORS: u32 = 3;
    /// First f(e_out).
    pub const OUTPUT_FACTORS: u32 = 4;
    /// Words of a description.
    pub const WORDS: u32 = 8;
    /// A bias has no factor of an input.
    pub const BIAS: u32 = u32::MAX;
}

/// f(x) = sign(x) sqrt|x|; NaN stays.
#[inline(always)]
pub fn factor(x: f32) -> f32 {
    let root = math::sqrt(math::abs(x));
    if x < 0.0 { -root } else { root }
}

/// Four consecutive factors: those of draw `index`.
#[inline(always)]
pub fn four_factors(seed: u64, step: u64, stream: philox::Stream, index: u32) -> [f32; 4] {
    let w = philox::draw(seed, step, stream, index, 0);
    let (a, b) = (philox::normal_pair(w[0], w[1]), philox::normal_pair(w[2], w[3]));
    [factor(a[0]), factor(a[1]), factor(b[0]), factor(b[1])]
}

/// The list of `count` factors (a multiple of 4) that `noisy_factors` draws, on the host: the same bits.
#[cfg(not(target_arch = "nvptx64"))]
pub fn factors(seed: u64, step: u64, stream: philox::Stream, count: usize) -> Vec<f32> {
    (0..count as u32 / 4).flat_map(|index| four_factors(seed, step, stream, index)).collect()
}

/// The factors f(e) of one network or two, out [networks, count]. In a training step (`acting` 0) they are drawn by the
/// step's number, from one stream for the online network and one for the target; in a collection step (`acting` 1)
/// by the collection step's number, from a third.
#[kernel(
    block = 256,
    grid = (count.div_ceil(4).div_ceil(256), networks),
    requires(
        count > 0,
        count % 4 == 0,
        networks >= 1,
        networks <= 2,
        acting <= 1,
        clock_words.len() >= clock::WORDS as usize,
        out.len() >= (networks as usize) * (count as usize),
    )
)]
pub fn noisy_factors(
    /// Factors of a network.
    count: u32,
    networks: u32,
    acting: u32,
    seed: u64,
    clock_words: In<u64>,
    /// [networks, count]
    out: Out<f32>,
) {
    let index = thread::global_index();
    let network = thread::block_idx_y();
    if 4 * index < count && network < networks {
        let step = clock_words.get(if acting == 1 { clock::COLLECT } else { clock::STEP });
        let stream = if acting == 1 {
            philox::Stream::NoiseActing
        } else if network == 0 {
            philox::Stream::NoiseOnline
        } else {
            philox::Stream::NoiseTarget
        };
        out.set4(network * count + 4 * index, four_factors(seed, step, stream, index));
    }
}

/// The heads' parameters of a step, and the online network's products of factors.
///
/// A network's heads are `heads` floats (a multiple of 4) of mu, then as many of sigma. Padding, which no piece
/// describes, is copied and has no noise. Four elements a thread.
#[kernel(
    block = 256,
    grid = (heads.div_ceil(4).div_ceil(256), networks),
    requires(
        heads > 0,
        heads % 4 == 0,
        first % 4 == 0,
        networks >= 1,
        networks <= 2,
        keep <= 1,
        pieces >= 1,
        count % 4 == 0,
        table.len() >= (pieces as usize) * (piece::WORDS as usize),
        factors.len() >= (networks as usize) * (count as usize),
        online.len() >= 2 * (heads as usize),
        target.len() >= ((networks as usize) - 1) * 2 * (heads as usize),
        effective.len() >= (networks as usize) * ((first as usize) + (heads as usize)),
        noise.len() >= (keep as usize) * (heads as usize),
    )
)]
pub fn noisy_compose(
    /// Floats of mu of one network's heads.
    heads: u32,
    /// Floats before the heads in `effective`, which are left alone.
    first: u32,
    networks: u32,
    /// 1 to keep the online network's products of factors.
    keep: u32,
    /// Tensors of mu.
    pieces: u32,
    /// Factors of a network.
    count: u32,
    /// [pieces, piece::WORDS], in the order of their elements; the first one begins at 0.
    table: In<u32>,
    /// [networks, count]
    factors: In<f32>,
    /// mu, then sigma, of the online network.
    online: In<f32>,
    /// The same of the target network; not read with one network.
    target: In<f32>,
    /// [networks, first + heads]
    effective: Out<f32>,
    /// [heads]
    noise: Out<f32>,
) {
    let at = 4 * thread::global_index();
    let network = thread::block_idx_y();
    if at >= heads || network >= networks {
        return;
    }
    let (mu, sigma) = if network == 0 {
        (online.get4(at), online.get4(heads + at))
    } else {
        (target.get4(at), target.get4(heads + at))
    };
    // The last piece that begins at or before the thread's first element.
    let (mut low, mut high) = (0, pieces);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if table.get(middle * piece::WORDS + piece::FIRST) <= at {
            low = middle;
        } else {
            high = middle;
        }
    }
    let (mut product, mut weight) = ([0.0f32; 4], mu);
    let base = network * count;
    let mut e = 0;
    while e < 4 {
        let i = at + e as u32;
        // No piece is empty: at most one begins at each element.
        if low + 1 < pieces && table.get((low + 1) * piece::WORDS + piece::FIRST) <= i {
            low += 1;
        }
        let words = low * piece::WORDS;
        if i < table.get(words + piece::END) {
            let local = i - table.get(words + piece::FIRST);
            let inputs = table.get(words + piece::INPUTS);
            let (row, column) = (local / inputs, local % inputs);
            let out = factors.get(base + table.get(words + piece::OUTPUT_FACTORS) + row);
            let input_factors = table.get(words + piece::INPUT_FACTORS);
            product[e] = if input_factors == piece::BIAS {
                out
            } else {
                out * factors.get(base + input_factors + column)
            };
            weight[e] = math::fma(sigma[e], product[e], mu[e]);
        }
        e += 1;
    }
    effective.set4(network * (first + heads) + first + at, weight);
    if keep == 1 && network == 0 {
        noise.set4(at, product);
    }
}
