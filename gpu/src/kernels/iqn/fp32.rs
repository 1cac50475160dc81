//! The products in IEEE fp32; see `product`.

use cuda_std::prelude::*;

use super::product::{Arithmetic, Fragments, Operands, RowSums, Summing};
use super::size::Part;
use super::tile::{Lane, Order, Tile};

/// IEEE fp32 on the vector units: each product and sum is rounded once, to nearest (fused multiply-add), in the order of
/// the summed index.
pub struct Fp32;

impl Arithmetic for Fp32 {
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = super::launch::Arithmetic::Fp32;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32 = u32::MAX;
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
        let of = Operands::new::<P>(a, b);
        let mut k = 0;
        while k < depth {
            four::<P, A, B, U>(&of, k, 0, c, sum, sums);
            four::<P, A, B, U>(&of, k, 1, c, sum, sums);
            k += 8;
        }
    }

    type Kept = ();
}

/// Summed indices k + 4 e .. k + 4 e + 4.
#[inline(always)]
fn four<P: Part, A: Order, B: Order, U: Summing>(
    &Operands { a, b, lane, row, column }: &Operands,
    k: u32,
    e: u32,
    c: &mut Fragments,
    sum: bool,
    sums: &mut RowSums,
) {
    let Lane { g, t } = lane;
    let mut rows = [[0.0; 4]; 8];
    unroll8!(i < 2 * P::TM => {
        rows[i] = if A::ALONG_K {
            a.four(row, i as u32, g, k, e)
        } else {
            let get = |n: u32| a.across(row, i as u32, g, k, 4 * e + n);
            [get(0), get(1), get(2), get(3)]
        };
        if U::ON && sum {
            sums[i] += (rows[i][0] + rows[i][1]) + (rows[i][2] + rows[i][3]);
        }
    });
    unroll8!(j < P::TN => {
        let (left, right) = if B::ALONG_K {
            (b.four(column, j as u32, 2 * t, k, e), b.four(column, j as u32, 2 * t + 1, k, e))
        } else {
            let get = |n: u32| b.across2(column, j as u32, 2 * t, k, 4 * e + n);
            let pairs = [get(0), get(1), get(2), get(3)];
            (pairs.map(|p| p[0]), pairs.map(|p| p[1]))
        };
        unroll4!(i < P::TM => {
            let at = i * P::TN + j;
            unroll4!(n < 4 => {
                c[at][0] = math::fma(rows[2 * i][n], left[n], c[at][0]);
                c[at][1] = math::fma(rows[2 * i][n], right[n], c[at][1]);
                c[at][2] = math::fma(rows[2 * i + 1][n], left[n], c[at][2]);
                c[at][3] = math::fma(rows[2 * i + 1][n], right[n], c[at][3]);
            });
        });
    });
}
