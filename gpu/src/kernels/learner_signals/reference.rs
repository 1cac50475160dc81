//! Batch means in f64.

use crate::reference::Bounded;

/// Mean of one value per sample, added by a warp whose lanes take every 32nd.
pub fn mean(values: &[f32]) -> Bounded {
    let chain = values.len().div_ceil(32) + 5;
    let sum = Bounded::sum(values.iter().map(|&x| Bounded::exact(x)), chain);
    sum / Bounded::exact(values.len() as f32)
}
