//! The ensemble (SPEC section 3; Osband et al. 2016 for the masks): value heads on the features, each trained on the C51
//! target with a mask of its own, their disagreement rewarded.

use candle_core::{D, Device, Result, Tensor};

use crate::c51::Support;
use crate::group::Weights;
use crate::ops::log_softmax;
use crate::real::Real;

/// Per-sample values, differentiable: [batch] each.
#[derive(Clone, Debug)]
pub struct EnsembleLoss {
    /// w / M sum_e b_e CE_e - lambda min(V, 1).
    pub per_sample: Tensor,
    /// V, the variance over the members of their expected values.
    pub variance: Tensor,
}

/// Outputs of every member, [batch, atoms] each, from `features` [batch, H2].
pub fn logits<T: Real>(
    weights: &Weights,
    features: &Tensor,
    members: usize,
    slope: f64,
) -> Result<Vec<Tensor>> {
    let member = |e: usize| {
        let hidden = weights.hidden::<T>(&format!("ens.hid.{e}"), features, slope)?;
        weights.linear::<T>(&format!("ens.out.{e}"), &hidden)
    };
    (0..members).map(member).collect()
}

/// The members' expected values, [batch, members].
fn expected<T: Real>(support: &Support, logits: &[Tensor]) -> Result<Tensor> {
    let z: Vec<T> = support.atoms().iter().map(|&z| T::from_f64(z)).collect();
    let z = Tensor::new(z, &Device::Cpu)?;
    let member = |logits: &Tensor| log_softmax(logits)?.exp()?.broadcast_mul(&z)?.sum(D::Minus1);
    Tensor::stack(&logits.iter().map(member).collect::<Result<Vec<_>>>()?, 1)
}

/// V of given outputs, the variance over the members of their expected values: [batch].
pub fn variance<T: Real>(support: &Support, logits: &[Tensor]) -> Result<Tensor> {
    let expected = expected::<T>(support, logits)?;
    expected.broadcast_sub(&expected.mean_keepdim(1)?)?.sqr()?.mean(1)
}

/// The loss of given outputs; `target` is the mean over the branches of the C51 targets, [batch, atoms], `masks` says which
/// members learn from a sample, [batch, members], `weights` is [batch].
pub fn loss<T: Real>(
    support: &Support,
    logits: &[Tensor],
    target: &Tensor,
    masks: &[bool],
    weights: &Tensor,
    lambda: f64,
) -> Result<EnsembleLoss> {
    let members = logits.len();
    let (batch, _) = target.dims2()?;
    let mut losses = Vec::with_capacity(members);
    for (e, logits) in logits.iter().enumerate() {
        let log_p = log_softmax(logits)?;
        let cross_entropy = (&log_p * target)?.sum(D::Minus1)?.neg()?;
        let mask = (0..batch).map(|i| T::from_f64(f64::from(u8::from(masks[i * members + e]))));
        let mask = Tensor::from_vec(mask.collect::<Vec<T>>(), batch, &Device::Cpu)?;
        losses.push((cross_entropy * mask)?);
    }
    let variance = variance::<T>(support, logits)?;
    let losses = (Tensor::stack(&losses, 1)?.mean(1)? * weights)?;
    let bonus = (variance.minimum(1.0)? * lambda)?;
    Ok(EnsembleLoss { per_sample: (losses - bonus)?, variance })
}
