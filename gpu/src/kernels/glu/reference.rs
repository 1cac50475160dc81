//! References of the gated linear units, one element at a time. sigmoid(g) = 1 / (1 + exp(-g)) and
//! 1 - sigmoid(g) = sigmoid(-g) in f64, where neither overflows within the range of f32.

use crate::reference::Bounded;

fn sigmoid(g: f32) -> Bounded {
    let value = 1.0 / (1.0 + (-f64::from(g)).exp());
    // Four roundings: the exponential (two units), the sum, the quotient.
    Bounded { value, scale: 4.0 * value }
}

/// a sigmoid(g).
pub fn forward(a: f32, g: f32) -> Bounded {
    Bounded::exact(a) * sigmoid(g)
}

/// (da, dg) from dh.
pub fn backward(d: f32, a: f32, g: f32) -> (Bounded, Bounded) {
    let da = Bounded::exact(d) * sigmoid(g);
    (da, da * sigmoid(-g) * Bounded::exact(a))
}
