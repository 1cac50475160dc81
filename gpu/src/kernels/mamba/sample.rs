//! A warp's part of the shared memory and the steps of a sample that forward and backward share.
//!
//! The steps are separated by warp barriers, which their callers place: a step's lanes read what all lanes of the step
//! before wrote.

use cuda_std::prelude::*;

use super::{Folded, Shape, sigmoid, silu, silu_gradient, softplus};

/// Arrays of one warp, as offsets in floats from the beginning of the block's shared memory; [.., columns] have a bar a
/// column and zeros behind the last.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub memory: Shared<f32>,
    pub shape: Shape,
    pub folded: Folded,
    /// x^T [F, columns].
    pub window: u32,
    /// Channels after convolution and SiLU [channels, columns].
    pub channel: u32,
    /// D [heads, columns].
    pub delta: u32,
    /// What each bar's x' counts, w with Dskip added to the last [heads, columns].
    pub weight: u32,
    /// s [columns].
    pub score: u32,
    /// y silu(z) [U].
    pub gated: u32,
    /// SiLU's derivative [channels, columns]; here and below in the backward pass only.
    pub slope: u32,
    /// e [heads, columns].
    pub decay: u32,
    /// sigmoid(dt + dtbias), then the gradient of dt [heads, columns].
    pub time: u32,
}

impl Sample {
    /// Floats of the arrays up to `gated`.
    pub(super) const fn forward_floats(shape: &Shape) -> u32 {
        (shape.features + shape.channels() + 2 * shape.heads + 1) * shape.columns() + shape.width
    }

    /// Floats of all arrays.
    pub(super) const fn floats(shape: &Shape) -> u32 {
        Self::forward_floats(shape) + (shape.channels() + 2 * shape.heads) * shape.columns()
    }

    /// The arrays that start at float `first`.
    #[inline(always)]
    pub(super) fn new(memory: Shared<f32>, shape: Shape, first: u32) -> Sample {
        let columns = shape.columns();
        let channel = first + shape.features * columns;
        let delta = channel + shape.channels() * columns;
        let weight = delta + shape.heads * columns;
        let score = weight + shape.heads * columns;
        let gated = score + columns;
        let slope = gated + shape.width;
        let decay = slope + shape.channels() * columns;
        let time = decay + shape.heads * columns;
        let folded = shape.folded();
        Sample {
            memory,
            shape,
            folded,
            window: first,
            channel,
            delta,
            weight,
            score,
            gated,
            slope,
            decay,
            time,
        }
    }

    /// M x_t + v of one row, for the bars `t` to `t + 3`.
    #[inline(always)]
    pub(super) fn bars4(&self, row: u32, t: u32) -> [f32; 4] {
        let (stride, columns) = (self.shape.row_stride(), self.shape.columns());
        let mut sum = [self.memory.get(self.shape.features * stride + row); 4];
        let mut f = 0;
        while f < self.shape.features {
            let weight = self.memory.get(f * stride + row);
            let x = self.memory.get4(self.window + f * columns + t);
            sum = [
                math::fma(weight, x[0], sum[0]),
                math::fma(weight, x[1], sum[1]),
                math::fma(weight, x[2], sum[2]),
                math::fma(weight, x[3], sum[3]),
            ];
            f += 1;
        }
        sum
    }

    /// The same for one bar.
    #[inline(always)]
    pub(super) fn bar(&self, row: u32, t: u32) -> f32 {
        let (stride, columns) = (self.shape.row_stride(), self.shape.columns());
        let mut sum = self.memory.get(self.shape.features * stride + row);
        let mut f = 0;
        while f < self.shape.features {
            let x = self.memory.get(self.window + f * columns + t);
            sum = math::fma(self.memory.get(f * stride + row), x, sum);
            f += 1;
        }
        sum
    }

    /// Taps of a channel, that of bar t - 3 first.
    #[inline(always)]
    pub(super) fn taps(&self, channel: u32) -> [f32; 4] {
        let stride = self.shape.channels().next_multiple_of(4);
        let at = self.folded.taps + channel;
        [
            self.memory.get(at),
            self.memory.get(at + stride),
            self.memory.get(at + 2 * stride),
            self.memory.get(at + 3 * stride),
        ]
    }

    /// The channels of all bars and D; with `KEEP` also what only the backward pass needs. Lanes are channels, then pairs
    /// of head and bar.
    #[inline(always)]
    pub(super) fn channels<const KEEP: bool>(&self) {
        let Shape { bars, width, heads, .. } = self.shape;
        let columns = self.shape.columns();
        let mut channel = thread::lane();
        while channel < self.shape.channels() {
            let taps = self.taps(channel);
            let bias = self.memory.get(self.folded.conv_bias + channel);
            let mut before = [0.0f32; 3];
            let mut t = 0;
            while t < bars {
                let now = self.bars4(width + channel, t);
                let line = [before[0], before[1], before[2], now[0], now[1], now[2], now[3]];
                let (mut out, mut slope) = ([0.0f32; 4], [0.0f32; 4]);
                let mut i = 0;
                while i < 4 {
                    let mut sum = math::fma(taps[0], line[i], bias);
                    sum = math::fma(taps[1], line[i + 1], sum);
                    sum = math::fma(taps[2], line[i + 2], sum);
                    sum = math::fma(taps[3], line[i + 3], sum);
                    if KEEP {
                        let s = sigmoid(sum);
                        out[i] = sum * s;
                        slope[i] = silu_gradient(sum, s);
                    } else {
                        out[i] = silu(sum);
                    }
                    i += 1;
                }
                self.memory.set4(self.channel + channel * columns + t, out);
                if KEEP {
                    self.memory.set4(self.slope + channel * columns + t, slope);
                }
                before = [now[1], now[2], now[3]];
                t += 4;
            }
            channel += 32;
        }
        let mut pair = thread::lane();
        while pair < heads * bars {
            let (head, t) = (pair / bars, pair % bars);
            let row = width + self.shape.channels() + head;
            let dt = self.bar(row, t) + self.memory.get(self.folded.dt_bias + head);
            self.memory.set(self.delta + head * columns + t, softplus(dt));
            if KEEP {
                self.memory.set(self.time + head * columns + t, sigmoid(dt));
            }
            pair += 32;
        }
    }

    /// s_t = B_t . C_last, and e (which `weights` overwrites where nothing is kept). Lanes are bars, then pairs.
    #[inline(always)]
    pub(super) fn scores<const KEEP: bool>(&self) {
        let Shape { bars, width, state, heads, .. } = self.shape;
        let columns = self.shape.columns();
        let mut t = thread::lane();
        while t < bars {
            let mut at = self.channel + width * columns;
            let mut sum = 0.0;
            let mut n = 0;
            while n < state {
                let c = self.memory.get(at + state * columns + bars - 1);
                sum = math::fma(self.memory.get(at + t), c, sum);
                at += columns;
                n += 1;
            }
            self.memory.set(self.score + t, sum);
            t += 32;
        }
        let decay = if KEEP { self.decay } else { self.weight };
        let mut pair = thread::lane();
        while pair < heads * bars {
            let (head, t) = (pair / bars, pair % bars);
            let at = self.delta + head * columns;
            let mut later = 0.0;
            let mut s = bars - 1;
            while s > t {
                later += self.memory.get(at + s);
                s -= 1;
            }
            let rate = self.memory.get(self.folded.rate + head);
            self.memory.set(decay + head * columns + t, math::exp(-(rate * later)));
            pair += 32;
        }
    }

    /// w = e D s, Dskip added at the last bar. Lanes are the pairs of `scores`.
    #[inline(always)]
    pub(super) fn weights<const KEEP: bool>(&self) {
        let Shape { bars, heads, .. } = self.shape;
        let columns = self.shape.columns();
        let decay = if KEEP { self.decay } else { self.weight };
        let mut pair = thread::lane();
        while pair < heads * bars {
            let (head, t) = (pair / bars, pair % bars);
            let at = head * columns + t;
            let mut weight = self.memory.get(decay + at) * self.memory.get(self.delta + at);
            weight *= self.memory.get(self.score + t);
            if t + 1 == bars {
                weight += self.memory.get(self.folded.skip + head);
            }
            self.memory.set(self.weight + at, weight);
            pair += 32;
        }
    }

    /// y_c.
    #[inline(always)]
    pub(super) fn output(&self, channel: u32) -> f32 {
        let columns = self.shape.columns();
        let head = channel / (self.shape.width / self.shape.heads);
        let (from, weight) = (self.channel + channel * columns, self.weight + head * columns);
        let mut sum = 0.0;
        let mut t = 0;
        while t < self.shape.bars {
            let (x, w) = (self.memory.get4(from + t), self.memory.get4(weight + t));
            sum = math::fma(w[0], x[0], sum);
            sum = math::fma(w[1], x[1], sum);
            sum = math::fma(w[2], x[2], sum);
            sum = math::fma(w[3], x[3], sum);
            t += 4;
        }
        sum
    }

    /// 1 / sqrt(mean of squares + 1e-5), from the lanes' sums of squares of y silu(z).
    #[inline(always)]
    pub(super) fn inverse_norm(&self, squares: f32) -> f32 {
        1.0 / math::sqrt(warp::sum(squares) / self.shape.width as f32 + 1e-5)
    }

    /// Copies four floats of a state from `at` on into the transposed window, as far as they belong to it.
    #[inline(always)]
    pub(super) fn place4(&self, at: u32, x: [f32; 4]) {
        self.place(at, x[0]);
        self.place(at + 1, x[1]);
        self.place(at + 2, x[2]);
        self.place(at + 3, x[3]);
    }

    /// Copies float `at` of a state into the transposed window, if it belongs to it.
    #[inline(always)]
    fn place(&self, at: u32, x: f32) {
        let Shape { features, bars, .. } = self.shape;
        if at < features * bars {
            self.memory.set(self.window + at % features * self.shape.columns() + at / features, x);
        }
    }
}
