//! n-step windows inside episodes, and the held-out episodes.

use bars::Fnv64;

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

    /// Splits the rows into those to learn from and those that are held out: whole episodes, chosen by the seed, until
    /// `fraction` of the rows is reached. With a single episode its last rows are held out, behind `n` rows that are left
    /// out, whose windows would reach into them.
    ///
    /// # Errors
    /// If there would be no row on one of the two sides.
    pub fn split(&self, fraction: f64, seed: u64, n: usize) -> Result<(Vec<u32>, Vec<u32>), TransitionError> {
        let episodes = self.episodes();
        let goal = (fraction * self.len() as f64).ceil() as usize;
        let (mut learned, mut held_out) = (Vec::new(), Vec::new());
        if let [only] = &episodes[..] {
            let first = only.end.saturating_sub(goal);
            learned.extend(0..first.saturating_sub(n) as u32);
            held_out.extend(first as u32..only.end as u32);
        } else {
            let mut drawn: Vec<(u64, usize)> = (0..episodes.len())
                .map(|i| {
                    let mut hash = Fnv64::default();
                    hash.update(&seed.to_le_bytes());
                    hash.update(&(i as u64).to_le_bytes());
                    (hash.finish(), i)
                })
                .collect();
            drawn.sort_unstable();
            let mut is_held = vec![false; episodes.len()];
            let mut rows = 0;
            for (_, i) in drawn {
                // One episode is left to learn from.
                if rows >= goal || is_held.iter().filter(|held| !**held).count() == 1 {
                    break;
                }
                is_held[i] = true;
                rows += episodes[i].len();
            }
            for (episode, held) in episodes.iter().zip(is_held) {
                let rows = episode.start as u32..episode.end as u32;
                if held { held_out.extend(rows) } else { learned.extend(rows) }
            }
        }
        if learned.is_empty() || held_out.is_empty() {
            let message = format!(
                "{} transitions in {} episode(s) are too few to hold out {fraction} of them (transitions.validation)",
                self.len(),
                episodes.len()
            );
            return Err(TransitionError::file(&self.file, message));
        }
        Ok((learned, held_out))
    }
}
