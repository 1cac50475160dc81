//! Reference of hindsight, on whole recorded episodes instead of a ring.

use crate::kernels::philox_fill::reference::words;

/// Number of the stream of hindsight's draws.
const STREAM: u32 = 9;

/// A transition with another goal.
#[derive(Clone, Debug, PartialEq)]
pub struct Relabelled {
    /// The step of the episode after which the goal was achieved.
    pub step: usize,
    /// The new goal.
    pub goal: Vec<f32>,
    /// r by that goal.
    pub reward: f32,
    /// Whether the transition reaches it.
    pub reached: bool,
}

/// Relabels step `t` of an episode whose step j led to a state that achieves `achieved[j]`, by the goal of step `future`,
/// not before t. Reward 0 where the goal is reached, else -1.
pub fn relabel(achieved: &[Vec<f32>], t: usize, future: usize) -> Relabelled {
    assert!(t <= future && future < achieved.len(), "step {future} of {} is not from {t} on", achieved.len());
    let reached = achieved[t] == achieved[future];
    let reward = if reached { 0.0 } else { -1.0 };
    Relabelled { step: future, goal: achieved[future].clone(), reward, reached }
}

/// What is drawn for a sample: whether it is relabelled, and the step of its goal; `steps` are the episode's.
pub fn drawn((seed, step, sample): (u64, u64, u32), share: f64, t: usize, steps: usize) -> Option<usize> {
    let [chance, high, low, _] = words(seed, step, STREAM, sample, 0);
    let relabel = f64::from(chance >> 8) / f64::from(1 << 24) < share;
    let bits = (u128::from(high) << 32) | u128::from(low);
    let ahead = ((bits * (steps - t) as u128) >> 64) as usize;
    relabel.then_some(t + ahead)
}
