//! Q of the taken actions, from one network's outputs: what the IQL networks regress on (SPEC section 3).
//!
//! One warp per row and branch: Q_d(a_d) = sum_k z_k softmax_k(v[k] + adv[a_d, k] - mean_a' adv[a', k]).

use cuda_std::prelude::*;

use super::distribution::{Branch, Support, action_logits, baseline, softmax};
use crate::action;
use crate::logits::branch_column;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

macro_rules! taken_kernels {
    ($($(#[$doc:meta])* $name:ident, registers = $registers:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `q` [rows, branches] of `logits` [rows, stride] (see `crate::logits`) and `actions` [rows].
        #[kernel(
            block = 256,
            grid = (rows * branches).div_ceil(8),
            shuffles = 15,
            requires(
                rows > 0,
                branches >= 1,
                branches <= action::MAX_BRANCHES,
                action::none_empty(sizes, branches),
                atoms >= 2,
                atoms <= 32 * $registers,
                stride >= branch_column(sizes, atoms, branches),
                support.len() >= 2,
                logits.len() >= (rows as usize) * (stride as usize),
                actions.len() >= rows as usize,
                q.len() >= (rows as usize) * (branches as usize),
            )
        )]
        pub fn $name(
            rows: u32,
            branches: u32,
            sizes: u64,
            atoms: u32,
            stride: u32,
            support: In<f32>,
            logits: In<f32>,
            actions: In<u64>,
            q: Out<f32>,
        ) {
            let task = thread::block_idx() * 8 + thread::warp();
            let (row, d) = (task / branches, task % branches);
            if row < rows {
                let support = Support::read(&support, atoms);
                let branch = Branch {
                    value: row * stride,
                    advantage: row * stride + branch_column(sizes, atoms, d),
                    actions: action::branch(sizes, d),
                    atoms,
                };
                let taken = action::branch(actions.get(row), d);
                let base = baseline::<$registers>(&logits, branch);
                let p = softmax(&action_logits::<$registers>(&logits, branch, &base, taken), atoms).p;
                let mut sum = 0.0;
                let mut j = 0;
                while j < $registers {
                    // p is zero beyond K.
                    sum = math::fma(p[j], support.atom(thread::lane() + 32 * j as u32), sum);
                    j += 1;
                }
                let sum = warp::sum(sum);
                if thread::lane() == 0 {
                    q.set(task, sum);
                }
            }
        }
    )*};
}

taken_kernels! {
    /// Up to 64 atoms.
    taken_q, registers = 2;
    /// Up to 128 atoms.
    taken_q_wide, registers = 4;
}
