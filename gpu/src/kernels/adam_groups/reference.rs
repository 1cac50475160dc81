//! The main group's gradient from its terms, in f64; the update itself is `adam_ema::reference::adam_ema`.

use crate::reference::Bounded;

/// sum_t factor_t g_t of one element, the terms that reach it in order.
pub fn total(factors: &[f32], terms: &[f32]) -> Bounded {
    let products = factors.iter().zip(terms).map(|(&f, &g)| Bounded::exact(f) * Bounded::exact(g));
    Bounded::sum(products, terms.len())
}
