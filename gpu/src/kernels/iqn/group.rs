//! The products in bf16 by warpgroups: `wgmma`, which reads both operands from shared memory; see `product`.
//!
//! Operands and the place of each element of C in the lanes are those of [`super::product::Bf16`]; sums are added in
//! another order, so results differ from it by f32's rounding.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::product::{Arithmetic, Fragments, RowSums, Summing, ZERO};
use super::size::Part;
use super::tile::{Order, Tile, opaque};

/// Tensor cores in bf16, a warpgroup at a time: operands are rounded when they are stored, two a word; products exact,
/// sums in f32.
pub struct Bf16Groups;

/// A share `P` of C from operands stored as `A` and `B`.
struct Share<P, A, B>(PhantomData<(P, A, B)>);

impl<P: Part, A: Order, B: Order> warpgroup::Product for Share<P, A, B> {
    const OCTETS: usize = P::TN;
    const ACROSS_A: bool = !A::ALONG_K;
    const ACROSS_B: bool = !B::ALONG_K;
}

/// The sums of A's rows, as a product with eight columns of ones.
struct RowsOf<A>(PhantomData<A>);

impl<A: Order> warpgroup::Product for RowsOf<A> {
    const OCTETS: usize = 1;
    const ACROSS_A: bool = !A::ALONG_K;
    const ACROSS_B: bool = false;
}

/// The calling warpgroup.
#[inline(always)]
pub fn group<P: Part>() -> u32 {
    opaque(thread::warp()) % (P::THREADS / 32) / 4
}

impl Arithmetic for Bf16Groups {
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = super::launch::Arithmetic::Bf16;
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
            warpgroup::multiply::<Share<P, A, B>, 4>(left, right, c);
            left = left.advance(left_step);
            right = right.advance(right_step);
            k += 64;
        }
        if k < depth {
            warpgroup::multiply::<Share<P, A, B>, 2>(left, right, c);
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
            warpgroup::multiply::<RowsOf<A>, 4>(left, ones, &mut whole);
            left = left.advance(step);
            k += 64;
        }
        sums[0] += whole[0][0];
        sums[1] += whole[0][2];
    }

    type Kept = ();
}
