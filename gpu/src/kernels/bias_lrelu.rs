//! Bias and LeakyReLU, forward and backward, and bias gradients, for products whose epilogue cannot do it.
//!
//! Forward: h = lrelu(x + b), lrelu(t) = t for t > 0, slope * t otherwise.
//! Backward: dx = dh * (1 if h > 0 else slope); the sign of h is the sign of its argument because slope >= 0
//! (slope 0 makes h = 0 exactly where the derivative is 0).
//! Bias gradient: db[c] = sum over rows of dx[r, c], rows in a fixed order.

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// h = lrelu(x + bias), in place on x [rows, cols] with row stride `stride`. Four columns a thread: cols, stride
/// multiples of 4.
#[kernel(
    block = 256,
    grid = (rows * (cols / 4)).div_ceil(256),
    requires(
        rows > 0,
        cols > 0,
        cols % 4 == 0,
        stride % 4 == 0,
        stride >= cols,
        bias.len() >= cols as usize,
        x.len() >= (rows as usize - 1) * (stride as usize) + cols as usize,
    )
)]
pub fn bias_lrelu(rows: u32, cols: u32, stride: u32, slope: f32, bias: In<f32>, x: InOut<f32>) {
    let i = thread::global_index();
    let vectors = cols / 4;
    if i < rows * vectors {
        let (row, column) = (i / vectors, 4 * (i % vectors));
        let at = row * stride + column;
        let (v, b) = (x.get4(at), bias.get4(column));
        x.set4(
            at,
            [
                lrelu(v[0] + b[0], slope),
                lrelu(v[1] + b[1], slope),
                lrelu(v[2] + b[2], slope),
                lrelu(v[3] + b[3], slope),
            ],
        );
    }
}

/// dx = dh * lrelu'(h), in place on d [rows, cols]; h has the same row stride.
#[kernel(
    block = 256,
    grid = (rows * (cols / 4)).div_ceil(256),
    requires(
        rows > 0,
        cols > 0,
        cols % 4 == 0,
        stride % 4 == 0,
        stride >= cols,
        h.len() >= (rows as usize - 1) * (stride as usize) + cols as usize,
        d.len() >= (rows as usize - 1) * (stride as usize) + cols as usize,
    )
)]
pub fn lrelu_backward(rows: u32, cols: u32, stride: u32, slope: f32, h: In<f32>, d: InOut<f32>) {
    let i = thread::global_index();
    let vectors = cols / 4;
    if i < rows * vectors {
        let (row, column) = (i / vectors, 4 * (i % vectors));
        let at = row * stride + column;
        let (v, h) = (d.get4(at), h.get4(at));
        d.set4(
            at,
            [
                lrelu_gradient(v[0], h[0], slope),
                lrelu_gradient(v[1], h[1], slope),
                lrelu_gradient(v[2], h[2], slope),
                lrelu_gradient(v[3], h[3], slope),
            ],
        );
    }
}

/// db[c] = sum_r d[r, c], d [rows, cols] with row stride `stride`. A block owns 32 columns; each of its 16 warps sums
/// every 16th row, then one warp adds the 16 partial sums in order. Any shape.
#[kernel(
    block = 512,
    grid = cols.div_ceil(32),
    shared = 16 * 32 * 4,
    barriers = 1,
    requires(
        rows > 0,
        stride >= cols,
        d.len() >= (rows as usize - 1) * (stride as usize) + cols as usize,
        bias_gradient.len() >= cols as usize,
    )
)]
pub fn bias_gradient(rows: u32, cols: u32, stride: u32, d: In<f32>, bias_gradient: Out<f32>) {
    let partial = shared::array::<f32>(0, 16 * 32);
    let (warp, lane) = (thread::warp(), thread::lane());
    let column = thread::block_idx() * 32 + lane;
    let mut sum = [0.0f32; 4];
    if column < cols {
        let mut row = warp;
        // Four independent sums keep four loads in flight; their order is fixed.
        while row + 48 < rows {
            sum[0] += d.get(row * stride + column);
            sum[1] += d.get((row + 16) * stride + column);
            sum[2] += d.get((row + 32) * stride + column);
            sum[3] += d.get((row + 48) * stride + column);
            row += 64;
        }
        while row < rows {
            sum[0] += d.get(row * stride + column);
            row += 16;
        }
    }
    partial.set(warp * 32 + lane, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    thread::sync(); // all 16 partial sums of a column are written before warp 0 adds them
    if warp == 0 && column < cols {
        let mut total = 0.0;
        let mut w = 0;
        while w < 16 {
            total += partial.get(w * 32 + lane);
            w += 1;
        }
        bias_gradient.set(column, total);
    }
}

/// LeakyReLU.
#[inline(always)]
pub fn lrelu(x: f32, slope: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

/// d * lrelu'(argument of h), from the stored output h.
#[inline(always)]
pub fn lrelu_gradient(d: f32, h: f32, slope: f32) -> f32 {
    if h > 0.0 { d } else { slope * d }
}
