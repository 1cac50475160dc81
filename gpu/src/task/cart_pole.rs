//! CartPole-v1 of Gymnasium's classic control (Barto, Sutton and Anderson, "Neuronlike Adaptive Elements That Can Solve
//! Difficult Learning Control Problems", 1983).

use super::{Environment, Outcome, Random, Spec, trigonometry};
use crate::action::with_branch;

const GRAVITY: f64 = 9.8;
const MASS_POLE: f64 = 0.1;
const MASS: f64 = 1.0 + MASS_POLE;
/// Half the pole's length.
const LENGTH: f64 = 0.5;
const POLE_MASS_LENGTH: f64 = MASS_POLE * LENGTH;
const FORCE: f64 = 10.0;
/// Seconds of a step.
const TAU: f64 = 0.02;
/// 12 degrees.
const MOST_ANGLE: f64 = 12.0 * 2.0 * core::f64::consts::PI / 360.0;
const MOST_POSITION: f64 = 2.4;

/// A pole on a cart that is pushed left (action 0) or right (1). Reward 1 for every step, the last one included; terminated
/// when the cart leaves the track or the pole falls beyond 12 degrees; truncated after 500 steps.
#[derive(Clone, Copy, Debug)]
pub struct CartPole;

impl Environment for CartPole {
    const NAME: &'static str = "cartpole";
    /// Position, speed, angle, angular speed.
    type State = [f64; 4];

    #[inline(always)]
    fn new(_: u32) -> Self {
        Self
    }

    #[inline(always)]
    fn spec(&self) -> Spec {
        Spec { observation: 4, branches: with_branch(0, 0, 2), limit: 500, ..Spec::default() }
    }

    #[inline(always)]
    fn start(&self, random: &mut Random) -> [f64; 4] {
        let mut state = [0.0; 4];
        let mut i = 0;
        while i < 4 {
            state[i] = random.uniform(-0.05, 0.05);
            i += 1;
        }
        state
    }

    /// Explicit Euler, as Gymnasium's default.
    #[inline(always)]
    fn step(&self, state: &mut [f64; 4], action: u64) -> Outcome {
        let [x, x_dot, theta, theta_dot] = *state;
        let force = if action == 1 { FORCE } else { -FORCE };
        let (sin, cos) = trigonometry::sin_cos(theta);
        let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / MASS;
        let theta_acc =
            (GRAVITY * sin - cos * temp) / (LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / MASS;
        *state = [x + TAU * x_dot, x_dot + TAU * x_acc, theta + TAU * theta_dot, theta_dot + TAU * theta_acc];
        let [x, _, theta, _] = *state;
        let terminated =
            !(-MOST_POSITION <= x && x <= MOST_POSITION && -MOST_ANGLE <= theta && theta <= MOST_ANGLE);
        Outcome { reward: 1.0, terminated }
    }

    #[inline(always)]
    fn observe(&self, state: &[f64; 4], i: u32) -> f32 {
        state[i as usize] as f32
    }
}
