//! First stage of the update where several losses share the main parameters: adds up each term's partial weight
//! gradients, and their inner products.
//!
//! Every loss term has its own gradient vector over the main parameters, which a budget scales by its own norm before
//! the vectors are added (SPEC section 3). The norm of the sum needs no further pass: with the inner products of all
//! pairs, |sum_t s_t g_t|^2 = sum_tu s_t s_u <g_t, g_u>. `update_scales` adds up the blocks and makes the factors.
//!
//! Terms 0 and 1 (C51, CQL) reach trunk and heads; terms 2 and 3 (IQN, auxiliary heads) the trunk alone, the first
//! `trunk` floats.

use cuda_std::prelude::*;

use super::distribution::warp_sums;
#[cfg(not(target_arch = "nvptx64"))]
use super::gradient_norm::partials;
use super::gradient_norm::{source, with_factors};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Terms with a gradient of their own on the main parameters.
pub const TERMS: u32 = 4;
/// Pairs (t, u) with t <= u, in the order (0,0), (0,1), .. (0,3), (1,1), .. (3,3).
pub const PAIRS: u32 = TERMS * (TERMS + 1) / 2;

/// Position of the pair (t, u), t <= u.
#[inline(always)]
pub const fn pair(t: u32, u: u32) -> u32 {
    t * TERMS - t * (t + 1) / 2 + u
}

/// Sum of four elements of the splits of one term, in order.
#[inline(always)]
fn gather(parts: &In<f32>, first: u32, plane: u32, splits: u32) -> [f32; 4] {
    let mut g = parts.get4(first);
    let mut s = 1;
    while s < splits {
        let p = parts.get4(first + s * plane);
        g = [g[0] + p[0], g[1] + p[1], g[2] + p[2], g[3] + p[3]];
        s += 1;
    }
    g
}

/// Sum over the thread's four elements of a b.
#[inline(always)]
fn dot(a: [f32; 4], b: [f32; 4]) -> f32 {
    math::fma(a[0], b[0], a[1] * b[1]) + math::fma(a[2], b[2], a[3] * b[3])
}

/// Writes the gradients of the terms and, per block of 1024 floats, the inner products of all pairs of terms.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 4 * 8 * PAIRS,
    barriers = 1,
    shuffles = 50,
    requires(
        len > 0,
        len % 4 == 0,
        trunk <= len,
        trunk % 4 == 0,
        full >= 1,
        full <= 2,
        partial <= 2,
        splits > 0,
        products <= len,
        products % 4 == 0,
        len - products <= products,
        trunk <= products,
        scaled <= len,
        scaled % 4 == 0,
        factors.len() >= (len - scaled) as usize,
        parts.len() >= (full as usize) * (splits as usize) * (len as usize),
        trunk_parts.len() >= (partial as usize) * (splits as usize) * (trunk as usize),
        grads.len() >= (full as usize) * (len as usize),
        trunk_grads.len() >= (partial as usize) * (trunk as usize),
        sums.len() >= (PAIRS as usize) * (partials(len) as usize),
    )
)]
pub fn term_reduce(
    /// Floats of the main parameters.
    len: u32,
    /// Floats of the trunk, which come first.
    trunk: u32,
    /// Terms over all main parameters.
    full: u32,
    /// Terms over the trunk.
    partial: u32,
    /// Batch splits of each term.
    splits: u32,
    /// Parameters whose gradients the products wrote; those behind are sigma (see `gradient_norm`).
    products: u32,
    /// First parameter with a factor; `len` for none.
    scaled: u32,
    /// [len - scaled]
    factors: In<f32>,
    /// [full, splits, len]
    parts: In<f32>,
    /// [partial, splits, trunk]
    trunk_parts: In<f32>,
    /// [full, len]
    grads: Out<f32>,
    /// [partial, trunk]
    trunk_grads: Out<f32>,
    /// [PAIRS, blocks]
    sums: Out<f32>,
) {
    let at = 4 * thread::global_index();
    let zero = [0.0f32; 4];
    let (mut g0, mut g1, mut g2, mut g3) = (zero, zero, zero, zero);
    if at < len {
        let source = source(at, len, products);
        g0 = with_factors(gather(&parts, source, len, splits), at, scaled, &factors);
        grads.set4(at, g0);
        if full > 1 {
            g1 = with_factors(gather(&parts, splits * len + source, len, splits), at, scaled, &factors);
            grads.set4(len + at, g1);
        }
    }
    if at < trunk {
        if partial > 0 {
            g2 = with_factors(gather(&trunk_parts, at, trunk, splits), at, scaled, &factors);
            trunk_grads.set4(at, g2);
        }
        if partial > 1 {
            let g = gather(&trunk_parts, splits * trunk + at, trunk, splits);
            g3 = with_factors(g, at, scaled, &factors);
            trunk_grads.set4(trunk + at, g3);
        }
    }
    let products = warp_sums([
        dot(g0, g0),
        dot(g0, g1),
        dot(g0, g2),
        dot(g0, g3),
        dot(g1, g1),
        dot(g1, g2),
        dot(g1, g3),
        dot(g2, g2),
        dot(g2, g3),
        dot(g3, g3),
    ]);
    let scratch = shared::array::<f32>(0, 8 * PAIRS);
    if thread::lane() == 0 {
        let first = thread::warp() * PAIRS;
        scratch.set(first, products[0]);
        scratch.set(first + 1, products[1]);
        scratch.set(first + 2, products[2]);
        scratch.set(first + 3, products[3]);
        scratch.set(first + 4, products[4]);
        scratch.set(first + 5, products[5]);
        scratch.set(first + 6, products[6]);
        scratch.set(first + 7, products[7]);
        scratch.set(first + 8, products[8]);
        scratch.set(first + 9, products[9]);
    }
    thread::sync(); // all eight warps' sums are written before they are added
    if thread::thread_idx() < PAIRS {
        let mut total = 0.0;
        let mut w = 0;
        while w < 8 {
            total += scratch.get(w * PAIRS + thread::thread_idx());
            w += 1;
        }
        sums.set(thread::thread_idx() * thread::grid_dim() + thread::block_idx(), total);
    }
}

/// Adds up the partial gradients of a group with its own optimizer, with the blocks' sums of squares: one launch per
/// group, where its gradient is ready. `parts` [splits, plane] may be the gradient itself when there is one split.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 4 * 8,
    barriers = 1,
    shuffles = 5,
    requires(
        len > 0,
        len % 4 == 0,
        plane >= len,
        plane % 4 == 0,
        splits > 0,
        parts.len() >= ((splits as usize) - 1) * (plane as usize) + (len as usize),
        grad.len() >= len as usize,
        squares.len() >= partials(len) as usize,
    )
)]
pub fn group_reduce(
    len: u32,
    splits: u32,
    /// Floats between two splits.
    plane: u32,
    parts: In<f32>,
    grad: Out<f32>,
    /// [blocks]
    squares: Out<f32>,
) {
    let at = 4 * thread::global_index();
    let mut g = [0.0f32; 4];
    if at < len {
        g = gather(&parts, at, plane, splits);
        grad.set4(at, g);
    }
    square_sum(g, &squares);
}

/// The same for a gradient that is already whole.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 4 * 8,
    barriers = 1,
    shuffles = 5,
    requires(
        len > 0,
        len % 4 == 0,
        grad.len() >= len as usize,
        squares.len() >= partials(len) as usize,
    )
)]
pub fn group_squares(len: u32, grad: In<f32>, squares: Out<f32>) {
    let at = 4 * thread::global_index();
    square_sum(if at < len { grad.get4(at) } else { [0.0; 4] }, &squares);
}

/// Sum of squares over a block of 256 threads; the scratch is the first 8 floats of its shared memory.
#[inline(always)]
pub(super) fn square_sum(g: [f32; 4], squares: &Out<f32>) {
    let scratch = shared::array::<f32>(0, 8);
    let sum = warp::sum(dot(g, g));
    if thread::lane() == 0 {
        scratch.set(thread::warp(), sum);
    }
    thread::sync(); // all eight warps' sums are written before thread 0 adds them
    if thread::thread_idx() == 0 {
        let mut total = 0.0;
        let mut w = 0;
        while w < 8 {
            total += scratch.get(w);
            w += 1;
        }
        squares.set(thread::block_idx(), total);
    }
}
