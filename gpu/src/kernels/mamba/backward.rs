//! The block backward: a sample is computed anew and gone back through, sums over samples stay in shared memory.

use cuda_std::prelude::*;

use super::sample::Sample;
use super::{Shape, THREADS, WARPS, sigmoid, silu_gradient};

/// Most blocks. The number belongs to the order of the sums, so it is not taken from the GPU: four for each
/// multiprocessor of an H100.
const BLOCKS: u32 = 4 * 132;

/// Blocks of `mamba_backward`, and so planes of sums.
pub const fn backward_blocks(rows: u32) -> u32 {
    let blocks = rows.div_ceil(WARPS);
    if blocks < BLOCKS { blocks } else { BLOCKS }
}

/// Floats of a warp: the sample's arrays, three gradients of them, four vectors [U], its sums over samples.
const fn warp_floats(shape: &Shape) -> u32 {
    Sample::floats(shape) + (2 * shape.heads + 2) * shape.columns() + 4 * shape.width + shape.plane()
}

/// Shared memory in floats.
#[cfg(not(target_arch = "nvptx64"))]
pub(super) fn backward_floats(shape: &Shape) -> u32 {
    shape.folded().len + WARPS * warp_floats(shape) + WARPS
}

/// A sample with the gradients of its arrays.
#[derive(Clone, Copy)]
struct Back {
    sample: Sample,
    /// What a channel's gradient is multiplied by at each bar [heads + 2, columns]: the heads' w, the gradient of s, and 1
    /// at the last bar, for the channels of x', B and C.
    factor: u32,
    /// dw [heads, columns].
    d_weight: u32,
    /// y [U].
    output: u32,
    /// z [U].
    gate: u32,
    /// dy [U].
    d_output: u32,
    /// Sums over the warp's samples, as a plane.
    sums: u32,
}

impl Back {
    #[inline(always)]
    fn new(memory: Shared<f32>, shape: Shape, first: u32) -> Back {
        let columns = shape.columns();
        let factor = first + Sample::floats(&shape);
        let d_weight = factor + (shape.heads + 2) * columns;
        let output = d_weight + shape.heads * columns;
        let gate = output + shape.width;
        let d_output = gate + shape.width;
        let sums = d_output + 2 * shape.width;
        Back { sample: Sample::new(memory, shape, first), factor, d_weight, output, gate, d_output, sums }
    }

    /// Adds to the sum at float `at` of the plane; each is one lane's.
    #[inline(always)]
    fn add(&self, at: u32, x: f32) {
        let memory = self.sample.memory;
        memory.set(self.sums + at, memory.get(self.sums + at) + x);
    }

    /// Adds the gradient `d` of row `row` at the last bar to that of M and v.
    #[inline(always)]
    fn add_last(&self, row: u32, d: f32) {
        let (shape, memory) = (self.sample.shape, self.sample.memory);
        let (stride, columns) = (shape.row_stride(), shape.columns());
        let mut f = 0;
        while f < shape.features {
            self.add(f * stride + row, d * memory.get(self.sample.window + f * columns + shape.bars - 1));
            f += 1;
        }
        self.add(shape.features * stride + row, d);
    }

    /// From q = d_o before the gate g (a row of `gradient`, from float `from` on) to dy; adds up the gradients of z's rows
    /// and of the norm's weight. Gives the lane's part of q . o.
    #[inline(always)]
    fn norm(&self, gate: f32, gradient: &In<f32>, from: u32) -> f32 {
        let Sample { memory, shape, folded, gated, .. } = self.sample;
        let (width, last) = (shape.width, shape.bars - 1);
        let mut squares = 0.0;
        let mut c = thread::lane();
        while c < width {
            let (y, z) = (self.sample.output(c), self.sample.bar(c, last));
            let out = y * (z * sigmoid(z));
            memory.set(self.output + c, y);
            memory.set(self.gate + c, z);
            memory.set(gated + c, out);
            squares = math::fma(out, out, squares);
            c += 32;
        }
        let inverse = self.sample.inverse_norm(squares);
        let (mut product, mut with_o) = (0.0, 0.0);
        let mut c = thread::lane();
        while c < width {
            let (q, normed) = (gradient.get(from + c), memory.get(gated + c) * inverse);
            let weight = memory.get(folded.norm + c);
            with_o = math::fma(q, normed * weight, with_o);
            self.add(folded.norm + c, gate * q * normed);
            product = math::fma(gate * q * weight, normed, product);
            c += 32;
        }
        let mean = warp::sum(product) / width as f32;
        let mut c = thread::lane();
        while c < width {
            let (y, z) = (memory.get(self.output + c), memory.get(self.gate + c));
            let s = sigmoid(z);
            let before = gate * gradient.get(from + c) * memory.get(folded.norm + c);
            // d(y silu(z)) of the norm.
            let d = inverse * math::fma(-(memory.get(gated + c) * inverse), mean, before);
            memory.set(self.d_output + c, d * (z * s));
            self.add_last(c, d * y * silu_gradient(z, s));
            c += 32;
        }
        with_o
    }

    /// dw_ht = sum over the head's channels of dy x'_t; at the last bar it is Dskip's gradient too. Lanes are pairs.
    #[inline(always)]
    fn weights(&self) {
        let Sample { memory, shape, folded, channel, .. } = self.sample;
        let (columns, depth) = (shape.columns(), shape.width / shape.heads);
        let mut pair = thread::lane();
        while pair < shape.heads * shape.bars {
            let (head, t) = (pair / shape.bars, pair % shape.bars);
            let mut sum = 0.0;
            let mut c = head * depth;
            while c < (head + 1) * depth {
                let x = memory.get(channel + c * columns + t);
                sum = math::fma(memory.get(self.d_output + c), x, sum);
                c += 1;
            }
            memory.set(self.d_weight + head * columns + t, sum);
            memory.set(self.factor + head * columns + t, memory.get(self.sample.weight + head * columns + t));
            if t + 1 == shape.bars {
                self.add(folded.skip + head, sum);
            }
            pair += 32;
        }
    }

    /// dw e D of a pair: the gradient of s through this head.
    #[inline(always)]
    fn scored(&self, at: u32) -> f32 {
        let Sample { memory, delta, decay, .. } = self.sample;
        memory.get(self.d_weight + at) * (memory.get(decay + at) * memory.get(delta + at))
    }

    /// The gradients of s, D and A: dR_t = -A w_t dw_t, and R_t holds D of every later bar. Lanes are bars, pairs, heads.
    #[inline(always)]
    fn scan(&self) {
        let Sample { memory, shape, folded, score, delta, decay, time, .. } = self.sample;
        let columns = shape.columns();
        let mut t = thread::lane();
        while t < shape.bars {
            let mut sum = 0.0;
            let mut head = 0;
            while head < shape.heads {
                sum += self.scored(head * columns + t);
                head += 1;
            }
            memory.set(self.factor + shape.heads * columns + t, sum);
            t += 32;
        }
        let mut pair = thread::lane();
        while pair < shape.heads * shape.bars {
            let (head, t) = (pair / shape.bars, pair % shape.bars);
            let at = head * columns;
            let rate = memory.get(folded.rate + head);
            let mut earlier = 0.0;
            let mut s = 0;
            while s < t {
                earlier = math::fma(self.scored(at + s), memory.get(score + s), earlier);
                s += 1;
            }
            let direct =
                memory.get(self.d_weight + at + t) * memory.get(decay + at + t) * memory.get(score + t);
            let d_delta = math::fma(-rate, earlier, direct);
            memory.set(time + at + t, d_delta * memory.get(time + at + t));
            pair += 32;
        }
        let mut head = thread::lane();
        while head < shape.heads {
            let at = head * columns;
            let (mut later, mut sum) = (0.0, 0.0);
            let mut t = shape.bars;
            while t > 0 {
                t -= 1;
                sum = math::fma(later, self.scored(at + t) * memory.get(score + t), sum);
                later += memory.get(delta + at + t);
            }
            // With respect to Alog: A times that of A.
            self.add(folded.rate + head, -(memory.get(folded.rate + head) * sum));
            head += 32;
        }
    }

    /// The gradient of dt's rows of M and v. Lanes are pairs of head and feature, the last of which is the constant.
    #[inline(always)]
    fn time_rows(&self) {
        let Sample { memory, shape, window, time, .. } = self.sample;
        let (stride, columns) = (shape.row_stride(), shape.columns());
        let mut pair = thread::lane();
        while pair < shape.heads * (shape.features + 1) {
            let (head, f) = (pair / (shape.features + 1), pair % (shape.features + 1));
            let mut sum = 0.0;
            let mut t = 0;
            while t < shape.bars {
                let d = memory.get(time + head * columns + t);
                let x = if f < shape.features { memory.get(window + f * columns + t) } else { 1.0 };
                sum = math::fma(d, x, sum);
                t += 1;
            }
            self.add(f * stride + shape.width + shape.channels() + head, sum);
            pair += 32;
        }
    }

    /// What a channel's gradient is a multiple of: dy of x', C_last of B, sum over bars of ds B of C; and its row of
    /// `factor`.
    #[inline(always)]
    fn channel_gradient(&self, channel: u32) -> (f32, u32) {
        let Sample { memory, shape, channel: from, .. } = self.sample;
        let Shape { bars, width, state, heads, .. } = shape;
        let columns = shape.columns();
        if channel < width {
            (memory.get(self.d_output + channel), channel / (width / heads))
        } else if channel < width + state {
            (memory.get(from + (channel + state) * columns + bars - 1), heads)
        } else {
            let mut sum = 0.0;
            let mut t = 0;
            while t < bars {
                let b = memory.get(from + (channel - state) * columns + t);
                sum = math::fma(memory.get(self.factor + heads * columns + t), b, sum);
                t += 1;
            }
            (sum, heads + 1)
        }
    }

    /// Back through SiLU and convolution, from the last bar to the first; M x is computed anew. Lanes are channels.
    #[inline(always)]
    fn channels(&self) {
        let Sample { memory, shape, folded, window, slope, .. } = self.sample;
        let (stride, columns) = (shape.row_stride(), shape.columns());
        let tap_stride = shape.channels().next_multiple_of(4);
        let mut channel = thread::lane();
        while channel < shape.channels() {
            let row = shape.width + channel;
            let taps = self.sample.taps(channel);
            let (alpha, factor) = self.channel_gradient(channel);
            let mut after = [0.0f32; 3];
            let (mut d_taps, mut d_bias, mut d_constant) = ([0.0f32; 4], 0.0, 0.0);
            let mut t = 4 * shape.bars.div_ceil(4);
            while t > 0 {
                t -= 4;
                let raw = self.sample.bars4(row, t);
                let slope = memory.get4(slope + channel * columns + t);
                let factor = memory.get4(self.factor + factor * columns + t);
                let mut line = [0.0, 0.0, 0.0, 0.0, after[0], after[1], after[2]];
                let mut i = 0;
                while i < 4 {
                    line[i] = alpha * factor[i] * slope[i];
                    d_bias += line[i];
                    i += 1;
                }
                let mut d = [0.0f32; 4];
                let mut i = 0;
                while i < 4 {
                    // Tap j of bar t - 3 + j.
                    d[i] = taps[3] * line[i];
                    d[i] = math::fma(taps[2], line[i + 1], d[i]);
                    d[i] = math::fma(taps[1], line[i + 2], d[i]);
                    d[i] = math::fma(taps[0], line[i + 3], d[i]);
                    d_taps[3] = math::fma(raw[i], line[i], d_taps[3]);
                    d_taps[2] = math::fma(raw[i], line[i + 1], d_taps[2]);
                    d_taps[1] = math::fma(raw[i], line[i + 2], d_taps[1]);
                    d_taps[0] = math::fma(raw[i], line[i + 3], d_taps[0]);
                    i += 1;
                }
                let mut f = 0;
                while f < shape.features {
                    let x = memory.get4(window + f * columns + t);
                    let sum = math::fma(d[0], x[0], d[1] * x[1]) + math::fma(d[2], x[2], d[3] * x[3]);
                    self.add(f * stride + row, sum);
                    f += 1;
                }
                d_constant += (d[0] + d[1]) + (d[2] + d[3]);
                after = [line[0], line[1], line[2]];
            }
            self.add(shape.features * stride + row, d_constant);
            self.add(folded.conv_bias + channel, d_bias);
            let at = folded.taps + channel;
            self.add(at, d_taps[0]);
            self.add(at + tap_stride, d_taps[1]);
            self.add(at + 2 * tap_stride, d_taps[2]);
            self.add(at + 3 * tap_stride, d_taps[3]);
            channel += 32;
        }
    }
}

/// Sums over `rows` samples, one plane a block [`backward_blocks`, `Shape::plane`]: the gradients of M^T, taps, biases,
/// Alog (in A's place), Dskip and wn as the folded parameters lie, dtbias's left out (it is that of dt's rows of v), and
/// behind them the sum of q . o. gradient q = d Wout [rows, width], before the gate [1]; folded is the online network's.
#[kernel(
    block = THREADS,
    grid = backward_blocks(rows),
    shared = 4 * backward_floats(&Shape { features, bars, width, state, heads }),
    barriers = 2,
    shuffles = 15,
    votes = 8, // warp barriers
    requires(
        rows > 0,
        Shape { features, bars, width, state, heads }.fits(),
        stride % 4 == 0,
        stride >= bars * features,
        folded.len() >= Shape { features, bars, width, state, heads }.folded().len as usize,
        states.len() >= (rows as usize) * (stride as usize),
        gradient.len() >= (rows as usize) * (width as usize),
        gate.len() >= 1,
        planes.len() >= (backward_blocks(rows) as usize) * (Shape { features, bars, width, state, heads }.plane() as usize),
        (rows as usize) * (width.max(stride) as usize) <= u32::MAX as usize,
    )
)]
pub fn mamba_backward(
    rows: u32,
    stride: u32,
    features: u32,
    bars: u32,
    width: u32,
    state: u32,
    heads: u32,
    folded: In<f32>,
    states: In<f32>,
    gate: In<f32>,
    gradient: In<f32>,
    planes: Out<f32>,
) {
    let shape = Shape { features, bars, width, state, heads };
    let (len, floats) = (shape.folded().len, warp_floats(&shape));
    let memory = shared::array::<f32>(0, len + WARPS * floats);
    let starts = shared::array::<u32>(4 * (len + WARPS * floats), WARPS);
    let start = len + thread::warp() * floats;
    let mut i = 4 * thread::thread_idx();
    while i < len {
        shared::copy_async16(memory, i, &folded, i, 16);
        i += 4 * THREADS;
    }
    shared::copy_commit();
    let mut i = thread::thread_idx();
    while i < WARPS * floats {
        memory.set(len + i, 0.0); // sums start, and columns behind the last bar stay, at zero
        i += THREADS;
    }
    if thread::lane() == 0 {
        starts.set(thread::warp(), start);
    }
    shared::copy_wait::<0>();
    thread::sync(); // parameters and zeros are in shared memory
    let back = Back::new(memory, shape, start);
    let (lane, gate) = (thread::lane(), gate.get(0));
    if lane == 0 {
        memory.set(back.factor + (heads + 1) * shape.columns() + bars - 1, 1.0);
    }
    let mut with_o = 0.0;
    let mut row = thread::block_idx() * WARPS + thread::warp();
    while row < rows {
        // Read anew for each sample, so that no address of it is kept in a register from sample to sample.
        let back = Back::new(memory, shape, starts.get(thread::warp()));
        let sample = back.sample;
        let mut i = 4 * lane;
        while i < bars * features {
            let x = states.get4(row * stride + i);
            sample.place4(i, x);
            i += 128;
        }
        warp::sync(); // the window is whole
        sample.channels::<true>();
        warp::sync(); // channels and D are whole
        sample.scores::<true>();
        warp::sync(); // scores are whole
        sample.weights::<true>();
        warp::sync(); // weights are whole
        with_o += back.norm(gate, &gradient, row * width);
        warp::sync(); // dy is whole
        back.weights();
        warp::sync(); // dw is whole
        back.scan();
        warp::sync(); // ds and the gradient of dt are whole
        back.time_rows();
        back.channels();
        row += WARPS * thread::grid_dim();
        warp::sync(); // everything is read before the next sample overwrites it
    }
    let with_o = warp::sum(with_o);
    if lane == 0 {
        memory.set(back.sums + len, with_o);
    }
    thread::sync(); // all warps' sums are whole before they are added
    let plane = shape.plane();
    let first = len + floats - plane;
    let mut i = thread::thread_idx();
    while i < plane {
        let mut sum = memory.get(first + i);
        let mut w = 1;
        while w < WARPS {
            sum += memory.get(first + w * floats + i);
            w += 1;
        }
        planes.set(thread::block_idx() * plane + i, sum);
        i += THREADS;
    }
}
