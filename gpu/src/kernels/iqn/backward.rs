//! The head's gradients over one tile of rows, written out by hand.
//!
//! dz (of the actions taken) -> dWo = dz^T u1, dbo; du1 = (dz Wo) * lrelu'(u1), in u1's place; then by chunks of trunk
//! features, with phi and x computed again: dWh = du1^T x, dbh; dx = du1 Wh; dh = sum over a sample's rows of dx * phi;
//! d phi = dx * h where phi is positive; dWc = d phi^T cos, dbc.
//!
//! The parameters' gradients are summed over a block's tiles in the block's own plane of device memory, which stays in the
//! L2 cache, in the order in which lanes hold them: four floats of one lane side by side, lanes next to each other. Each
//! number is read and written by one thread, so the order of the sum is the order of the tiles. `reduce` adds the planes.

use cuda_std::prelude::*;

use super::forward::{Head, RowSamples, ready};
use super::group::group;
use super::loss::Loss;
use super::product::{Arithmetic, Fragments, Plain, RowSums, Summing, WithSums, ZERO, multiply};
use super::size::{Embed, GradEmbed, GradHide, GradOut, Hide, Memory, OUTPUTS, Part, Place, Size, Split};
use super::target::first_output;
use super::tile::{AlongK, AlongRows, Lane, Tile, opaque};
use crate::action;

/// Where the parts of a plane begin, in floats.
#[derive(Clone, Copy)]
pub struct Plane {
    /// dWh, one chunk after the other.
    pub hid_weight: u32,
    /// dWc, one chunk after the other.
    pub cos_weight: u32,
    /// dWo, one group of outputs after the other.
    pub out_weight: u32,
    /// dbh.
    pub hid_bias: u32,
    /// dbc.
    pub cos_bias: u32,
    /// dbo.
    pub out_bias: u32,
    /// Floats of a plane.
    pub len: u32,
}

impl Plane {
    /// For a head's sizes.
    #[inline(always)]
    pub fn new<S: Size>(trunk: u32, outputs: u32) -> Plane {
        let (chunks, groups) = (trunk.div_ceil(S::CHUNK), outputs.div_ceil(OUTPUTS));
        let hid_weight = 0;
        let cos_weight = hid_weight + chunks * S::HIDDEN * S::CHUNK;
        let out_weight = cos_weight + chunks * S::CHUNK * S::COSINES;
        let hid_bias = out_weight + groups * OUTPUTS * S::HIDDEN;
        let cos_bias = hid_bias + S::HIDDEN;
        let out_bias = cos_bias + chunks * S::CHUNK;
        Plane {
            hid_weight,
            cos_weight,
            out_weight,
            hid_bias,
            cos_bias,
            out_bias,
            len: out_bias + groups * OUTPUTS,
        }
    }
}

/// The block's plane.
#[derive(Clone, Copy)]
struct Sums {
    planes: InOut<f32>,
    start: u32,
    /// Nothing is there yet.
    first: bool,
}

impl Sums {
    /// Adds A B, of [k, rows of C] and [k, columns of C], to the part of the plane that begins at `weight`, and if `U` says
    /// so the sums of A over k to the one that begins at `bias`. What was in the plane is read before the product and added
    /// after it, where there are registers for it; else it is read after the product.
    #[inline(always)]
    fn add<E: Arithmetic, P: Part, U: Summing>(&self, a: Tile, b: Tile, weight: u32, bias: u32) {
        // A thread of 512 has half the registers.
        let early = P::THREADS == 256 || P::TM * P::TN <= 8;
        let at = self.start + weight + 4 * opaque(thread::thread_idx());
        let mut before = ZERO;
        if early && !self.first {
            unroll_fragments!(P, n => {
                before[n] = self.planes.get4(at + 4 * P::THREADS * n as u32);
            });
        }
        let mut c = ZERO;
        let mut sums: RowSums = [0.0; 8];
        let sum = P::corner().1 == 0;
        E::multiply::<P, AlongRows, AlongRows, U>(a, b, a.rows, &mut c, sum, &mut sums);
        unroll_fragments!(P, n => {
            let at = at + 4 * P::THREADS * n as u32;
            let before = if early || self.first { before[n] } else { self.planes.get4(at) };
            let c = c[n];
            self.planes.set4(at, [c[0] + before[0], c[1] + before[1], c[2] + before[2], c[3] + before[3]]);
        });
        if U::ON && sum {
            let row = P::corner().0 + thread::lane() / 4;
            unroll8!(i < 2 * P::TM => {
                let sum = E::whole_sum(sums[i]);
                if thread::lane().is_multiple_of(4) {
                    self.add_one(bias + row + 8 * i as u32, sum);
                }
            });
        }
    }

    /// Adds the sums over k of A, of [k, rows of C], to the part of the plane that begins at `bias`, for `rows` of 64 rows.
    /// The first warpgroup does it.
    #[inline(always)]
    fn add_rows<E: Arithmetic, P: Part>(&self, a: Tile, rows: u32, bias: u32) {
        if group::<P>() == 0 {
            let mut sums: RowSums = [0.0; 8];
            E::sum_rows::<P, AlongRows>(a, 0, a.rows, &mut sums);
            let row = 16 * (opaque(thread::warp()) % 4) + thread::lane() / 4;
            unroll4!(i < 2 => {
                let row = row + 8 * i as u32;
                if row < rows && thread::lane().is_multiple_of(4) {
                    self.add_one(bias + row, sums[i]);
                }
            });
        }
    }

    /// Adds a number to the one at `at`.
    #[inline(always)]
    fn add_one(&self, at: u32, value: f32) {
        let at = self.start + at;
        self.planes.set(at, if self.first { value } else { self.planes.get(at) + value });
    }
}

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
    let sums = Sums { planes: loss.planes, start: thread::block_idx() * plane.len, first };
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
    head.copy_embed::<S>(place, split, 0);
    head.copy_hidden::<S>(0);
    let hidden = Memory::<S>::hidden();
    each_tile!(Hide<S>, (lane, corner, at, i, j) => {
        let scale = |u: f32, d: f32| E::stored(if u > 0.0 { d } else { head.slope * d });
        let (upper, lower) = (hidden.get_pair(lane, corner, 2 * i, j), hidden.get_pair(lane, corner, 2 * i + 1, j));
        let d = du[at];
        hidden.set_pair(lane, corner, 2 * i, j, [scale(upper[0], d[0]), scale(upper[1], d[1])]);
        hidden.set_pair(lane, corner, 2 * i + 1, j, [scale(lower[0], d[2]), scale(lower[1], d[3])]);
    });
    // A sample's rows are one warp's: dh need not go through shared memory. Of groups, they are several warps' whole rows.
    let in_warp = split.pieces == 1
        && if S::GROUPS { split.rows.is_multiple_of(16) } else { split.rows == 16 * Embed::<S>::TM as u32 };
    let chunks = head.chunks::<S>();
    let kept = E::keep::<Embed<S>, false>(Memory::<S>::cosines());
    shared::copy_wait::<1>();
    ready::<S>(); // du1 and the first chunk's cosine weight and h are there
    let mut chunk = 0;
    while chunk < chunks {
        let phi = head.embed::<E, S, false>(chunk, samples, &kept);
        ready::<S>(); // x is there, the cosine weight has been read
        head.copy_embed::<S>(place, split, chunk + 1);
        let (x, weight) = (Memory::<S>::x(), plane.hid_weight + chunk * S::HIDDEN * S::CHUNK);
        if chunk == 0 {
            sums.add::<E, GradHide<S>, WithSums>(hidden, x, weight, plane.hid_bias);
        } else {
            sums.add::<E, GradHide<S>, Plain>(hidden, x, weight, 0);
        }
        // Awaited here, the copies have had the time of one product or two.
        shared::copy_wait::<0>();
        ready::<S>(); // the hidden weight and the next cosine weight and h are there, x has been read
        let dh = d_phi::<E, S>(&phi, chunk, samples);
        if S::GROUPS && in_warp {
            store_warp_sums::<S>(&dh);
        }
        ready::<S>(); // d phi is there, the hidden weight has been read
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
            if S::GROUPS {
                sum_dh_of_warps::<S>(head, loss, place, split, chunk);
            } else {
                sum_dh_in_warp::<S>(head, loss, place, &dh, chunk);
            }
        } else {
            if S::HALF {
                thread::sync(); // d phi has been read
                store_products::<S>(&dh);
            }
            thread::sync(); // dx * phi is there
            sum_dh::<S>(head, loss, place, split, chunk, piece);
            thread::sync(); // it has been read
        }
        chunk += 1;
    }
    thread::sync(); // d phi and the cosines have been read
}

/// dx * phi to shared memory.
#[inline(always)]
fn store_products<S: Size>(dh: &Fragments) {
    let products = Memory::<S>::products();
    each_tile!(Embed<S>, (lane, corner, at, i, j) => {
        products.set_pair(lane, corner, 2 * i, j, [dh[at][0], dh[at][1]]);
        products.set_pair(lane, corner, 2 * i + 1, j, [dh[at][2], dh[at][3]]);
    });
}

/// dz of one group of outputs as a matrix [rows, outputs], zero where an action was not taken.
#[inline(always)]
fn spread<E: Arithmetic, S: Size>(loss: &Loss, split: &Split, place: &Place, outputs: u32) {
    let (z, items) = (Memory::<S>::d_outputs(), Memory::<S>::items());
    // A thread has 4 QUADS neighbouring outputs of one row.
    let per_row = S::THREADS / S::ROWS;
    let quads = OUTPUTS / 4 / per_row;
    let (row, part) = (thread::thread_idx() / per_row, thread::thread_idx() % per_row);
    let first = outputs * OUTPUTS + part * 4 * quads;
    let taken = if row < place.rows { loss.actions.get(place.first + split.sample(row)) } else { 0 };
    let mut quad = 0;
    while quad < quads {
        let mut four = [0.0f32; 4];
        let mut branch = 0;
        while branch < loss.branches {
            let output = first_output(loss.sizes, branch) + action::branch(taken, branch);
            let d = E::stored(items.get(S::ROWS * branch + row)); // zero for a row that does not exist
            unroll4!(e < 4 => {
                if output == first + 4 * quad + e as u32 {
                    four[e] = d;
                }
            });
            branch += 1;
        }
        z.set4(row, part * quads + quad, four);
        quad += 1;
    }
}

/// dx of a chunk from du1; d phi, which goes to shared memory, and dx * phi.
#[inline(always)]
fn d_phi<E: Arithmetic, S: Size>(phi: &Fragments, chunk: u32, samples: &RowSamples) -> Fragments {
    let mut dx = ZERO;
    let (hidden, weight) = (Memory::<S>::hidden(), Memory::<S>::hid_weight());
    multiply::<E, Embed<S>, AlongK, AlongRows>(hidden, weight, S::HIDDEN, &mut dx);
    let (trunk, d) = (Memory::<S>::trunk(chunk % 2), Memory::<S>::d_phi());
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

/// dh of a chunk: the sum of dx * phi, which is in shared memory, over each sample's rows in order.
#[inline(always)]
fn sum_dh<S: Size>(head: &Head, loss: &Loss, place: &Place, split: &Split, chunk: u32, piece: u32) {
    let products = Memory::<S>::products();
    let mut index = thread::thread_idx();
    while index < place.samples * S::CHUNK {
        let (sample, column) = (index / S::CHUNK, index % S::CHUNK);
        let feature = chunk * S::CHUNK + column;
        if feature < head.trunk {
            let at = (place.first + sample) * head.trunk + feature;
            let mut sum = if piece > 0 { loss.dh.get(at) } else { 0.0 };
            let first = sample * split.rows;
            let end = if first + split.rows < place.rows { first + split.rows } else { place.rows };
            let mut row = first;
            while row < end {
                sum += products.get(row, column);
                row += 1;
            }
            loss.dh.set(at, sum);
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
fn sum_dh_in_warp<S: Size>(head: &Head, loss: &Loss, place: &Place, products: &Fragments, chunk: u32) {
    const { assert!(S::GROUPS || 2 * Embed::<S>::TN <= 8) };
    let (row, column) = Embed::<S>::corner();
    let sample = row / (16 * Embed::<S>::TM as u32);
    if sample < place.samples {
        let (sums, at) = column_sums::<S>(products);
        let lanes = if S::GROUPS { 1 } else { 8 / (2 * Embed::<S>::TN as u32) };
        let feature = chunk * S::CHUNK + column + at;
        if Lane::new().g.is_multiple_of(lanes) && feature < head.trunk {
            loss.dh.set((place.first + sample) * head.trunk + feature, sums[0]);
        }
    }
}

/// The sums of dx * phi over each warp's rows, to shared memory.
#[inline(always)]
fn store_warp_sums<S: Size>(products: &Fragments) {
    const { assert!(!S::GROUPS || Embed::<S>::TN == 8 || Embed::<S>::TN == 4) };
    let (row, column) = Embed::<S>::corner();
    let (sums, at) = column_sums::<S>(products);
    let to = row / 16 * S::CHUNK + column + at;
    if Embed::<S>::TN == 8 {
        Memory::<S>::warp_sums().set2(to, sums);
    } else {
        Memory::<S>::warp_sums().set(to, sums[0]);
    }
}

/// dh of a chunk: the warps' sums, which are in shared memory, over each sample's rows in order.
#[inline(always)]
fn sum_dh_of_warps<S: Size>(head: &Head, loss: &Loss, place: &Place, split: &Split, chunk: u32) {
    let sums = Memory::<S>::warp_sums();
    let warps = split.rows / 16;
    let mut index = thread::thread_idx();
    while index < place.samples * S::CHUNK {
        let (sample, column) = (index / S::CHUNK, index % S::CHUNK);
        let feature = chunk * S::CHUNK + column;
        if feature < head.trunk {
            let mut sum = 0.0;
            let mut warp = 0;
            while warp < warps {
                sum += sums.get((sample * warps + warp) * S::CHUNK + column);
                warp += 1;
            }
            loss.dh.set((place.first + sample) * head.trunk + feature, sum);
        }
        index += S::THREADS;
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

/// Index of a float of a lane's part of C in a plane's part, from its row and column in C: the inverse of what
/// [`Sums::add`] does.
#[inline(always)]
pub fn fragment_place<P: Part>(offset: u32) -> (u32, u32) {
    let (e, fragment) = (offset % 4, offset / 4);
    let (thread, n) = (fragment % P::THREADS, fragment / P::THREADS);
    let (warp, lane) = (thread / 32, thread % 32);
    let (i, j) = (n / P::TN as u32, n % P::TN as u32);
    let (row, column) = P::place(warp);
    (row + 16 * i + lane / 4 + 8 * (e / 2), column + 8 * j + 2 * (lane % 4) + e % 2)
}
