//! The products of halves by warpgroups: `wgmma`, which reads both operands from shared memory; see `product`.
//!
//! Where operands and each element of C lie is as in [`super::bf16::Bf16`]; sums are added in another order, so that results in
//! bf16 differ from it by f32's rounding.
//!
//! In fp16 they stand for tf32, of which `wgmma` would want every operand along the summed index: half of the six products
//! have one across it. A half has tf32's significant bits, half of its bytes, and twice its rate; what it lacks is range. The
//! gradients are therefore multiplied by a power of two (`Loss::scale`); cosines, activations and weights are
//! far from 2^-14, below which bits are lost, or so small beside the others that their loss is none; what exceeds 65504
//! becomes infinite, so that the step is one with a gradient that is not finite: never a wrong number.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::forward::{Head, RowSamples, biases, ready, relu};
use super::memory::Memory;
use super::product::{Arithmetic, Fragments, RowSums, Summing, ZERO, multiply};
use super::size::{Embed, Hide, Part, Place, Size, Split};
use super::tile::{AlongK, Order, Tile, opaque};

/// Tensor cores, a warpgroup at a time: operands are rounded when they are stored, two a word; products exact, sums in f32.
pub struct Groups<F>(PhantomData<F>);
/// In bf16.
pub type Bf16Groups = Groups<InBf16>;
/// In fp16.
pub type Fp16Groups = Groups<InFp16>;

/// A format of operands.
pub trait Format {
    /// As the products know it.
    const HALVES: warpgroup::Halves;
    /// As the host knows it.
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic;
}

/// bf16.
pub struct InBf16;
/// fp16.
pub struct InFp16;

impl Format for InBf16 {
    const HALVES: warpgroup::Halves = warpgroup::Halves::Bf16;
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = super::launch::Arithmetic::Bf16;
}

impl Format for InFp16 {
    const HALVES: warpgroup::Halves = warpgroup::Halves::Fp16;
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = super::launch::Arithmetic::Fp16;
}

/// A share `P` of C from operands stored as `A` and `B`.
struct Share<F, P, A, B>(PhantomData<(F, P, A, B)>);

impl<F: Format, P: Part, A: Order, B: Order> warpgroup::Product for Share<F, P, A, B> {
    const HALVES: warpgroup::Halves = F::HALVES;
    const OCTETS: usize = P::TN;
    const ACROSS_A: bool = !A::ALONG_K;
    const ACROSS_B: bool = !B::ALONG_K;
}

/// The sums of A's rows, as a product with eight columns of ones.
struct RowsOf<F, A>(PhantomData<(F, A)>);

impl<F: Format, A: Order> warpgroup::Product for RowsOf<F, A> {
    const HALVES: warpgroup::Halves = F::HALVES;
    const OCTETS: usize = 1;
    const ACROSS_A: bool = !A::ALONG_K;
    const ACROSS_B: bool = false;
}

/// The calling warpgroup.
#[inline(always)]
pub fn group<P: Part>() -> u32 {
    opaque(thread::warp()) % (P::THREADS / 32) / 4
}

impl<F: Format> Arithmetic for Groups<F> {
    const SCALED: bool = matches!(F::HALVES, warpgroup::Halves::Fp16);
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = F::KIND;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32 = 16;
    #[cfg(not(target_arch = "nvptx64"))]
    const MATRICES: bool = false;
    #[cfg(not(target_arch = "nvptx64"))]
    const SHUFFLES: u32 = 0;

    #[inline(always)]
    fn multiply<P: Part, A: Order, B: Order, U: Summing>(
        a: Tile,
        b: Tile,
        depth: u32,
        c: &mut Fragments,
        sum: bool,
        sums: &mut RowSums,
    ) {
        let (row, column) = P::group_place(group::<P>());
        let (mut left, left_step) = a.operand::<A>(row / 8);
        let (mut right, right_step) = b.operand::<B>(column / 8);
        let mut k = 0;
        while k + 64 <= depth {
            warpgroup::multiply::<Share<F, P, A, B>, 4>(left, right, c);
            left = left.advance(left_step);
            right = right.advance(right_step);
            k += 64;
        }
        if k < depth {
            warpgroup::multiply::<Share<F, P, A, B>, 2>(left, right, c);
        }
        if U::ON && sum {
            Self::sum_rows::<P, A>(a, row / 8, depth, sums);
        }
    }

    #[inline(always)]
    fn sum_rows<P: Part, A: Order>(a: Tile, first: u32, depth: u32, sums: &mut RowSums) {
        let (mut left, step) = a.operand::<A>(first);
        // All columns of B are ones, and so are all its rows.
        let ones = warpgroup::operand(P::ONES, 0);
        let mut whole = ZERO;
        let mut k = 0;
        while k < depth {
            warpgroup::multiply::<RowsOf<F, A>, 4>(left, ones, &mut whole);
            left = left.advance(step);
            k += 64;
        }
        sums[0] += whole[0][0];
        sums[1] += whole[0][2];
    }

    #[inline(always)]
    fn multiply_rows<P: Part>(a: &[[u32; 4]; 4], b: Tile, c: &mut Fragments) {
        let (_, column) = P::group_place(group::<P>());
        let (right, _) = b.operand::<AlongK>(column / 8);
        warpgroup::multiply_rows::<Share<F, P, AlongK, AlongK>>(a, right, c);
    }

    type Kept = ();
}

/// Whether a warpgroup has all of a chunk's columns of its rows of x: then x is the hidden layer's operand where the
/// registers hold it.
#[inline(always)]
pub const fn x_in_registers<S: Size>() -> bool {
    S::GROUPS && Embed::<S>::ACROSS == 1 && Hide::<S>::ACROSS == 1
}

impl Head {
    /// [`Head::hidden_sums`] with x in registers. Between two chunks there is one barrier; weights alternate between two
    /// places, and are copied while the chunk before is worked on.
    #[inline(always)]
    pub fn hidden_sums_of_rows<E: Arithmetic, S: Size>(
        &self,
        place: &Place,
        split: &Split,
        samples: &RowSamples,
    ) -> Fragments {
        let chunks = self.chunks::<S>();
        self.copy_hidden::<S>(0);
        shared::copy_wait::<0>();
        ready::<S>(); // the cosines, the first chunk's weights and h are there
        let mut sums = biases::<Hide<S>>(Memory::<S>::hid_bias());
        let mut chunk = 0;
        while chunk < chunks {
            let next = chunk + 1;
            self.copy_embed_to::<S>(Memory::<S>::alternate_cos_weight(next), place, split, next);
            self.copy_hidden_to::<S>(Memory::<S>::alternate_hid_weight(next), next);
            let x = self.rows_of_x::<E, S>(chunk, samples);
            E::multiply_rows::<Hide<S>>(&x, Memory::<S>::alternate_hid_weight(chunk), &mut sums);
            shared::copy_wait::<0>();
            ready::<S>(); // the next weights and h are there, this chunk's have been read
            chunk = next;
        }
        sums
    }

    /// phi of a chunk, a lane's part, from the chunk's weight and bias in shared memory.
    #[inline(always)]
    fn phi<E: Arithmetic, S: Size>(&self, cosines: Tile, weight: Tile, trunk: Tile) -> Fragments {
        let column = Embed::<S>::corner().1 + 2 * (opaque(thread::lane()) % 4);
        let mut phi = ZERO;
        unroll8!(j < Embed::<S>::TN => {
            let [b0, b1] = trunk.get2(Memory::<S>::BIAS_ROW, column, j as u32);
            phi[j] = [b0, b1, b0, b1];
        });
        multiply::<E, Embed<S>, AlongK, AlongK>(cosines, weight, S::COSINES, &mut phi);
        unroll8!(j < Embed::<S>::TN => {
            phi[j] = phi[j].map(relu);
        });
        phi
    }

    /// x of a chunk, a lane's part, as [`Arithmetic::multiply_rows`] takes it.
    #[inline(always)]
    fn rows_of_x<E: Arithmetic, S: Size>(&self, chunk: u32, samples: &RowSamples) -> [[u32; 4]; 4] {
        let trunk = Memory::<S>::trunk(chunk % 2);
        let weight = Memory::<S>::alternate_cos_weight(chunk);
        let phi = self.phi::<E, S>(Memory::<S>::cosines(), weight, trunk);
        let column = 2 * (opaque(thread::lane()) % 4);
        let mut x = [[0; 4]; 4];
        unroll8!(j < 8 => {
            let (p, octet) = (phi[j], j as u32);
            let (upper, lower) = (trunk.get2(samples[0], column, octet), trunk.get2(samples[1], column, octet));
            x[j / 2][2 * (j % 2)] = S::ELEMENTS.pair(upper[0] * p[0], upper[1] * p[1]);
            x[j / 2][2 * (j % 2) + 1] = S::ELEMENTS.pair(lower[0] * p[2], lower[1] * p[3]);
        });
        x
    }

    /// [`Head::embed`].
    #[inline(always)]
    pub fn embed_of_groups<E: Arithmetic, S: Size>(&self, chunk: u32, samples: &RowSamples) -> Fragments {
        let (cosines, trunk) = (Memory::<S>::cosines(), Memory::<S>::trunk(chunk % 2));
        let phi = self.phi::<E, S>(cosines, Memory::<S>::cos_weight(), trunk);
        let x = Memory::<S>::x();
        each_tile!(Embed<S>, (lane, corner, at, i, j) => {
            let column = 8 * corner.1 + 2 * lane.t;
            let p = phi[at];
            let upper = trunk.get2(samples[2 * i as usize], column, j);
            let lower = trunk.get2(samples[2 * i as usize + 1], column, j);
            x.set_pair(lane, corner, 2 * i, j, [upper[0] * p[0], upper[1] * p[1]]);
            x.set_pair(lane, corner, 2 * i + 1, j, [lower[0] * p[2], lower[1] * p[3]]);
        });
        phi
    }
}
