//! Sine and cosine in f64 for kernels: the same bits in the emulator and on every GPU, and none of the stack that
//! `libm`'s reduction of huge arguments needs.

/// First 33 bits of pi / 2: its product with an integer below 2^20 is exact.
const HALF_PI_HIGH: f64 = 1.570_796_326_734_125_614_17;
/// pi / 2 - [`HALF_PI_HIGH`], rounded.
const HALF_PI_LOW: f64 = 6.077_100_506_506_192_249_32e-11;
/// 1.5 * 2^52: a number of at most 2^51 that is added to it is rounded to an integer, ties to even.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `(sin x, cos x)` for |x| up to 10^6, within 2 * 10^-16 where they are near 1 and |x| is below 100. Beyond 10^6 the
/// reduction loses digits; NaN and infinities give NaN.
///
/// x = n pi/2 + r, |r| <= pi/4 and a little; then Taylor's polynomials up to r^17 and r^16, whose remainders are below
/// 10^-19 and 3 * 10^-18.
#[inline(always)]
pub fn sin_cos(x: f64) -> (f64, f64) {
    let n = (x * core::f64::consts::FRAC_2_PI + ROUND) - ROUND;
    let r = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW;
    let s = r * r;
    // r - r^3/3! + r^5/5! - .., by Horner's rule from the last term.
    let mut sin = 1.0;
    let mut k = 17.0;
    while k > 1.0 {
        sin = 1.0 - s / (k * (k - 1.0)) * sin;
        k -= 2.0;
    }
    sin *= r;
    let mut cos = 1.0;
    let mut k = 16.0;
    while k > 0.0 {
        cos = 1.0 - s / (k * (k - 1.0)) * cos;
        k -= 2.0;
    }
    match (n as i64) & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// Sine.
#[inline(always)]
pub fn sin(x: f64) -> f64 {
    sin_cos(x).0
}

/// Cosine.
#[inline(always)]
pub fn cos(x: f64) -> f64 {
    sin_cos(x).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `libm`, which is within 1 ulp: every quadrant, small angles, and the multiples of pi/2.
    #[test]
    fn as_libm() {
        let check = |x: f64, bound: f64| {
            let (s, c) = sin_cos(x);
            for (got, expected) in [(s, libm::sin(x)), (c, libm::cos(x))] {
                assert!((got - expected).abs() <= bound, "{x}: {got}, expected {expected}");
            }
        };
        for i in -200_000..=200_000 {
            check(f64::from(i) * 5e-4, 3e-16);
        }
        for n in -64..=64 {
            check(f64::from(n) * std::f64::consts::FRAC_PI_2, 1e-16);
        }
        check(1e6, 1e-9);
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
        assert!(sin(f64::INFINITY).is_nan() && cos(f64::NAN).is_nan());
    }
}
