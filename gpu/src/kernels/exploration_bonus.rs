//! The exploration bonus of the ensemble: each environment's new transition is rewarded for how far the members disagree about
//! the state that it left (SPEC section 2, "Ensemble").
//!
//! E_e is the expected value of member e of M, V = 1/M sum_e (E_e - mean E)^2 (the uncertainty of `ensemble_loss`), and the
//! reward in the ring becomes r + kappa sqrt(V). An ensemble's disagreement as a reward: Pathak, Gandhi and Gupta,
//! "Self-Supervised Exploration via Disagreement" (2019), equation 1; its root, in units of the values, as the measure of what is
//! unknown about them: Chen, Sidor, Abbeel and Schulman, "UCB Exploration via Q-Ensembles" (2017), section 3.3. As a bonus on the
//! state that a transition leaves it reaches the action that led there through the bootstrap, one step later (as pseudo-counts do:
//! Bellemare et al., "Unifying Count-Based Exploration and Intrinsic Motivation", 2016, equation 5), and the features that acting
//! needs are all that it needs.
//!
//! One warp per environment, an octet (`octets`) for each of four members.

use cuda_std::prelude::*;

use super::distribution::Support;
use super::octets::{OCTETS, dot, exponentials, largest, octet_sums, sum, unrolled, values};
use super::sample_gather::ring;
use crate::clock;
use crate::logits::pad4;
use crate::market::ring_slot;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// kappa at collection step `step`: `first` falls linearly to 0 over `steps` steps; with 0 it stays.
#[inline(always)]
pub fn weight(first: f32, steps: u64, step: u64) -> f32 {
    if steps == 0 {
        first
    } else if step >= steps {
        0.0
    } else {
        first * ((steps - step) as f64 / steps as f64) as f32
    }
}

macro_rules! bonus_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// After the environments wrote their single steps and before windows are extended and the cursor moves. Rows of
        /// `logits` [E, stride] have a block of K columns for each member, padded to a multiple of 4. A NaN among the outputs
        /// makes the reward NaN.
        #[kernel(
            block = crate::kernels::octets::THREADS,
            grid = environments,
            shuffles = 26,
            requires(
                environments > 0,
                environments <= capacity,
                members >= 2,
                members <= super::ensemble_loss::MAX_MEMBERS,
                atoms >= 2,
                atoms <= 8 * $registers,
                stride >= members * pad4(atoms),
                (environments as u64) * (stride as u64) <= u32::MAX as u64,
                clock_words.len() >= clock::WORDS as usize,
                ring_words.len() >= ring::WORDS as usize,
                support.len() >= 2,
                logits.len() >= (environments as usize) * (stride as usize),
                ring_rewards.len() >= capacity as usize,
            )
        )]
        pub fn $name(
            /// E.
            environments: u32,
            /// M.
            members: u32,
            atoms: u32,
            stride: u32,
            /// Slots of the replay ring.
            capacity: u32,
            /// kappa in the first collection step.
            first: f32,
            /// Collection steps after which it is 0; 0 if it stays.
            steps: u64,
            clock_words: In<u64>,
            ring_words: In<u64>,
            support: In<f32>,
            logits: In<f32>,
            /// `[capacity]`
            ring_rewards: InOut<f32>,
        ) {
            const J: usize = $registers;
            let (lane, environment) = (thread::lane(), thread::block_idx());
            let (octet, i) = (lane / 8, lane % 8);
            let z = values::<J>(&Support::read(&support, atoms));
            // This octet's members: their values, 0 where there is none.
            let mut expected = [0.0f32; 2];
            unrolled!(2, round, {
                let e = octet + OCTETS * round as u32;
                let member = if e < members { e } else { members - 1 };
                let column = environment * stride + member * pad4(atoms);
                let mut l = [f32::NEG_INFINITY; J];
                unrolled!(J, j, {
                    let k = i + 8 * j as u32;
                    if k < atoms {
                        l[j] = logits.get(column + k);
                    }
                });
                let p = exponentials(&l, largest(&l));
                let [weighted, total] = octet_sums([dot(&p, &z), sum(&p)]);
                expected[round] = if e < members { weighted / total } else { 0.0 };
            });
            let mean = over_octets(expected[0] + expected[1]) / members as f32;
            let square = |round: u32| {
                let distance = expected[round as usize] - mean;
                if octet + OCTETS * round < members { distance * distance } else { 0.0 }
            };
            let variance = over_octets(square(0) + square(1)) / members as f32;
            if lane == 0 && environment < environments {
                let slot = ring_slot(ring_words.get(ring::CURSOR), environment, capacity);
                let bonus = weight(first, steps, clock_words.get(clock::COLLECT)) * math::sqrt(variance);
                ring_rewards.set(slot, ring_rewards.get(slot) + bonus);
            }
        }
    )*};
}

bonus_kernels! {
    /// Exploration bonus for up to 56 atoms.
    exploration_bonus, registers = 7;
    /// Exploration bonus for up to 128 atoms.
    exploration_bonus_wide, registers = 16;
}

/// Sum of the octets' numbers; every lane gets the same bits.
#[inline(always)]
fn over_octets(mut value: f32) -> f32 {
    value += warp::shfl_xor(value, 16);
    value + warp::shfl_xor(value, 8)
}
