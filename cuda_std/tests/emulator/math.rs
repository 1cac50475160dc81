//! Error bounds of `cuda_std::math` against f64, over arguments that cover every exponent.

use cuda_std::math;

/// Bit patterns to visit: a stride without a factor of two reaches every exponent and many significands.
const STRIDE: usize = if cfg!(debug_assertions) { 1009 } else { 7 };

/// Largest error of `f` against `exact` in ulp of the exact value, over all finite arguments in the stride.
fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    for bits in (0..=u32::MAX).step_by(STRIDE) {
        let x = f32::from_bits(bits);
        let (got, exact) = (f(x), exact(f64::from(x)));
        if got.is_nan() || exact.is_nan() || exact.abs() > f64::from(f32::MAX) {
            assert!(
                (got.is_nan() && exact.is_nan()) || f64::from(got) == f64::from(exact as f32),
                "f({x}) = {got}"
            );
            continue;
        }
        let error = (f64::from(got) - exact).abs() / ulp(exact);
        if error > worst.0 {
            worst = (error, x);
        }
    }
    worst
}

/// Distance of neighbouring f32 values at x.
fn ulp(x: f64) -> f64 {
    let exponent = (x.abs().log2().floor() as i32).max(-126);
    2f64.powi(exponent - 23)
}

#[test]
fn exp_is_within_one_ulp() {
    let (error, x) = worst(math::exp, f64::exp);
    println!("exp: {error} ulp at {x}");
    assert!(error <= 1.0, "{error} ulp at {x}");
    assert_eq!(
        [math::exp(0.0), math::exp(f32::NEG_INFINITY), math::exp(f32::INFINITY)],
        [1.0, 0.0, f32::INFINITY]
    );
    assert!(math::exp(f32::NAN).is_nan());
}

/// Arguments of which `exp_down` does not make 0.
fn kept(x: f64) -> bool {
    (f64::from(f32::MIN_POSITIVE).ln()..=0.0).contains(&x)
}

#[test]
fn exp_down_is_within_one_ulp_and_zero_below_the_normal_numbers() {
    let (error, x) = worst(
        |x| if kept(x.into()) { math::exp_down(x) } else { 1.0 },
        |x| if kept(x) { x.exp() } else { 1.0 },
    );
    println!("exp_down: {error} ulp at {x}");
    assert!(error <= 1.0, "{error} ulp at {x}");
    let below = (f64::from(f32::MIN_POSITIVE).ln() as f32).next_down().next_down();
    assert_eq!([0.0, below, -1e30, f32::NEG_INFINITY].map(math::exp_down), [1.0, 0.0, 0.0, 0.0]);
    assert!([f32::NAN, -f32::NAN].iter().all(|&x| math::exp_down(x).is_nan()));
}

#[test]
fn ln_is_within_one_ulp() {
    let (error, x) = worst(math::ln, f64::ln);
    println!("ln: {error} ulp at {x}");
    assert!(error <= 1.0, "{error} ulp at {x}");
    assert_eq!(
        [math::ln(1.0), math::ln(0.0), math::ln(f32::INFINITY)],
        [0.0, f32::NEG_INFINITY, f32::INFINITY]
    );
    assert!(math::ln(-1.0).is_nan() && math::ln(f32::NAN).is_nan());
    // Next to 1 a table-free logarithm by `lg2.approx` would lose all digits.
    for x in [1.0 - f32::EPSILON / 2.0, 1.0 + f32::EPSILON] {
        assert_eq!(math::ln(x), f64::from(x).ln() as f32);
    }
}

#[test]
fn rsqrt_is_within_one_and_a_half_ulp() {
    let (error, x) = worst(math::rsqrt, |x| 1.0 / x.sqrt());
    assert!(error <= 1.5, "{error} ulp at {x}");
}

#[test]
fn sine_and_cosine_of_turns() {
    // Exact reduction in f64: the fraction of a turn, for arguments up to where f32 has only integers.
    let bound = 2f64.powi(-23);
    for bits in (0..16_777_216f32.to_bits()).step_by(STRIDE) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            let turn = f64::from(x).fract() * std::f64::consts::TAU;
            let (sin, cos) = math::sin_cos_2pi(x);
            assert!((f64::from(sin) - turn.sin()).abs() <= bound, "sin_2pi({x}) = {sin}");
            assert!((f64::from(cos) - turn.cos()).abs() <= bound, "cos_2pi({x}) = {cos}");
        }
    }
    assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(math::cos_2pi), [1.0, 0.0, -1.0, 0.0, 1.0]);
    assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(math::sin_2pi), [0.0, 1.0, 0.0, -1.0, 0.0]);
    assert!(math::sin_2pi(f32::INFINITY).is_nan());
}

#[test]
fn tf32_rounds_to_nearest_ties_away() {
    let ulp = 2f32.powi(-10);
    for (x, expected) in [
        (1.0, 1.0),
        (1.0 + 0.49 * ulp, 1.0),
        (1.0 + 0.5 * ulp, 1.0 + ulp),
        (-1.0 - 0.5 * ulp, -1.0 - ulp),
        (2.0 - 0.5 * ulp, 2.0),
        (f32::INFINITY, f32::INFINITY),
        // The largest f32 is nearer to 2^128 than to the largest tf32.
        (f32::MAX, f32::INFINITY),
    ] {
        assert_eq!(f32::from_bits(math::tf32_round(x)), expected, "{x}");
    }
    assert!(f32::from_bits(math::tf32_round(f32::NAN)).is_nan());
}

#[test]
fn powi_multiplies() {
    assert_eq!(math::powi(0.9, 0), 1.0);
    assert_eq!(math::powi(3.0, 5), 243.0);
    assert_eq!(math::powi(-2.0, 7), -128.0);
}
