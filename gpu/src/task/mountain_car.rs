//! The worked example of `docs/ENVIRONMENTS.md`, which holds this file's text from here on.

use super::{Environment, Outcome, Random, Spec, trigonometry};
use crate::action::with_branch;

/// MountainCar-v0 of Gymnasium: a car in a valley whose engine (left, none, right) is too weak for the hill on the right.
/// Reward -1 a step; terminated at the hill's top; truncated after 200 steps.
#[derive(Clone, Copy, Debug)]
pub struct MountainCar;

impl Environment for MountainCar {
    const NAME: &'static str = "mountain_car";
    /// Position and speed.
    type State = [f64; 2];

    #[inline(always)]
    fn new(_: u32) -> Self {
        Self
    }

    #[inline(always)]
    fn spec(&self) -> Spec {
        Spec { observation: 2, branches: with_branch(0, 0, 3), limit: 200, ..Spec::default() }
    }

    #[inline(always)]
    fn start(&self, random: &mut Random) -> [f64; 2] {
        [random.uniform(-0.6, -0.4), 0.0]
    }

    #[inline(always)]
    fn step(&self, state: &mut [f64; 2], action: u64) -> Outcome {
        let [position, speed] = *state;
        let push = (action as f64 - 1.0) * 0.001;
        let speed = (speed + push - 0.0025 * trigonometry::cos(3.0 * position)).clamp(-0.07, 0.07);
        let position = (position + speed).clamp(-1.2, 0.6);
        // The wall on the left stops the car.
        let speed = if position == -1.2 && speed < 0.0 { 0.0 } else { speed };
        *state = [position, speed];
        Outcome { reward: -1.0, terminated: position >= 0.5 && speed >= 0.0 }
    }

    #[inline(always)]
    fn observe(&self, state: &[f64; 2], i: u32) -> f32 {
        state[i as usize] as f32
    }
}
