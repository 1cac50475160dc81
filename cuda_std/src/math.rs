//! f32 mathematics for kernels. One source for both sides, made of operations that IEEE 754 defines exactly, so
//! a kernel gives the same bits in the emulator and on every GPU. f64 and further functions: the `libm` crate,
//! for which the same holds.
//!
//! The error bounds are the largest errors over all f32 arguments, in units of the last place of the result
//! (ulp); the tests measure them. The coefficients are Chebyshev fits on the reduced interval, rounded to f32.

#[cfg(not(target_arch = "nvptx64"))]
mod float {
    pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    pub fn sqrt(x: f32) -> f32 {
        x.sqrt()
    }
    pub fn floor(x: f32) -> f32 {
        x.floor()
    }
    pub fn round_ties_even(x: f32) -> f32 {
        x.round_ties_even()
    }
}

#[cfg(target_arch = "nvptx64")]
use core::f32::math as float;

/// a * b + c with one rounding.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    float::mul_add(a, b, c)
}

/// Square root, correctly rounded; NaN below 0.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    float::sqrt(x)
}

/// 1 / sqrt(x) as two correctly rounded operations: within 1.5 ulp.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / float::sqrt(x)
}

/// |x|.
#[inline(always)]
pub fn abs(x: f32) -> f32 {
    x.abs()
}

/// Largest integer not above x.
#[inline(always)]
pub fn floor(x: f32) -> f32 {
    float::floor(x)
}

/// Nearest integer, ties to even.
#[inline(always)]
pub fn round(x: f32) -> f32 {
    float::round_ties_even(x)
}

/// The smaller of both; the other one where one is NaN.
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    a.min(b)
}

/// The larger of both; the other one where one is NaN.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    a.max(b)
}

/// x to the n by repeated squaring.
#[inline(always)]
pub fn powi(mut x: f32, mut n: u32) -> f32 {
    let mut power = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            power *= x;
        }
        x *= x;
        n >>= 1;
    }
    power
}

/// `c[0] + c[1] x + c[2] x^2 + ..` by Horner's rule with fused steps.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = fma(sum, x, c[i]);
    }
    sum
}

/// Upper part of ln 2 with twelve trailing zero bits: its product with an exponent is exact (Cody and Waite,
/// "Software manual for the elementary functions", 1980).
const LN_2_HIGH: f32 = 0.693_115_23;
/// ln 2 - [`LN_2_HIGH`].
const LN_2_LOW: f32 = 3.194_618_3e-5;

/// e to the x: 0 below -104, infinity above 89, within 1 ulp (subnormal results within one of their units).
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r (1 + r q(r)).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Comparisons rather than min and max: NaN stays.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let n = round(x * core::f32::consts::LOG2_E);
    let r = fma(n, -LN_2_LOW, fma(n, -LN_2_HIGH, x));
    let p = exp_reduced(r);
    // In two steps, because 2^n for n = 128 and n < -126 is no normal number.
    let n = n as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n - half)
}

/// e to the r for |r| <= ln 2 / 2.
#[inline(always)]
fn exp_reduced(r: f32) -> f32 {
    let q = polynomial(r, [0.5, 1.666_657_8e-1, 4.166_655_6e-2, 8.363_173e-3, 1.392_617_6e-3]);
    fma(fma(q, r, 1.0), r, 1.0)
}

/// e to the x for x <= 0, as a softmax with its largest logit subtracted needs it, in two thirds of [`exp`]'s
/// instructions: 0 where the result is below the smallest normal number, within 1 ulp above. NaN stays; positive x are
/// not for it.
#[inline(always)]
pub fn exp_down(x: f32) -> f32 {
    /// 1.5 * 2^23: a sum with it has no fraction, and its last bits are the other term's nearest integer.
    const SHIFT: f32 = 12_582_912.0;
    /// ln 2^-126.
    const LOWEST: f32 = -87.336_54;
    let shifted = fma(x, core::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    let r = fma(n, -LN_2_LOW, fma(n, -LN_2_HIGH, x));
    // -126 <= n <= 0 where the result is kept: one factor does. A product, because adding to the exponent's bits would
    // make a number of a NaN.
    let y = exp_reduced(r) * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < LOWEST { 0.0 } else { y }
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// Natural logarithm: -infinity at 0, NaN below, within 1 ulp.
///
/// x = 2^e (1 + f) with 2/3 <= 1 + f < 4/3, and ln(1 + f) = f + f^2 q(f): near 1, where e = 0, nothing cancels.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    /// Bits of 2/3: where the significand's interval begins.
    const START: u32 = 0x3f2a_aaab;
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    let exponent = bits.wrapping_sub(START) & 0xff80_0000;
    let f = f32::from_bits(bits.wrapping_sub(exponent)) - 1.0;
    let e = (exponent as i32 >> 23) as f32 - if subnormal { 23.0 } else { 0.0 };
    let q = polynomial(
        f,
        [
            -0.5,
            3.333_327_2e-1,
            -2.499_994_5e-1,
            2.000_723_3e-1,
            -1.667_331_6e-1,
            1.405_581_2e-1,
            -1.228_872_2e-1,
            1.374_830_9e-1,
            -1.242_22e-1,
        ],
    );
    let y = fma(e, LN_2_HIGH, fma(e, LN_2_LOW, fma(f * f, q, f)));
    if x == 0.0 {
        f32::NEG_INFINITY
    } else if x < 0.0 {
        f32::NAN
    } else if x < f32::INFINITY {
        y
    } else {
        // Infinity and NaN.
        x
    }
}

/// sin(2 pi t) for |t| <= 1/8.
#[inline(always)]
fn sin_octant(t: f32) -> f32 {
    t * polynomial(t * t, [6.283_185_5, -4.134_166_3e1, 8.159_254_5e1, -7.540_161e1])
}

/// cos(2 pi t) for |t| <= 1/8.
#[inline(always)]
fn cos_octant(t: f32) -> f32 {
    let u = t * t;
    fma(u, polynomial(u, [-1.973_920_8e1, 6.493_937e1, -8.544_882e1, 5.942_410_7e1]), 1.0)
}

/// sin and cos of 2 pi x: NaN for infinite x, each within 2^-23 of the true value.
///
/// x is reduced exactly to t + k/4 with |t| <= 1/8, which a factor pi in the argument would not allow.
#[inline(always)]
pub fn sin_cos_2pi(x: f32) -> (f32, f32) {
    let r = x - round(x);
    let quarter = round(4.0 * r);
    let t = fma(quarter, -0.25, r);
    let (sin, cos) = (sin_octant(t), cos_octant(t));
    let k = quarter as i32;
    let (sin, cos) = if k & 1 == 0 { (sin, cos) } else { (cos, -sin) };
    if k & 2 == 0 { (sin, cos) } else { (-sin, -cos) }
}

/// sin(2 pi x); see [`sin_cos_2pi`].
#[inline(always)]
pub fn sin_2pi(x: f32) -> f32 {
    sin_cos_2pi(x).0
}

/// cos(2 pi x); see [`sin_cos_2pi`].
#[inline(always)]
pub fn cos_2pi(x: f32) -> f32 {
    sin_cos_2pi(x).1
}

/// Nearest tf32 value (ten mantissa bits), ties away from zero, as f32 bits: what `cvt.rna.tf32.f32` gives for
/// every number. Infinity stays; a NaN keeps its upper bits or becomes a NaN with the quiet bit.
#[inline(always)]
pub fn tf32_round(x: f32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let y: u32;
        // SAFETY: computes from its operand alone, so it needs no convergence either.
        unsafe {
            core::arch::asm!("cvt.rna.tf32.f32 {}, {};", out(reg32) y, in(reg32) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        y
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let bits = x.to_bits();
        if x.is_nan() {
            (bits | 0x0040_0000) & !0x1fff
        } else if x.is_infinite() {
            bits
        } else {
            (bits + 0x1000) & !0x1fff
        }
    }
}
