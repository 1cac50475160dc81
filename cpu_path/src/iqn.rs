//! The implicit quantile head (SPEC section 3; Dabney et al. 2018; next actions and cosine index as in Dopamine).

use candle_core::{D, Device, Result, Tensor};
use settings::{Iqn, ModelShape};

use crate::c51::argmax;
use crate::group::Weights;
use crate::hyper::decimal;
use crate::ops::bias_leaky_relu;
use crate::real::Real;

/// The head's forward pass; parameters come from outside, so one head serves online and target.
#[derive(Clone, Debug)]
pub struct QuantileHead {
    branches: Vec<usize>,
    cosines: usize,
    slope: f64,
}

impl QuantileHead {
    /// A head of checked settings.
    pub fn new(shape: &ModelShape, iqn: &Iqn) -> Self {
        Self { branches: shape.branches.clone(), cosines: iqn.cosines, slope: decimal(shape.leaky_slope) }
    }

    /// Z(tau) of every action: one [batch, samples, actions of d] per branch, from `features` [batch, H2] and `taus`
    /// [batch, samples].
    ///
    /// x = features * relu(Wphi cos(pi j tau) + bphi), j = 1 to E; hidden lrelu; one output per action.
    pub fn quantiles<T: Real>(
        &self,
        weights: &Weights,
        features: &Tensor,
        taus: &[T],
    ) -> Result<Vec<Tensor>> {
        let (batch, width) = features.dims2()?;
        let samples = taus.len() / batch;
        let rows = batch * samples;
        let cosines = Tensor::from_vec(self.cosines(taus), (rows, self.cosines), &Device::Cpu)?;
        let phi = cosines.matmul(&weights.get("iqn.cos.weight")?.t()?)?;
        // A slope of 0 is the relu.
        let phi = bias_leaky_relu::<T>(&phi, weights.get("iqn.cos.bias")?, 0.0)?;
        let phi = phi.reshape((batch, samples, width))?;
        let x = phi.broadcast_mul(&features.unsqueeze(1)?)?.reshape((rows, width))?;
        let hidden = weights.hidden::<T>("iqn.hid", &x, self.slope)?;
        let output = |(d, &actions): (usize, &usize)| {
            weights.linear::<T>(&format!("iqn.out.{d}"), &hidden)?.reshape((batch, samples, actions))
        };
        self.branches.iter().enumerate().map(output).collect()
    }

    /// cos(pi j tau), formed in f64: the angle of a large j would lose digits in f32.
    fn cosines<T: Real>(&self, taus: &[T]) -> Vec<T> {
        let cosine = |tau: f64, j: usize| T::from_f64((std::f64::consts::PI * tau * j as f64).cos());
        taus.iter().flat_map(|tau| (1..=self.cosines).map(move |j| cosine(tau.to_f64(), j))).collect()
    }
}

/// Picks one action per branch of quantiles as from [`QuantileHead::quantiles`], differentiable:
/// [batch, branches, samples] for `actions` [batch, branches].
pub fn taken(quantiles: &[Tensor], actions: &[u32]) -> Result<Tensor> {
    let branches = quantiles.len();
    let mut rows = Vec::with_capacity(branches);
    for (d, quantiles) in quantiles.iter().enumerate() {
        let (batch, samples, _) = quantiles.dims3()?;
        let index = (0..batch * samples).map(|i| actions[i / samples * branches + d]).collect::<Vec<u32>>();
        let index = Tensor::from_vec(index, (batch, samples, 1), &Device::Cpu)?;
        rows.push(quantiles.gather(&index, 2)?.squeeze(2)?);
    }
    Tensor::stack(&rows, 1)
}

/// Greedy action of each branch by the mean over the samples, the lowest index among equals: [batch, branches].
///
/// `quantiles` holds one [batch, samples, actions of d] per branch on the host.
pub fn greedy<T: Real>(quantiles: &[Vec<T>], branches: &[usize], batch: usize) -> Vec<u32> {
    let mut greedy = Vec::with_capacity(batch * branches.len());
    for row in 0..batch {
        for (quantiles, &actions) in quantiles.iter().zip(branches) {
            let mut sums = vec![0.0; actions];
            let size = quantiles.len() / batch;
            for sample in quantiles[row * size..][..size].chunks_exact(actions) {
                sums.iter_mut().zip(sample).for_each(|(sum, z)| *sum += z.to_f64());
            }
            greedy.push(argmax(&sums) as u32);
        }
    }
    greedy
}

/// r + discount * Z_target(tau'_j)(a*_d): [batch, branches, samples], from target quantiles of one
/// [batch, samples, actions of d] per branch and `actions` [batch, branches].
pub fn targets<T: Real>(
    quantiles: &[Vec<T>],
    branches: &[usize],
    actions: &[u32],
    rewards: &[T],
    discounts: &[T],
) -> Vec<T> {
    let batch = rewards.len();
    let mut targets = Vec::new();
    for (row, (reward, discount)) in rewards.iter().zip(discounts).enumerate() {
        for (d, (quantiles, &n)) in quantiles.iter().zip(branches).enumerate() {
            let action = actions[row * branches.len() + d] as usize;
            let size = quantiles.len() / batch;
            let target = |z: &[T]| reward.to_f64() + discount.to_f64() * z[action].to_f64();
            let samples = quantiles[row * size..][..size].chunks_exact(n);
            targets.extend(samples.map(|z| T::from_f64(target(z))));
        }
    }
    targets
}

/// Quantile Huber loss: sum over i of mean over j of |tau_i - 1[u < 0]| huber_kappa(u) / kappa with
/// u = target_j - theta_i. [batch, branches], not importance-weighted.
///
/// `theta` is [batch, branches, N], `taus` [batch, N], `targets` [batch, branches, N'].
pub fn quantile_huber(theta: &Tensor, taus: &Tensor, targets: &Tensor, kappa: f64) -> Result<Tensor> {
    let u = targets.unsqueeze(2)?.broadcast_sub(&theta.unsqueeze(3)?)?;
    let below = u.detach().lt(0.0)?.to_dtype(u.dtype())?;
    let weight = taus.unsqueeze(1)?.unsqueeze(3)?.broadcast_sub(&below)?.abs()?;
    // With c = min(|u|, kappa), c (|u| - c/2) is u^2/2 up to kappa and kappa (|u| - kappa/2) beyond. Its derivative
    // in |u| is c however the derivative of the minimum is shared at a tie.
    let size = u.abs()?;
    let c = size.minimum(kappa)?;
    let huber = (&c * (&size - (&c * 0.5)?)?)?;
    ((huber * weight)? / kappa)?.mean(D::Minus1)?.sum(D::Minus1)
}
