//! Acrobot-v1 of Gymnasium's classic control (Sutton, "Generalization in Reinforcement Learning: Successful Examples Using
//! Sparse Coarse Coding", 1996), with the book's dynamics, Gymnasium's default.

use core::f64::consts::PI;

use super::trigonometry::{cos, sin, sin_cos};
use super::{Environment, Outcome, Random, Spec};
use crate::action::with_branch;

/// Seconds of a step.
const DT: f64 = 0.2;
/// Distance of a link's centre of mass from its joint; both links have mass, length and moment of inertia 1.
const CENTRE: f64 = 0.5;
const GRAVITY: f64 = 9.8;
const MOST_SPEED_1: f64 = 4.0 * PI;
const MOST_SPEED_2: f64 = 9.0 * PI;

/// Two links hanging from a bar, the joint between them driven by torque -1, 0 or 1 (actions 0, 1, 2). Reward -1 for every
/// step but the last, 0; terminated when the tip is one link above the bar; truncated after 500 steps.
#[derive(Clone, Copy, Debug)]
pub struct Acrobot;

/// Angles and speeds of both joints differentiated by time.
#[inline(always)]
fn derivative([theta1, theta2, speed1, speed2]: [f64; 4], torque: f64) -> [f64; 4] {
    let (sin2, cos2) = sin_cos(theta2);
    let d1 = CENTRE * CENTRE + (1.0 + CENTRE * CENTRE + 2.0 * CENTRE * cos2) + 2.0;
    let d2 = CENTRE * CENTRE + CENTRE * cos2 + 1.0;
    let phi2 = CENTRE * GRAVITY * cos(theta1 + theta2 - PI / 2.0);
    let phi1 = -CENTRE * (speed2 * speed2) * sin2 - 2.0 * CENTRE * speed2 * speed1 * sin2
        + (CENTRE + 1.0) * GRAVITY * cos(theta1 - PI / 2.0)
        + phi2;
    let acceleration2 = (torque + d2 / d1 * phi1 - CENTRE * (speed1 * speed1) * sin2 - phi2)
        / (CENTRE * CENTRE + 1.0 - d2 * d2 / d1);
    [speed1, speed2, -(d2 * acceleration2 + phi1) / d1, acceleration2]
}

/// state + h slope.
#[inline(always)]
fn along(state: [f64; 4], h: f64, slope: [f64; 4]) -> [f64; 4] {
    let mut out = state;
    let mut i = 0;
    while i < 4 {
        out[i] += h * slope[i];
        i += 1;
    }
    out
}

/// The angle in [-pi, pi]. Speeds are bounded, so a step is a few turns at most.
#[inline(always)]
fn wrapped(mut angle: f64) -> f64 {
    while angle > PI {
        angle -= 2.0 * PI;
    }
    while angle < -PI {
        angle += 2.0 * PI;
    }
    angle
}

#[inline(always)]
fn bounded(x: f64, most: f64) -> f64 {
    if x > most {
        most
    } else if x < -most {
        -most
    } else {
        x
    }
}

impl Environment for Acrobot {
    const NAME: &'static str = "acrobot";
    /// Angle of the first link from hanging, of the second from the first, and their speeds.
    type State = [f64; 4];

    #[inline(always)]
    fn new(_: u32) -> Self {
        Self
    }

    #[inline(always)]
    fn spec(&self) -> Spec {
        Spec { observation: 6, branches: with_branch(0, 0, 3), limit: 500, ..Spec::default() }
    }

    #[inline(always)]
    fn start(&self, random: &mut Random) -> [f64; 4] {
        let mut state = [0.0; 4];
        let mut i = 0;
        while i < 4 {
            state[i] = random.uniform(-0.1, 0.1);
            i += 1;
        }
        state
    }

    /// One step of the classical Runge-Kutta method.
    #[inline(always)]
    fn step(&self, state: &mut [f64; 4], action: u64) -> Outcome {
        let torque = action as f64 - 1.0;
        let k1 = derivative(*state, torque);
        let k2 = derivative(along(*state, DT / 2.0, k1), torque);
        let k3 = derivative(along(*state, DT / 2.0, k2), torque);
        let k4 = derivative(along(*state, DT, k3), torque);
        let mut i = 0;
        while i < 4 {
            state[i] += DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]);
            i += 1;
        }
        state[0] = wrapped(state[0]);
        state[1] = wrapped(state[1]);
        state[2] = bounded(state[2], MOST_SPEED_1);
        state[3] = bounded(state[3], MOST_SPEED_2);
        let terminated = -cos(state[0]) - cos(state[1] + state[0]) > 1.0;
        Outcome { reward: if terminated { 0.0 } else { -1.0 }, terminated }
    }

    #[inline(always)]
    fn observe(&self, state: &[f64; 4], i: u32) -> f32 {
        let value = match i {
            0 => cos(state[0]),
            1 => sin(state[0]),
            2 => cos(state[1]),
            3 => sin(state[1]),
            4 => state[2],
            _ => state[3],
        };
        value as f32
    }
}
