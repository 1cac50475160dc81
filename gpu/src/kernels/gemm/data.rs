//! C = A B with B or its transpose (forward and data gradient), and what follows a product in a network, applied
//! before the store: C + bias, lrelu(C + bias), or C * lrelu'(h).

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::engine::{Engine, Form};
use super::group::{Ends, Sizes, locate};
use super::panel::Operand;

/// `mode` of a data product: the extra operand is a bias [n], added to each row.
pub const BIAS: u32 = 0;
/// `mode` of a data product: the extra operand is a layer's stored output h [m, n] with row stride ldc.
pub const ACTIVATIONS: u32 = 1;

/// One product's arguments.
#[derive(Clone, Copy)]
pub struct Arguments {
    /// A.
    pub a: In<f32>,
    /// B.
    pub b: In<f32>,
    /// C.
    pub c: Out<f32>,
    /// Bias or stored activations.
    pub extra: In<f32>,
    /// See [`Sizes::pack`].
    pub sizes: u64,
    /// See [`Sizes::pack`].
    pub strides: u64,
}

/// The product and the tile of it that this block computes.
#[inline(always)]
pub fn place(ends: Ends) -> (u32, u32) {
    locate(ends, thread::block_idx())
}

/// Computes and stores one tile. With `mode` BIAS: lrelu(C + bias) with negative slope `slope` (1 for none); with
/// ACTIVATIONS: C where h > 0, slope * C elsewhere. A product without extra operand has bias 0, or no activation.
#[inline(always)]
pub fn run<E: Engine, F: Form, S: Size>(arguments: &Arguments, tile: u32, mode: u32, slope: f32) {
    let sizes = Sizes::unpack(arguments.sizes, arguments.strides);
    let Sizes { m, n, k, .. } = sizes;
    let across = n.div_ceil(Plan::<E, F, S>::COLUMNS);
    let (first_row, first_column) =
        (tile / across * Plan::<E, F, S>::ROWS, tile % across * Plan::<E, F, S>::COLUMNS);
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
    Plan::<E, F, S>::multiply(&Work { a, b, k: 0, k_end: k, row_sums: false });

    let mut i = 0;
    while i < Plan::<E, F, S>::ROWS * Plan::<E, F, S>::COLUMNS / 4 / Plan::<E, F, S>::THREADS {
        let index = i * Plan::<E, F, S>::THREADS + thread::thread_idx();
        let quads = Plan::<E, F, S>::COLUMNS / 4;
        let (row, column) = (index / quads, 4 * (index % quads));
        let c = Plan::<E, F, S>::four(row, column);
        let (row, column) = (first_row + row, first_column + column);
        if row < m && column < n {
            let count = n - column;
            let at = row * sizes.ldc + column;
            let mut extra = [0.0; 4];
            if sizes.extra {
                extra =
                    load(&arguments.extra, if mode == BIAS { column } else { at }, count, sizes.c_vectors);
            }
            let mut out = [0.0; 4];
            unroll4!(e => {
                out[e] = if mode == BIAS {
                    let sum = c[e] + extra[e];
                    if sum > 0.0 { sum } else { slope * sum }
                } else if !sizes.extra || extra[e] > 0.0 {
                    c[e]
                } else {
                    slope * c[e]
                };
            });
            store(&arguments.c, at, out, count, sizes.c_vectors);
        }
        i += 1;
    }
}

/// The `count` (at most four) elements from i on, the others 0.
#[inline(always)]
fn load(from: &In<f32>, i: u32, count: u32, vectors: bool) -> [f32; 4] {
    if vectors && count >= 4 {
        return from.get4(i);
    }
    let mut values = [0.0; 4];
    unroll4!(e => {
        if (e as u32) < count {
            values[e] = from.get(i + e as u32);
        }
    });
    values
}

/// Stores the first `count` (at most four) values from element i on.
#[inline(always)]
pub fn store(to: &Out<f32>, i: u32, values: [f32; 4], count: u32, vectors: bool) {
    if vectors && count >= 4 {
        to.set4(i, values);
        return;
    }
    unroll4!(e => {
        if (e as u32) < count {
            to.set(i + e as u32, values[e]);
        }
    });
}
