//! n-step returns and discounts of recorded steps (SPEC sections 3 and 6): what a replay writer stores.

use std::num::NonZeroUsize;

/// How an episode goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It goes on.
    Running,
    /// It ended in the task itself (ruin, goal): nothing is earned afterwards, no bootstrap.
    Terminated,
    /// It was cut off (time limit, end of the data): bootstraps from its final observation.
    Truncated,
}

impl End {
    /// From the two Gymnasium flags. When both are set termination wins: the limit does not give the state a future.
    pub fn new(terminated: bool, truncated: bool) -> Self {
        match (terminated, truncated) {
            (true, _) => Self::Terminated,
            (false, true) => Self::Truncated,
            (false, false) => Self::Running,
        }
    }
}

/// One recorded step of one environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Reward of the step.
    pub reward: f32,
    /// Whether the episode ended with it, and how.
    pub end: End,
}

/// The n-step transition that begins at some step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NStep {
    /// sum over j < m of gamma^j r_j.
    pub reward: f64,
    /// m, the number of rewards summed; less than n where the episode ended.
    pub steps: usize,
    /// gamma^m * (1 - terminated).
    pub discount: f64,
    /// Index of the last summed step. Its next observation is s' (for a truncated step that is the episode's final
    /// observation, not the one after the reset). A terminated transition stores it too, with discount 0.
    pub last: usize,
}

/// gamma^m * (1 - terminated), with m the number of rewards really summed.
pub fn discount(gamma: f64, m: usize, terminated: bool) -> f64 {
    if terminated { 0.0 } else { gamma.powf(m as f64) }
}

/// The n-step transition starting at `start`, from consecutive steps of one environment.
///
/// The window stops at the first step that ends an episode, whose reward is kept. `None` when the recording ends
/// before the window does: that start has no next observation yet and must not be sampled.
pub fn n_step(steps: &[Step], start: usize, n: NonZeroUsize, gamma: f64) -> Option<NStep> {
    let mut reward = 0.0;
    let mut weight = 1.0;
    for (m, step) in steps.get(start..)?.iter().take(n.get()).enumerate() {
        reward += weight * f64::from(step.reward);
        weight *= gamma;
        let summed = m + 1;
        if step.end != End::Running || summed == n.get() {
            let discount = discount(gamma, summed, step.end == End::Terminated);
            return Some(NStep { reward, steps: summed, discount, last: start + m });
        }
    }
    None
}
