//! The head's gradients over one tile of rows, written out by hand.
//!
//! dz (of the actions taken) -> dWo = dz^T u1, dbo; du1 = (dz Wo) * lrelu'(u1), in u1's place; then by chunks of trunk
//! features, with phi and x computed again: dWh = du1^T x, dbh; dx = du1 Wh; dh = sum over a sample's rows of dx * phi;
//! d phi = dx * h where phi is positive; dWc = d phi^T cos, dbc. Of warpgroups the chunks are a kernel of their own, see
//! `chunks`.
//!
//! The parameters' gradients are summed over a block's tiles in the block's own plane of device memory (`plane`).

use cuda_std::prelude::*;

use super::chunks::Image;
use super::forward::{Head, RowSamples, ready};
use super::loss::{self, Loss};
use super::memory::Memory;
use super::plane::{Plane, Sums};
use super::product::{Arithmetic, Fragments, Plain, WithSums, ZERO, multiply};
use super::size::{Embed, GradEmbed, GradHide, GradOut, Hide, OUTPUTS, Part, Place, Size, Split};
use super::tile::{AlongK, AlongRows};
use super::trunk::{TrunkGradient, store_products, sum_dh, sum_dh_in_warp};
use crate::action;

/// All gradients of one tile. Items hold dz; u1 is in shared memory, and so is the output layer's weight where it has one
/// group. At the end the cosines, d phi and the hidden layer's weight have been read.
#[inline(always)]
pub fn run<E: Arithmetic, S: Size>(
    head: &Head,
    loss: &Loss,
    place: &Place,
    split: &Split,
    samples: &RowSamples,
    piece: u32,
    first: bool,
) {
    let plane = Plane::new::<S>(head.trunk, head.outputs);
    let sums = Sums {
        planes: loss.planes,
        start: thread::block_idx() * plane.len,
        first,
        unit: loss::unit(head.batch, loss.branches),
    };
    let groups = head.output_groups();
    let mut du = ZERO;
    let mut outputs = 0;
    while outputs < groups {
        if groups > 1 {
            head.copy_outputs::<S>(outputs);
        }
        spread::<E, S>(loss, split, place, outputs);
        shared::copy_wait::<0>();
        ready::<S>(); // dz and the weight are there
        let (dz, u1) = (Memory::<S>::d_outputs(), Memory::<S>::hidden());
        let weight = plane.out_weight + outputs * OUTPUTS * S::HIDDEN;
        let bias = plane.out_bias + outputs * OUTPUTS;
        if S::GROUPS {
            sums.add::<E, GradOut<S>, Plain>(u1, dz, weight, 0);
            sums.add_rows::<E, GradOut<S>>(dz, OUTPUTS, bias);
        } else {
            sums.add::<E, GradOut<S>, WithSums>(dz, u1, weight, bias);
        }
        multiply::<E, Hide<S>, AlongK, AlongRows>(
            Memory::<S>::d_outputs(),
            Memory::<S>::out_weight(),
            OUTPUTS,
            &mut du,
        );
        thread::sync(); // dz, the weight and u1 have been read
        outputs += 1;
    }
    if !S::GROUPS {
        head.copy_embed::<S>(place, split, 0);
        head.copy_hidden::<S>(0);
    }
    let hidden = Memory::<S>::hidden();
    each_tile!(Hide<S>, (lane, corner, at, i, j) => {
        let scale = |u: f32, d: f32| E::stored(if u > 0.0 { d } else { head.slope * d });
        let (upper, lower) = (hidden.get_pair(lane, corner, 2 * i, j), hidden.get_pair(lane, corner, 2 * i + 1, j));
        let d = du[at];
        hidden.set_pair(lane, corner, 2 * i, j, [scale(upper[0], d[0]), scale(upper[1], d[1])]);
        hidden.set_pair(lane, corner, 2 * i + 1, j, [scale(lower[0], d[2]), scale(lower[1], d[3])]);
    });
    if S::GROUPS {
        thread::sync(); // du1 is there
        hidden.save::<S>(&loss.images, Image::<S>::hidden(place.group));
    } else {
        chunks_by_warps::<E, S>(head, loss, place, split, samples, piece, &sums);
    }
}

/// The gradients that go through x, chunk by chunk of trunk features: du1 is there, and the copies of the first chunk's
/// weights and h are under way.
#[inline(always)]
fn chunks_by_warps<E: Arithmetic, S: Size>(
    head: &Head,
    loss: &Loss,
    place: &Place,
    split: &Split,
    samples: &RowSamples,
    piece: u32,
    sums: &Sums,
) {
    let plane = Plane::new::<S>(head.trunk, head.outputs);
    let to = TrunkGradient { dh: loss.dh, below: loss.below, below_slope: loss.below_slope, unit: sums.unit };
    let hidden = Memory::<S>::hidden();
    // A sample's rows are one warp's: dh need not go through shared memory.
    let in_warp = split.pieces == 1 && split.rows == 16 * Embed::<S>::TM as u32;
    let chunks = head.chunks::<S>();
    let kept = E::keep::<Embed<S>, false>(Memory::<S>::cosines());
    shared::copy_wait::<1>();
    thread::sync(); // du1 and the first chunk's cosine weight and h are there
    let mut chunk = 0;
    while chunk < chunks {
        let phi = head.embed::<E, S, false>(chunk, samples, &kept);
        thread::sync(); // x is there, the cosine weight has been read
        head.copy_embed::<S>(place, split, chunk + 1);
        let (x, weight) = (Memory::<S>::x(), plane.hid_weight + chunk * S::HIDDEN * S::CHUNK);
        if chunk == 0 {
            sums.add::<E, GradHide<S>, WithSums>(hidden, x, weight, plane.hid_bias);
        } else {
            sums.add::<E, GradHide<S>, Plain>(hidden, x, weight, 0);
        }
        // Awaited here, the copies have had the time of one product or two.
        shared::copy_wait::<0>();
        thread::sync(); // the hidden weight and the next cosine weight and h are there, x has been read
        let dh = d_phi::<E, S>(&phi, chunk, samples);
        thread::sync(); // d phi is there, the hidden weight has been read
        head.copy_hidden::<S>(chunk + 1);
        // In f32 x's place holds the products that dh sums, beside d phi; in bf16 they need that one's place too.
        if !in_warp && !S::HALF {
            store_products::<S>(&dh);
        }
        sums.add::<E, GradEmbed<S>, WithSums>(
            Memory::<S>::d_phi(),
            Memory::<S>::cosines(),
            plane.cos_weight + chunk * S::CHUNK * S::COSINES,
            plane.cos_bias + chunk * S::CHUNK,
        );
        if in_warp {
            sum_dh_in_warp::<S>(head, &to, place, &dh, chunk);
        } else {
            if S::HALF {
                thread::sync(); // d phi has been read
                store_products::<S>(&dh);
            }
            thread::sync(); // dx * phi is there
            sum_dh::<S>(head, &to, place, split, chunk, piece);
            thread::sync(); // it has been read
        }
        chunk += 1;
    }
    thread::sync(); // d phi and the cosines have been read
}

/// dz of one group of outputs as a matrix [rows, outputs], zero where an action was not taken.
#[inline(always)]
fn spread<E: Arithmetic, S: Size>(loss: &Loss, split: &Split, place: &Place, outputs: u32) {
    let (z, items) = (Memory::<S>::d_outputs(), Memory::<S>::items());
    // A thread has 4 quads of neighbouring outputs of one row.
    let per_row = S::THREADS / S::ROWS;
    let quads = const { (OUTPUTS / 4 / (S::THREADS / S::ROWS)) as usize };
    let (row, part) = (thread::thread_idx() / per_row, thread::thread_idx() % per_row);
    let mine = outputs * OUTPUTS + part * 4 * quads as u32;
    let taken = if row < place.rows { loss.actions.get(place.first + split.sample(row)) } else { 0 };
    let mut values = [[0.0f32; 4]; 4];
    let (mut branch, mut first) = (0, 0);
    while branch < loss.branches {
        // From the thread's first output on, if it is not before it.
        let at = (first + action::branch(taken, branch)).wrapping_sub(mine);
        let d = E::stored(items.get(S::ROWS * branch + row)); // zero for a row that does not exist
        unroll4!(q < quads => {
            unroll4!(e < 4 => {
                if at == 4 * q as u32 + e as u32 {
                    values[q][e] = d;
                }
            });
        });
        first += action::branch(loss.sizes, branch);
        branch += 1;
    }
    unroll4!(q < quads => {
        z.set4(row, part * quads as u32 + q as u32, values[q]);
    });
}

/// dx of a chunk from du1 and the chunk of h; d phi, which goes to shared memory, and dx * phi.
#[inline(always)]
fn d_phi<E: Arithmetic, S: Size>(phi: &Fragments, chunk: u32, samples: &RowSamples) -> Fragments {
    let mut dx = ZERO;
    let (hidden, trunk) = (Memory::<S>::hidden(), Memory::<S>::trunk(chunk % 2));
    let weight = Memory::<S>::hid_weight();
    multiply::<E, Embed<S>, AlongK, AlongRows>(hidden, weight, S::HIDDEN, &mut dx);
    let d = Memory::<S>::d_phi();
    each_tile!(Embed<S>, (lane, corner, at, i, j) => {
        let (p, v) = (phi[at], dx[at]);
        let column = 8 * corner.1 + 2 * lane.t;
        let upper = trunk.get2(samples[2 * i as usize], column, j);
        let lower = trunk.get2(samples[2 * i as usize + 1], column, j);
        let where_positive = |p: f32, d: f32| E::stored(if p > 0.0 { d } else { 0.0 });
        let upper = [where_positive(p[0], v[0] * upper[0]), where_positive(p[1], v[1] * upper[1])];
        let lower = [where_positive(p[2], v[2] * lower[0]), where_positive(p[3], v[3] * lower[1])];
        d.set_pair(lane, corner, 2 * i, j, upper);
        d.set_pair(lane, corner, 2 * i + 1, j, lower);
        dx[at] = [v[0] * p[0], v[1] * p[1], v[2] * p[2], v[3] * p[3]];
    });
    dx
}
