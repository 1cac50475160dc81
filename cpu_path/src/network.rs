//! The main network (SPEC section 2): trunk, value head, one advantage head per branch, dueling per atom.

use candle_core::{Device, Result, Tensor};
use settings::ModelShape;

use crate::c51::Support;
use crate::group::Weights;
use crate::hyper::decimal;
use crate::ops::{leaky_relu, softmax};
use crate::real::Real;

/// Output of a forward pass, with what later heads read.
#[derive(Clone, Debug)]
pub struct Forward {
    /// First trunk layer after its activation, [batch, H1].
    pub h1: Tensor,
    /// Second trunk layer after its activation, [batch, H2]: the input of every head.
    pub h2: Tensor,
    /// v, value logits, [batch, atoms].
    pub value: Tensor,
    /// a_d, advantage logits of each branch, [batch, actions of d, atoms].
    pub advantages: Vec<Tensor>,
    /// l_d, logits after dueling, [batch, actions of d, atoms].
    pub logits: Vec<Tensor>,
}

/// The forward pass of the main network; parameters come from outside, so one network serves online and target.
#[derive(Clone, Debug)]
pub struct Network<T> {
    shape: ModelShape,
    slope: f64,
    /// z as a column, [atoms, 1].
    support: Tensor,
    element: std::marker::PhantomData<T>,
}

impl<T: Real> Network<T> {
    /// A network of a checked shape.
    pub fn new(shape: &ModelShape, support: &Support) -> Result<Self> {
        let atoms: Vec<T> = support.atoms().iter().map(|&z| T::from_f64(z)).collect();
        let support = Tensor::from_vec(atoms, (shape.atoms, 1), &Device::Cpu)?;
        let slope = decimal(shape.leaky_slope);
        Ok(Self { shape: shape.clone(), slope, support, element: std::marker::PhantomData })
    }

    /// Runs trunk and heads on states [batch, S].
    pub fn forward(&self, weights: &Weights, states: &Tensor) -> Result<Forward> {
        let hidden = |layer: &str, x: &Tensor| leaky_relu::<T>(&weights.linear(layer, x)?, self.slope);
        let h1 = hidden("trunk1", states)?;
        let h2 = hidden("trunk2", &h1)?;
        let value = weights.linear("v2", &hidden("v1", &h2)?)?;
        let mut advantages = Vec::with_capacity(self.shape.branches.len());
        let mut logits = Vec::with_capacity(self.shape.branches.len());
        for (d, &actions) in self.shape.branches.iter().enumerate() {
            let advantage = weights.linear(&format!("a2.{d}"), &hidden(&format!("a1.{d}"), &h2)?)?;
            let advantage = advantage.reshape(((), actions, self.shape.atoms))?;
            logits.push(dueling(&value, &advantage)?);
            advantages.push(advantage);
        }
        Ok(Forward { h1, h2, value, advantages, logits })
    }

    /// Q_d(a) = sum_k z_k p_d(a, k) from p_d [batch, actions, atoms]; gives [batch, actions].
    pub fn expected(&self, probabilities: &Tensor) -> Result<Tensor> {
        let (batch, actions, atoms) = probabilities.dims3()?;
        probabilities.reshape((batch * actions, atoms))?.matmul(&self.support)?.reshape((batch, actions))
    }

    /// Q of every action of every branch, [batch, actions of d] each.
    pub fn q_values(&self, forward: &Forward) -> Result<Vec<Tensor>> {
        forward.logits.iter().map(|logits| self.expected(&softmax(logits)?)).collect()
    }
}

/// l[a, k] = v[k] + a[a, k] - mean over a' of a[a', k], atom by atom (Wang et al. 2016, equation 9, applied to
/// each atom as in Rainbow).
///
/// `value` is [batch, atoms], `advantage` [batch, actions, atoms]. A mean over atoms as well would be a constant
/// that the softmax removes.
pub fn dueling(value: &Tensor, advantage: &Tensor) -> Result<Tensor> {
    let baseline = (value.unsqueeze(1)? - advantage.mean_keepdim(1)?)?;
    advantage.broadcast_add(&baseline)
}
