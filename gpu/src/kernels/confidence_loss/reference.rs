//! The confidence head in f64.

use crate::reference::Bounded;

/// One sample's loss.
#[derive(Clone, Debug)]
pub struct Loss {
    /// ln(1 + e^c) - y c.
    pub loss: Bounded,
    /// d loss / d c, of a mean over the batch.
    pub d_logit: Bounded,
    /// d loss / d (h2's argument), what was there before included.
    pub d_hidden: Vec<Bounded>,
}

/// The head's parameters and what it reads beside the features.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// w_h.
    pub weight: &'a [f32],
    /// w_s.
    pub signal_weight: &'a [f32],
    /// b.
    pub bias: f32,
    /// s.
    pub signals: &'a [f32],
    /// med.
    pub median: f32,
    /// Slope of h2's activation.
    pub slope: f32,
}

/// Loss of a sample of a batch of `batch`; `before` is the ensemble's gradient of h2', if there is one.
pub fn confidence_loss(
    batch: usize,
    head: &Head,
    features: &[f32],
    hidden: &[f32],
    td: f32,
    before: Option<&[f32]>,
) -> Loss {
    let exact = Bounded::exact;
    let both = features.iter().zip(head.weight).chain(head.signals.iter().zip(head.signal_weight));
    let products = both.map(|(&x, &w)| exact(x) * exact(w));
    let c = Bounded::sum(products, features.len().div_ceil(32) + 6) + exact(head.bias);
    let label = exact(if td > head.median { 1.0 } else { 0.0 });
    let one = exact(1.0);
    let e = Bounded { value: -c.value.abs(), scale: c.scale }.exp();
    let sigmoid = if c.value < 0.0 { e / (one + e) } else { one / (one + e) };
    let positive = Bounded { value: c.value.max(0.0), scale: c.scale };
    let d_logit = (sigmoid - label) / exact(batch as f32);
    let d_hidden = (0..features.len()).map(|j| {
        let factor = exact(if hidden[j] > 0.0 { 1.0 } else { head.slope });
        let ensemble = before.map_or(Bounded::ZERO, |b| exact(b[j]));
        (d_logit * exact(head.weight[j]) + ensemble) * factor
    });
    let d_hidden = d_hidden.collect();
    Loss { loss: positive + (one + e).ln() - label * c, d_logit, d_hidden }
}

/// Gradients of w_h, w_s and b from d loss / d c [B] and features [B, H2].
pub fn reduce(d_logit: &[f32], features: &[f32], signals: &[f32]) -> [Vec<Bounded>; 3] {
    let (batch, exact) = (d_logit.len(), Bounded::exact);
    let width = features.len() / batch;
    let column = |j: usize| {
        let products = (0..batch).map(|i| exact(d_logit[i]) * exact(features[i * width + j]));
        Bounded::sum(products, batch.div_ceil(32) + 32)
    };
    let bias = Bounded::sum(d_logit.iter().map(|&d| exact(d)), batch.div_ceil(1024) + 1024);
    [(0..width).map(column).collect(), signals.iter().map(|&s| bias * exact(s)).collect(), vec![bias]]
}

/// Mean and median after an accepted step; `before` is none at the first.
pub fn advance(rate: f32, td: &[f32], median: f32, before: Option<Bounded>) -> [Bounded; 2] {
    let (exact, count) = (Bounded::exact, td.len() as f32);
    let mean = Bounded::sum(td.iter().map(|&t| exact(t)), td.len().div_ceil(1024) + 5 + 32) / exact(count);
    let Some(old) = before else { return [mean, mean] };
    let above = td.iter().filter(|&&t| t > median).count();
    let running = exact(rate) * (mean - old) + old;
    let side = exact(2.0) * (exact(above as f32) / exact(count)) - exact(1.0);
    [running, exact(rate) * running * side + exact(median)]
}

/// sign(x) ln(1 + |x|).
pub fn compress(x: f32) -> Bounded {
    let size = (Bounded::exact(1.0) + Bounded::exact(x).abs()).ln();
    if x < 0.0 { -size } else { size }
}
