//! The ensemble's loss and its gradient with respect to the members' outputs (SPEC section 3).
//!
//! For member e of M and sample i, with l_e the member's K outputs: p_e = softmax(l_e), E_e = sum_k z_k p_e[k], CE_e =
//! -sum_k m[k] log p_e[k], m = mean over the branches of the C51 targets. Bernoulli masks b_ie, fresh in every step, make
//! each member learn from its own part of the data (Osband, Blundell, Pritzel and Van Roy, "Deep Exploration via
//! Bootstrapped DQN", 2016, section 6 and appendix C). With V_i = 1/M sum_e (E_e - mean E)^2:
//!
//! loss_i = w_i / M sum_e b_ie CE_e - lambda min(V_i, 1); the step's loss is its mean over the batch.
//! d loss / d l_e[k] = 1/B ( w_i b_ie / M (p_e[k] - m[k]) - lambda 1[V_i < 1] 2 (E_e - mean E) / M p_e[k] (z_k - E_e) ).
//!
//! w_i is the C51 loss's weight, advantage weight included. A masked sample counts in the mean as 0. V_i is the
//! uncertainty of s_i. One warp per sample and member, atoms over the lanes.

use cuda_std::prelude::*;

use super::distribution::{Support, load_atoms, softmax, warp_sums};
use crate::logits::pad4;
use crate::{clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Warps of a block, and so the most members.
pub const MAX_MEMBERS: u32 = 8;

/// Whether a member learns from a sample in a step.
#[inline(always)]
pub fn learns(seed: u64, step: u64, sample: u32, member: u32, probability: f32) -> bool {
    let [w0, w1, w2, w3] = philox::draw(seed, step, philox::Stream::EnsembleMask, sample, member / 4);
    let word = match member % 4 {
        0 => w0,
        1 => w1,
        2 => w2,
        _ => w3,
    };
    philox::uniform(word) < probability
}

macro_rules! ensemble_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Rows of `logits` and `d_logits` [B, stride] have a block of K columns for each member, padded to a multiple
        /// of 4; the padding of `d_logits` is left alone.
        #[kernel(
            block = 32 * MAX_MEMBERS,
            grid = batch.div_ceil(8 / members),
            shared = 4 * 2 * MAX_MEMBERS,
            barriers = 1,
            shuffles = 20,
            requires(
                batch > 0,
                members >= 2,
                members <= MAX_MEMBERS,
                atoms >= 2,
                atoms <= 32 * $registers,
                stride >= members * pad4(atoms),
                clock_words.len() >= clock::WORDS as usize,
                support.len() >= 2,
                logits.len() >= (batch as usize) * (stride as usize),
                target.len() >= (batch as usize) * (atoms as usize),
                weights.len() >= batch as usize,
                d_logits.len() >= (batch as usize) * (stride as usize),
                loss.len() >= batch as usize,
                uncertainty.len() >= batch as usize,
            )
        )]
        pub fn $name(
            batch: u32,
            members: u32,
            atoms: u32,
            stride: u32,
            /// Probability of learning from a sample.
            mask: f32,
            /// Weight of the variance.
            lambda: f32,
            seed: u64,
            clock_words: In<u64>,
            support: In<f32>,
            logits: In<f32>,
            /// Mean of the branches' targets [B, K].
            target: In<f32>,
            /// w [B].
            weights: In<f32>,
            d_logits: Out<f32>,
            /// [B].
            loss: Out<f32>,
            /// V [B].
            uncertainty: Out<f32>,
        ) {
            const J: usize = $registers;
            let per_block = MAX_MEMBERS / members;
            let (warp, lane) = (thread::warp(), thread::lane());
            let (local, member) = (warp / members, warp % members);
            let sample = thread::block_idx() * per_block + local;
            let active = local < per_block && sample < batch;
            let scratch = shared::array::<f32>(0, 2 * MAX_MEMBERS);
            let support = Support::read(&support, atoms);
            let row = sample * stride + member * pad4(atoms);
            let (mut p, mut m) = ([0.0f32; J], [0.0f32; J]);
            let (mut expected, mut share) = (0.0, 0.0);
            if active {
                let softmax = softmax(&load_atoms::<J>(&logits, row, atoms), atoms);
                p = softmax.p;
                m = load_atoms::<J>(&target, sample * atoms, atoms);
                let (mut cross, mut mean) = (0.0f32, 0.0f32);
                let mut j = 0;
                while j < J {
                    let k = lane + 32 * j as u32;
                    if k < atoms {
                        cross -= m[j] * softmax.log_p[j];
                        mean = math::fma(p[j], support.atom(k), mean);
                    }
                    j += 1;
                }
                let [cross, mean] = warp_sums([cross, mean]);
                expected = mean;
                let keep = learns(seed, clock_words.get(clock::STEP), sample, member, mask);
                // A masked member's NaN stays visible: 0 times it is NaN.
                share = weights.get(sample) * (if keep { 1.0 } else { 0.0 }) / members as f32;
                if lane == 0 {
                    scratch.set(warp, expected);
                    scratch.set(MAX_MEMBERS + warp, share * cross);
                }
            }
            thread::sync(); // every member's expected value and loss are written before they are read
            if active {
                let first = local * members;
                let (mut sum, mut total) = (0.0, 0.0);
                let mut e = 0;
                while e < members {
                    sum += scratch.get(first + e);
                    total += scratch.get(MAX_MEMBERS + first + e);
                    e += 1;
                }
                let mean = sum / members as f32;
                let mut square = 0.0;
                e = 0;
                while e < members {
                    let difference = scratch.get(first + e) - mean;
                    square = math::fma(difference, difference, square);
                    e += 1;
                }
                let variance = square / members as f32;
                let pull = if variance >= 1.0 { 0.0 } else { 2.0 * lambda * (expected - mean) / members as f32 };
                let mut j = 0;
                while j < J {
                    let k = lane + 32 * j as u32;
                    if k < atoms {
                        let bonus = pull * p[j] * (support.atom(k) - expected);
                        d_logits.set(row + k, (share * (p[j] - m[j]) - bonus) / batch as f32);
                    }
                    j += 1;
                }
                if lane == 0 && member == 0 {
                    let bonus = if variance > 1.0 { 1.0 } else { variance };
                    loss.set(sample, total - lambda * bonus);
                    uncertainty.set(sample, variance);
                }
            }
        }
    )*};
}

ensemble_kernels! {
    /// Ensemble loss and gradient for up to 64 atoms (two per lane).
    ensemble_loss, registers = 2;
    /// Ensemble loss and gradient for up to 128 atoms (four per lane).
    ensemble_loss_wide, registers = 4;
}
