//! Gated linear units of the heads, forward and backward: hidden = a * sigmoid(g), a and g the two halves of one linear
//! layer. SPEC section 2 (`head = "glu"`); Dauphin, Fan, Auli and Grangier, "Language Modeling with Gated Convolutional
//! Networks" (2017), equation 1.
//!
//! `pre` holds all heads side by side, [rows, 2 * hidden]: a head of width w whose block of `hidden` starts at column o has
//! its linear half at columns 2o .. 2o + w of `pre` and its gate at 2o + w .. 2o + 2w. The value head comes first
//! (`value_width`), then `branches` heads of `branch_width`.
//!
//! Backward: da = dh sigmoid(g), dg = dh a sigmoid(g) (1 - sigmoid(g)). With e = exp(-|g|) both sigmoid(g) and
//! 1 - sigmoid(g) are a quotient of 1 or e by 1 + e: nothing overflows and nothing cancels.

use cuda_std::prelude::*;

use super::gemm::round;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Columns of `hidden`.
pub const fn hidden_width(value_width: u32, branch_width: u32, branches: u32) -> u32 {
    value_width + branch_width * branches
}

/// Column of `pre` that belongs to a column of `hidden` in the linear half, and the head's width: the gate's column is
/// that far behind.
#[inline(always)]
pub fn place(column: u32, value_width: u32, branch_width: u32) -> (u32, u32) {
    if column < value_width {
        return (column, value_width);
    }
    let head = (column - value_width) / branch_width;
    (column + value_width + head * branch_width, branch_width)
}

/// sigmoid(x) and 1 - sigmoid(x), each with a small relative error for every x.
#[inline(always)]
fn sigmoid(x: f32) -> (f32, f32) {
    let e = math::exp(-math::abs(x));
    let (large, small) = (1.0 / (1.0 + e), e / (1.0 + e));
    if x < 0.0 { (small, large) } else { (large, small) }
}

/// hidden [rows, hidden] = a sigmoid(g) from pre [rows, 2 hidden], both dense. Four columns a thread; all widths are
/// multiples of 4.
#[kernel(
    block = 256,
    grid = (rows * (hidden_width(value_width, branch_width, branches) / 4)).div_ceil(256),
    requires(
        rows > 0,
        value_width > 0,
        value_width % 4 == 0,
        branch_width > 0,
        branch_width % 4 == 0,
        (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))) <= u32::MAX as usize,
        pre.len() >= (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))),
        hidden.len() >= (rows as usize) * (value_width as usize + (branch_width as usize) * (branches as usize)),
    )
)]
pub fn glu_forward(
    rows: u32,
    value_width: u32,
    branch_width: u32,
    branches: u32,
    pre: In<f32>,
    hidden: Out<f32>,
) {
    let width = hidden_width(value_width, branch_width, branches);
    let (i, vectors) = (thread::global_index(), width / 4);
    if i < rows * vectors {
        let (row, column) = (i / vectors, 4 * (i % vectors));
        let (linear, head) = place(column, value_width, branch_width);
        let at = row * 2 * width + linear;
        let (a, g) = (pre.get4(at), pre.get4(at + head));
        let mut h = [0.0f32; 4];
        let mut e = 0;
        while e < 4 {
            h[e] = a[e] * sigmoid(g[e]).0;
            e += 1;
        }
        hidden.set4(row * width + column, h);
    }
}

/// d_pre [rows, 2 hidden] from d_hidden [rows, hidden] and the stored pre [rows, 2 hidden], all dense. Four columns a
/// thread; all widths are multiples of 4.
#[kernel(
    block = 256,
    grid = (rows * (hidden_width(value_width, branch_width, branches) / 4)).div_ceil(256),
    requires(
        rows > 0,
        value_width > 0,
        value_width % 4 == 0,
        branch_width > 0,
        branch_width % 4 == 0,
        (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))) <= u32::MAX as usize,
        pre.len() >= (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))),
        d_pre.len() >= (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))),
        d_hidden.len() >= (rows as usize) * (value_width as usize + (branch_width as usize) * (branches as usize)),
    )
)]
pub fn glu_backward(
    rows: u32,
    value_width: u32,
    branch_width: u32,
    branches: u32,
    d_hidden: In<f32>,
    pre: In<f32>,
    d_pre: Out<f32>,
) {
    backward([rows, value_width, branch_width, branches], &d_hidden, &pre, |at, d| d_pre.set4(at, d));
}

/// [`glu_backward`] with d_pre in bf16, two numbers a float (`gemm`, module `stored`): [rows, hidden] floats.
#[kernel(
    block = 256,
    grid = (rows * (hidden_width(value_width, branch_width, branches) / 4)).div_ceil(256),
    requires(
        rows > 0,
        value_width > 0,
        value_width % 4 == 0,
        branch_width > 0,
        branch_width % 4 == 0,
        (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))) <= u32::MAX as usize,
        pre.len() >= (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))),
        2 * d_pre.len() >= (rows as usize) * (2 * (value_width as usize + (branch_width as usize) * (branches as usize))),
        d_hidden.len() >= (rows as usize) * (value_width as usize + (branch_width as usize) * (branches as usize)),
    )
)]
pub fn glu_backward_halves(
    rows: u32,
    value_width: u32,
    branch_width: u32,
    branches: u32,
    d_hidden: In<f32>,
    pre: In<f32>,
    d_pre: Out<f32>,
) {
    backward([rows, value_width, branch_width, branches], &d_hidden, &pre, |at, d| {
        d_pre.set2(at / 2, round::bf16_floats(d));
    });
}

/// The gradient of `pre`, four columns a thread: `store` gets the place of the first in a matrix of its shape.
#[inline(always)]
fn backward(
    [rows, value_width, branch_width, branches]: [u32; 4],
    d_hidden: &In<f32>,
    pre: &In<f32>,
    store: impl Fn(u32, [f32; 4]),
) {
    let width = hidden_width(value_width, branch_width, branches);
    let (i, vectors) = (thread::global_index(), width / 4);
    if i < rows * vectors {
        let (row, column) = (i / vectors, 4 * (i % vectors));
        let (linear, head) = place(column, value_width, branch_width);
        let at = row * 2 * width + linear;
        let (a, g, d) = (pre.get4(at), pre.get4(at + head), d_hidden.get4(row * width + column));
        let (mut da, mut dg) = ([0.0f32; 4], [0.0f32; 4]);
        let mut e = 0;
        while e < 4 {
            let (s, rest) = sigmoid(g[e]);
            da[e] = d[e] * s;
            dg[e] = da[e] * rest * a[e];
            e += 1;
        }
        store(at, da);
        store(at + head, dg);
    }
}
