//! The conservative term (SPEC section 3; Kumar et al. 2020): pushes down what the data do not contain.

use candle_core::{D, Device, Result, Tensor};

use crate::c51::Support;
use crate::ops::{action_mean, log_softmax};
use crate::real::Real;

/// Q values of every action of one branch, differentiable: [batch, actions] from `value` [batch, atoms] and
/// `advantage` [batch, actions, atoms].
pub fn q_values<T: Real>(support: &Support, value: &Tensor, advantage: &Tensor) -> Result<Tensor> {
    let baseline = (value - action_mean::<T>(advantage)?)?;
    let probabilities = log_softmax(&advantage.broadcast_add(&baseline.unsqueeze(1)?)?)?.exp()?;
    let atoms: Vec<T> = support.atoms().iter().map(|&z| T::from_f64(z)).collect();
    let atoms = Tensor::from_vec(atoms, support.atoms().len(), &Device::Cpu)?;
    probabilities.broadcast_mul(&atoms)?.sum(D::Minus1)
}

/// logsumexp_a Q(a) - Q(a_d) of one branch, [batch]; `q` is [batch, actions], `taken` one action per sample.
///
/// That is -log softmax_a Q at the taken action. Formed so, the maximum is subtracted from both terms: nothing
/// overflows, nothing cancels, and the result is never negative.
pub fn penalty(q: &Tensor, taken: &[u32]) -> Result<Tensor> {
    let index = Tensor::from_slice(taken, (taken.len(), 1), &Device::Cpu)?;
    log_softmax(q)?.gather(&index, 1)?.squeeze(1)?.neg()
}

/// The penalties of all branches, without alpha: [batch, branches]; `actions` is [batch, branches].
pub fn penalties<T: Real>(
    support: &Support,
    value: &Tensor,
    advantages: &[Tensor],
    actions: &[u32],
) -> Result<Tensor> {
    let branches = advantages.len();
    let mut columns = Vec::with_capacity(branches);
    for (d, advantage) in advantages.iter().enumerate() {
        let taken: Vec<u32> = actions.iter().skip(d).step_by(branches).copied().collect();
        columns.push(penalty(&q_values::<T>(support, value, advantage)?, &taken)?);
    }
    Tensor::stack(&columns, 1)
}
