//! The Mamba-2 block as it is defined (see the module's documentation), written out: no folded parameters, the scan with
//! its states, backward through time.
//!
//! Over [`f64`] it gives values, over [`Bounded`] values with the rounding error of the same formulas in f32.

use std::array;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::Shape;
use crate::reference::Bounded;

/// f64, or a value with its error bound.
pub trait Number:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// A number that f32 holds.
    fn exact(x: f32) -> Self;
    /// e to this power.
    fn exp(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// ln(1 + e^x).
    fn softplus(self) -> Self;

    /// 1 / (1 + e^-x).
    fn sigmoid(self) -> Self {
        Self::exact(1.0) / (Self::exact(1.0) + (-self).exp())
    }
}

impl Number for f64 {
    fn exact(x: f32) -> f64 {
        x.into()
    }

    fn exp(self) -> f64 {
        f64::exp(self)
    }

    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    fn softplus(self) -> f64 {
        self.max(0.0) + (-self.abs()).exp().ln_1p()
    }
}

/// Relative error of the kernels' softplus in units of f32's roundoff: two each of exponential and logarithm, one each of
/// 1 + e (which passes at most half of it on), the division, the product and the last sum.
const SOFTPLUS: f64 = 8.0;

impl Number for Bounded {
    fn exact(x: f32) -> Bounded {
        Bounded::exact(x)
    }

    fn exp(self) -> Bounded {
        Bounded::exp(self)
    }

    fn sqrt(self) -> Bounded {
        Bounded::sqrt(self)
    }

    fn softplus(self) -> Bounded {
        let value = Number::softplus(self.value);
        Bounded { value, scale: self.scale * Number::sigmoid(self.value) + SOFTPLUS * value }
    }
}

/// The group's tensors with their names and sizes, in the order of the flat layout.
pub fn tensor_sizes(shape: Shape, taps: usize, hidden: usize) -> [(&'static str, usize); 12] {
    let Shape { features, width, heads, .. } = shape;
    let (features, width, heads) = (features as usize, width as usize, heads as usize);
    let (rows, channels) = (shape.rows() as usize, shape.channels() as usize);
    [
        ("emb.weight", width * features),
        ("emb.bias", width),
        ("in.weight", rows * width),
        ("conv.weight", channels * taps),
        ("conv.bias", channels),
        ("dt_bias", heads),
        ("a_log", heads),
        ("skip", heads),
        ("norm", width),
        ("out.weight", hidden * width),
        ("out.bias", hidden),
        ("gate", 1),
    ]
}

/// A network's parameters, or their gradient; the tensors of [`tensor_sizes`], row-major.
#[derive(Clone, Debug)]
pub struct Parameters<T> {
    /// The tensors.
    pub tensors: [Vec<T>; 12],
    taps: usize,
    hidden: usize,
}

/// Positions in [`Parameters::tensors`].
mod at {
    pub const EMB: usize = 0;
    pub const EMB_BIAS: usize = 1;
    pub const IN: usize = 2;
    pub const CONV: usize = 3;
    pub const CONV_BIAS: usize = 4;
    pub const DT_BIAS: usize = 5;
    pub const A_LOG: usize = 6;
    pub const SKIP: usize = 7;
    pub const NORM: usize = 8;
    pub const OUT: usize = 9;
    pub const OUT_BIAS: usize = 10;
    pub const GATE: usize = 11;
}

impl<T: Copy> Parameters<T> {
    /// Parameters whose tensors come from `make(name, len)`.
    pub fn new(
        shape: Shape,
        taps: usize,
        hidden: usize,
        mut make: impl FnMut(&str, usize) -> Vec<T>,
    ) -> Self {
        let sizes = tensor_sizes(shape, taps, hidden);
        Self { tensors: array::from_fn(|i| make(sizes[i].0, sizes[i].1)), taps, hidden }
    }

    /// Every number changed.
    pub fn map<U>(&self, change: impl Fn(T) -> U) -> Parameters<U> {
        let tensors = array::from_fn(|i| self.tensors[i].iter().map(|&x| change(x)).collect());
        Parameters { tensors, taps: self.taps, hidden: self.hidden }
    }
}

/// What a sample's block computes.
#[derive(Clone, Debug)]
pub struct Forward<T> {
    /// u [W][U].
    embedded: Vec<Vec<T>>,
    /// Win u [W][rows].
    projected: Vec<Vec<T>>,
    /// The convolution before its SiLU [W][channels].
    convolved: Vec<Vec<T>>,
    /// D [W][heads].
    delta: Vec<Vec<T>>,
    /// S [W + 1][U][N], the first zero.
    states: Vec<Vec<Vec<T>>>,
    /// y at the last bar [U].
    y: Vec<T>,
    /// The norm's output before wn [U], and 1 / its root.
    normed: Vec<T>,
    inverse: T,
    /// o [U].
    pub o: Vec<T>,
    /// m [H1].
    pub m: Vec<T>,
    /// g m [H1].
    pub addend: Vec<T>,
}

fn sum<T: Number>(terms: impl Iterator<Item = T>) -> T {
    terms.fold(T::exact(0.0), |sum, term| sum + term)
}

fn silu<T: Number>(x: T) -> T {
    x * x.sigmoid()
}

fn silu_gradient<T: Number>(x: T) -> T {
    let s = x.sigmoid();
    s * (T::exact(1.0) + x * (T::exact(1.0) - s))
}

/// The block of one sample; `window` is [W, F].
pub fn forward<T: Number>(shape: Shape, p: &Parameters<T>, window: &[f32]) -> Forward<T> {
    let Shape { features, bars, width, state, heads } = shape;
    let [features, bars, width, state, heads] = [features, bars, width, state, heads].map(|x| x as usize);
    let (rows, channels, zero) = (shape.rows() as usize, shape.channels() as usize, T::exact(0.0));
    let t = &p.tensors;
    let embedded: Vec<Vec<T>> = (0..bars)
        .map(|bar| {
            let of = |u: usize| {
                let x = |f: usize| t[at::EMB][u * features + f] * T::exact(window[bar * features + f]);
                sum((0..features).map(x)) + t[at::EMB_BIAS][u]
            };
            (0..width).map(of).collect()
        })
        .collect();
    let projected: Vec<Vec<T>> = embedded
        .iter()
        .map(|e| (0..rows).map(|r| sum((0..width).map(|u| t[at::IN][r * width + u] * e[u]))).collect())
        .collect();
    let convolved: Vec<Vec<T>> = (0..bars)
        .map(|bar| {
            let of = |c: usize| {
                // The last tap is the bar's own; before the window there is nothing.
                let taps = (0..p.taps).filter(|j| bar + j + 1 >= p.taps);
                let tap = |j: usize| t[at::CONV][c * p.taps + j] * projected[bar + j + 1 - p.taps][width + c];
                sum(taps.map(tap)) + t[at::CONV_BIAS][c]
            };
            (0..channels).map(of).collect()
        })
        .collect();
    let delta: Vec<Vec<T>> = projected
        .iter()
        .map(|r| (0..heads).map(|h| (r[width + channels + h] + t[at::DT_BIAS][h]).softplus()).collect())
        .collect();
    let mut states = vec![vec![vec![zero; state]; width]];
    for bar in 0..bars {
        let (before, x) = (&states[bar], &convolved[bar]);
        let next = (0..width)
            .map(|c| {
                let h = c * heads / width;
                let a = (-(delta[bar][h] * t[at::A_LOG][h].exp())).exp();
                let scaled = delta[bar][h] * silu(x[c]);
                (0..state).map(|n| a * before[c][n] + scaled * silu(x[width + n])).collect()
            })
            .collect();
        states.push(next);
    }
    let last = bars - 1;
    let y: Vec<T> = (0..width)
        .map(|c| {
            let read = |n: usize| states[bars][c][n] * silu(convolved[last][width + state + n]);
            sum((0..state).map(read)) + t[at::SKIP][c * heads / width] * silu(convolved[last][c])
        })
        .collect();
    let gated: Vec<T> = (0..width).map(|c| y[c] * silu(projected[last][c])).collect();
    let mean = sum(gated.iter().map(|&x| x * x)) / T::exact(width as f32);
    let inverse = T::exact(1.0) / (mean + T::exact(1e-5)).sqrt();
    let normed: Vec<T> = gated.iter().map(|&x| x * inverse).collect();
    let o: Vec<T> = (0..width).map(|c| normed[c] * t[at::NORM][c]).collect();
    let m: Vec<T> = (0..p.hidden)
        .map(|r| sum((0..width).map(|c| t[at::OUT][r * width + c] * o[c])) + t[at::OUT_BIAS][r])
        .collect();
    let addend = m.iter().map(|&m| t[at::GATE][0] * m).collect();
    Forward { embedded, projected, convolved, delta, states, y, normed, inverse, o, m, addend }
}

/// Adds one sample's gradient to `d`, from `dh`, that of h1's argument [H1].
pub fn backward<T: Number>(
    shape: Shape,
    p: &Parameters<T>,
    window: &[f32],
    of: &Forward<T>,
    dh: &[f32],
    d: &mut Parameters<T>,
) {
    let Shape { features, bars, width, state, heads } = shape;
    let [features, bars, width, state, heads] = [features, bars, width, state, heads].map(|x| x as usize);
    let (rows, channels, zero) = (shape.rows() as usize, shape.channels() as usize, T::exact(0.0));
    let (t, last) = (&p.tensors, bars - 1);
    let g = t[at::GATE][0];
    let add = |to: &mut T, x: T| *to = *to + x;
    let mut d_o = vec![zero; width];
    for (r, &dh) in dh.iter().enumerate() {
        let dh = T::exact(dh);
        add(&mut d.tensors[at::GATE][0], dh * of.m[r]);
        add(&mut d.tensors[at::OUT_BIAS][r], g * dh);
        for c in 0..width {
            add(&mut d.tensors[at::OUT][r * width + c], g * dh * of.o[c]);
            add(&mut d_o[c], g * dh * t[at::OUT][r * width + c]);
        }
    }
    let mut d_projected = vec![vec![zero; rows]; bars];
    let mut d_channels = vec![vec![zero; channels]; bars];
    let d_normed: Vec<T> = (0..width).map(|c| d_o[c] * t[at::NORM][c]).collect();
    let mean = sum((0..width).map(|c| d_normed[c] * of.normed[c])) / T::exact(width as f32);
    let mut d_y = vec![zero; width];
    for c in 0..width {
        add(&mut d.tensors[at::NORM][c], d_o[c] * of.normed[c]);
        let d_gated = of.inverse * (d_normed[c] - of.normed[c] * mean);
        let z = of.projected[last][c];
        d_y[c] = d_gated * silu(z);
        d_projected[last][c] = d_gated * of.y[c] * silu_gradient(z);
    }
    let value = |bar: usize, c: usize| silu(of.convolved[bar][c]);
    let (b, c0) = (width, width + state);
    let mut d_state = vec![vec![zero; state]; width];
    for c in 0..width {
        let h = c * heads / width;
        add(&mut d.tensors[at::SKIP][h], d_y[c] * value(last, c));
        add(&mut d_channels[last][c], d_y[c] * t[at::SKIP][h]);
        for n in 0..state {
            add(&mut d_channels[last][c0 + n], d_y[c] * of.states[bars][c][n]);
            d_state[c][n] = d_y[c] * value(last, c0 + n);
        }
    }
    for bar in (0..bars).rev() {
        for c in 0..width {
            let h = c * heads / width;
            let rate = t[at::A_LOG][h].exp();
            let delta = of.delta[bar][h];
            let a = (-(delta * rate)).exp();
            let (mut d_a, mut d_scaled) = (zero, zero);
            let scaled = delta * value(bar, c);
            for n in 0..state {
                d_a = d_a + d_state[c][n] * of.states[bar][c][n];
                d_scaled = d_scaled + d_state[c][n] * value(bar, b + n);
                add(&mut d_channels[bar][b + n], d_state[c][n] * scaled);
                d_state[c][n] = d_state[c][n] * a;
            }
            add(&mut d_channels[bar][c], d_scaled * delta);
            let d_delta = d_scaled * value(bar, c) - d_a * a * rate;
            add(&mut d.tensors[at::A_LOG][h], -(d_a * a * delta * rate));
            let dt = of.projected[bar][width + channels + h] + t[at::DT_BIAS][h];
            add(&mut d_projected[bar][width + channels + h], d_delta * dt.sigmoid());
        }
    }
    for bar in 0..bars {
        for h in 0..heads {
            add(&mut d.tensors[at::DT_BIAS][h], d_projected[bar][width + channels + h]);
        }
        for c in 0..channels {
            let dx = d_channels[bar][c] * silu_gradient(of.convolved[bar][c]);
            add(&mut d.tensors[at::CONV_BIAS][c], dx);
            for j in (0..p.taps).filter(|j| bar + j + 1 >= p.taps) {
                let from = bar + j + 1 - p.taps;
                add(&mut d.tensors[at::CONV][c * p.taps + j], dx * of.projected[from][width + c]);
                add(&mut d_projected[from][width + c], dx * t[at::CONV][c * p.taps + j]);
            }
        }
    }
    for bar in 0..bars {
        for u in 0..width {
            let mut d_u = zero;
            for r in 0..rows {
                add(&mut d.tensors[at::IN][r * width + u], d_projected[bar][r] * of.embedded[bar][u]);
                d_u = d_u + d_projected[bar][r] * t[at::IN][r * width + u];
            }
            add(&mut d.tensors[at::EMB_BIAS][u], d_u);
            for f in 0..features {
                add(&mut d.tensors[at::EMB][u * features + f], d_u * T::exact(window[bar * features + f]));
            }
        }
    }
}
