//! The head's forward pass over one tile of rows: phi, x, u1 and z; see the module above for the letters.
//!
//! x has too many columns for shared memory and passes through it in chunks: a chunk of phi from the cosines, a chunk of
//! x = h * phi, and its part of the hidden layer's sum, which stays in registers. The weights stream through shared memory
//! beside it: while one product runs, the other one's next chunk is copied. With `h` rows without sample are zero, and
//! what lies beyond a matrix is zero there too, so that no product asks where a matrix ends.

use cuda_std::prelude::*;

use super::group::x_in_registers;
use super::memory::Memory;
use super::pack::Packed;
use super::product::{Arithmetic, Fragments, ZERO, multiply};
use super::size::{Embed, Hide, OUTPUTS, Part, Place, Quantiles, Size, Split};
use super::tile::{AlongK, Features, Tile, opaque};

/// A head's parameters and what it reads.
#[derive(Clone, Copy)]
pub struct Head {
    /// B.
    pub batch: u32,
    /// H2.
    pub trunk: u32,
    /// E.
    pub cosines: u32,
    /// Hq.
    pub hidden: u32,
    /// A.
    pub outputs: u32,
    /// Negative slope of the hidden layer.
    pub slope: f32,
    /// Whether h has an address and rows of whole 16 bytes.
    pub vectors: bool,
    /// h [B, H2].
    pub h: In<f32>,
    /// Wc, Wh and Wo as `pack` lays them out.
    pub packed: In<f32>,
    /// bc [H2].
    pub cos_bias: In<f32>,
    /// bh [Hq].
    pub hid_bias: In<f32>,
    /// bo [A].
    pub out_bias: In<f32>,
}

/// The samples of a lane's rows, counted from the tile's first: of 16 i + g at 2i, of 16 i + g + 8 at 2i + 1.
pub type RowSamples = [u32; 8];

/// The samples of a lane's rows of phi.
#[inline(always)]
pub fn row_samples<S: Size>(split: &Split) -> RowSamples {
    let first = Embed::<S>::corner().0 + thread::lane() / 4;
    let mut samples = [0; 8];
    unroll8!(i < 2 * Embed::<S>::TM => {
        samples[i] = split.sample(first + 8 * i as u32);
    });
    samples
}

/// Waits for the whole block; what it has written, and the copies that it has waited for, are there for products too.
#[inline(always)]
pub fn ready<S: Size>() {
    if S::GROUPS {
        warpgroup::publish();
    }
    thread::sync();
}

/// Writes the row of h for rows without sample, and the ones of warpgroups. Other threads see them after a barrier.
#[inline(always)]
pub fn write_constants<S: Size>(split: &Split) {
    let index = thread::thread_idx();
    if S::GROUPS && index < Memory::<S>::words(8 * 64) {
        Memory::<S>::ones().set(index, S::ELEMENTS.ones());
    }
    if index < S::CHUNK / 2 {
        let (odd, quad) = (index / (S::CHUNK / 4), index % (S::CHUNK / 4));
        Memory::<S>::trunk(odd).set4(split.samples, quad, [0.0; 4]);
    }
}

/// Two biases of neighbouring columns, zero where there is none.
#[inline(always)]
fn two(bias: &In<f32>, at: u32, len: u32) -> [f32; 2] {
    [if at < len { bias.get(at) } else { 0.0 }, if at + 1 < len { bias.get(at + 1) } else { 0.0 }]
}

/// The lane's first column of an octet. Of groups, of which the corner's column may be a constant, [`opaque`]: the compiler
/// would keep all that follows from it from one tile to the next.
#[inline(always)]
fn lane_column<S: Size>() -> u32 {
    2 * (if S::GROUPS { opaque(thread::lane()) } else { thread::lane() } % 4)
}

/// Sums that begin with two columns' biases; those of warpgroups have begun with them.
#[inline(always)]
fn plus<S: Size>(sums: [f32; 4], [b0, b1]: [f32; 2]) -> [f32; 4] {
    if S::GROUPS { sums } else { [sums[0] + b0, sums[1] + b1, sums[2] + b0, sums[3] + b1] }
}

/// A lane's part of a product of warpgroups, of which each column begins with its bias.
#[inline(always)]
pub fn biases<P: Part>(bias: Shared<f32>) -> Fragments {
    let first = P::corner().1 + 2 * (opaque(thread::lane()) % 4);
    let mut sums = ZERO;
    unroll16!(j < P::TN => {
        let [b0, b1] = bias.get2(first + 8 * j as u32);
        sums[j] = [b0, b1, b0, b1];
    });
    sums
}

/// u where positive, slope * u elsewhere: the larger of the two, as the slope is 0 to 1.
#[inline(always)]
fn leaky(u: f32, slope: f32) -> f32 {
    larger(u, slope * u)
}

/// 0 where not positive; NaN stays.
#[inline(always)]
pub fn relu(u: f32) -> f32 {
    larger(u, 0.0)
}

/// The larger number; NaN if one is.
#[inline(always)]
fn larger(u: f32, v: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let larger: f32;
        // SAFETY: computes from its operands alone. One instruction where a comparison and a choice are two.
        unsafe {
            core::arch::asm!("max.NaN.f32 {}, {}, {};", out(reg32) larger, in(reg32) u, in(reg32) v,
                options(pure, nomem, nostack, preserves_flags));
        }
        larger
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        if u > v || u.is_nan() { u } else { v }
    }
}

impl Head {
    /// Writes the hidden layer's bias for warpgroups. Other threads see it after a barrier.
    #[inline(always)]
    pub fn write_bias<S: Size>(&self) {
        let mut index = thread::thread_idx();
        while S::GROUPS && index < S::HIDDEN {
            let bias = if index < self.hidden { self.hid_bias.get(index) } else { 0.0 };
            Memory::<S>::hid_bias().set(index, bias);
            index += S::THREADS;
        }
    }

    /// Groups of [`OUTPUTS`] outputs.
    #[inline(always)]
    pub fn output_groups(&self) -> u32 {
        self.outputs.div_ceil(OUTPUTS)
    }

    /// Chunks of trunk features.
    #[inline(always)]
    pub fn chunks<S: Size>(&self) -> u32 {
        self.trunk.div_ceil(S::CHUNK)
    }

    /// Starts copying a chunk of the cosine layer's weight and of h, as one group.
    #[inline(always)]
    pub fn copy_embed<S: Size>(&self, place: &Place, split: &Split, chunk: u32) {
        self.copy_embed_to::<S>(Memory::<S>::cos_weight(), place, split, chunk);
    }

    /// The same, the weight to another place.
    #[inline(always)]
    pub fn copy_embed_to<S: Size>(&self, weight: Tile, place: &Place, split: &Split, chunk: u32) {
        if chunk < self.chunks::<S>() {
            weight.copy::<S>(&self.packed, chunk * weight.words());
            self.copy_features::<S>(Memory::<S>::trunk(chunk % 2), place, split, chunk);
            if S::GROUPS {
                self.copy_bias::<S>(chunk, chunk);
            }
        }
        shared::copy_commit();
    }

    /// Starts copying a chunk of h.
    #[inline(always)]
    pub fn copy_features<S: Size>(&self, to: Tile, place: &Place, split: &Split, chunk: u32) {
        let h = Features {
            h: self.h,
            trunk: self.trunk,
            batch: self.batch,
            row: place.first,
            column: chunk * S::CHUNK,
            vectors: self.vectors,
        };
        h.copy::<S>(to, split.samples);
    }

    /// Starts copying a chunk of the cosine layer's bias to the row beside the chunk of h that is even or `odd`.
    #[inline(always)]
    pub fn copy_bias<S: Size>(&self, chunk: u32, odd: u32) {
        let column = thread::thread_idx();
        if column < S::CHUNK {
            let from = chunk * S::CHUNK + column;
            let (from, bytes) = if from < self.trunk { (from, 4) } else { (0, 0) };
            Memory::<S>::trunk(odd % 2).copy_one(Memory::<S>::BIAS_ROW, column, &self.cos_bias, from, bytes);
        }
    }

    /// Starts copying a chunk of the hidden layer's weight, as one group.
    #[inline(always)]
    pub fn copy_hidden<S: Size>(&self, chunk: u32) {
        self.copy_hidden_to::<S>(Memory::<S>::hid_weight(), chunk);
    }

    /// The same, to another place.
    #[inline(always)]
    pub fn copy_hidden_to<S: Size>(&self, weight: Tile, chunk: u32) {
        if chunk < self.chunks::<S>() {
            let packed = Packed::new::<S>(self.trunk, self.outputs);
            weight.copy::<S>(&self.packed, packed.hid_weight + chunk * weight.words());
        }
        shared::copy_commit();
    }

    /// Starts copying a group of the output layer's rows, and of warpgroups its bias.
    #[inline(always)]
    pub fn copy_outputs<S: Size>(&self, group: u32) {
        let (weight, packed) = (Memory::<S>::out_weight(), Packed::new::<S>(self.trunk, self.outputs));
        weight.copy::<S>(&self.packed, packed.out_weight + group * weight.words());
        let index = thread::thread_idx();
        if S::GROUPS && index < OUTPUTS {
            let from = group * OUTPUTS + index;
            let (from, bytes) = if from < self.outputs { (from, 4) } else { (0, 0) };
            shared::copy_async4(Memory::<S>::out_bias(), index, &self.out_bias, from, bytes);
        }
        shared::copy_commit();
    }

    /// phi of a chunk, which stays in registers, and x, which goes to shared memory. Reads the chunk's weight and h there, and
    /// the cosines if they are not `kept` (`SPARE`: see [`Arithmetic::keeps`]).
    #[inline(always)]
    pub fn embed<E: Arithmetic, S: Size, const SPARE: bool>(
        &self,
        chunk: u32,
        samples: &RowSamples,
        kept: &E::Kept,
    ) -> Fragments {
        if S::GROUPS {
            return self.embed_of_groups::<E, S>(chunk, samples);
        }
        let first = chunk * S::CHUNK + Embed::<S>::corner().1 + 2 * (thread::lane() % 4);
        let mut bias = [[0.0; 2]; 16];
        unroll16!(j < Embed::<S>::TN => {
            bias[j] = two(&self.cos_bias, first + 8 * j as u32, self.trunk);
        });
        let mut phi = ZERO;
        let (cosines, weight) = (Memory::<S>::cosines(), Memory::<S>::cos_weight());
        if E::keeps::<Embed<S>, SPARE>(S::COSINES) {
            E::multiply_kept::<Embed<S>>(kept, weight, &mut phi);
        } else {
            multiply::<E, Embed<S>, AlongK, AlongK>(cosines, weight, S::COSINES, &mut phi);
        }
        let (trunk, x) = (Memory::<S>::trunk(chunk % 2), Memory::<S>::x());
        each_tile!(Embed<S>, (lane, corner, at, i, j) => {
            let column = 8 * corner.1 + 2 * lane.t;
            let ([b0, b1], p) = (bias[j as usize], phi[at]);
            let p = [relu(p[0] + b0), relu(p[1] + b1), relu(p[2] + b0), relu(p[3] + b1)];
            let upper = trunk.get2(samples[2 * i as usize], column, j);
            let lower = trunk.get2(samples[2 * i as usize + 1], column, j);
            x.set_pair(lane, corner, 2 * i, j, [upper[0] * p[0], upper[1] * p[1]].map(E::stored));
            x.set_pair(lane, corner, 2 * i + 1, j, [lower[0] * p[2], lower[1] * p[3]].map(E::stored));
            phi[at] = p;
        });
        phi
    }

    /// Wh x of the tile, of warpgroups with the bias. [`Head::copy_embed`] of chunk 0 is under way, and the cosines are being written. At the end no
    /// thread reads x or a weight any more.
    #[inline(always)]
    pub fn hidden_sums<E: Arithmetic, S: Size, const SPARE: bool>(
        &self,
        place: &Place,
        split: &Split,
        samples: &RowSamples,
    ) -> Fragments {
        if x_in_registers::<S>() {
            return self.hidden_sums_of_rows::<E, S>(place, split, samples);
        }
        let chunks = self.chunks::<S>();
        shared::copy_wait::<0>();
        ready::<S>(); // the first chunk's cosine weight and h and the cosines are there
        let mut sums = if S::GROUPS { biases::<Hide<S>>(Memory::<S>::hid_bias()) } else { ZERO };
        let kept = E::keep::<Embed<S>, SPARE>(Memory::<S>::cosines());
        let mut chunk = 0;
        while chunk < chunks {
            self.copy_hidden::<S>(chunk);
            self.embed::<E, S, SPARE>(chunk, samples, &kept);
            shared::copy_wait::<0>();
            ready::<S>(); // x and the hidden weight are there, the cosine weight has been read
            self.copy_embed::<S>(place, split, chunk + 1);
            let (x, weight) = (Memory::<S>::x(), Memory::<S>::hid_weight());
            multiply::<E, Hide<S>, AlongK, AlongK>(x, weight, S::CHUNK, &mut sums);
            shared::copy_wait::<0>();
            ready::<S>(); // the next cosine weight and h are there; x and the hidden weight have been read
            chunk += 1;
        }
        sums
    }

    /// u1 from Wh x, to shared memory.
    #[inline(always)]
    pub fn store_hidden<E: Arithmetic, S: Size>(&self, sums: &Fragments) {
        let hidden = Memory::<S>::hidden();
        let first = Hide::<S>::corner().1 + lane_column::<S>();
        let mut bias = [[0.0; 2]; 16];
        if !S::GROUPS {
            unroll16!(j < Hide::<S>::TN => {
                bias[j] = two(&self.hid_bias, first + 8 * j as u32, self.hidden);
            });
        }
        each_tile!(Hide<S>, (lane, corner, at, i, j) => {
            let u = plus::<S>(sums[at], bias[j as usize]).map(|u| E::stored(leaky(u, self.slope)));
            hidden.set_pair(lane, corner, 2 * i, j, [u[0], u[1]]);
            hidden.set_pair(lane, corner, 2 * i + 1, j, [u[2], u[3]]);
        });
    }

    /// z of a group of outputs, to shared memory. Reads u1 and the group's weight there.
    #[inline(always)]
    pub fn outputs<E: Arithmetic, S: Size>(&self, group: u32) {
        let first = group * OUTPUTS + Quantiles::<S>::corner().1 + lane_column::<S>();
        let mut bias = [[0.0; 2]; 16];
        let mut z = if S::GROUPS { biases::<Quantiles<S>>(Memory::<S>::out_bias()) } else { ZERO };
        if !S::GROUPS {
            unroll16!(j < Quantiles::<S>::TN => {
                bias[j] = two(&self.out_bias, first + 8 * j as u32, self.outputs);
            });
        }
        let (hidden, weight) = (Memory::<S>::hidden(), Memory::<S>::out_weight());
        multiply::<E, Quantiles<S>, AlongK, AlongK>(hidden, weight, S::HIDDEN, &mut z);
        let outputs = Memory::<S>::outputs();
        each_tile!(Quantiles<S>, (lane, corner, at, i, j) => {
            let z = plus::<S>(z[at], bias[j as usize]);
            outputs.set_pair(lane, corner, 2 * i, j, [z[0], z[1]]);
            outputs.set_pair(lane, corner, 2 * i + 1, j, [z[2], z[3]]);
        });
    }
}
