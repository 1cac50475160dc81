//! From the planes of sums over the batch to the group's gradient.

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use super::super::gradient_norm::partials;
use super::super::term_reduce::square_sum;
use super::{Core, MAX_TAPS, Shape};

/// Floats of a plane of P [hidden, width] and s [hidden], padded.
pub const fn output_plane(hidden: u32, width: u32) -> u32 {
    (hidden * (width + 1)).next_multiple_of(4)
}

/// Elements of a block of `mamba_reduce`, one a lane.
const ELEMENTS: u32 = 32;

/// sums [plane + 4]: the planes [blocks, plane] added up, then bo . s, s [hidden] at the end of the planes output_parts
/// [splits, `output_plane`]. Of an element each of eight warps adds every eighth plane, then one adds the eight.
#[kernel(
    block = 256,
    grid = plane.div_ceil(ELEMENTS) + 1,
    shared = 4 * 256,
    barriers = 1,
    shuffles = 5,
    requires(
        blocks > 0,
        plane > 0,
        splits > 0,
        hidden > 0,
        width > 0,
        planes.len() >= (blocks as usize) * (plane as usize),
        (blocks as usize) * (plane as usize) <= u32::MAX as usize,
        (splits as usize) * (hidden as usize) * (width as usize + 1) <= 1 << 30,
        output_parts.len() >= (splits as usize) * (output_plane(hidden, width) as usize),
        output_bias.len() >= hidden as usize,
        sums.len() >= plane as usize + 4,
    )
)]
pub fn mamba_reduce(
    blocks: u32,
    /// Floats of a plane.
    plane: u32,
    /// Planes of the output's gradient.
    splits: u32,
    hidden: u32,
    width: u32,
    planes: In<f32>,
    output_parts: In<f32>,
    output_bias: In<f32>,
    sums: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, 256);
    let (warp, lane) = (thread::warp(), thread::lane());
    let element = thread::block_idx() * ELEMENTS + lane;
    let is_bias = thread::block_idx() + 1 == thread::grid_dim();
    let mut sum = 0.0;
    if is_bias {
        let mut row = thread::thread_idx();
        while row < hidden {
            let mut total = 0.0;
            let mut s = 0;
            while s < splits {
                total += output_parts.get(s * output_plane(hidden, width) + hidden * width + row);
                s += 1;
            }
            sum = math::fma(output_bias.get(row), total, sum);
            row += 256;
        }
    } else if element < plane {
        let mut block = warp;
        // Four loads are in flight together; the order of additions stays.
        while block + 24 < blocks {
            let at = block * plane + element;
            let four = [at, at + 8 * plane, at + 16 * plane, at + 24 * plane].map(|at| planes.get(at));
            sum = (((sum + four[0]) + four[1]) + four[2]) + four[3];
            block += 32;
        }
        while block < blocks {
            sum += planes.get(block * plane + element);
            block += 8;
        }
    }
    scratch.set(thread::thread_idx(), sum);
    thread::sync(); // all eight warps' sums are written before one adds them
    if warp == 0 {
        let mut total = 0.0;
        let mut w = 0;
        while w < 8 {
            total += scratch.get(w * 32 + lane);
            w += 1;
        }
        let whole = warp::sum(total);
        if !is_bias {
            if element < plane {
                sums.set(element, total);
            }
        } else if lane == 0 {
            sums.set(plane, whole);
        } else if lane < 4 {
            sums.set(plane + lane, 0.0);
        }
    }
}

/// Shared memory of `mamba_unfold` in floats: the scratch of the squares' sum, the parameters, the sums.
const SCRATCH: u32 = 8;

#[cfg(not(target_arch = "nvptx64"))]
fn unfold_floats(shape: &Shape, taps: u32) -> u32 {
    SCRATCH + shape.core(taps).len.next_multiple_of(4) + shape.plane()
}

/// What a gradient is read from, in shared memory.
#[derive(Clone, Copy)]
struct Unfold {
    memory: Shared<f32>,
    shape: Shape,
    core: Core,
    taps: u32,
    /// Where the sums begin.
    sums: u32,
}

impl Unfold {
    /// Float `i` of the gradient of the parameters before Wout: dWe = Win^T dM, dbe = Win^T dv, dWin = dM We^T + dv be^T,
    /// the others as they are.
    #[inline(always)]
    fn value(&self, i: u32) -> f32 {
        let Unfold { memory, shape, core, taps, sums } = *self;
        let (features, width, stride) = (shape.features, shape.width, shape.row_stride());
        let folded = shape.folded();
        if i < core.in_weight {
            // Column f of M's gradient, or v's.
            let (u, f) =
                if i < core.emb_bias { (i / features, i % features) } else { (i - core.emb_bias, features) };
            let (weight, d) = (SCRATCH + core.in_weight + u, sums + f * stride);
            let mut sum = 0.0;
            let mut row = 0;
            while row < shape.rows() {
                sum = math::fma(memory.get(weight + row * width), memory.get(d + row), sum);
                row += 1;
            }
            sum
        } else if i < core.conv_weight {
            let (row, u) = ((i - core.in_weight) / width, (i - core.in_weight) % width);
            let d = sums + row;
            let mut sum = memory.get(d + features * stride) * memory.get(SCRATCH + core.emb_bias + u);
            let mut f = 0;
            while f < features {
                sum = math::fma(memory.get(d + f * stride), memory.get(SCRATCH + u * features + f), sum);
                f += 1;
            }
            sum
        } else if i < core.conv_bias {
            let (channel, tap) = ((i - core.conv_weight) / taps, (i - core.conv_weight) % taps);
            let row = MAX_TAPS - taps + tap;
            memory.get(sums + folded.taps + row * shape.channels().next_multiple_of(4) + channel)
        } else if i < core.dt_bias {
            memory.get(sums + folded.conv_bias + i - core.conv_bias)
        } else if i < core.a_log {
            // dt's rows of v have the same gradient.
            memory.get(sums + features * stride + width + shape.channels() + i - core.dt_bias)
        } else if i < core.skip {
            memory.get(sums + folded.rate + i - core.a_log)
        } else if i < core.norm {
            memory.get(sums + folded.skip + i - core.skip)
        } else {
            memory.get(sums + folded.norm + i - core.norm)
        }
    }
}

/// The group's gradient [len], laid out as its parameters, with the blocks' sums of squares: parameters before Wout first
/// (core, the online network's), Wout, bo and the gate at `output`, `output_bias` and `gate_at`; zero elsewhere. sums is
/// what `mamba_reduce` wrote, output_parts [splits, `output_plane`] the planes of P and s, gate [1] g.
#[kernel(
    block = 256,
    grid = partials(len),
    shared = 4 * unfold_floats(&Shape { features, bars: 1, width, state, heads }, taps),
    barriers = 2,
    shuffles = 5,
    requires(
        taps >= 1,
        taps <= MAX_TAPS,
        Shape { features, bars: 1, width, state, heads }.fits(),
        splits > 0,
        hidden > 0,
        len % 4 == 0,
        output as usize >= Shape { features, bars: 1, width, state, heads }.core(taps).len as usize,
        output_bias as usize >= (output as usize) + (hidden as usize) * (width as usize),
        gate_at as usize >= (output_bias as usize) + (hidden as usize),
        len > gate_at,
        (splits as usize) * (hidden as usize) * (width as usize + 1) <= 1 << 30,
        core.len() >= Shape { features, bars: 1, width, state, heads }.core(taps).len as usize,
        sums.len() >= Shape { features, bars: 1, width, state, heads }.plane() as usize + 4,
        output_parts.len() >= (splits as usize) * (output_plane(hidden, width) as usize),
        gate.len() >= 1,
        gradient.len() >= len as usize,
        squares.len() >= partials(len) as usize,
    )
)]
pub fn mamba_unfold(
    len: u32,
    features: u32,
    width: u32,
    state: u32,
    heads: u32,
    taps: u32,
    hidden: u32,
    splits: u32,
    output: u32,
    output_bias: u32,
    gate_at: u32,
    core: In<f32>,
    sums: In<f32>,
    output_parts: In<f32>,
    gate: In<f32>,
    gradient: Out<f32>,
    squares: Out<f32>,
) {
    let shape = Shape { features, bars: 1, width, state, heads };
    let (layout, plane) = (shape.core(taps), shape.plane());
    let summed = SCRATCH + layout.len.next_multiple_of(4);
    let memory = shared::array::<f32>(0, summed + plane);
    let thread = thread::thread_idx();
    let at = 1024 * thread::block_idx() + thread;
    let has_core = 1024 * thread::block_idx() < layout.len;
    if has_core {
        // Whole 16 bytes, then single floats: the parameters may end with the buffer.
        let whole = layout.len / 4 * 4;
        let mut i = 4 * thread;
        while i < whole {
            shared::copy_async16(memory, SCRATCH + i, &core, i, 16);
            i += 1024;
        }
        if whole + thread < layout.len {
            shared::copy_async4(memory, SCRATCH + whole + thread, &core, whole + thread, 4);
        }
        let mut i = 4 * thread;
        while i < plane {
            shared::copy_async16(memory, summed + i, &sums, i, 16);
            i += 1024;
        }
        shared::copy_commit();
        shared::copy_wait::<0>();
    }
    thread::sync(); // parameters and sums are in shared memory
    let unfold = Unfold { memory, shape, core: layout, taps, sums: summed };
    let g = gate.get(0);
    let value = |i: u32| {
        if i < layout.len {
            unfold.value(i)
        } else if i >= output && i < output + hidden * width {
            g * over_splits(&output_parts, i - output, splits, output_plane(hidden, width))
        } else if i >= output_bias && i < output_bias + hidden {
            let from = hidden * width + i - output_bias;
            g * over_splits(&output_parts, from, splits, output_plane(hidden, width))
        } else if i == gate_at {
            sums.get(plane - 4) + sums.get(plane)
        } else {
            0.0
        }
    };
    let mut mine = [0.0f32; 4];
    let mut j = 0;
    while j < 4 {
        let i = at + 256 * j;
        if i < len {
            let x = value(i);
            gradient.set(i, x);
            mine[j as usize] = x;
        }
        j += 1;
    }
    square_sum(mine, &squares);
}

/// Sum over the planes, in order.
#[inline(always)]
fn over_splits(parts: &In<f32>, at: u32, splits: u32, plane: u32) -> f32 {
    let mut sum = 0.0;
    let mut s = 0;
    while s < splits {
        sum += parts.get(s * plane + at);
        s += 1;
    }
    sum
}
