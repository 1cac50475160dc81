//! Weight gradients: dW[m, n] = sum_b dY[b, m] X[b, n], and bias gradients db[m] = sum_b dY[b, m].
//!
//! The batch is cut into `splits` ranges of whole stages, block (tile, s) sums range s and stores it to plane s of the
//! result, which a later kernel adds up in order: parallelism without float atomics, and the same bits in every run.
//! Ranges beyond a short batch's end are zero planes.

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::engine::{Engine, Form};
use super::group::Sizes;
use super::panel::{DEPTH, Operand};

/// One product's arguments.
#[derive(Clone, Copy)]
pub struct Arguments {
    /// dY [k, m].
    pub a: In<f32>,
    /// X [k, n].
    pub b: In<f32>,
    /// dW [m, n] of plane 0.
    pub c: Out<f32>,
    /// db [m] of plane 0.
    pub extra: Out<f32>,
    /// See [`Sizes::pack`].
    pub sizes: u64,
    /// See [`Sizes::pack`].
    pub strides: u64,
}

/// Computes and stores one tile of one range; planes are `plane` floats apart.
#[inline(always)]
pub fn run<E: Engine, F: Form, S: Size>(
    arguments: &Arguments,
    tile: u32,
    split: u32,
    splits: u32,
    plane: u32,
) {
    let sizes = Sizes::unpack(arguments.sizes, arguments.strides);
    let Sizes { m, n, k, .. } = sizes;
    let (first_row, first_column) = Plan::<E, F, S>::corner(tile, n);
    let a = Operand::new(arguments.a, sizes.lda, first_row, m, sizes.a_vectors);
    let b = Operand::new(arguments.b, sizes.ldb, first_column, n, sizes.b_vectors);
    let range = stages_per_split(k, splits) * DEPTH;
    let first_k = if split * range < k { split * range } else { k };
    let k_end = if first_k + range < k { first_k + range } else { k };
    let row_sums = sizes.extra && first_column == 0;
    Plan::<E, F, S>::multiply(&Work { a, b, k: first_k, k_end, row_sums }, || ());

    let start = split * plane;
    if sizes.c_vectors && n.is_multiple_of(4) {
        let mut piece = 0;
        while piece < Plan::<E, F, S>::PIECES {
            let (row, column) = Plan::<E, F, S>::piece(piece);
            if first_row + row < m && first_column + column < n {
                let c = Plan::<E, F, S>::four(row, column);
                arguments.c.set4(start + (first_row + row) * sizes.ldc + first_column + column, c);
            }
            piece += 1;
        }
    } else {
        Plan::<E, F, S>::each_element(first_row, first_column, m, n, |row, column, c| {
            arguments.c.set(start + row * sizes.ldc + column, c);
        });
    }
    let row = thread::thread_idx();
    if row_sums && row < Plan::<E, F, S>::ROWS && first_row + row < m {
        arguments.extra.set(start + first_row + row, Plan::<E, F, S>::row_sum(row));
    }
}

/// Stages that each split sums, rounded up. (A division of run-time values would bring a panic for zero into the PTX,
/// so zero is ruled out here; the contract refuses it.)
#[inline(always)]
fn stages_per_split(k: u32, splits: u32) -> u32 {
    k.div_ceil(DEPTH).div_ceil(if splits > 0 { splits } else { 1 })
}
