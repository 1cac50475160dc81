//! Numbers in f32 rounded to bf16 (7 bits of mantissa, to nearest, ties to even; NaN stays NaN), for products whose operands lie
//! in memory as bf16 (`gemm::stored`): matrices that many blocks read are rounded once instead of by each of them.
//!
//! Two numbers are one word, the first in the lower half; as everywhere in this crate that word is the bits of a float.

use cuda_std::prelude::*;

use super::bias_lrelu::lrelu_gradient;
use super::gemm::round;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// to [len / 2] = the bf16 of from [len], two a word. Eight numbers a thread; len is a multiple of 8.
#[kernel(
    block = 256,
    grid = (len / 8).div_ceil(256),
    requires(len > 0, len % 8 == 0, from.len() >= len as usize, 2 * to.len() >= len as usize)
)]
pub fn halve(len: u32, from: In<f32>, to: Out<f32>) {
    let i = thread::global_index();
    if i < len / 8 {
        store(&to, i, from.get4(8 * i), from.get4(8 * i + 4));
    }
}

/// to [len / 2] = the bf16 of d * lrelu'(h), d and h [len]: 1 where h > 0, `slope` elsewhere. Otherwise as [`halve`].
#[kernel(
    block = 256,
    grid = (len / 8).div_ceil(256),
    requires(
        len > 0,
        len % 8 == 0,
        d.len() >= len as usize,
        h.len() >= len as usize,
        2 * to.len() >= len as usize
    )
)]
pub fn halve_lrelu(len: u32, slope: f32, d: In<f32>, h: In<f32>, to: Out<f32>) {
    let i = thread::global_index();
    if i < len / 8 {
        let four = |at: u32| {
            let (d, h) = (d.get4(at), h.get4(at));
            [
                lrelu_gradient(d[0], h[0], slope),
                lrelu_gradient(d[1], h[1], slope),
                lrelu_gradient(d[2], h[2], slope),
                lrelu_gradient(d[3], h[3], slope),
            ]
        };
        store(&to, i, four(8 * i), four(8 * i + 4));
    }
}

/// Stores piece i, of eight numbers.
#[inline(always)]
fn store(to: &Out<f32>, i: u32, a: [f32; 4], b: [f32; 4]) {
    let ([a, b], [c, d]) = (round::bf16_floats(a), round::bf16_floats(b));
    to.set4(4 * i, [a, b, c, d]);
}
