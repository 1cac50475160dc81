//! The quantile Huber loss of one tile, with its derivative with respect to z of the actions taken.
//!
//! One thread for each row and branch goes through the targets: u_j = target_j - z, l = mean_j w_j huber(u_j) / kappa,
//! dl/dz = -mean_j w_j clamp(u_j, -kappa, kappa) / kappa, w_j = |tau - 1[u_j < 0]|.

use cuda_std::prelude::*;

use super::backward;
use super::chunks::Image;
use super::cosines::Taus;
use super::forward::{Head, ready, row_samples, write_constants};
use super::memory::Memory;
use super::product::Arithmetic;
use super::size::{MAX_BRANCHES, OUTPUTS, Place, Size, Split};
use super::target::first_output;
use crate::action;

/// What a loss kernel reads beside the head, and what it writes.
#[derive(Clone, Copy)]
pub struct Loss {
    /// Blocks of the grid.
    pub blocks: u32,
    /// D.
    pub branches: u32,
    /// n_d, packed.
    pub sizes: u64,
    /// N.
    pub quantiles: u32,
    /// N'.
    pub targets: u32,
    /// Where the Huber loss becomes linear.
    pub kappa: f32,
    /// Quantiles of the greedy actions at s' [B, D, N'].
    pub next: In<f32>,
    /// Actions taken [B], packed.
    pub actions: In<u64>,
    /// Rewards [B].
    pub rewards: In<f32>,
    /// gamma^m (1 - terminated) [B].
    pub discounts: In<f32>,
    /// Importance weights [B].
    pub weights: In<f32>,
    /// Loss of each sample [B].
    pub loss: InOut<f32>,
    /// Gradient with respect to h's argument [B, H2].
    pub dh: InOut<f32>,
    /// What the trunk's last activation gave [B, H2].
    pub below: In<f32>,
    /// Its negative slope.
    pub below_slope: f32,
    /// Parts of the parameters' gradients, one plane a block.
    pub planes: InOut<f32>,
    /// Of warpgroups, what `chunks` reads of each tile.
    pub images: Out<f32>,
}

/// What dz, and all that follows from it, is multiplied with where operands are fp16: a power of two, from 16 B D up to
/// twice that. Then dz is a weight times at most 16 to 32, whatever the batch, and neither of a half's ends is near.
#[inline(always)]
fn scale(batch: u32, branches: u32) -> f32 {
    f32::from_bits((127 + exponent(batch, branches)) << 23)
}

/// The inverse of [`scale`], with which sums are multiplied when they leave the block.
#[inline(always)]
pub fn unit(batch: u32, branches: u32) -> f32 {
    f32::from_bits((127 - exponent(batch, branches)) << 23)
}

/// The exponent of the scale: 4 to 36.
#[inline(always)]
fn exponent(batch: u32, branches: u32) -> u32 {
    4 + 32 - (batch * branches - 1).leading_zeros()
}

/// One block's part of the batch.
#[inline(always)]
pub fn run<E: Arithmetic, S: Size>(head: &Head, taus: &Taus, loss: &Loss) {
    let split = Split::new::<S>(loss.quantiles);
    let samples = row_samples::<S>(&split);
    write_constants::<S>(&split);
    head.write_bias::<S>();
    let groups = split.groups(head.batch);
    let (mut group, mut piece, mut first) = (thread::block_idx(), 0, true);
    while group < groups {
        let place = Place::new::<S>(&split, head.batch, group, piece);
        head.copy_embed::<S>(&place, &split, 0);
        head.write_cosines::<E, S>(&place, &split, taus);
        let sums = head.hidden_sums::<E, S, false>(&place, &split, &samples);
        head.copy_outputs::<S>(0);
        head.store_hidden::<E, S>(&sums);
        if S::GROUPS {
            // There are barriers before the next tile's are written.
            Memory::<S>::cosines().save::<S>(&loss.images, Image::<S>::cosines(place.group));
        }
        loss.write_targets::<S>(&place);
        shared::copy_wait::<0>();
        let output_groups = head.output_groups();
        let mut outputs = 0;
        while outputs < output_groups {
            ready::<S>(); // u1, the weight and the targets are there, z has been read
            head.outputs::<E, S>(outputs);
            thread::sync(); // z is there, the weight has been read
            if outputs + 1 < output_groups {
                head.copy_outputs::<S>(outputs + 1);
            }
            loss.take::<S>(&split, &place, outputs);
            shared::copy_wait::<0>();
            outputs += 1;
        }
        loss.differentiate::<S>(&split, &place, head.batch);
        thread::sync(); // the losses and dz are there, z has been read
        loss.sum::<S>(&split, &place, piece);
        backward::run::<E, S>(head, loss, &place, &split, &samples, piece, first);
        first = false;
        piece += 1;
        if piece == split.pieces {
            piece = 0;
            group += loss.blocks;
        }
    }
}

impl Loss {
    /// r + discount * next for the tile's samples, to shared memory.
    #[inline(always)]
    fn write_targets<S: Size>(&self, place: &Place) {
        let targets = Memory::<S>::targets();
        let each = self.branches * self.targets;
        let each = if each > 0 { each } else { 1 };
        let mut index = thread::thread_idx();
        while index < place.samples * each {
            let sample = place.first + index / each;
            let next = self.next.get(place.first * each + index);
            targets.set(index, math::fma(self.discounts.get(sample), next, self.rewards.get(sample)));
            index += S::THREADS;
        }
    }

    /// z of the actions taken that belong to one group of outputs, from the tile of z to the items.
    #[inline(always)]
    fn take<S: Size>(&self, split: &Split, place: &Place, outputs: u32) {
        let (z, items) = (Memory::<S>::outputs(), Memory::<S>::items());
        let mut item = thread::thread_idx();
        while item < self.branches * S::ROWS {
            let (branch, row) = (item / S::ROWS, item % S::ROWS);
            if row < place.rows {
                let sample = place.first + split.sample(row);
                let output =
                    first_output(self.sizes, branch) + action::branch(self.actions.get(sample), branch);
                if output / OUTPUTS == outputs {
                    items.set(item, z.get(row, output % OUTPUTS));
                }
            }
            item += S::THREADS;
        }
    }

    /// The loss of each row and branch, and in z's place dL/dz with the sample's weight; zero for rows that do not exist.
    /// An item is its thread's alone: no barrier is needed between [`Loss::take`] and here.
    #[inline(always)]
    fn differentiate<S: Size>(&self, split: &Split, place: &Place, batch: u32) {
        let (items, taus, targets) = (Memory::<S>::items(), Memory::<S>::taus(), Memory::<S>::targets());
        let kappa = self.kappa;
        let mut item = thread::thread_idx();
        while item < self.branches * S::ROWS {
            let (branch, row) = (item / S::ROWS, item % S::ROWS);
            let (mut loss, mut slope) = (0.0f32, 0.0f32);
            if place.row::<S>(split, row).0 {
                let sample = split.sample(row);
                let (z, tau) = (items.get(item), taus.get(row));
                let mut add = |target: f32| {
                    let u = target - z;
                    let weight = math::abs(tau - if u < 0.0 { 1.0 } else { 0.0 });
                    // Comparisons that leave a NaN as it is. With c = clamp(u), huber is c (u - c / 2) on both sides.
                    let below = if u > kappa { kappa } else { u };
                    let clamped = if u < -kappa { -kappa } else { below };
                    let weighted = weight * clamped;
                    loss = math::fma(weighted, math::fma(-0.5, clamped, u), loss);
                    slope += weighted;
                };
                let first = (sample * self.branches + branch) * self.targets;
                let mut j = 0;
                while j + 4 <= self.targets {
                    // Loaded before the first is used: their latencies overlap.
                    let get = |n: u32| targets.get(first + j + n);
                    let four = [get(0), get(1), get(2), get(3)];
                    unroll4!(n < 4 => {
                        add(four[n]);
                    });
                    j += 4;
                }
                while j < self.targets {
                    add(targets.get(first + j));
                    j += 1;
                }
                let mean = kappa * self.targets as f32;
                let weight = self.weights.get(place.first + sample) / (batch * self.branches) as f32;
                loss /= mean;
                slope *= -weight / mean;
                if S::SCALED {
                    slope *= scale(batch, self.branches);
                }
            }
            items.set(item, slope);
            items.set(S::ROWS * MAX_BRANCHES + item, loss);
            item += S::THREADS;
        }
    }

    /// The samples' losses: mean over branches of the sum over quantiles. A warp a sample; a further tile of the same
    /// sample is added to what the same lane wrote before.
    #[inline(always)]
    fn sum<S: Size>(&self, split: &Split, place: &Place, piece: u32) {
        let items = Memory::<S>::items();
        let mut sample = thread::warp();
        while sample < place.samples {
            let first = sample * split.stride;
            let end = if first + split.rows < place.rows { first + split.rows } else { place.rows };
            let mut sum = 0.0;
            let mut branch = 0;
            while branch < self.branches {
                let mut row = first + thread::lane();
                while row < end {
                    sum += items.get(S::ROWS * (MAX_BRANCHES + branch) + row);
                    row += 32;
                }
                branch += 1;
            }
            let sum = warp::sum(sum) / self.branches as f32;
            if thread::lane() == 0 {
                let at = place.first + sample;
                let before = if piece > 0 { self.loss.get(at) } else { 0.0 };
                self.loss.set(at, before + sum);
            }
            sample += S::THREADS / 32;
        }
    }
}
