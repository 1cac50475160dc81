//! Weight gradients: dW[m, n] = sum_b dY[b, m] X[b, n], and bias gradients db[m] = sum_b dY[b, m].
//!
//! The batch is cut into `splits` ranges of whole stages, block (tile, s) sums range s and stores it to plane s of the
//! result, which a later kernel adds up in order: parallelism without float atomics, and the same bits in every run.
//! Ranges beyond a short batch's end are zero planes.

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::data::store;
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
    let across = n.div_ceil(Plan::<E, F, S>::COLUMNS);
    let (first_row, first_column) =
        (tile / across * Plan::<E, F, S>::ROWS, tile % across * Plan::<E, F, S>::COLUMNS);
    let range = k.div_ceil(splits * DEPTH) * DEPTH;
    let first_k = if split * range < k { split * range } else { k };
    let k_end = if first_k + range < k { first_k + range } else { k };
    let row_sums = sizes.extra && first_column == 0;
    let a = Operand {
        matrix: arguments.a,
        stride: sizes.lda,
        first: first_row,
        rows: m,
        vectors: sizes.a_vectors,
    };
    let b = Operand {
        matrix: arguments.b,
        stride: sizes.ldb,
        first: first_column,
        rows: n,
        vectors: sizes.b_vectors,
    };
    Plan::<E, F, S>::multiply(&Work { a, b, k: first_k, k_end, row_sums });

    let mut i = 0;
    while i < Plan::<E, F, S>::ROWS * Plan::<E, F, S>::COLUMNS / 4 / Plan::<E, F, S>::THREADS {
        let index = i * Plan::<E, F, S>::THREADS + thread::thread_idx();
        let quads = Plan::<E, F, S>::COLUMNS / 4;
        let (row, column) = (index / quads, 4 * (index % quads));
        let c = Plan::<E, F, S>::four(row, column);
        let (row, column) = (first_row + row, first_column + column);
        if row < m && column < n {
            store(&arguments.c, split * plane + row * sizes.ldc + column, c, n - column, sizes.c_vectors);
        }
        i += 1;
    }
    let row = thread::thread_idx();
    if row_sums && row < Plan::<E, F, S>::ROWS && first_row + row < m {
        arguments.extra.set(split * plane + first_row + row, Plan::<E, F, S>::row_sum(row));
    }
}
