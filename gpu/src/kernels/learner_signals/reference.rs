//! Batch means in f64.

use crate::reference::Bounded;

/// Mean of weight times value, one of each per sample; no term goes through more additions than there are samples, or
/// than 32 threads' and as many warps' sums take.
pub fn mean(weights: &[f32], values: &[f32]) -> Bounded {
    let chain = values.len().div_ceil(160).max(values.len().div_ceil(512)) + 5 + 32;
    let terms = weights.iter().zip(values).map(|(&w, &x)| Bounded::exact(w) * Bounded::exact(x));
    Bounded::sum(terms, chain) / Bounded::exact(values.len() as f32)
}
