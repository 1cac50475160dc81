//! The sums over samples: where they lie in a plane, and their sum over the planes.

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;
use super::{columns, context_columns};

/// Offsets in floats of the sums over samples in one plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// s = sum y, [d]; before it P = y^T c, [d, C].
    pub output: u32,
    /// sum r f_{W-1}^T, [heads E, F].
    pub scores: u32,
    /// sum r, [heads E].
    pub last: u32,
    /// Floats of a plane, a multiple of 4.
    pub len: u32,
}

impl Plane {
    /// The plane of a shape.
    pub const fn new(width: u32, features: u32, bars: u32, heads: u32) -> Plane {
        let tokens = heads * columns(features, bars);
        let output = width * context_columns(features, bars, heads);
        // Each part at a 16-byte boundary.
        let scores = (output + width).next_multiple_of(4);
        let last = (scores + tokens * features).next_multiple_of(4);
        Plane { output, scores, last, len: (last + tokens).next_multiple_of(4) }
    }
    /// Whether float i of a plane belongs to one of the sums: between them are up to three that nothing writes.
    #[inline(always)]
    const fn holds(&self, i: u32, width: u32, features: u32, tokens: u32) -> bool {
        i < self.output + width
            || (self.scores <= i && i < self.scores + tokens * features)
            || (self.last <= i && i < self.last + tokens)
    }
}

/// Blocks of `attention_reduce`, and so partial sums of the gate's gradient.
pub const fn gate_parts(plane: u32) -> u32 {
    plane.div_ceil(256)
}

/// Adds the planes parts [splits, plane] of `Backward::products` in order into sums [plane], the first d C of them (P)
/// multiplied by the gate [1] so that they are dU, and writes output_bias_gradient [d] = g s and the gate's gradient
/// <U, P> + <bo, s> as partial sums gate_sums [`gate_parts`]. mix U [d, C] and output_bias bo [d] are the online
/// network's. One element a thread.
#[kernel(
    block = 256,
    grid = gate_parts(Plane::new(width, features, bars, heads).len),
    shared = 8 * 4,
    barriers = 1,
    shuffles = 5,
    requires(
        shape_fits(width, features, bars, heads),
        splits > 0,
        parts.len() >= (splits as usize) * (Plane::new(width, features, bars, heads).len as usize),
        (splits as usize) * (Plane::new(width, features, bars, heads).len as usize) <= u32::MAX as usize,
        gate.len() >= 1,
        mix.len() >= (width * context_columns(features, bars, heads)) as usize,
        output_bias.len() >= width as usize,
        sums.len() >= Plane::new(width, features, bars, heads).len as usize,
        output_bias_gradient.len() >= width as usize,
        gate_sums.len() >= gate_parts(Plane::new(width, features, bars, heads).len) as usize,
    )
)]
pub fn attention_reduce(
    splits: u32,
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
    parts: In<f32>,
    gate: In<f32>,
    mix: In<f32>,
    output_bias: In<f32>,
    sums: Out<f32>,
    output_bias_gradient: Out<f32>,
    gate_sums: Out<f32>,
) {
    let plane = Plane::new(width, features, bars, heads);
    let warps = shared::array::<f32>(0, 8);
    let i = thread::global_index();
    let mut product = 0.0;
    if plane.holds(i, width, features, heads * columns(features, bars)) {
        let mut sum = parts.get(i);
        let mut s = 1;
        while s + 4 <= splits {
            // Four loads are in flight together; the order of additions stays.
            let at = s * plane.len + i;
            let four = [at, at + plane.len, at + 2 * plane.len, at + 3 * plane.len].map(|at| parts.get(at));
            sum = (((sum + four[0]) + four[1]) + four[2]) + four[3];
            s += 4;
        }
        while s < splits {
            sum += parts.get(s * plane.len + i);
            s += 1;
        }
        if i < plane.output {
            product = mix.get(i) * sum;
            sum *= gate.get(0);
        } else if i < plane.output + width {
            product = output_bias.get(i - plane.output) * sum;
            output_bias_gradient.set(i - plane.output, gate.get(0) * sum);
        }
        sums.set(i, sum);
    }
    let sum = warp::sum(product);
    if thread::lane() == 0 {
        warps.set(thread::warp(), sum);
    }
    thread::sync(); // all eight warps' sums are written before thread 0 adds them
    if thread::thread_idx() == 0 {
        let mut total = 0.0;
        let mut w = 0;
        while w < 8 {
            total += warps.get(w);
            w += 1;
        }
        gate_sums.set(thread::block_idx(), total);
    }
}
