//! Reference of the matrix products: f64 sums over operands read through closures, in the plain order.

use crate::reference::Bounded;

/// What happens to an operand before it is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Nothing: IEEE fp32 products.
    Exact,
    /// To 10 bits of mantissa, ties to even.
    Tf32,
    /// To 7 bits of mantissa, ties to even.
    Bf16,
}

impl Rounding {
    /// The rounded operand. Subnormal numbers are not handled: tests do not use them.
    pub fn apply(self, value: f32) -> f64 {
        let value = f64::from(value);
        if value == 0.0 || !value.is_finite() {
            return value;
        }
        let bits = match self {
            Rounding::Exact => return value,
            Rounding::Tf32 => 10,
            Rounding::Bf16 => 7,
        };
        let unit = (value.abs().log2().floor() - f64::from(bits)).exp2();
        let steps = value / unit; // exact: a power of two
        unit * steps.round_ties_even()
    }

    /// Error of adding `terms` products with absolute sum 1 in f32, in units of u: every fused multiply-add of the
    /// vector units rounds to nearest once. A tensor-core instruction adds up to sixteen products and the sum so far
    /// after aligning them to the largest, and cuts off what lies below: at most 2^-23 (2 u) of the largest for each of
    /// the operands, of which there are at most 9 for 8 products.
    fn sum_units(self, terms: usize) -> f64 {
        let terms = terms as f64;
        if self == Rounding::Exact { terms } else { 2.0 * 9.0 / 8.0 * (terms + 8.0) }
    }
}

/// One element of C = A B: sum over k of a(k) b(k). Sums of parts (warps, splits) that are added later have shorter
/// chains than the `k` assumed here, plus the few additions of the parts, which `parts` counts.
pub fn element(
    rounding: Rounding,
    k: usize,
    parts: usize,
    a: impl Fn(usize) -> f32,
    b: impl Fn(usize) -> f32,
) -> Bounded {
    let (mut value, mut magnitude) = (0.0, 0.0);
    for i in 0..k {
        let term = rounding.apply(a(i)) * rounding.apply(b(i));
        value += term;
        magnitude += term.abs();
    }
    Bounded { value, scale: magnitude * (rounding.sum_units(k) + parts as f64) }
}

/// Row sum of A over k in f32: the bias gradient. Operands are not rounded.
pub fn row_sum(k: usize, parts: usize, a: impl Fn(usize) -> f32) -> Bounded {
    Bounded::sum((0..k).map(|i| Bounded::exact(a(i))), k + parts)
}

/// lrelu(c + bias) with negative slope `slope`.
pub fn bias_lrelu(c: Bounded, bias: f32, slope: f32) -> Bounded {
    let sum = c + Bounded::exact(bias);
    // Near zero the kernel may take the other branch; both are within the error of the sum, as |slope| <= 1.
    let factor = if sum.value > 0.0 { 1.0 } else { f64::from(slope) };
    Bounded { value: factor * sum.value, scale: sum.scale + sum.value.abs() }
}

/// c where the layer's output h is positive, slope * c elsewhere.
pub fn lrelu_backward(c: Bounded, h: f32, slope: f32) -> Bounded {
    if h > 0.0 { c } else { c * Bounded::exact(slope) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::UNIT;

    #[test]
    fn rounding_goes_to_the_nearest_and_ties_to_even() {
        assert_eq!(Rounding::Tf32.apply(1.0 + 2f32.powi(-11)), 1.0);
        assert_eq!(Rounding::Tf32.apply(-1.0 - 3.0 * 2f32.powi(-11)), -1.0 - 2f64.powi(-9));
        assert_eq!(Rounding::Bf16.apply(1.0 + 2f32.powi(-8)), 1.0);
        assert_eq!(Rounding::Bf16.apply(1.0 + 3.0 * 2f32.powi(-8)), 1.0 + 2f64.powi(-6));
        assert_eq!(Rounding::Tf32.apply(3.0), 3.0);
        assert_eq!(Rounding::Bf16.apply(1.999), 2.0);
        assert_eq!(Rounding::Exact.apply(0.1), f64::from(0.1f32));
    }

    #[test]
    fn the_scale_is_the_sum_of_magnitudes_times_the_chain() {
        let (a, b) = ([1.0, -2.0, 3.0], [4.0, 5.0, 6.0]);
        let c = element(Rounding::Exact, 3, 0, |i| a[i], |i| b[i]);
        assert_eq!((c.value, c.scale), (12.0, 3.0 * 32.0));
        assert!(c.accepts(12.0) && !c.accepts(12.0 + (1e3 * UNIT) as f32));
    }
}
