//! Sums of partial gradients and inner products in f64.

use crate::reference::Bounded;

/// Sum over the splits of `parts` [splits, plane], the first `len` of each.
pub fn reduce(parts: &[f32], splits: usize, plane: usize, len: usize) -> Vec<Bounded> {
    let of = |i: usize| Bounded::sum((0..splits).map(|s| Bounded::exact(parts[s * plane + i])), splits);
    (0..len).map(of).collect()
}

/// Inner product over the elements of one block; a missing element counts as zero.
pub fn block_product(a: &[Bounded], b: &[Bounded], block: usize) -> Bounded {
    let range = |x: &[Bounded]| {
        let end = x.len().min(1024 * (block + 1));
        x[(1024 * block).min(end)..end].to_vec()
    };
    // Four elements in the thread, five butterfly steps, eight warps.
    Bounded::sum(range(a).iter().zip(range(b)).map(|(&a, b)| a * b), 2 + 5 + 8)
}
