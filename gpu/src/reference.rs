//! Arithmetic of the f64 references: a value, and how far the same formula in f32 may be from it.
//!
//! First-order running error analysis (Wilkinson; Higham, "Accuracy and Stability of Numerical Algorithms", section
//! 3.3): every f32 operation adds at most u |result|, u = 2^-24, and passes the errors of its operands on. The bound is
//! kept in units of u, so for a plain sum it is the well-known sum of |terms| times the length of the chain of additions.

use std::ops::{Add, Div, Mul, Neg, Sub};

/// Unit roundoff of f32: half the distance from 1 to the next float.
pub const UNIT: f64 = 1.0 / 16_777_216.0;

/// Longest chain of additions of a warp's sum over up to 128 atoms: four in the lane's registers, five butterfly steps.
pub const WARP_CHAIN: usize = 9;

/// Relative error of `cuda_std::math`'s `exp` and `ln` in units of u: one unit in the last place is at most two of them.
const ONE_ULP: f64 = 2.0;

/// A reference value and the bound on its f32 rounding error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounded {
    /// The value in f64.
    pub value: f64,
    /// First-order bound on the error of the f32 result, in units of [`UNIT`].
    pub scale: f64,
}

impl Bounded {
    /// Zero without error.
    pub const ZERO: Bounded = Bounded { value: 0.0, scale: 0.0 };

    /// A number that f32 holds exactly: an input, a small integer.
    pub fn exact(value: f32) -> Self {
        Self { value: value.into(), scale: 0.0 }
    }

    /// A number that is rounded to f32 once.
    pub fn rounded(value: f64) -> Self {
        Self { value, scale: value.abs() }
    }

    /// Sum of terms of which none goes through more than `chain` additions, whatever their order.
    pub fn sum(terms: impl IntoIterator<Item = Bounded>, chain: usize) -> Self {
        let (mut value, mut scale) = (0.0, 0.0);
        for term in terms {
            value += term.value;
            scale += term.scale + chain as f64 * term.value.abs();
        }
        Self { value, scale }
    }

    /// |self|, exact.
    pub fn abs(self) -> Self {
        Self { value: self.value.abs(), ..self }
    }

    /// Correctly rounded square root. At zero the derivative is infinite, and only an exact zero is bounded.
    pub fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        let passed = if self.scale == 0.0 { 0.0 } else { self.scale / (2.0 * value) };
        Self { value, scale: passed + value }
    }

    /// Exponential.
    pub fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, scale: value * (self.scale + ONE_ULP) }
    }

    /// Natural logarithm.
    pub fn ln(self) -> Self {
        let value = self.value.ln();
        Self { value, scale: self.scale / self.value + ONE_ULP * value.abs() }
    }

    /// What an f32 result may differ by. The factor 2 covers the terms of second order (products of errors), which are
    /// smaller than the first by u times the scale; the constant covers what underflows.
    pub fn tolerance(self) -> f64 {
        2.0 * UNIT * self.scale + f64::from(f32::MIN_POSITIVE)
    }

    /// Whether an f32 result agrees. A NaN agrees with NaN alone, an infinity with itself.
    pub fn accepts(self, got: f32) -> bool {
        if self.value.is_finite() {
            (f64::from(got) - self.value).abs() <= self.tolerance()
        } else {
            f64::from(got) == self.value || (got.is_nan() && self.value.is_nan())
        }
    }
}

impl Add for Bounded {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let value = self.value + other.value;
        Self { value, scale: self.scale + other.scale + value.abs() }
    }
}

impl Sub for Bounded {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Neg for Bounded {
    type Output = Self;
    fn neg(self) -> Self {
        Self { value: -self.value, ..self }
    }
}

impl Mul for Bounded {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let value = self.value * other.value;
        let passed = self.scale * other.value.abs() + other.scale * self.value.abs();
        Self { value, scale: passed + value.abs() }
    }
}

impl Div for Bounded {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let passed = (self.scale + value.abs() * other.scale) / other.value.abs();
        Self { value, scale: passed + value.abs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound holds for f32 arithmetic on awkward numbers, and is not wider than a few times the worst error seen.
    #[test]
    fn the_bound_covers_f32_arithmetic_and_is_not_loose() {
        let mut worst: f64 = 0.0;
        for i in 1..2000 {
            let (a, b, c) = (1.0 / i as f32, (i as f32).sqrt(), -0.7 * i as f32);
            let got = ((a + b) * c - b) / (a * a + b).sqrt();
            let (x, y, z) = (Bounded::exact(a), Bounded::exact(b), Bounded::exact(c));
            let expected = ((x + y) * z - y) / (x * x + y).sqrt();
            assert!(expected.accepts(got), "i = {i}: {got} against {expected:?}");
            worst = worst.max((f64::from(got) - expected.value).abs() / (UNIT * expected.scale));
        }
        assert!(worst > 0.25, "the largest error seen is {worst} of the bound");
    }

    #[test]
    fn only_nan_is_nan() {
        let nan = Bounded { value: f64::NAN, scale: 1.0 };
        assert!(nan.accepts(f32::NAN) && !nan.accepts(0.0));
        assert!(!Bounded::exact(1.0).accepts(f32::NAN));
        assert!(!Bounded { value: 1.0, scale: f64::INFINITY }.accepts(f32::NAN));
    }
}
