//! The two value networks' output layer, expectile loss and its gradient, one launch for both.
//! SPEC section 3; Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning" (2022),
//! equation 5.
//!
//! V = w . h + b, h the network's last hidden row; u = mean_d Q_d(s, a_d) - V; loss = |tau - 1[u < 0]| u^2, not
//! importance-weighted; dV = -2 |tau - 1[u < 0]| u / B; d h's argument = dV w lrelu'(h). One warp per sample and network.

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Network 0 is the high expectile's, network 1 the low one's; every buffer holds the first network's rows, then the
/// second's.
#[kernel(
    block = 256,
    grid = (2 * batch).div_ceil(8),
    shuffles = 5,
    requires(
        batch > 0,
        branches >= 1,
        width > 0,
        q.len() >= (batch as usize) * (branches as usize),
        hidden.len() >= 2 * (batch as usize) * (width as usize),
        parameters.len() >= (weight_high as usize) + (width as usize),
        parameters.len() >= (weight_low as usize) + (width as usize),
        parameters.len() > bias_high as usize,
        parameters.len() > bias_low as usize,
        values.len() >= 2 * (batch as usize),
        loss.len() >= 2 * (batch as usize),
        d_value.len() >= 2 * (batch as usize),
        d_hidden.len() >= 2 * (batch as usize) * (width as usize),
    )
)]
pub fn iql_loss(
    batch: u32,
    branches: u32,
    /// Width of the last hidden layer.
    width: u32,
    /// Negative slope of the activation.
    slope: f32,
    /// Expectile of network 0.
    tau_high: f32,
    /// Expectile of network 1.
    tau_low: f32,
    /// First of network 0's output weights in `parameters`.
    weight_high: u32,
    /// Network 0's output bias in `parameters`.
    bias_high: u32,
    /// First of network 1's output weights in `parameters`.
    weight_low: u32,
    /// Network 1's output bias in `parameters`.
    bias_low: u32,
    /// Target network's Q of the taken actions [B, D].
    q: In<f32>,
    /// Last hidden layers [2, B, width].
    hidden: In<f32>,
    /// Flat parameters.
    parameters: In<f32>,
    /// V [2, B].
    values: Out<f32>,
    /// Per-sample losses [2, B].
    loss: Out<f32>,
    /// d loss / d V [2, B].
    d_value: Out<f32>,
    /// d loss / d (hidden's argument) [2, B, width].
    d_hidden: Out<f32>,
) {
    let task = thread::block_idx() * 8 + thread::warp();
    if task < 2 * batch {
        let low = task >= batch;
        let sample = if low { task - batch } else { task };
        let (weight, bias, tau) =
            if low { (weight_low, bias_low, tau_low) } else { (weight_high, bias_high, tau_high) };
        let row = task * width;
        let mut sum = 0.0;
        let mut i = thread::lane();
        while i < width {
            sum = math::fma(hidden.get(row + i), parameters.get(weight + i), sum);
            i += 32;
        }
        let value = warp::sum(sum) + parameters.get(bias);
        let mut mean = 0.0;
        let mut d = 0;
        while d < branches {
            mean += q.get(sample * branches + d);
            d += 1;
        }
        let u = mean / branches as f32 - value;
        let side = if u < 0.0 { 1.0 - tau } else { tau };
        let d_v = -2.0 * side * u / batch as f32;
        if thread::lane() == 0 {
            values.set(task, value);
            loss.set(task, side * u * u);
            d_value.set(task, d_v);
        }
        i = thread::lane();
        while i < width {
            let factor = if hidden.get(row + i) > 0.0 { 1.0 } else { slope };
            d_hidden.set(row + i, d_v * parameters.get(weight + i) * factor);
            i += 32;
        }
    }
}
