//! Mean differences in f64.

use crate::reference::Bounded;

/// Mean of |q - base|.
pub fn difference(base: &[f32], q: &[f32]) -> Bounded {
    let terms = base.iter().zip(q).map(|(&b, &q)| (Bounded::exact(q) - Bounded::exact(b)).abs());
    Bounded::sum(terms, base.len().div_ceil(1024) + 10) / Bounded::exact(base.len() as f32)
}
