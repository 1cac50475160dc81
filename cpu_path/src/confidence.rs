//! The confidence head (SPEC section 3): whether a sample's td is above its running median, from the features and the
//! signals of the steps before. What is kept from step to step is as in `gpu::kernels::confidence_loss`, in f64.

use candle_core::{Device, Result, Tensor};
use settings::Confidence;

use crate::group::Weights;
use crate::real::Real;

/// Median, mean and signals that a step leaves for the next one; all 0 before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept<T> {
    /// Running median of td.
    pub median: T,
    /// Running mean of td.
    pub mean: T,
    /// Whether a step has been accepted.
    pub started: bool,
    /// Signals of the last accepted step, compressed.
    pub signals: [T; Confidence::SIGNALS],
}

impl<T: Real> Kept<T> {
    /// After an accepted step whose batch had these td and whose signals were these.
    pub fn advance(&mut self, rate: f64, td: &[T], signals: [f64; Confidence::SIGNALS]) {
        let count = td.len() as f64;
        let batch = td.iter().map(|td| td.to_f64()).sum::<f64>() / count;
        let median = self.median.to_f64();
        if self.started {
            let above = td.iter().filter(|td| td.to_f64() > median).count() as f64 / count;
            let mean = self.mean.to_f64() + rate * (batch - self.mean.to_f64());
            self.mean = T::from_f64(mean);
            self.median = T::from_f64(median + rate * mean * (2.0 * above - 1.0));
        } else {
            (self.mean, self.median, self.started) = (T::from_f64(batch), T::from_f64(batch), true);
        }
        for (kept, x) in self.signals.iter_mut().zip(signals) {
            let size = x.abs().ln_1p();
            if size.is_finite() {
                *kept = T::from_f64(size.copysign(x));
            }
        }
    }
}

/// The logit of every sample, [batch], from `features` [batch, H2].
pub fn logits<T: Real>(weights: &Weights, features: &Tensor, kept: &Kept<T>) -> Result<Tensor> {
    let signals = Tensor::from_slice(&kept.signals, (Confidence::SIGNALS, 1), &Device::Cpu)?;
    let of_signals = weights.get("conf.signals.weight")?.matmul(&signals)?.squeeze(1)?;
    let of_features = features.matmul(&weights.get("conf.features.weight")?.t()?)?.squeeze(1)?;
    of_features.broadcast_add(&(of_signals + weights.get("conf.bias")?)?)
}

/// Binary cross-entropy ln(1 + e^c) - y c of every sample, [batch], y = 1 where `td` [batch] is above the median.
pub fn loss<T: Real>(logits: &Tensor, td: &[T], median: T) -> Result<Tensor> {
    let label = |td: &T| T::from_f64(f64::from(u8::from(*td > median)));
    let labels = Tensor::from_vec(td.iter().map(label).collect::<Vec<T>>(), td.len(), &Device::Cpu)?;
    let softplus = (logits.relu()? + (logits.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    softplus - (labels * logits)?
}
