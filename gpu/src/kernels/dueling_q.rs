//! Dueling combination, softmax over the atoms and expected Q of every action, for acting.
//!
//! One warp per row and branch: Q_d(a) = sum_k z_k softmax_k(v[k] + adv[a, k] - mean_a' adv[a', k]).

use cuda_std::prelude::*;

use super::distribution::{Branch, Support, action_logits, baseline, greedy, softmax};
use crate::action;
use crate::logits::{action_offset, branch_column};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

macro_rules! dueling_kernels {
    ($($(#[$doc:meta])* $q:ident, $log:ident, registers = $registers:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Q values [rows, sum n_d] of logits [rows, stride].
        #[kernel(
            block = 256,
            grid = (rows * branches).div_ceil(8),
            shuffles = 60,
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
                q.len() >= (rows as usize) * (action_offset(sizes, branches) as usize),
            )
        )]
        pub fn $q(
            rows: u32,
            branches: u32,
            sizes: u64,
            atoms: u32,
            stride: u32,
            support: In<f32>,
            logits: In<f32>,
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
                let at = row * action_offset(sizes, branches) + action_offset(sizes, d);
                let base = baseline::<$registers>(&logits, branch);
                greedy::<$registers>(&logits, branch, &base, &support, Some((&q, at)));
            }
        }

        /// log p of every action and atom, [rows, sum n_d, K] of logits [rows, stride]: the distributions behind
        /// [`dueling_q`], for reports and later losses.
        #[kernel(
            block = 256,
            grid = (rows * branches).div_ceil(8),
            shuffles = 10,
            requires(
                rows > 0,
                branches >= 1,
                branches <= action::MAX_BRANCHES,
                action::none_empty(sizes, branches),
                atoms >= 2,
                atoms <= 32 * $registers,
                stride >= branch_column(sizes, atoms, branches),
                logits.len() >= (rows as usize) * (stride as usize),
                log_p.len() >= (rows as usize) * (action_offset(sizes, branches) as usize) * (atoms as usize),
            )
        )]
        pub fn $log(
            rows: u32,
            branches: u32,
            sizes: u64,
            atoms: u32,
            stride: u32,
            logits: In<f32>,
            log_p: Out<f32>,
        ) {
            let task = thread::block_idx() * 8 + thread::warp();
            let (row, d) = (task / branches, task % branches);
            if row < rows {
                let branch = Branch {
                    value: row * stride,
                    advantage: row * stride + branch_column(sizes, atoms, d),
                    actions: action::branch(sizes, d),
                    atoms,
                };
                let first = row * action_offset(sizes, branches) + action_offset(sizes, d);
                let base = baseline::<$registers>(&logits, branch);
                let mut a = 0;
                while a < branch.actions {
                    let s = softmax(&action_logits::<$registers>(&logits, branch, &base, a), atoms);
                    let mut j = 0;
                    while j < $registers {
                        let k = thread::lane() + 32 * j as u32;
                        if k < atoms {
                            log_p.set((first + a) * atoms + k, s.log_p[j]);
                        }
                        j += 1;
                    }
                    a += 1;
                }
            }
        }
    )*};
}

dueling_kernels! {
    /// Up to 64 atoms.
    dueling_q, dueling_log_p, registers = 2;
    /// Up to 128 atoms.
    dueling_q_wide, dueling_log_p_wide, registers = 4;
}
