//! dh, the gradient with respect to the trunk's features: the sums of dx * phi over each sample's rows.

use cuda_std::prelude::*;

use super::forward::Head;
use super::memory::Memory;
use super::product::Fragments;
use super::size::{Embed, Part, Place, Size, Split};
use super::tile::Lane;
use crate::kernels::bias_lrelu::lrelu_gradient;

/// Where dh goes, through the trunk's activation below h.
#[derive(Clone, Copy)]
pub struct TrunkGradient {
    /// dh [B, H2].
    pub dh: InOut<f32>,
    /// What the activation gave [B, H2].
    pub below: In<f32>,
    /// Its negative slope.
    pub below_slope: f32,
    /// What sums of [`Size::SCALED`] operands are multiplied with.
    pub unit: f32,
}

impl TrunkGradient {
    /// A sum of dx * phi as the gradient of the activation's argument, where it gave `below`.
    #[inline(always)]
    pub fn through<S: Size>(&self, sum: f32, below: f32) -> f32 {
        lrelu_gradient(if S::SCALED { sum * self.unit } else { sum }, below, self.below_slope)
    }
}

/// dx * phi to shared memory.
#[inline(always)]
pub fn store_products<S: Size>(dh: &Fragments) {
    let products = Memory::<S>::products();
    each_tile!(Embed<S>, (lane, corner, at, i, j) => {
        products.set_pair(lane, corner, 2 * i, j, [dh[at][0], dh[at][1]]);
        products.set_pair(lane, corner, 2 * i + 1, j, [dh[at][2], dh[at][3]]);
    });
}

/// dh of a chunk: the sum of dx * phi, which is in shared memory, over each sample's rows in order.
#[inline(always)]
pub fn sum_dh<S: Size>(
    head: &Head,
    to: &TrunkGradient,
    place: &Place,
    split: &Split,
    chunk: u32,
    piece: u32,
) {
    let products = Memory::<S>::products();
    let mut index = thread::thread_idx();
    while index < place.samples * S::CHUNK {
        let (sample, column) = (index / S::CHUNK, index % S::CHUNK);
        let feature = chunk * S::CHUNK + column;
        if feature < head.trunk {
            let at = (place.first + sample) * head.trunk + feature;
            let before = if piece > 0 { to.dh.get(at) } else { 0.0 };
            let mut sum = 0.0;
            let first = sample * split.rows;
            let end = if first + split.rows < place.rows { first + split.rows } else { place.rows };
            let mut row = first;
            while row < end {
                sum += products.get(row, column);
                row += 1;
            }
            to.dh.set(at, before + to.through::<S>(sum, to.below.get(at)));
        }
        index += S::THREADS;
    }
}

/// A lane's sums over a warp's rows of dx * phi, which at first are of the rows that the lane has: over the lanes with the
/// same columns. These halve their columns at each of three steps, so that at the end a lane has the sums of one column, or
/// of two (or, of fewer columns than lanes, several lanes have the same). Returns the first and the lane's column.
#[inline(always)]
fn column_sums<S: Size>(products: &Fragments) -> ([f32; 2], u32) {
    let Lane { g, t } = Lane::new();
    let mut sums = [0.0f32; 16];
    unroll8!(j < Embed::<S>::TN => {
        unroll4!(i < Embed::<S>::TM => {
            let p = products[i * Embed::<S>::TN + j];
            sums[2 * j % 16] += p[0] + p[2];
            sums[(2 * j + 1) % 16] += p[1] + p[3];
        });
    });
    let count = 2 * Embed::<S>::TN;
    halve(&mut sums, count, 16, g & 4 != 0);
    halve(&mut sums, count / 2, 8, g & 2 != 0);
    halve(&mut sums, count / 4, 4, g & 1 != 0);
    let n = count as u32 * g / 8;
    ([sums[0], sums[1]], 2 * t + 8 * (n / 2) + n % 2)
}

/// dh of a chunk where each sample's rows are those of one warp's part of dx * phi: in the order of the lane's tiles, then
/// over the lanes.
#[inline(always)]
pub fn sum_dh_in_warp<S: Size>(
    head: &Head,
    to: &TrunkGradient,
    place: &Place,
    products: &Fragments,
    chunk: u32,
) {
    const { assert!(S::GROUPS || 2 * Embed::<S>::TN <= 8) };
    let (row, column) = Embed::<S>::corner();
    let sample = row / (16 * Embed::<S>::TM as u32);
    if sample < place.samples {
        let (sums, at) = column_sums::<S>(products);
        let lanes = if S::GROUPS { 1 } else { 8 / (2 * Embed::<S>::TN as u32) };
        let feature = chunk * S::CHUNK + column + at;
        if Lane::new().g.is_multiple_of(lanes) && feature < head.trunk {
            let at = (place.first + sample) * head.trunk + feature;
            to.dh.set(at, to.through::<S>(sums[0], to.below.get(at)));
        }
    }
}

/// Adds up `count` sums with the lane `lane ^ mask`: this one keeps the upper half of them, or the lower. A single sum both
/// keep.
#[inline(always)]
fn halve(sums: &mut [f32; 16], count: usize, mask: u32, upper: bool) {
    if count > 1 {
        unroll8!(n < count / 2 => {
            let (low, high) = (sums[n], sums[(n + count / 2) % 16]);
            let (kept, given) = if upper { (high, low) } else { (low, high) };
            sums[n] = kept + warp::shfl_xor(given, mask);
        });
    } else {
        sums[0] += warp::shfl_xor(sums[0], mask);
    }
}
