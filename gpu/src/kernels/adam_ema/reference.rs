//! One parameter's Adam step and moving average in f64.

use crate::reference::Bounded;

/// Hyper-parameters, as a user states them.
#[derive(Clone, Copy, Debug)]
pub struct Hyper {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added outside the root.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Norm to which the gradient is clipped.
    pub max_norm: f64,
    /// Rate of the target's moving average.
    pub tau: f64,
}

/// A parameter with its moments and its copy in the target network.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Parameter.
    pub p: Bounded,
    /// First moment.
    pub m: Bounded,
    /// Second moment.
    pub v: Bounded,
    /// Target network's parameter.
    pub target: Bounded,
}

/// Factor of the clip, min(1, max_norm / (norm + 1e-6)).
pub fn clip(norm: Bounded, max_norm: f64) -> Bounded {
    let ratio = Bounded::rounded(max_norm) / (norm + Bounded::rounded(1e-6));
    if ratio.value - ratio.tolerance() > 1.0 {
        return Bounded::exact(1.0);
    }
    Bounded { value: ratio.value.min(1.0), ..ratio }
}

/// Update number `t` (from 1) of one parameter with gradient `g`, clipped by `clip`.
pub fn adam_ema(hyper: &Hyper, t: u64, clip: Bounded, g: Bounded, before: State) -> State {
    let constant = Bounded::rounded;
    let g = g * clip;
    let m = constant(hyper.beta1) * before.m + constant(1.0 - hyper.beta1) * g;
    let v = constant(hyper.beta2) * before.v + constant(1.0 - hyper.beta2) * g * g;
    let one = Bounded::exact(1.0);
    let m_hat = m * (one / constant(1.0 - hyper.beta1.powi(t as i32)));
    let v_hat = v * (one / constant(1.0 - hyper.beta2.powi(t as i32)));
    let direction = m_hat / (v_hat.sqrt() + constant(hyper.eps));
    let p = before.p - constant(hyper.lr) * (direction + constant(hyper.weight_decay) * before.p);
    let target = before.target + constant(hyper.tau) * (p - before.target);
    State { p, m, v, target }
}
