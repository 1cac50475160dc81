//! The Mamba-2 block over the W bars of a state. SPEC section 2; Dao and Gu, "Transformers are SSMs: Generalized Models
//! and Efficient Algorithms Through Structured State Space Duality" (2024), section 7 for the block, equation 7 for the
//! dual form.
//!
//! With x_t [F] the features of bar t (oldest first), U the width, N the state's size, H heads of U / H channels:
//! u_t = We x_t + be; [z (U), x' (U), B (N), C (N), dt (H)]_t = Win u_t; a causal depthwise convolution over the U + 2 N
//! channels [x', B, C], then SiLU; D_ht = softplus(dt_ht + dtbias_h), a_ht = exp(-D_ht A_h), A_h = exp(Alog_h);
//! S_ht = a_ht S_h,t-1 + D_ht x'_t B_t^T, y_t = S_t C_t + Dskip_h x'_t; o = rmsnorm(y silu(z)) wn at the last bar;
//! m = Wout o + bo and h1 = lrelu(W1 s + b1 + g m), g one number.
//!
//! Three things make this cheap where only the last bar's output is asked for:
//!
//! - Between x and the convolution everything is linear, so Win We and Win be fold into M^T [F + 1, rows] once a step
//!   (`mamba_fold`): F + 1 multiply-adds a row and bar instead of F + U.
//! - The scan's last output, unrolled, is a weighted sum: y_c = sum_t w_ht x'_ct + Dskip_h x'_c,last with
//!   w_ht = e_ht D_ht s_t, e_ht = exp(-A_h R_ht), R_ht = sum of D_hs over s > t, s_t = B_t . C_last. No state of
//!   (U / H) N numbers a head is carried, and every bar is independent but for R.
//! - g Wout and W1 stand side by side as one matrix for the product of the rows \[o, s\] (`mamba_join`,
//!   `mamba_forward`), so that m is never stored and the product with its bias and activation stays what it is.
//!
//! Backward, from d = dL/d(h1's argument) [B, H1]: P = d^T o and s = sum d are a weight gradient, q = d Wout [B, U] a data
//! gradient (both by `gemm`); dWout = g P, dbo = g s, dg = sum q . o + bo . s, and do = g q. `mamba_backward` recomputes a
//! sample's block and goes back through it to the sums over the batch, kept per warp and written as one plane a block;
//! `mamba_reduce` adds the planes, `mamba_unfold` goes back through the fold and writes the group's gradient.
//!
//! One warp has a sample: lanes are channels, then (head, bar) pairs, then bars. At F = 10, W = 12 and the default sizes a
//! sample costs some 9 thousand multiply-adds and 600 SiLUs forward, twice that backward; a SiLU in exactly defined
//! operations is about 30 instructions, so instructions issued bound the kernels, not memory (a state is read and
//! written once). Shared memory holds the folded parameters and, per warp, the channels of all bars.

use cuda_std::prelude::*;

mod backward;
mod fold;
mod forward;
mod reduce;
mod sample;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

pub use backward::*;
pub use fold::*;
pub use forward::*;
pub use reduce::*;

/// Most taps of the convolution: the bars t - 3 to t.
pub const MAX_TAPS: u32 = 4;

/// Warps of a block, a sample each.
const WARPS: u32 = 4;
/// Threads of a block.
const THREADS: u32 = 32 * WARPS;

/// Sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// F.
    pub features: u32,
    /// W.
    pub bars: u32,
    /// U, a multiple of 4 and of the heads.
    pub width: u32,
    /// N.
    pub state: u32,
    /// H.
    pub heads: u32,
}

impl Shape {
    /// U + 2 N: channels of the convolution.
    pub const fn channels(&self) -> u32 {
        self.width + 2 * self.state
    }

    /// Rows of Win: z, x', B, C, dt.
    pub const fn rows(&self) -> u32 {
        self.width + self.channels() + self.heads
    }

    /// Row stride of M^T.
    const fn row_stride(&self) -> u32 {
        self.rows().next_multiple_of(4)
    }

    /// Floats between two channels' bars in shared memory: a multiple of 4 that is an odd multiple, so that 16-byte
    /// accesses of neighbouring channels fall into different banks.
    const fn columns(&self) -> u32 {
        4 * (self.bars.div_ceil(4) | 1)
    }

    /// Where the folded parameters lie.
    pub const fn folded(&self) -> Folded {
        let channels = self.channels().next_multiple_of(4);
        let heads = self.heads.next_multiple_of(4);
        let taps = (self.features + 1) * self.row_stride();
        let conv_bias = taps + MAX_TAPS * channels;
        let dt_bias = conv_bias + channels;
        let rate = dt_bias + heads;
        let skip = rate + heads;
        let norm = skip + heads;
        Folded { taps, conv_bias, dt_bias, rate, skip, norm, len: norm + self.width }
    }

    /// Where the parameters before Wout lie in the flat buffer, counted from the first.
    pub const fn core(&self, taps: u32) -> Core {
        let emb_bias = self.width * self.features;
        let in_weight = emb_bias + self.width;
        let conv_weight = in_weight + self.rows() * self.width;
        let conv_bias = conv_weight + self.channels() * taps;
        let dt_bias = conv_bias + self.channels();
        let a_log = dt_bias + self.heads;
        let skip = a_log + self.heads;
        let norm = skip + self.heads;
        Core {
            emb_bias,
            in_weight,
            conv_weight,
            conv_bias,
            dt_bias,
            a_log,
            skip,
            norm,
            len: norm + self.width,
        }
    }

    /// Floats of a plane of sums over the batch: as the folded parameters, then the sum of q . o, padded.
    pub const fn plane(&self) -> u32 {
        self.folded().len + 4
    }

    /// Whether the sizes are what the kernels take and the larger one, the backward pass, has shared memory enough.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn fits(&self) -> bool {
        let small = |x: u32, most: u32| x >= 1 && x <= most;
        small(self.features, 256)
            && small(self.bars, 256)
            && small(self.width, 128)
            && small(self.state, 128)
            && small(self.heads, 128)
            && self.width.is_multiple_of(4)
            && self.width.is_multiple_of(self.heads)
            && 4 * backward_floats(self) <= MAX_SHARED
    }
}

/// Bytes of shared memory that a block may have.
#[cfg(not(target_arch = "nvptx64"))]
const MAX_SHARED: u32 = 227 * 1024;

/// Offsets in floats of a network's folded parameters; M^T [F + 1, row stride] comes first, its last row Win be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folded {
    /// [4, channels], the tap of bar t - 3 first; zero in front where there are fewer.
    pub taps: u32,
    /// [channels].
    pub conv_bias: u32,
    /// [heads].
    pub dt_bias: u32,
    /// A = exp(Alog), [heads].
    pub rate: u32,
    /// Dskip, [heads].
    pub skip: u32,
    /// wn, [width].
    pub norm: u32,
    /// Floats, a multiple of 4.
    pub len: u32,
}

/// Offsets in floats of the parameters before Wout, which lie one behind the other without a gap; We [U, F] comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// be [U].
    pub emb_bias: u32,
    /// Win [rows, U].
    pub in_weight: u32,
    /// [channels, taps].
    pub conv_weight: u32,
    /// [channels].
    pub conv_bias: u32,
    /// [heads].
    pub dt_bias: u32,
    /// [heads].
    pub a_log: u32,
    /// Dskip [heads].
    pub skip: u32,
    /// wn [U].
    pub norm: u32,
    /// Floats.
    pub len: u32,
}

/// 1 / (1 + e^-x) within some 3 ulp; below -87 what it is there (1.6e-38). Most of a sample's instructions are in here, so it has no branch, as a
/// division has: several independent ones are then in flight.
///
/// With e = e^-|x| <= 1 it is r or e r, r = 1 / (1 + e). Of e the reduction and the polynomial are those of `math::exp`,
/// without the cases of large and subnormal results. Of r the first guess is the quadratic for which 1 - d r is a
/// Chebyshev polynomial on [1, 2] (at most 1/99), squared by each of two Newton steps.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // Adding it rounds to an integer, whose bits are then the lowest ones.
    const ROUND: f32 = 12_582_912.0;
    // A comparison, not a maximum: NaN stays.
    let t = -math::abs(x);
    let t = if t < -87.0 { -87.0 } else { t };
    let shifted = math::fma(t, core::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = math::fma(n, -3.194_618_3e-5, math::fma(n, -0.693_115_23, t));
    let mut q = 1.392_617_6e-3;
    q = math::fma(q, r, 8.363_173e-3);
    q = math::fma(q, r, 4.166_655_6e-2);
    q = math::fma(q, r, 1.666_657_8e-1);
    q = math::fma(q, r, 0.5);
    let p = math::fma(math::fma(q, r, 1.0), r, 1.0);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let e = p * power;
    let d = 1.0 + e;
    let mut inverse = math::fma(math::fma(d, 32.0 / 99.0, -144.0 / 99.0), d, 210.0 / 99.0);
    inverse = math::fma(math::fma(-d, inverse, 1.0), inverse, inverse);
    inverse = math::fma(math::fma(-d, inverse, 1.0), inverse, inverse);
    if x < 0.0 { e * inverse } else { inverse }
}

/// x / (1 + e^-x).
#[inline(always)]
fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// silu'(x) = sigmoid(x) (1 + x (1 - sigmoid(x))), from x and its sigmoid.
#[inline(always)]
fn silu_gradient(x: f32, sigmoid: f32) -> f32 {
    sigmoid * math::fma(x, 1.0 - sigmoid, 1.0)
}

/// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|) without losing the small ones: with v = 1 + e rounded, ln(1 + e) is
/// ln(v) e / (v - 1) (Goldberg, "What every computer scientist should know about floating-point arithmetic", theorem 4).
#[inline(always)]
fn softplus(x: f32) -> f32 {
    let e = math::exp(-math::abs(x));
    let v = 1.0 + e;
    let log = if v == 1.0 { e } else { math::ln(v) * (e / (v - 1.0)) };
    // A NaN is in `log`.
    math::max(x, 0.0) + log
}

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod tests {
    use super::{sigmoid, softplus};

    /// Every 997th float, both signs, and what lies at the limits.
    fn floats() -> impl Iterator<Item = f32> {
        let bits = (0..f32::INFINITY.to_bits()).step_by(997).map(f32::from_bits);
        bits.chain([87.0, 87.0f32.next_up(), 88.8, 1e-38, 0.0, f32::MAX]).flat_map(|x| [x, -x])
    }

    #[test]
    fn sigmoid_and_softplus_are_within_their_bounds() {
        let (mut of_sigmoid, mut of_softplus) = (0.0f64, 0.0f64);
        for x in floats() {
            let e = (-f64::from(x)).exp();
            let (want, got) = (1.0 / (1.0 + e), f64::from(sigmoid(x)));
            if x >= -87.0 {
                of_sigmoid = of_sigmoid.max(((got - want) / want).abs());
            } else {
                assert!(got > 0.0 && got < 1.7e-38 && want < 1.7e-38, "sigmoid({x}) = {got}");
            }
            let want = f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p();
            let error = (f64::from(softplus(x)) - want).abs();
            of_softplus = of_softplus.max((error - f64::from(f32::MIN_POSITIVE)).max(0.0) / want.max(1e-300));
        }
        let unit = f64::from(f32::EPSILON) / 2.0;
        assert!(of_sigmoid < 4.0 * unit, "sigmoid is off by {} units", of_sigmoid / unit);
        assert!(of_softplus < 6.0 * unit, "softplus is off by {} units", of_softplus / unit);
        println!("units: sigmoid {}, softplus {}", of_sigmoid / unit, of_softplus / unit);
    }

    #[test]
    fn infinities_and_nan() {
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(sigmoid), [1.0, sigmoid(-87.0)]);
        assert_eq!([f32::INFINITY, f32::NEG_INFINITY].map(softplus), [f32::INFINITY, 0.0]);
        assert!(sigmoid(f32::NAN).is_nan() && sigmoid(-f32::NAN).is_nan() && softplus(f32::NAN).is_nan());
    }
}
