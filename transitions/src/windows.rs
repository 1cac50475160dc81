//! n-step windows inside episodes.

use crate::error::TransitionError;
use crate::set::TransitionSet;

/// n-step returns of every row, `[N]` each (`docs/REPLAY.md`): the window of a row ends with its episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    /// sum over k < m of gamma^k r_{t+k}.
    pub rewards: Vec<f32>,
    /// gamma^m, 0 where the window's last step terminated.
    pub discounts: Vec<f32>,
    /// The window's last row, whose s' is bootstrapped from.
    pub last: Vec<u32>,
}

impl TransitionSet {
    /// Sums up to `n` rewards of every row, in f64.
    ///
    /// # Errors
    /// With n above 1, the first row inside an episode whose s' is not the s of the next row: then the rows are not in the
    /// order in which they happened, and no sum over them means anything.
    pub fn windows(&self, n: usize, gamma: f64) -> Result<Windows, TransitionError> {
        if n > 1 {
            self.check_order()?;
        }
        let rows = self.len();
        let (mut rewards, mut discounts, mut last) =
            (Vec::with_capacity(rows), Vec::with_capacity(rows), Vec::with_capacity(rows));
        for row in 0..rows {
            let (mut sum, mut weight, mut at) = (0.0, 1.0, row);
            loop {
                sum += weight * f64::from(self.rewards[at]);
                weight *= gamma;
                if self.ends(at) || at + 1 - row == n || at + 1 == rows {
                    break;
                }
                at += 1;
            }
            rewards.push(sum as f32);
            discounts.push(if self.terminated[at] { 0.0 } else { weight as f32 });
            last.push(at as u32);
        }
        Ok(Windows { rewards, discounts, last })
    }

    fn check_order(&self) -> Result<(), TransitionError> {
        for row in 0..self.len().saturating_sub(1) {
            let here = &self.next_states[row * self.state..][..self.state];
            let next = &self.states[(row + 1) * self.state..][..self.state];
            let differs = || here.iter().zip(next).position(|(a, b)| a != b);
            if let Some(column) = if self.ends(row) { None } else { differs() } {
                return Err(TransitionError::value(
                    &self.file,
                    "next_states",
                    (row, Some(column)),
                    here[column],
                    format!(
                        "{}, the state of the next row, since the episode goes on: n-step returns need the rows in the \
                         order in which they happened; set replay.n_step = 1, or truncated where the order breaks",
                        next[column]
                    ),
                ));
            }
        }
        Ok(())
    }
}
