//! Reference of the epsilon-greedy choice.

use crate::kernels::philox_fill::reference::{uniform, words};

/// Number of the exploration stream.
const STREAM: u32 = 2;

/// Action of each branch of environment `row` at collection step `step`, from its Q values [D, n_d].
pub fn select_action(q: &[Vec<f32>], epsilon: f32, seed: u64, step: u64, row: u32) -> Vec<usize> {
    let explore = uniform(words(seed, step, STREAM, row, 0)[0]) < f64::from(epsilon);
    let choose = |(d, q): (usize, &Vec<f32>)| {
        if explore {
            let word = words(seed, step, STREAM, row, 1 + d as u32)[0];
            return (u64::from(word) * q.len() as u64 / (1 << 32)) as usize;
        }
        let largest = q.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        q.iter().position(|&x| x == largest).unwrap_or(0)
    };
    q.iter().enumerate().map(choose).collect()
}
