//! The Mamba-2 block over the window's bars (SPEC section 2; Dao and Gu 2024), as the recurrence that it is defined by: a
//! step that folds projections and unrolls the scan is compared with this.

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor};
use settings::{Mamba, ModelShape};

use crate::group::Weights;
use crate::ops::contiguous;
use crate::real::Real;

/// Added to the mean of squares in the norm.
const NORM_EPS: f64 = 1e-5;

/// What the block gives.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// m = Wout rmsnorm(y silu(z)) + bo at the last bar, before the gate, [batch, H1].
    pub output: Tensor,
    /// g * m: what is added to h1's argument, [batch, H1].
    pub gated: Tensor,
}

/// Runs the block on states [batch, S] whose first W*F entries are the window, oldest bar first.
pub fn mamba<T: Real>(
    weights: &Weights,
    shape: &ModelShape,
    settings: &Mamba,
    states: &Tensor,
) -> Result<Scanned> {
    let (batch, _) = states.dims2()?;
    let (bars, features) = (shape.window, shape.bar_features);
    let Mamba { width, heads, state, conv, .. } = *settings;
    let (channels, depth) = (settings.channels(), width / heads);
    let window = states.narrow(1, 0, bars * features)?.reshape((batch * bars, features))?;
    let embedded = weights.linear::<T>("mamba.emb", &window)?;
    let projected = embedded.matmul(&weights.get("mamba.in.weight")?.t()?)?;
    let projected = projected.reshape((batch, bars, settings.rows()))?;
    let last = |x: &Tensor| x.narrow(1, bars - 1, 1)?.squeeze(1);
    let z = last(&projected.narrow(2, 0, width)?)?;

    // Before the window there is nothing: zeros, not the projection of an empty bar.
    let padded = projected.narrow(2, width, channels)?.contiguous()?.pad_with_zeros(1, conv - 1, 0)?;
    let taps = weights.get("mamba.conv.weight")?;
    let mut sum = padded.narrow(1, 0, bars)?.broadcast_mul(&taps.narrow(1, 0, 1)?.squeeze(1)?)?;
    for j in 1..conv {
        sum = (sum + padded.narrow(1, j, bars)?.broadcast_mul(&taps.narrow(1, j, 1)?.squeeze(1)?)?)?;
    }
    let mixed = sum.broadcast_add(weights.get("mamba.conv.bias")?)?.silu()?;
    let x = mixed.narrow(2, 0, width)?.reshape((batch, bars, heads, depth))?;
    let b = mixed.narrow(2, width, state)?;
    let c = last(&mixed.narrow(2, width + state, state)?)?;
    let dt = projected.narrow(2, width + channels, heads)?.broadcast_add(weights.get("mamba.dt_bias")?)?;
    let delta = softplus::<T>(&dt)?;
    let decay = delta.broadcast_mul(&weights.get("mamba.a_log")?.exp()?)?.neg()?.exp()?;

    let mut scan = Tensor::zeros((batch, heads, depth, state), states.dtype(), states.device())?;
    for bar in 0..bars {
        let at = |x: &Tensor| x.narrow(1, bar, 1)?.squeeze(1);
        let scaled = at(&x)?.broadcast_mul(&at(&delta)?.unsqueeze(2)?)?;
        let added = scaled.unsqueeze(3)?.broadcast_mul(&at(&b)?.reshape((batch, 1, 1, state))?)?;
        scan = (scan.broadcast_mul(&at(&decay)?.reshape((batch, heads, 1, 1))?)? + added)?;
    }
    let read = scan.broadcast_mul(&c.reshape((batch, 1, 1, state))?)?.sum(3)?;
    let skipped = last(&x)?.broadcast_mul(&weights.get("mamba.skip")?.reshape((1, heads, 1))?)?;
    let y = (read + skipped)?.reshape((batch, width))?;

    let y = (y * z.contiguous()?.silu()?)?;
    let root = (y.sqr()?.mean_keepdim(D::Minus1)? + NORM_EPS)?.sqrt()?;
    let normed = y.broadcast_div(&root)?.broadcast_mul(weights.get("mamba.norm")?)?;
    let output = weights.linear::<T>("mamba.out", &normed)?;
    let gated = output.broadcast_mul(weights.get("mamba.gate")?)?;
    Ok(Scanned { output, gated })
}

/// ln(1 + e^x), accurate where it is small; its derivative is the sigmoid. candle has no ln(1 + x).
fn softplus<T: Real>(x: &Tensor) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Softplus::<T>(PhantomData))
}

struct Softplus<T>(PhantomData<T>);

impl<T: Real> CustomOp1 for Softplus<T> {
    fn name(&self) -> &'static str {
        "softplus"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let softplus = |x: f64| {
            let log = (-x.abs()).exp().ln_1p();
            // Not `max`, which would lose a NaN.
            if x > 0.0 { x + log } else { log }
        };
        let y = contiguous::<T>(x, layout)?.iter().map(|x| T::from_f64(softplus(x.to_f64()))).collect();
        Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some((dy / (x.neg()?.exp()? + 1.0)?)?))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::to_vec;

    #[test]
    fn softplus_keeps_small_values_and_its_derivative_is_the_sigmoid() {
        let x = Var::new(&[-30.0_f32, -6.9, 0.0, 2.0, 40.0, f32::NAN], &Device::Cpu).unwrap();
        let y = softplus::<f32>(&x).unwrap();
        let values: Vec<f32> = to_vec(&y).unwrap();
        for (x, y) in [-30.0_f64, -6.9, 0.0, 2.0, 40.0].into_iter().zip(&values) {
            let want = x.exp().ln_1p();
            assert!((f64::from(*y) - want).abs() <= 1e-7 * want, "{x}: {y}, expected {want}");
        }
        assert!(values[5].is_nan());
        let grads = y.narrow(0, 0, 5).unwrap().sum_all().unwrap().backward().unwrap();
        let d: Vec<f32> = to_vec(grads.get(&x).unwrap()).unwrap();
        for (x, d) in [-30.0_f64, -6.9, 0.0, 2.0, 40.0].into_iter().zip(&d) {
            let want = 1.0 / (1.0 + (-x).exp());
            assert!((f64::from(*d) - want).abs() <= 1e-6 * want, "{x}: {d}, expected {want}");
        }
    }
}
