//! The target side: greedy actions by the mean over the quantiles, and the quantiles of given or greedy actions.

use cuda_std::prelude::*;

use super::cosines::Taus;
use super::forward::{Head, ready, row_samples, write_constants};
use super::memory::Memory;
use super::product::Arithmetic;
use super::size::{MAX_BRANCHES, MAX_OUTPUTS, OUTPUTS, Place, Size, Split};
use crate::action;

/// Selects the greedy actions and gathers their quantiles.
pub const SELECT_AND_GATHER: u32 = 0;
/// Selects only.
pub const SELECT: u32 = 1;
/// Gathers the quantiles of given actions.
pub const GATHER: u32 = 2;

/// What a target kernel does with the quantiles.
#[derive(Clone, Copy)]
pub struct Target {
    /// [`SELECT_AND_GATHER`], [`SELECT`] or [`GATHER`].
    pub mode: u32,
    /// Blocks of the grid.
    pub blocks: u32,
    /// D.
    pub branches: u32,
    /// n_d, packed.
    pub sizes: u64,
    /// N'.
    pub quantiles: u32,
    /// Greedy actions [B], packed.
    pub greedy: InOut<u64>,
    /// z of the greedy actions [B, D, N'].
    pub next: Out<f32>,
}

/// One block's part of the batch.
#[inline(always)]
pub fn run<E: Arithmetic, S: Size>(head: &Head, taus: &Taus, target: &Target) {
    let split = Split::new::<S>(target.quantiles);
    let samples = row_samples::<S>(&split);
    write_constants::<S>(&split);
    head.write_bias::<S>();
    let (select, gather) = (target.mode != GATHER, target.mode != SELECT);
    let output_groups = head.output_groups();
    let groups = split.groups(head.batch);
    let mut group = thread::block_idx();
    // A sample of several tiles goes through them once for the means and again for the quantiles.
    let (mut piece, mut selecting) = (0, select);
    let mut computed = false;
    while group < groups {
        let place = Place::new::<S>(&split, head.batch, group, piece);
        if !computed {
            head.copy_embed::<S>(&place, &split, 0);
            head.write_cosines::<E, S>(&place, &split, taus);
            let sums = head.hidden_sums::<E, S, true>(&place, &split, &samples);
            head.copy_outputs::<S>(0);
            head.store_hidden::<E, S>(&sums);
            shared::copy_wait::<0>();
        }
        let mut outputs = 0;
        while outputs < output_groups {
            // u1 and the weight are there. (Where neither is new, the sums over z have been read.)
            ready::<S>();
            if !computed || output_groups > 1 {
                head.outputs::<E, S>(outputs);
                thread::sync(); // z is there, the weight has been read
                if outputs + 1 < output_groups || (selecting && gather && output_groups > 1) {
                    head.copy_outputs::<S>(if outputs + 1 < output_groups { outputs + 1 } else { 0 });
                }
            }
            if selecting {
                sum_outputs::<S>(&split, &place, outputs, piece);
            } else {
                target.gather::<S>(&split, &place, outputs);
            }
            shared::copy_wait::<0>();
            outputs += 1;
        }
        piece += 1;
        let last = piece == split.pieces;
        if selecting && last {
            thread::sync(); // the sums of all outputs are there
            target.select::<S>(&place, split.pieces > 1);
            thread::sync(); // the actions are there
            target.pack::<S>(&place);
        }
        // The same tile again, which is still there, or the sample's first one, or the next group's.
        let again = selecting && last && gather;
        computed = again && split.pieces == 1;
        selecting = if again { false } else { selecting };
        if last {
            piece = 0;
            if !again {
                group += target.blocks;
                selecting = select;
            }
        }
        thread::sync(); // what the next tile overwrites has been read
    }
}

/// Adds up z over each sample's rows for one group of outputs: the even rows and the odd ones in order, by a lane each.
#[inline(always)]
fn sum_outputs<S: Size>(split: &Split, place: &Place, outputs: u32, piece: u32) {
    let (z, sums) = (Memory::<S>::outputs(), Memory::<S>::sums(split.pieces > 1));
    let mut index = thread::thread_idx();
    while index < place.samples * OUTPUTS * 2 {
        let (item, odd) = (index / 2, index % 2);
        let (sample, output) = (item / OUTPUTS, item % OUTPUTS);
        let first = sample * split.stride;
        let end = if first + split.rows < place.rows { first + split.rows } else { place.rows };
        let mut sum = 0.0;
        let mut row = first + odd;
        while row < end {
            sum += z.get(row, output);
            row += 2;
        }
        // A warp's lanes are of whole samples' outputs: all of them are here.
        let sum = sum + warp::shfl_xor(sum, 1);
        if odd == 0 {
            let at = sample * MAX_OUTPUTS + outputs * OUTPUTS + output;
            sums.set(at, if piece > 0 { sums.get(at) + sum } else { sum });
        }
        index += S::THREADS;
    }
}

impl Target {
    /// argmax over each branch's outputs: the first of equal ones. A NaN wins, so that it is seen in the loss.
    #[inline(always)]
    fn select<S: Size>(&self, place: &Place, several_tiles: bool) {
        let (sums, chosen) = (Memory::<S>::sums(several_tiles), Memory::<S>::chosen());
        let mut index = thread::thread_idx();
        while index < place.samples * self.branches {
            let branches = if self.branches > 0 { self.branches } else { 1 };
            let (sample, branch) = (index / branches, index % branches);
            let first = sample * MAX_OUTPUTS + first_output(self.sizes, branch);
            let actions = action::branch(self.sizes, branch);
            let (mut best, mut best_sum) = (0, f32::NEG_INFINITY);
            let mut a = 0;
            while a < actions {
                let sum = sums.get(first + a);
                if sum > best_sum || (sum.is_nan() && !best_sum.is_nan()) {
                    (best, best_sum) = (a, sum);
                }
                a += 1;
            }
            chosen.set(sample * MAX_BRANCHES + branch, best);
            index += S::THREADS;
        }
    }

    /// Writes the selected actions to device memory.
    #[inline(always)]
    fn pack<S: Size>(&self, place: &Place) {
        let sample = thread::thread_idx();
        if sample < place.samples {
            let (mut packed, mut branch) = (0, 0);
            while branch < self.branches {
                let a = Memory::<S>::chosen().get(sample * MAX_BRANCHES + branch);
                packed = action::with_branch(packed, branch, a);
                branch += 1;
            }
            self.greedy.set(place.first + sample, packed);
        }
    }

    /// Writes z of the actions that belong to one group of outputs.
    #[inline(always)]
    fn gather<S: Size>(&self, split: &Split, place: &Place, outputs: u32) {
        let z = Memory::<S>::outputs();
        let mut item = thread::thread_idx();
        while item < self.branches * S::ROWS {
            let (branch, row) = (item / S::ROWS, item % S::ROWS);
            if place.row::<S>(split, row).0 {
                let local = split.sample(row);
                let sample = place.first + local;
                let a = if self.mode == GATHER {
                    action::branch(self.greedy.get(sample), branch)
                } else {
                    Memory::<S>::chosen().get(local * MAX_BRANCHES + branch)
                };
                let output = first_output(self.sizes, branch) + a;
                if output / OUTPUTS == outputs {
                    let quantile = place.first_quantile + row - local * split.stride;
                    let at = (sample * self.branches + branch) * self.quantiles + quantile;
                    self.next.set(at, z.get(row, output % OUTPUTS));
                }
            }
            item += S::THREADS;
        }
    }
}

/// Index of a branch's first output.
#[inline(always)]
pub fn first_output(sizes: u64, branch: u32) -> u32 {
    let (mut first, mut before) = (0, 0);
    while before < branch {
        first += action::branch(sizes, before);
        before += 1;
    }
    first
}
