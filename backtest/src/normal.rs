//! The standard normal distribution.

use std::f64::consts::{PI, SQRT_2};

/// Distribution function Phi(x).
pub fn cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / SQRT_2)
}

/// Quantile Phi^-1(p); `None` outside (0, 1).
///
/// Newton's method from the middle: Phi is concave above 0, so that it rises to the root without passing it. Quantiles
/// below one half are mirrored.
pub fn quantile(p: f64) -> Option<f64> {
    if !(p > 0.0 && p < 1.0) {
        return None;
    }
    if p < 0.5 {
        return quantile(1.0 - p).map(|x| -x);
    }
    let mut x: f64 = 0.0;
    for _ in 0..100 {
        let density = (-0.5 * x * x).exp() / (2.0 * PI).sqrt();
        // 1 - p less the upper tail, which keeps its digits where the distribution function is nearly 1.
        let step = (0.5 * libm::erfc(x / SQRT_2) - (1.0 - p)) / density;
        x += step;
        if step.abs() <= 4.0 * f64::EPSILON * (1.0 + x) {
            break;
        }
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Abramowitz and Stegun, tables 26.1 and 26.5.
    #[test]
    fn tabulated_values() {
        for (x, p) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_543),
            (1.96, 0.975_002_104_851_780),
            (-2.0, 0.022_750_131_948_179),
        ] {
            assert!((cdf(x) - p).abs() < 1e-14, "{x}: {}", cdf(x));
        }
        for (p, x) in
            [(0.975, 1.959_963_984_540_054), (0.9999, 3.719_016_485_455_709), (0.05, -1.644_853_626_951_473)]
        {
            assert!((quantile(p).unwrap() - x).abs() < 1e-11, "{p}: {:?}", quantile(p));
        }
    }

    #[test]
    fn the_quantile_is_the_inverse_and_ends_are_undefined() {
        for p in [1e-9, 0.01, 0.3, 0.5, 0.77, 0.999, 1.0 - 1e-9] {
            assert!((cdf(quantile(p).unwrap()) - p).abs() < 1e-14, "{p}");
        }
        for p in [0.0, 1.0, -0.1, f64::NAN] {
            assert_eq!(quantile(p), None);
        }
    }
}
