//! Noisy heads (SPEC section 2; Fortunato et al. 2018, equations 10 and 11): W = mu + sigma * f(e_out) f(e_in)^T and
//! b = mu + sigma * f(e_out), differentiable with respect to mu and sigma. The factors f(e) come from outside, as the
//! quantile samples do, so that a step is a function of its batch.

use candle_core::{Device, Tensor};
use settings::NoisyLayout;
use settings::model::SIGMA;

use crate::error::CpuError;
use crate::group::{Weights, check_len};
use crate::real::Real;

/// The weights with those of the noisy layers in place of their mu; `factors` as in [`NoisyLayout`].
///
/// # Errors
/// A list of factors of another length, or a network without sigma.
pub fn with_noise<T: Real>(
    weights: &Weights,
    layout: &NoisyLayout,
    factors: &[T],
) -> Result<Weights, CpuError> {
    check_len("factors of the noise", factors.len(), layout.factors)?;
    let mut noisy = Vec::with_capacity(2 * layout.layers.len());
    for layer in &layout.layers {
        let input = &factors[layer.input_factors..][..layer.inputs];
        let output = &factors[layer.output_factors..][..layer.outputs];
        let product = output.iter().flat_map(|&o| input.iter().map(move |&i| o * i)).collect::<Vec<T>>();
        for (tensor, noise, shape) in [
            ("weight", &product[..], vec![layer.outputs, layer.inputs]),
            ("bias", output, vec![layer.outputs]),
        ] {
            let name = format!("{}.{tensor}", layer.name);
            let noise = Tensor::from_slice(noise, shape, &Device::Cpu)?;
            let sigma = weights.get(&format!("{name}{SIGMA}"))?;
            noisy.push(((weights.get(&name)? + (sigma * noise)?)?, name));
        }
    }
    Ok(weights.replaced(noisy.into_iter().map(|(tensor, name)| (name, tensor))))
}
