//! The expectile loss of one sample and network, in f64.

use crate::reference::Bounded;

/// Value, loss and gradients.
#[derive(Clone, Debug)]
pub struct Loss {
    /// V.
    pub value: Bounded,
    /// |tau - 1[u < 0]| u^2.
    pub loss: Bounded,
    /// d loss / d V, of a mean over the batch.
    pub d_value: Bounded,
    /// d loss / d (hidden's argument).
    pub d_hidden: Vec<Bounded>,
}

/// Loss of one sample of a batch of `batch`; `q` has one value a branch.
pub fn iql_loss(
    batch: usize,
    tau: f32,
    slope: f32,
    q: &[f32],
    hidden: &[f32],
    weight: &[f32],
    bias: f32,
) -> Loss {
    let products = hidden.iter().zip(weight).map(|(&h, &w)| Bounded::exact(h) * Bounded::exact(w));
    let value = Bounded::sum(products, hidden.len().div_ceil(32) + 5) + Bounded::exact(bias);
    let mean = Bounded::sum(q.iter().map(|&q| Bounded::exact(q)), q.len()) / Bounded::exact(q.len() as f32);
    let u = mean - value;
    let tau = Bounded::exact(tau);
    let side = if u.value < 0.0 { Bounded::exact(1.0) - tau } else { tau };
    // Where rounding decides the sign of u, either expectile's weight is right: both terms are within their own size.
    let undecided = |x: Bounded| {
        let extra = if u.value.abs() <= u.tolerance() { u.tolerance() / crate::reference::UNIT } else { 0.0 };
        Bounded { scale: x.scale + extra, ..x }
    };
    let d_value = undecided(Bounded::exact(-2.0) * side * u / Bounded::exact(batch as f32));
    let d_hidden = hidden.iter().zip(weight).map(|(&h, &w)| {
        let factor = if h > 0.0 { 1.0 } else { slope };
        d_value * Bounded::exact(w) * Bounded::exact(factor)
    });
    Loss { value, loss: undecided(side * u * u), d_value, d_hidden: d_hidden.collect() }
}
