//! AdamW and the target's moving average over all parameter groups in one pass, where several losses share the main
//! parameters or there are groups with a norm of their own (SPEC sections 3 and 4).
//!
//! The main group's gradient is the sum of its terms, each times the factor that `update_scales` made; every other
//! group's is its own times its clip. The rest is `adam_ema`'s formula. A block of 1024 floats belongs to one group.

use core::cmp::min;

use cuda_std::prelude::*;

use super::adam_ema::hyper;
#[cfg(not(target_arch = "nvptx64"))]
use super::gradient_norm::partials;
use super::term_reduce::TERMS;
use super::update_scales::{GROUPS, scale};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// One AdamW step and moving average.
#[kernel(
    block = 256,
    grid = partials(len),
    requires(
        len > 0,
        len % 4 == 0,
        main <= len,
        main % 4 == 0,
        trunk <= main,
        trunk % 4 == 0,
        full >= 1,
        full <= 2,
        partial <= 2,
        groups >= 1,
        groups <= GROUPS,
        ends.len() >= groups as usize,
        hypers.len() >= hyper::WORDS as usize,
        scales.len() >= scale::WORDS as usize,
        grads.len() >= (full as usize) * (main as usize),
        trunk_grads.len() >= (partial as usize) * (trunk as usize),
        group_grads.len() >= len as usize,
        params.len() >= len as usize,
        m.len() >= len as usize,
        v.len() >= len as usize,
        with_target <= len,
        with_target % 4 == 0,
        target.len() >= with_target as usize,
    )
)]
pub fn adam_groups(
    /// Floats of all groups.
    len: u32,
    /// Floats of the main group.
    main: u32,
    /// Floats of the trunk.
    trunk: u32,
    /// Terms over all main parameters.
    full: u32,
    /// Terms over the trunk.
    partial: u32,
    /// Floats of the groups that have a copy in the target network; they come first.
    with_target: u32,
    /// Parameter groups.
    groups: u32,
    /// First block of 1024 floats after each group, in the order of the flat buffer, the main group first.
    ends: In<u32>,
    hypers: In<f64>,
    /// What `update_scales` made.
    scales: In<f32>,
    /// [full, main]
    grads: In<f32>,
    /// [partial, trunk]
    trunk_grads: In<f32>,
    /// Gradients of the other groups, in their places [len]; those of the main parameters are not read.
    group_grads: In<f32>,
    params: InOut<f32>,
    m: InOut<f32>,
    v: InOut<f32>,
    target: InOut<f32>,
) {
    let at = 4 * thread::global_index();
    if at >= len {
        return;
    }
    // Everything is loaded before anything is looked at: one wait for all loads, not one for each.
    let finite = scales.get(scale::FINITE);
    let has_target = at < with_target;
    let zero = [0.0f32; 4];
    let (p, m0, v0) = (params.get4(at), m.get4(at), v.get4(at));
    let t0 = if has_target { target.get4(at) } else { zero };
    let (of_main, of_trunk) = (at < main, at < trunk);
    let mut own = zero;
    let mut terms = [zero; TERMS as usize];
    if of_main {
        terms[0] = grads.get4(at);
        if full > 1 {
            terms[1] = grads.get4(main + at);
        }
        if of_trunk && partial > 0 {
            terms[2] = trunk_grads.get4(at);
        }
        if of_trunk && partial > 1 {
            terms[3] = trunk_grads.get4(trunk + at);
        }
    } else {
        own = group_grads.get4(at);
    }
    let factors = [0, 1, 2, 3].map(|t| scales.get(scale::TERM + t));
    let mut group = 0;
    let mut i = 0;
    while i + 1 < GROUPS {
        let end = ends.get(min(i, groups - 1));
        group += (i + 1 < groups && thread::block_idx() >= end) as u32;
        i += 1;
    }
    let mut g = zero;
    if group > 0 {
        g = scaled(g, scales.get(scale::GROUP + group), own);
    } else if of_main {
        g = scaled(g, factors[0], terms[0]);
        if full > 1 {
            g = scaled(g, factors[1], terms[1]);
        }
        if of_trunk && partial > 0 {
            g = scaled(g, factors[2], terms[2]);
        }
        if of_trunk && partial > 1 {
            g = scaled(g, factors[3], terms[3]);
        }
    }
    let (beta1, beta2) = (hypers.get(hyper::BETA1), hypers.get(hyper::BETA2));
    let (one_beta1, one_beta2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
    let (beta1, beta2) = (beta1 as f32, beta2 as f32);
    let (inverse1, inverse2) = (scales.get(scale::INVERSE1), scales.get(scale::INVERSE2));
    let (lr, eps) = (scales.get(scale::LR), hypers.get(hyper::EPS) as f32);
    let (decay, tau) = (hypers.get(hyper::WEIGHT_DECAY) as f32, hypers.get(hyper::TAU) as f32);
    if finite == 0.0 {
        return;
    }
    let (mut m1, mut v1, mut p1, mut t1) = (m0, v0, p, t0);
    let mut e = 0;
    while e < 4 {
        m1[e] = math::fma(beta1, m0[e], one_beta1 * g[e]);
        v1[e] = math::fma(beta2, v0[e], one_beta2 * g[e] * g[e]);
        let direction = m1[e] * inverse1 / (math::sqrt(v1[e] * inverse2) + eps);
        p1[e] = p[e] - lr * math::fma(decay, p[e], direction);
        t1[e] = math::fma(tau, p1[e] - t0[e], t0[e]);
        e += 1;
    }
    m.set4(at, m1);
    v.set4(at, v1);
    params.set4(at, p1);
    if has_target {
        target.set4(at, t1);
    }
}

/// sum + factor * g.
#[inline(always)]
fn scaled(sum: [f32; 4], factor: f32, g: [f32; 4]) -> [f32; 4] {
    [
        math::fma(factor, g[0], sum[0]),
        math::fma(factor, g[1], sum[1]),
        math::fma(factor, g[2], sum[2]),
        math::fma(factor, g[3], sum[3]),
    ]
}
