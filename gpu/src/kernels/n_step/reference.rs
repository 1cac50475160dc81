//! Reference of n-step transitions, from all recorded steps of one environment.

use crate::reference::Bounded;

/// One recorded step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// r.
    pub reward: f32,
    /// The episode ended in the task itself.
    pub terminated: bool,
    /// The episode was cut off.
    pub truncated: bool,
}

/// The transition that begins at `start`: sum over j < m of gamma^j r_j, gamma^m (1 - terminated), and the step whose
/// next observation is s'. `None` where the recording ends before the window does.
pub fn transition(steps: &[Step], start: usize, n: usize, gamma: f64) -> Option<(Bounded, f64, usize)> {
    let ends = |step: &Step| step.terminated || step.truncated;
    let to_end = steps[start..].iter().position(ends).map(|i| i + 1);
    let m = to_end.unwrap_or(usize::MAX).min(n);
    let window = steps.get(start..start + m)?;
    let terms = window.iter().enumerate().map(|(j, step)| gamma.powi(j as i32) * f64::from(step.reward));
    // Stored as f32 after every addition.
    let reward = Bounded::sum(terms.map(Bounded::rounded), m);
    let terminated = window.last().is_some_and(|step| step.terminated);
    Some((reward, if terminated { 0.0 } else { gamma.powi(m as i32) }, start + m - 1))
}
