//! The second half of the head's backward pass where warpgroups multiply: all gradients that go through x.
//!
//! The loss kernel leaves du1 and the cosines of every tile in device memory as they lay in shared memory (an image, halves:
//! of [B N, Hq] and of [B N, E]). Here a block has one chunk of the trunk's features, whose weights stay in shared memory and
//! whose dWh and dWc stay in registers, and goes through every `parts`th tile: phi and x of the chunk again; dx = du1 Wh; dh =
//! sum over a sample's rows of dx * phi; d phi = dx * h where phi is positive; dWc += d phi^T cos, dbc; dWh += du1^T x, and in
//! the first chunk dbh. While a tile is worked on the next one's image is copied.
//!
//! In one kernel for all, a block's plane of gradients was read and written for every tile (at B = 16384, N = 32: 5.8 GB a
//! step); the images are 80 KB for each 128 rows, and the blocks of all chunks read the same ones at the same time.
//!
//! A tile's products are added to the block's sums as f32 numbers, not by the tensor cores, whose sums are truncated.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::backward::d_phi;
use super::forward::{Head, ready, row_samples, write_constants};
use super::memory::Memory;
use super::pack::Packed;
use super::plane::Plane;
use super::product::{Arithmetic, Fragments, RowSums, WithSums, ZERO};
use super::size::{GradEmbed, GradHide, Part, Place, Size, Split, side_by_side};
use super::tile::{AlongRows, Tile, opaque};
use super::trunk::{TrunkGradient, store_products, store_warp_sums, sum_dh, sum_dh_of_warps};

/// A tile's image in device memory, in words of four bytes.
pub struct Image<S>(PhantomData<S>);

impl<S: Size> Image<S> {
    const HIDDEN: u32 = Memory::<S>::words(S::ROWS * S::HIDDEN);
    /// Words of an image.
    pub const WORDS: u32 = Self::HIDDEN + Memory::<S>::words(S::ROWS * S::COSINES);

    /// Where du1 of tile number `tile` begins.
    #[inline(always)]
    pub fn hidden(tile: u32) -> u32 {
        tile * Self::WORDS
    }

    /// Where its cosines begin.
    #[inline(always)]
    pub fn cosines(tile: u32) -> u32 {
        tile * Self::WORDS + Self::HIDDEN
    }
}

/// What the kernel reads beside the head, and what it writes.
#[derive(Clone, Copy)]
pub struct Chunks {
    /// Blocks of a chunk: the part p has the tiles p, p + parts, ...
    pub parts: u32,
    /// N.
    pub quantiles: u32,
    /// The tiles' images, see [`Image`].
    pub images: In<f32>,
    /// Where dh goes.
    pub to: TrunkGradient,
    /// Parts of the parameters' gradients, a plane for each part.
    pub planes: InOut<f32>,
}

/// One block's chunk and part.
#[inline(always)]
pub fn run<E: Arithmetic, S: Size>(head: &Head, chunks: &Chunks) {
    let split = Split::new::<S>(chunks.quantiles);
    let samples = row_samples::<S>(&split);
    write_constants::<S>(&split);
    let count = head.chunks::<S>();
    let count = if count > 0 { count } else { 1 };
    let (chunk, part) = (thread::block_idx() % count, thread::block_idx() / count);
    let tiles = split.groups(head.batch);
    // A sample's rows are several warps' whole rows.
    let whole_warps = split.rows.is_multiple_of(16);
    let second_half = opaque(thread::thread_idx()) >= GradHide::<S>::THREADS;
    let block = Block { head, chunks, split, chunk };
    block.copy_weights::<S>();
    block.copy_tile::<S>(part, 0);
    block.copy_cosines::<S>(part, 0);
    shared::copy_commit();
    shared::copy_wait::<0>();
    ready::<S>(); // the chunk's weights and the first tile are there
    let (mut first, mut second) = (Sum::new(), Sum::new());
    let (mut tile, mut n) = (part, 0);
    while tile < tiles {
        let place = Place::new::<S>(&split, head.batch, tile, 0);
        let (next, beyond) = (tile + chunks.parts, n + 1);
        block.copy_tile::<S>(next, beyond);
        if Memory::<S>::COSINES_TWICE {
            block.copy_cosines::<S>(next, beyond);
        }
        shared::copy_commit();
        let (hidden, cosines) = (Memory::<S>::alternate_hidden(n), Memory::<S>::alternate_cosines(n));
        let (trunk, x, d) = (Memory::<S>::trunk(n % 2), Memory::<S>::x(), Memory::<S>::d_phi());
        let phi = head.embed_of_groups::<E, S>(cosines, trunk, &samples);
        let dh = d_phi::<E, S>(&phi, hidden, trunk, &samples);
        if whole_warps {
            store_warp_sums::<S>(&dh);
        }
        ready::<S>(); // x, d phi and the warps' sums are there
        if side_by_side::<S>() {
            if second_half {
                first.add::<E, GradEmbed<S>>(d, cosines, true);
            } else {
                first.add::<E, GradHide<S>>(hidden, x, chunk == 0);
            }
        } else {
            second.add::<E, GradEmbed<S>>(d, cosines, true);
            if whole_warps && !Memory::<S>::COSINES_TWICE {
                thread::sync(); // the cosines have been read
                block.copy_cosines::<S>(next, beyond);
                shared::copy_commit();
            }
            first.add::<E, GradHide<S>>(hidden, x, chunk == 0);
        }
        if whole_warps {
            sum_dh_of_warps::<S>(head, &chunks.to, &place, &split, chunk);
        } else {
            // The products need x's and d phi's place. Kept until now, they would take registers that others lack.
            thread::sync(); // x and d phi have been read
            let phi = head.embed_of_groups::<E, S>(cosines, trunk, &samples);
            let dh = d_phi::<E, S>(&phi, hidden, trunk, &samples);
            thread::sync(); // x and d phi have been written once more, the cosines have been read
            if !Memory::<S>::COSINES_TWICE {
                block.copy_cosines::<S>(next, beyond);
                shared::copy_commit();
            }
            store_products::<S>(&dh);
            thread::sync(); // dx * phi is there
            sum_dh::<S>(head, &chunks.to, &place, &split, chunk, 0);
        }
        shared::copy_wait::<0>();
        ready::<S>(); // the next tile is there; x, d phi and the sums have been read
        (tile, n) = (next, beyond);
    }
    let plane = Plane::new::<S>(head.trunk, head.outputs);
    let start = part * plane.len;
    let hid_weight = start + plane.hid_weight + chunk * S::HIDDEN * S::CHUNK;
    let cos_weight = start + plane.cos_weight + chunk * S::CHUNK * S::COSINES;
    let (hid_bias, cos_bias) = (start + plane.hid_bias, start + plane.cos_bias + chunk * S::CHUNK);
    if side_by_side::<S>() && second_half {
        first.store::<E, GradEmbed<S>>(chunks, cos_weight, cos_bias, true);
    } else {
        first.store::<E, GradHide<S>>(chunks, hid_weight, hid_bias, chunk == 0);
        if !side_by_side::<S>() {
            second.store::<E, GradEmbed<S>>(chunks, cos_weight, cos_bias, true);
        }
    }
}

/// What a block copies.
struct Block<'a> {
    head: &'a Head,
    chunks: &'a Chunks,
    split: Split,
    chunk: u32,
}

impl Block<'_> {
    /// Starts copying the chunk's weights, and its bias to both places where h will be.
    #[inline(always)]
    fn copy_weights<S: Size>(&self) {
        let (cos, hid) = (Memory::<S>::cos_weight(), Memory::<S>::hid_weight());
        let packed = Packed::new::<S>(self.head.trunk, self.head.outputs);
        cos.copy::<S>(&self.head.packed, self.chunk * cos.words());
        hid.copy::<S>(&self.head.packed, packed.hid_weight + self.chunk * hid.words());
        self.head.copy_bias::<S>(self.chunk, 0);
        self.head.copy_bias::<S>(self.chunk, 1);
    }

    /// Starts copying du1 and h of a tile, if there is such a one, as the block's number `n`.
    #[inline(always)]
    fn copy_tile<S: Size>(&self, tile: u32, n: u32) {
        if tile < self.split.groups(self.head.batch) {
            let place = Place::new::<S>(&self.split, self.head.batch, tile, 0);
            Memory::<S>::alternate_hidden(n).copy::<S>(&self.chunks.images, Image::<S>::hidden(tile));
            self.head.copy_features::<S>(Memory::<S>::trunk(n % 2), &place, &self.split, self.chunk);
        }
    }

    /// The same of its cosines.
    #[inline(always)]
    fn copy_cosines<S: Size>(&self, tile: u32, n: u32) {
        if tile < self.split.groups(self.head.batch) {
            Memory::<S>::alternate_cosines(n).copy::<S>(&self.chunks.images, Image::<S>::cosines(tile));
        }
    }
}

/// A lane's part of a gradient, and of its bias's.
struct Sum {
    weight: Fragments,
    bias: RowSums,
}

impl Sum {
    #[inline(always)]
    fn new() -> Sum {
        Sum { weight: ZERO, bias: [0.0; 8] }
    }

    /// Adds A B, of [k, rows of C] and [k, columns of C], and if `bias` says so the sums of A over k.
    #[inline(always)]
    fn add<E: Arithmetic, P: Part>(&mut self, a: Tile, b: Tile, bias: bool) {
        let mut c = ZERO;
        let sum = bias && P::corner().1 == 0;
        E::multiply::<P, AlongRows, AlongRows, WithSums>(a, b, a.rows, &mut c, sum, &mut self.bias);
        unroll_fragments!(P, n => {
            unroll4!(e < 4 => {
                self.weight[n][e] += c[n][e];
            });
        });
    }

    /// Writes both to the part's plane, from `weight` and `bias` on.
    #[inline(always)]
    fn store<E: Arithmetic, P: Part>(&self, chunks: &Chunks, weight: u32, bias: u32, with_bias: bool) {
        let out = |value: f32| if E::SCALED { value * chunks.to.unit } else { value };
        let at = weight + 4 * (opaque(thread::thread_idx()) - P::FIRST);
        unroll_fragments!(P, n => {
            let c = self.weight[n];
            chunks.planes.set4(at + 4 * P::THREADS * n as u32, [out(c[0]), out(c[1]), out(c[2]), out(c[3])]);
        });
        if with_bias && P::corner().1 == 0 && thread::lane().is_multiple_of(4) {
            let row = P::corner().0 + thread::lane() / 4;
            unroll4!(i < 2 => {
                chunks.planes.set(bias + row + 8 * i as u32, out(self.bias[i]));
            });
        }
    }
}
