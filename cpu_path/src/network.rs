//! The main network (SPEC section 2): trunk, Mamba-2 block and attention beside it where they are on, value head, one advantage head per
//! branch, dueling per atom.

use std::marker::PhantomData;

use candle_core::{Device, Result, Tensor};
use settings::{Head, Mamba, ModelShape, Parts};

use crate::attention::{Attended, attention};
use crate::glu::glu;
use crate::group::Weights;
use crate::hyper::decimal;
use crate::mamba::{Scanned, mamba};
use crate::ops::{action_mean, bias_leaky_relu};
use crate::real::Real;

/// Output of a forward pass, with what later heads read.
#[derive(Clone, Debug)]
pub struct Forward {
    /// First trunk layer after its activation, [batch, H1].
    pub h1: Tensor,
    /// The Mamba-2 block's values, if it is on.
    pub scanned: Option<Scanned>,
    /// Second trunk layer after its activation, [batch, H2].
    pub h2: Tensor,
    /// The attention's values, if it is on.
    pub attended: Option<Attended>,
    /// h2' = h2 + g o (h2 without attention), [batch, H2]: the input of every head.
    pub features: Tensor,
    /// v, value logits, [batch, atoms].
    pub value: Tensor,
    /// a_d, advantage logits of each branch, [batch, actions of d, atoms].
    pub advantages: Vec<Tensor>,
}

impl Forward {
    /// h2' for a head whose gradient goes to the trunk alone: the attention's share is a constant.
    pub fn trunk_features(&self) -> Result<Tensor> {
        match &self.attended {
            Some(attended) => &self.h2 + attended.gated.detach(),
            None => Ok(self.h2.clone()),
        }
    }
}

/// The forward pass of the main network; parameters come from outside, so one network serves online and target.
#[derive(Clone, Debug)]
pub struct Network<T> {
    shape: ModelShape,
    slope: f64,
    /// Heads of the attention, 0 without it.
    attention_heads: usize,
    /// The Mamba-2 block, where it is on.
    mamba: Option<Mamba>,
    element: PhantomData<T>,
}

impl<T: Real> Network<T> {
    /// A network of a checked shape and checked parts.
    pub fn new(shape: &ModelShape, parts: &Parts) -> Self {
        Self {
            shape: shape.clone(),
            slope: decimal(shape.leaky_slope),
            attention_heads: if parts.attention.enabled { parts.attention.heads } else { 0 },
            mamba: parts.mamba.enabled.then(|| parts.mamba.clone()),
            element: PhantomData,
        }
    }

    /// Runs trunk, Mamba-2 block, attention and heads on states [batch, S].
    pub fn forward(&self, weights: &Weights, states: &Tensor) -> Result<Forward> {
        let (scanned, h1) = match &self.mamba {
            None => (None, weights.hidden::<T>("trunk1", states, self.slope)?),
            Some(settings) => {
                let scanned = mamba::<T>(weights, &self.shape, settings, states)?;
                let sum = (states.matmul(&weights.get("trunk1.weight")?.t()?)? + &scanned.gated)?;
                let h1 = bias_leaky_relu::<T>(&sum, weights.get("trunk1.bias")?, self.slope)?;
                (Some(scanned), h1)
            }
        };
        let h2 = weights.hidden::<T>("trunk2", &h1, self.slope)?;
        let (attended, features) = match self.attention_heads {
            0 => (None, h2.clone()),
            heads => {
                let attended = attention::<T>(weights, &self.shape, heads, states)?;
                let features = (&h2 + &attended.gated)?;
                (Some(attended), features)
            }
        };
        let value = weights.linear::<T>("v2", &self.head_hidden(weights, "v1", &features)?)?;
        let mut advantages = Vec::with_capacity(self.shape.branches.len());
        for (d, &actions) in self.shape.branches.iter().enumerate() {
            let hidden = self.head_hidden(weights, &format!("a1.{d}"), &features)?;
            let advantage = weights.linear::<T>(&format!("a2.{d}"), &hidden)?;
            advantages.push(advantage.reshape(((), actions, self.shape.atoms))?);
        }
        Ok(Forward { h1, scanned, h2, attended, features, value, advantages })
    }

    /// Hidden layer of a head, as `model.head` says.
    fn head_hidden(&self, weights: &Weights, layer: &str, x: &Tensor) -> Result<Tensor> {
        match self.shape.head {
            Head::Mlp => weights.hidden::<T>(layer, x, self.slope),
            Head::Glu => glu::<T>(&weights.linear::<T>(layer, x)?),
        }
    }
}

/// Logits of one action per branch after dueling, differentiable: [batch, branches, atoms].
///
/// l[k] = v[k] + a[action, k] - mean over a' of a[a', k], atom by atom (Wang et al. 2016, equation 9, applied to each
/// atom as in Rainbow). A mean over the atoms as well would be a constant that the softmax removes.
///
/// `value` is [batch, atoms], `advantages` one [batch, actions of d, atoms] per branch, `actions` [batch, branches].
pub fn taken_logits<T: Real>(value: &Tensor, advantages: &[Tensor], actions: &[u32]) -> Result<Tensor> {
    let mut baselines = Vec::with_capacity(advantages.len());
    for advantage in advantages {
        baselines.push((value - action_mean::<T>(advantage)?)?);
    }
    taken(advantages, actions)? + Tensor::stack(&baselines, 1)?
}

/// Picks one action per branch, differentiable: from [batch, actions of d, atoms] per branch and `actions`
/// [batch, branches] to [batch, branches, atoms].
pub fn taken(branches: &[Tensor], actions: &[u32]) -> Result<Tensor> {
    let mut rows = Vec::with_capacity(branches.len());
    for (d, branch) in branches.iter().enumerate() {
        let (batch, n, atoms) = branch.dims3()?;
        let row_of = |i: usize| i as u32 * n as u32 + actions[i * branches.len() + d];
        let index = Tensor::from_vec((0..batch).map(row_of).collect::<Vec<u32>>(), batch, &Device::Cpu)?;
        rows.push(branch.reshape((batch * n, atoms))?.index_select(&index, 0)?);
    }
    Tensor::stack(&rows, 1)
}
