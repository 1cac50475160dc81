//! The second half of the head's backward pass where warpgroups multiply: all gradients that go through x.
//!
//! The loss kernel leaves du1 and the cosines of every tile in device memory as they lay in shared memory (an image, halves:
//! of [B N, Hq] and of [B N, E]). Here a block goes through every `parts`th tile with the weights of its chunks of the trunk's
//! features in shared memory and their gradients in registers. While a tile is worked on the next one's image is copied.
//!
//! All matrices are transposed: features are the rows of C, 64 for a warpgroup, and a tile's rows its columns, 64 at a time.
//! phi' = relu(Wc cos' + bc) and dx' = Wh' du1' come from shared memory; x' = h phi' and d phi' = (dx' h where phi' is positive)
//! are made in the registers where they are the operands of dWh' += x' du1 and dWc += d phi' cos. Neither is ever in memory,
//! warpgroups never wait for each other but for the tile's copies, and a lane has two features, so that dh (a sum of dx phi over a sample's
//! rows) needs four lanes and dbc none. Of the medium size a warpgroup has no registers for both gradients: one makes dWh,
//! another dWc and dh of the same features.
//!
//! A tile's 64 rows take one wait: the products of the gradients of the 64 before and the two forward ones of these follow each
//! other on the tensor cores. What the cores add is truncated, by 2^-24 of the sum on the average; so a warpgroup's sums go to the plane
//! in device memory, which is added to as f32, after [`TILES`] tiles.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::forward::{Head, ready, relu};
use super::memory::Memory;
use super::pack::Packed;
use super::product::{Fragments, ZERO};
use super::size::{
    ChunkMedium, ChunkSmall, Fp16ChunkMedium, Fp16ChunkSmall, MAX_QUANTILES, Place, Size, Split,
};
use super::tile::{AlongK, AlongRows, Elements, Features, Order, Tile, opaque};
use super::trunk::TrunkGradient;

mod gradients;
mod layout;

use gradients::{Gradients, sum_hidden};
#[cfg(not(target_arch = "nvptx64"))]
pub use layout::bytes;
pub use layout::{Image, chunks_of_block};
use layout::{Layout, ROWS, across, both};

/// Tiles whose sums are the tensor cores' alone.
const TILES: u32 = 16;

/// A product of the size's halves with N octets of columns.
struct Share<S, const N: usize, A, B>(PhantomData<(S, A, B)>);

impl<S: Size, const N: usize, A: Order, B: Order> warpgroup::Product for Share<S, N, A, B> {
    const HALVES: warpgroup::Halves = match S::ELEMENTS {
        Elements::Fp16 => warpgroup::Halves::Fp16,
        _ => warpgroup::Halves::Bf16,
    };
    const OCTETS: usize = N;
    const ACROSS_A: bool = !A::ALONG_K;
    const ACROSS_B: bool = !B::ALONG_K;
}

/// The chain of products of a size.
struct Products<S>(PhantomData<S>);

impl<S: Size> warpgroup::Chain for Products<S> {
    const HALVES: warpgroup::Halves = <Share<S, 8, AlongK, AlongK> as warpgroup::Product>::HALVES;
    const PIECES: usize = (S::HIDDEN / 64) as usize;
}

/// 64 rows of x' or d phi' as an operand, two a word.
type Operand = [[u32; 4]; 4];

/// What the kernel reads beside the head, and what it writes.
#[derive(Clone, Copy)]
pub struct Chunks {
    /// Blocks of the same chunks: the part p has the tiles p, p + parts, ...
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

/// One block's chunks and part.
#[inline(always)]
pub fn run<S: Size>(head: &Head, chunks: &Chunks) {
    let split = Split::new::<S>(chunks.quantiles);
    let count = head.chunks::<S>().div_ceil(chunks_of_block::<S>());
    let count = if count > 0 { count } else { 1 };
    let group = opaque(thread::warp()) / 4;
    let (first, part) = (thread::block_idx() % count * chunks_of_block::<S>(), thread::block_idx() / count);
    let local = if both::<S>() { group } else { 0 };
    let block = Block { head, chunks, split, first, part, local, chunk: first + local };
    block.write_constants::<S>();
    block.copy_weights::<S>();
    if both::<S>() {
        block.go_through::<S, true, true>();
    } else if group == 0 {
        block.go_through::<S, true, false>();
    } else {
        block.go_through::<S, false, true>();
    }
}

/// A block, or one of its warpgroups.
struct Block<'a> {
    head: &'a Head,
    chunks: &'a Chunks,
    split: Split,
    /// The block's first chunk.
    first: u32,
    part: u32,
    /// The warpgroup's chunk of the block.
    local: u32,
    /// The same of the trunk; beyond the last one where they have no whole number of blocks.
    chunk: u32,
}

/// The sample that a warpgroup has come to. Its rows are whole sixteens.
struct Sample {
    /// Samples begun.
    begun: u32,
    /// Sixteens of rows that are left of the last one.
    left: u32,
    /// Its h, of two features.
    h: [f32; 2],
    /// Its sums of dx phi so far, of two features.
    sums: [f32; 2],
}

/// One tile's buffers and place.
struct Here {
    hidden: Tile,
    cosines: Tile,
    trunk: Tile,
    below: Tile,
    place: Place,
}

impl Here {
    #[inline(always)]
    fn new<S: Size>(block: &Block, tile: u32, n: u32) -> Here {
        Here {
            hidden: Layout::<S>::hidden(n),
            cosines: Layout::<S>::cosines(n),
            trunk: Layout::<S>::trunk(block.local, n),
            below: Layout::<S>::below(block.local, n),
            place: Place::new::<S>(&block.split, block.head.batch, tile, 0),
        }
    }
}

/// Two features of a warpgroup that a lane has: this one and the one eight further on.
#[inline(always)]
fn feature() -> u32 {
    16 * (opaque(thread::warp()) % 4) + opaque(thread::lane()) % 32 / 4
}

impl Block<'_> {
    /// Ones, and the rows of h for rows without sample.
    #[inline(always)]
    fn write_constants<S: Size>(&self) {
        let index = thread::thread_idx();
        let words = Memory::<S>::words(8 * 64);
        let ones = shared::array::<u32>(4 * Layout::<S>::ONES, words);
        let mut word = index;
        while word < words {
            ones.set(word, S::ELEMENTS.ones());
            word += S::THREADS;
        }
        let quads = S::CHUNK / 4;
        if index < 2 * chunks_of_block::<S>() * quads {
            let (number, quad) = (index / quads, index % quads);
            let odd = number / chunks_of_block::<S>();
            Layout::<S>::trunk(number % chunks_of_block::<S>(), odd).set4(self.split.samples, quad, [0.0; 4]);
        }
    }

    /// Starts copying the chunks' weights.
    #[inline(always)]
    fn copy_weights<S: Size>(&self) {
        let packed = Packed::new::<S>(self.head.trunk, self.head.outputs);
        let mut local = 0;
        while local < chunks_of_block::<S>() {
            let chunk = self.first + local;
            if chunk < self.head.chunks::<S>() {
                let (cos, hid) = (Layout::<S>::cos_weight(local), Layout::<S>::hid_weight(local));
                cos.copy::<S>(&self.head.packed, chunk * cos.words());
                hid.copy::<S>(&self.head.packed, packed.hid_weight + chunk * hid.words());
            }
            local += 1;
        }
    }

    /// Starts copying a tile's image and h, if there is such a one, as the block's number `n`; closes the group of copies.
    #[inline(always)]
    fn copy_tile<S: Size>(&self, tile: u32, n: u32) {
        if tile < self.split.groups(self.head.batch) {
            let place = Place::new::<S>(&self.split, self.head.batch, tile, 0);
            Layout::<S>::hidden(n).copy::<S>(&self.chunks.images, Image::<S>::hidden(tile));
            Layout::<S>::cosines(n).copy::<S>(&self.chunks.images, Image::<S>::cosines(tile));
            let mut local = 0;
            while local < chunks_of_block::<S>() {
                let h = Features {
                    h: self.head.h,
                    trunk: self.head.trunk,
                    batch: self.head.batch,
                    row: place.first,
                    column: (self.first + local) * S::CHUNK,
                    vectors: self.head.vectors,
                };
                h.copy::<S>(Layout::<S>::trunk(local, n), self.split.samples);
                let below = Features { h: self.chunks.to.below, ..h };
                below.copy::<S>(Layout::<S>::below(local, n), self.split.samples);
                local += 1;
            }
        }
        shared::copy_commit();
    }

    /// All of the part's tiles: dWh if `HIDE`, the other gradients if `EMBED`.
    #[inline(always)]
    fn go_through<S: Size, const HIDE: bool, const EMBED: bool>(&self) {
        let tiles = self.split.groups(self.head.batch);
        let bias = [0, 8].map(|further| {
            let at = self.chunk * S::CHUNK + feature() + further;
            if at < self.head.trunk { self.head.cos_bias.get(at) } else { 0.0 }
        });
        self.copy_tile::<S>(self.part, 0);
        let (mut tile, mut n) = (self.part, 0);
        if self.chunk >= self.head.chunks::<S>() {
            // No chunk is left for this warpgroup: it copies, and waits for the others.
            while tile < tiles {
                self.await_tile::<S>(tile, n);
                (tile, n) = (tile + self.chunks.parts, n + 1);
            }
            return;
        }
        while tile < tiles {
            let (first, end) = (n == 0, n + TILES);
            let mut gradients = Gradients::new();
            while tile < tiles && n < end {
                self.await_tile::<S>(tile, n);
                self.tile::<S, HIDE, EMBED>(&Here::new::<S>(self, tile, n), bias, &mut gradients);
                (tile, n) = (tile + self.chunks.parts, n + 1);
            }
            self.store::<S, HIDE, EMBED>(&gradients, first);
        }
    }

    /// Waits for a tile, the block's number `n`, and starts copying the next one where the one before was.
    #[inline(always)]
    fn await_tile<S: Size>(&self, tile: u32, n: u32) {
        shared::copy_wait::<0>();
        ready::<S>(); // the tile is there (at first the weights and constants too), the one before has been read
        self.copy_tile::<S>(tile + self.chunks.parts, n + 1);
    }

    /// One tile: two times 64 rows.
    #[inline(always)]
    fn tile<S: Size, const HIDE: bool, const EMBED: bool>(
        &self,
        here: &Here,
        bias: [f32; 2],
        gradients: &mut Gradients,
    ) {
        const { assert!(S::ROWS == 2 * ROWS && S::COSINES == 64) };
        let mut sample = Sample { begun: 0, left: 0, h: [0.0; 2], sums: [0.0; 2] };
        let (mut phi, mut dx) = (columns_of(bias), ZERO);
        let two = self.two::<S>(here, 0);
        if EMBED {
            warpgroup::multiply_two::<Products<S>>(&two, &mut phi, &mut dx);
        } else {
            let [weight, cosines] = two.first;
            warpgroup::multiply::<Share<S, 8, AlongK, AlongK>, 4>(weight, cosines, &mut phi);
        }
        let (x, d) = self.operands::<S, HIDE, EMBED>(here, &phi, &dx, &mut sample);
        (phi, dx) = (columns_of(bias), ZERO);
        let two = self.two::<S>(here, ROWS);
        let hidden = |piece: u32, row: u32| across(here.hidden, 16 * piece, row);
        let (cosines, ones) = (across(here.cosines, 0, 0), Layout::<S>::ones().operand::<AlongK>(0).0);
        let Gradients { hid_weight: [wide, further], cos_weight, cos_bias, .. } = gradients;
        if HIDE && EMBED {
            let rows = [
                warpgroup::Rows { a: &x, b: hidden(0, 0), c: wide },
                warpgroup::Rows { a: &d, b: cosines, c: cos_weight },
                warpgroup::Rows { a: &d, b: ones, c: cos_bias },
            ];
            warpgroup::multiply_rows_and_two::<Products<S>>(rows, &two, &mut phi, &mut dx);
        } else if HIDE {
            let rows = [
                warpgroup::Rows { a: &x, b: hidden(0, 0), c: wide },
                warpgroup::Rows { a: &x, b: hidden(1, 0), c: further },
            ];
            warpgroup::multiply_wide_rows_and_one::<Products<S>>(rows, &two, &mut phi);
        } else {
            let rows = [
                warpgroup::Rows { a: &d, b: cosines, c: cos_weight },
                warpgroup::Rows { a: &d, b: ones, c: cos_bias },
            ];
            warpgroup::multiply_narrow_rows_and_two::<Products<S>>(rows, &two, &mut phi, &mut dx);
        }
        let (x, d) = self.operands::<S, HIDE, EMBED>(here, &phi, &dx, &mut sample);
        if HIDE {
            warpgroup::multiply_rows::<Share<S, 16, AlongK, AlongRows>>(&x, hidden(0, ROWS), wide);
            if S::HIDDEN > 128 {
                warpgroup::multiply_rows::<Share<S, 16, AlongK, AlongRows>>(&x, hidden(1, ROWS), further);
            }
        }
        if EMBED {
            let cosines = across(here.cosines, 0, ROWS);
            warpgroup::multiply_rows::<Share<S, 8, AlongK, AlongRows>>(&d, cosines, cos_weight);
            warpgroup::multiply_rows::<Share<S, 1, AlongK, AlongK>>(&d, ones, cos_bias);
            self.end_sample::<S>(here, &sample);
            if self.chunk == 0 {
                sum_hidden::<S>(here.hidden, &mut gradients.hid_bias);
            }
        }
    }

    /// The operands of phi' and dx' of 64 rows of a tile, from `row` on.
    #[inline(always)]
    fn two<S: Size>(&self, here: &Here, row: u32) -> warpgroup::Two {
        let (cos_weight, _) = Layout::<S>::cos_weight(self.local).operand::<AlongK>(0);
        let (cosines, _) = here.cosines.operand::<AlongK>(row / 8);
        let (hid_weight, _) = Layout::<S>::hid_weight(self.local).operand::<AlongRows>(0);
        let (hidden, next) = here.hidden.operand::<AlongK>(row / 8);
        warpgroup::Two { first: [cos_weight, cosines], second: [hid_weight, hidden], next }
    }

    /// x' and d phi' of the next 64 rows of a tile, from phi' without its activation and dx'.
    #[inline(always)]
    fn operands<S: Size, const HIDE: bool, const EMBED: bool>(
        &self,
        here: &Here,
        phi: &Fragments,
        dx: &Fragments,
        sample: &mut Sample,
    ) -> (Operand, Operand) {
        let (mut x, mut d) = ([[0; 4]; 4], [[0; 4]; 4]);
        unroll4!(q < 4 => {
            if sample.left == 0 {
                if EMBED {
                    self.end_sample::<S>(here, sample);
                }
                self.begin_sample::<S>(here, sample);
            }
            sample.left -= 1;
            unroll4!(high < 2 => {
                let j = 2 * q + high;
                let h = [sample.h[0], sample.h[0], sample.h[1], sample.h[1]];
                let (p, v) = (phi[j].map(relu), dx[j]);
                let pair = |first: f32, second: f32| S::ELEMENTS.pair(first, second);
                if HIDE {
                    x[q][2 * high] = pair(h[0] * p[0], h[1] * p[1]);
                    x[q][2 * high + 1] = pair(h[2] * p[2], h[3] * p[3]);
                }
                if EMBED {
                    let d_phi = |e: usize| if p[e] > 0.0 { v[e] * h[e] } else { 0.0 };
                    d[q][2 * high] = pair(d_phi(0), d_phi(1));
                    d[q][2 * high + 1] = pair(d_phi(2), d_phi(3));
                    let add = |sum: f32, e: usize| math::fma(v[e + 1], p[e + 1], math::fma(v[e], p[e], sum));
                    sample.sums = [add(sample.sums[0], 0), add(sample.sums[1], 2)];
                }
            });
        });
        (x, d)
    }

    /// Goes on to the next sample: its h.
    #[inline(always)]
    fn begin_sample<S: Size>(&self, here: &Here, sample: &mut Sample) {
        let rows = self.split.samples;
        let row = if sample.begun < rows { sample.begun } else { rows };
        let h = [here.trunk.get(row, feature()), here.trunk.get(row, feature() + 8)];
        let left = self.split.stride / 16;
        *sample =
            Sample { begun: sample.begun + 1, left: if left > 0 { left } else { 1 }, h, sums: [0.0; 2] };
    }

    /// Writes dh of the last sample begun, if there is one.
    #[inline(always)]
    fn end_sample<S: Size>(&self, here: &Here, sample: &Sample) {
        if sample.begun > 0 {
            self.write_dh::<S>(here, sample.begun - 1, over_lanes(sample.sums));
        }
    }

    /// Writes dh of a sample from the sums of two features, which the lanes that share them all have.
    #[inline(always)]
    fn write_dh<S: Size>(&self, here: &Here, sample: u32, sums: [f32; 2]) {
        let which = thread::lane() % 4;
        let local = feature() + 8 * which;
        let feature = self.chunk * S::CHUNK + local;
        if which < 2 && sample < here.place.samples && feature < self.head.trunk {
            let sum = if which == 0 { sums[0] } else { sums[1] };
            let to = &self.chunks.to;
            let at = (here.place.first + sample) * self.head.trunk + feature;
            to.dh.set(at, to.through::<S>(sum, here.below.get(sample, local)));
        }
    }
}

/// phi' without its product: two features' bias in each column.
#[inline(always)]
fn columns_of(bias: [f32; 2]) -> Fragments {
    let mut phi = ZERO;
    unroll8!(j < 8 => {
        phi[j] = [bias[0], bias[0], bias[1], bias[1]];
    });
    phi
}

/// Sums over the four lanes that have the same features.
#[inline(always)]
fn over_lanes(sums: [f32; 2]) -> [f32; 2] {
    sums.map(|sum| {
        let pair = sum + warp::shfl_xor(sum, 1);
        pair + warp::shfl_xor(pair, 2)
    })
}

/// A sample's rows are in one tile, so that it has ended with it.
const fn holds_samples<S: Size>() {
    assert!(S::ROWS >= MAX_QUANTILES);
}

const _: () = {
    holds_samples::<ChunkSmall>();
    holds_samples::<ChunkMedium>();
    holds_samples::<Fp16ChunkSmall>();
    holds_samples::<Fp16ChunkMedium>();
};
