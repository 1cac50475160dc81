//! The products in bf16 by warps: `ldmatrix` and `mma.sync`; see `product`, and `group` for those by warpgroups.

use cuda_std::prelude::*;

use super::product::{Arithmetic, Fragments, RowSums, Summing};
use super::size::Part;
use super::tile::{Order, Tile};

/// Tensor cores in bf16: operands are rounded when they are stored, two a word; products exact, sums in f32.
pub struct Bf16;

/// Two times 1.
const ONES: [u32; 2] = [0x3f80_3f80; 2];

impl Arithmetic for Bf16 {
    #[cfg(not(target_arch = "nvptx64"))]
    const KIND: super::launch::Arithmetic = super::launch::Arithmetic::Bf16;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMA_DEPTH: u32 = 16;
    #[cfg(not(target_arch = "nvptx64"))]
    const MATRICES: bool = true;
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
        let (first_row, first_column) = P::octets();
        // A's rows times a matrix of ones: each of its columns is the sums.
        let mut whole = [[0.0; 4]; 4];
        let mut k = 0;
        while k < depth {
            let mut columns = [[[0; 2]; 8]; 2];
            if P::TN == 1 {
                let steps = b.column32::<B>(first_column, k);
                columns[0][0] = steps[0];
                columns[1][0] = steps[1];
            }
            unroll4!(step < 2 => {
                if P::TN > 1 {
                    unroll4!(j < P::TN / 2 => {
                        let pair = b.columns16::<B>(first_column, 2 * j as u32, k, step as u32);
                        columns[step][2 * j] = pair[0];
                        columns[step][2 * j + 1] = pair[1];
                    });
                }
                unroll4!(i < P::TM => {
                    let rows = a.rows16::<A>(first_row, i as u32, k, step as u32);
                    unroll8!(j < P::TN => {
                        let c = &mut c[i * P::TN + j];
                        *c = warp::mma_bf16(rows, columns[step][j], *c);
                    });
                    if U::ON && sum {
                        whole[i] = warp::mma_bf16(rows, ONES, whole[i]);
                    }
                });
            });
            k += 32;
        }
        if U::ON && sum {
            unroll4!(i < P::TM => {
                sums[2 * i] += whole[i][0];
                sums[2 * i + 1] += whole[i][2];
            });
        }
    }

    type Kept = ();
}
