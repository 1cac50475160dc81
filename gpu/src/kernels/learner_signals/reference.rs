//! Batch means in f64.

use crate::reference::Bounded;

/// Mean of weight times value, one of each per sample, added by a warp whose lanes take every 32nd.
pub fn mean(weights: &[f32], values: &[f32]) -> Bounded {
    let chain = values.len().div_ceil(32) + 5;
    let terms = weights.iter().zip(values).map(|(&w, &x)| Bounded::exact(w) * Bounded::exact(x));
    Bounded::sum(terms, chain) / Bounded::exact(values.len() as f32)
}
