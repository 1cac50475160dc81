//! References of the bias and LeakyReLU kernels, one element or one column at a time.

use crate::reference::Bounded;

/// lrelu(x + bias).
pub fn bias_lrelu(x: f32, bias: f32, slope: f32) -> Bounded {
    let argument = Bounded::exact(x) + Bounded::exact(bias);
    // The branch taken at an argument near zero may differ, but both branches are near zero there: LeakyReLU changes
    // by no more than its argument does.
    let factor = if argument.value > 0.0 { 1.0 } else { slope };
    let product = argument * Bounded::exact(factor);
    Bounded { scale: product.scale.max(argument.scale), ..product }
}

/// d * (1 if the stored output h is positive, else slope).
pub fn lrelu_backward(d: f32, h: f32, slope: f32) -> Bounded {
    if h > 0.0 { Bounded::exact(d) } else { Bounded::exact(d) * Bounded::exact(slope) }
}

/// Sum of a column. A term of the kernel goes through rows / 64 additions in its warp, two that join the warp's four
/// sums, three of the rest of rows, and 16 over the warps.
pub fn bias_gradient(column: &[f32]) -> Bounded {
    Bounded::sum(column.iter().map(|&d| Bounded::exact(d)), column.len() / 64 + 21)
}
