//! Reference of single steps of the control tasks, in other words than the environments: the equations of motion as a
//! linear system in the accelerations, solved by Cramer's rule, with the standard library's sines.

/// What a step gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The state after it.
    pub state: Vec<f64>,
    /// r.
    pub reward: f64,
    /// The task is over.
    pub terminated: bool,
}

/// x and y of [a b; c d] [x; y] = [p; q].
fn solved([[a, b], [c, d]]: [[f64; 2]; 2], [p, q]: [f64; 2]) -> [f64; 2] {
    let determinant = a * d - b * c;
    [(p * d - b * q) / determinant, (a * q - p * c) / determinant]
}

/// A step of CartPole: cart of mass 1, uniform pole of mass 0.1 and half length 0.5, pushed by 10 for 0.02 seconds.
pub fn cart_pole(state: &[f64], action: u64) -> Step {
    let (pole, half, g, tau) = (0.1, 0.5, 9.8, 0.02);
    let push = if action == 1 { 10.0 } else { -10.0 };
    let (x, v, angle, turn) = (state[0], state[1], state[2], state[3]);
    // Momentum of cart and pole; angular momentum of the pole about the joint.
    let matrix = [
        [1.0 + pole, pole * half * angle.cos()],
        [pole * half * angle.cos(), 4.0 / 3.0 * pole * half * half],
    ];
    let right = [push + pole * half * turn.powi(2) * angle.sin(), pole * g * half * angle.sin()];
    let [a, b] = solved(matrix, right);
    let state = vec![x + tau * v, v + tau * a, angle + tau * turn, turn + tau * b];
    let terminated = state[0].abs() > 2.4 || state[2].abs() > 12.0_f64.to_radians();
    Step { state, reward: 1.0, terminated }
}

/// A step of Acrobot: two links of mass, length and moment of inertia 1, 0.2 seconds by one Runge-Kutta step.
pub fn acrobot(state: &[f64], action: u64) -> Step {
    let torque = [-1.0, 0.0, 1.0][action as usize];
    let motion = |y: &[f64]| -> Vec<f64> {
        let (t1, t2, w1, w2) = (y[0], y[1], y[2], y[3]);
        let (inner, outer) = (0.25 + 1.0, 0.5 * t2.cos());
        let matrix = [[2.0 * inner + 1.0 + 2.0 * outer, inner + outer], [inner + outer, inner]];
        let swing = 0.5 * t2.sin();
        // Gravity on the outer link, and on both.
        let weight2 = 0.5 * 9.8 * (t1 + t2).sin();
        let weight1 = 1.5 * 9.8 * t1.sin() + weight2;
        let right = [swing * (w2 * w2 + 2.0 * w1 * w2) - weight1, torque - swing * w1 * w1 - weight2];
        let [a1, a2] = solved(matrix, right);
        vec![w1, w2, a1, a2]
    };
    let moved =
        |h: f64, slope: &[f64]| -> Vec<f64> { state.iter().zip(slope).map(|(y, k)| y + h * k).collect() };
    let k1 = motion(state);
    let k2 = motion(&moved(0.1, &k1));
    let k3 = motion(&moved(0.1, &k2));
    let k4 = motion(&moved(0.2, &k3));
    let mut next: Vec<f64> =
        (0..4).map(|i| state[i] + 0.2 * (k1[i] + 2.0 * (k2[i] + k3[i]) + k4[i]) / 6.0).collect();
    let turn = std::f64::consts::TAU;
    for angle in &mut next[..2] {
        if angle.abs() > std::f64::consts::PI {
            *angle -= turn * (*angle / turn).round();
        }
    }
    next[2] = next[2].clamp(-2.0 * turn, 2.0 * turn);
    next[3] = next[3].clamp(-4.5 * turn, 4.5 * turn);
    let tip = -next[0].cos() - (next[0] + next[1]).cos();
    let terminated = tip > 1.0;
    Step { state: next, reward: if terminated { 0.0 } else { -1.0 }, terminated }
}

/// A step of bit flipping, on bits as numbers 0 and 1.
pub fn bit_flip(bits: &[f32], goal: &[f32], action: u64) -> (Vec<f32>, Step) {
    let mut next = bits.to_vec();
    next[action as usize] = 1.0 - next[action as usize];
    let reached = next == goal;
    let reward = if reached { 0.0 } else { -1.0 };
    (next, Step { state: Vec::new(), reward, terminated: reached })
}

/// A step of MountainCar.
pub fn mountain_car(state: &[f64], action: u64) -> Step {
    let (mut x, mut v) = (state[0], state[1]);
    v += [-0.001, 0.0, 0.001][action as usize] - 0.0025 * (3.0 * x).cos();
    v = v.signum() * v.abs().min(0.07);
    x += v;
    if x <= -1.2 {
        (x, v) = (-1.2, v.max(0.0));
    }
    x = x.min(0.6);
    Step { state: vec![x, v], reward: -1.0, terminated: x >= 0.5 && v >= 0.0 }
}
