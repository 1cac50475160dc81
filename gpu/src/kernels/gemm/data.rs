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
#[cfg(not(target_arch = "nvptx64"))]
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

/// Where results go, and in which form stored activations are: four neighbours at a time, where C can be stored in pieces of
/// 16 bytes.
pub trait Output {
    /// The stored activations at element `at`.
    fn activations(&self, of: &Arguments, sizes: &Sizes, at: u32) -> [f32; 4];
    /// Stores the product and what became of it.
    fn store(&self, of: &Arguments, sizes: &Sizes, at: u32, product: [f32; 4], result: [f32; 4]);
}

/// Results and activations in f32.
pub struct Floats;

impl Output for Floats {
    #[inline(always)]
    fn activations(&self, of: &Arguments, _: &Sizes, at: u32) -> [f32; 4] {
        of.extra.get4(at)
    }

    #[inline(always)]
    fn store(&self, of: &Arguments, _: &Sizes, at: u32, _: [f32; 4], result: [f32; 4]) {
        of.c.set4(at, result);
    }
}

/// The product and the tile of it that this block computes.
#[inline(always)]
pub fn place(ends: Ends) -> (u32, u32) {
    locate(ends, thread::block_idx())
}

/// Computes and stores one tile. With `mode` BIAS: lrelu(C + bias) with negative slope `slope` (1 for none); with
/// ACTIVATIONS: C where h > 0, slope * C elsewhere. A product without extra operand has bias 0, or no activation.
#[inline(always)]
pub fn run<E: Engine, F: Form, S: Size>(
    arguments: &Arguments,
    tile: u32,
    mode: u32,
    slope: f32,
    output: &impl Output,
) {
    let sizes = Sizes::unpack(arguments.sizes, arguments.strides);
    let Sizes { m, n, k, .. } = sizes;
    let (first_row, first_column) = Plan::<E, F, S>::corner(tile, n);
    let a = Operand::new(arguments.a, sizes.lda, first_row, m, sizes.a_vectors);
    let b = Operand::new(arguments.b, sizes.ldb, first_column, n, sizes.b_vectors);

    let whole = sizes.c_vectors && n.is_multiple_of(4);
    let neutral = if mode == BIAS { 0.0 } else { 1.0 };
    // The extra operand's part in eight of the thread's pieces.
    let extra = |batch: u32| {
        let mut extra = [[neutral; 4]; 8];
        if whole && sizes.extra && mode == BIAS {
            let (_, column) = Plan::<E, F, S>::piece(0); // the same for all pieces of a thread
            if first_column + column < n {
                extra = [arguments.extra.get4(first_column + column); 8];
            }
        } else if whole && sizes.extra {
            unroll8!(i => {
                let piece = 8 * batch + i as u32;
                let (row, column) = Plan::<E, F, S>::piece(piece);
                let (row, column) = (first_row + row, first_column + column);
                if piece < Plan::<E, F, S>::PIECES && row < m && column < n {
                    extra[i] = output.activations(arguments, &sizes, row * sizes.ldc + column);
                }
            });
        }
        extra
    };
    let finish_batch = |batch: u32, extra: [[f32; 4]; 8]| {
        unroll8!(i => {
            let piece = 8 * batch + i as u32;
            let (row, column) = Plan::<E, F, S>::piece(piece);
            if piece < Plan::<E, F, S>::PIECES && first_row + row < m && first_column + column < n {
                let product = Plan::<E, F, S>::four(row, column);
                let mut c = product;
                unroll4!(e => {
                    c[e] = finish(mode, slope, c[e], extra[i][e]);
                });
                let at = (first_row + row) * sizes.ldc + first_column + column;
                output.store(arguments, &sizes, at, product, c);
            }
        });
    };

    let early = E::EARLY_READS && Plan::<E, F, S>::PIECES <= 8;
    let first = Plan::<E, F, S>::multiply(&Work { a, b, k: 0, k_end: k, row_sums: false }, || {
        if early { extra(0) } else { [[neutral; 4]; 8] }
    });
    if whole {
        finish_batch(0, if early { first } else { extra(0) });
        if Plan::<E, F, S>::PIECES > 8 {
            finish_batch(1, extra(1));
        }
    } else {
        Plan::<E, F, S>::each_element(first_row, first_column, m, n, |row, column, c| {
            let at = row * sizes.ldc + column;
            let extra = match (sizes.extra, mode) {
                (false, _) => neutral,
                (true, BIAS) => arguments.extra.get(column),
                (true, _) => arguments.extra.get(at),
            };
            arguments.c.set(at, finish(mode, slope, c, extra));
        });
    }
}

/// What follows the product, for one element.
#[inline(always)]
fn finish(mode: u32, slope: f32, c: f32, extra: f32) -> f32 {
    let (value, sign) = if mode == BIAS { (c + extra, c + extra) } else { (c, extra) };
    if sign > 0.0 { value } else { slope * value }
}
