//! The vaccine (SPEC section 3): where a step's gradient g and the gradient g_v of held-out data point apart, the part of g
//! against g_v is taken away: if <g, g_v> < 0 then g -= (<g, g_v> / |g_v|^2) g_v (Yu et al., "Gradient Surgery for
//! Multi-Task Learning", 2020, section 2.3, with one of the tasks never trained).
//!
//! g is the sum of the terms within their budgets and the clip, sum_t s_t g_t, which only the optimizer forms: so the inner
//! products are those of the terms, and the correction goes into the first term's vector, divided by its factor s_0.
//! `vaccine_products` runs before `update_scales`, which then sees a g_v that is not finite as a norm that is not, and the
//! step is skipped; `vaccine_apply` runs between it and the optimizer.

use cuda_std::prelude::*;

use super::distribution::warp_sums;
#[cfg(not(target_arch = "nvptx64"))]
use super::gradient_norm::partials;
use super::step_signals::signal;
#[cfg(not(target_arch = "nvptx64"))]
use super::term_reduce::PAIRS;
use super::term_reduce::TERMS;
use super::update_scales::scale;
use crate::clock;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Inner products of a block: g_v with each term, and with itself.
pub const PRODUCTS: u32 = TERMS + 1;
const COUNT: usize = PRODUCTS as usize;
const WARPS: u32 = 8;

/// Sum over the thread's four elements of a b.
#[inline(always)]
fn dot(a: [f32; 4], b: [f32; 4]) -> f32 {
    math::fma(a[0], b[0], a[1] * b[1]) + math::fma(a[2], b[2], a[3] * b[3])
}

/// Sums over the block; thread 0's are whole.
#[inline(always)]
fn block_sums(values: [f32; COUNT]) -> [f32; COUNT] {
    let scratch = shared::array::<f32>(0, WARPS * PRODUCTS);
    let values = warp_sums(values);
    if thread::lane() == 0 {
        let mut p = 0;
        while p < COUNT {
            scratch.set(thread::warp() * PRODUCTS + p as u32, values[p]);
            p += 1;
        }
    }
    thread::sync(); // all eight warps' sums are written before they are added
    let mut total = [0.0f32; COUNT];
    let mut w = 0;
    while w < WARPS {
        let mut p = 0;
        while p < COUNT {
            total[p] += scratch.get(w * PRODUCTS + p as u32);
            p += 1;
        }
        w += 1;
    }
    total
}

/// Inner products of g_v with every term and with itself, per block of 1024 floats.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 4 * WARPS * PRODUCTS,
    barriers = 1,
    shuffles = 25,
    requires(
        len > 0,
        len % 4 == 0,
        trunk <= len,
        trunk % 4 == 0,
        full >= 1,
        full <= 2,
        partial <= 2,
        grads.len() >= (full as usize) * (len as usize),
        trunk_grads.len() >= (partial as usize) * (trunk as usize),
        vaccine.len() >= len as usize,
        sums.len() >= (PAIRS as usize) * (partials(len) as usize),
        products.len() >= COUNT * (partials(len) as usize),
    )
)]
pub fn vaccine_products(
    /// Floats of the main parameters.
    len: u32,
    /// Floats of the trunk.
    trunk: u32,
    /// Terms over all main parameters.
    full: u32,
    /// Terms over the trunk.
    partial: u32,
    /// [full, len]
    grads: In<f32>,
    /// [partial, trunk]
    trunk_grads: In<f32>,
    /// g_v [len].
    vaccine: In<f32>,
    /// The terms' own inner products [PAIRS, blocks]: a block whose g_v is not finite makes the first one NaN.
    sums: InOut<f32>,
    /// [PRODUCTS, blocks]
    products: Out<f32>,
) {
    let at = 4 * thread::global_index();
    let zero = [0.0f32; 4];
    let mut v = zero;
    let (mut g0, mut g1, mut g2, mut g3) = (zero, zero, zero, zero);
    if at < len {
        v = vaccine.get4(at);
        g0 = grads.get4(at);
        if full > 1 {
            g1 = grads.get4(len + at);
        }
    }
    if at < trunk {
        if partial > 0 {
            g2 = trunk_grads.get4(at);
        }
        if partial > 1 {
            g3 = trunk_grads.get4(trunk + at);
        }
    }
    let total = block_sums([dot(g0, v), dot(g1, v), dot(g2, v), dot(g3, v), dot(v, v)]);
    if thread::thread_idx() == 0 {
        let (block, blocks) = (thread::block_idx(), thread::grid_dim());
        let mut p = 0;
        while p < COUNT {
            products.set(p as u32 * blocks + block, total[p]);
            p += 1;
        }
        let visible = total[COUNT - 1] < f32::INFINITY; // false for NaN too
        if !visible {
            sums.set(block, f32::NAN);
        }
    }
}

/// Takes away what is against g_v, and writes the cosine of g and g_v to the step's history row; before the step's number
/// is advanced. Nothing of the gradient changes in a skipped step.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 4 * WARPS * PRODUCTS,
    barriers = 1,
    shuffles = 25,
    requires(
        len > 0,
        len % 4 == 0,
        rows > 0,
        products.len() >= COUNT * (partials(len) as usize),
        scales.len() >= scale::WORDS as usize,
        clock_words.len() >= clock::WORDS as usize,
        vaccine.len() >= len as usize,
        gradient.len() >= len as usize,
        history.len() >= (rows as usize) * (signal::COLUMNS as usize),
    )
)]
pub fn vaccine_apply(
    /// Floats of the main parameters.
    len: u32,
    /// Rows of the history.
    rows: u32,
    /// What `vaccine_products` made [PRODUCTS, blocks].
    products: In<f32>,
    /// What `update_scales` made.
    scales: In<f32>,
    clock_words: In<u64>,
    /// g_v [len].
    vaccine: In<f32>,
    /// First term's gradient [len].
    gradient: InOut<f32>,
    history: Out<f32>,
) {
    let blocks = thread::grid_dim();
    let mut sums = [0.0f32; COUNT];
    let mut i = thread::thread_idx();
    while i < blocks {
        let mut p = 0;
        while p < COUNT {
            sums[p] += products.get(p as u32 * blocks + i);
            p += 1;
        }
        i += 256;
    }
    let sums = block_sums(sums);
    let mut inner = 0.0;
    let mut t = 0;
    while t < TERMS {
        inner = math::fma(scales.get(scale::TERM + t), sums[t as usize], inner);
        t += 1;
    }
    let square = sums[COUNT - 1];
    if thread::global_index() == 0 {
        let row = (clock_words.get(clock::STEP) % rows as u64) as u32 * signal::COLUMNS;
        let norm = scales.get(scale::GROUP_NORM) * scales.get(scale::GROUP);
        let lengths = norm * math::sqrt(square);
        // No direction, no angle. A NaN is none of both zeros and stays.
        history.set(row + signal::VACCINE_COSINE, if lengths == 0.0 { 0.0 } else { inner / lengths });
    }
    let at = 4 * thread::global_index();
    if scales.get(scale::FINITE) != 0.0 && inner < 0.0 && square > 0.0 && at < len {
        let factor = inner / square / scales.get(scale::TERM);
        let (g, v) = (gradient.get4(at), vaccine.get4(at));
        gradient.set4(
            at,
            [
                math::fma(-factor, v[0], g[0]),
                math::fma(-factor, v[1], g[1]),
                math::fma(-factor, v[2], g[2]),
                math::fma(-factor, v[3], g[3]),
            ],
        );
    }
}
