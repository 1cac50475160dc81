//! References of the two stages of the gradient norm.

use crate::reference::Bounded;

/// Sum of partial gradients of one element, in order.
pub fn reduce(parts: &[f32]) -> Bounded {
    Bounded::sum(parts.iter().map(|&p| Bounded::exact(p)), parts.len() - 1)
}

/// Gradients of all `len` parameters from those of the first `products` and the factors of all from `scaled` on.
pub fn with_factors(sums: &[Bounded], len: usize, scaled: usize, factors: &[f32]) -> Vec<Bounded> {
    let products = sums.len();
    let of = |i: usize| {
        let g = if i < products { sums[i] } else { sums[i + products - len] };
        if i < scaled { g } else { g * Bounded::exact(factors[i - scaled]) }
    };
    (0..len).map(of).collect()
}

/// Sum of squares of one block's elements. A square goes through two additions in its thread, five in its warp and
/// eight over the warps.
pub fn square_sum(block: &[Bounded]) -> Bounded {
    Bounded::sum(block.iter().map(|&g| g * g), 15)
}

/// Norm from all partial sums: 256 threads take turns, then five additions in the warp and eight over the warps.
pub fn norm(sums: &[Bounded]) -> Bounded {
    Bounded::sum(sums.iter().copied(), sums.len() / 256 + 14).sqrt()
}
