//! Which rows are learned from, and which are held out.

use std::ops::Range;

use bars::Fnv64;

use crate::error::TransitionError;

/// Rows of the parts of a data set, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// To learn from.
    pub learned: Vec<u32>,
    /// To choose the best policy by.
    pub validation: Vec<u32>,
    /// To be looked at once, at the end.
    pub test: Vec<u32>,
}

impl Split {
    /// Splits the rows of `episodes`, which cover a data set that errors call `name`: whole episodes, chosen by the seed,
    /// until `validation` and then `test` (fractions of all rows) are reached. A single episode is split by time, `n` rows
    /// being left out before each of the later parts: windows of n rewards would reach into it.
    ///
    /// # Errors
    /// If a part would have no row.
    pub fn new(
        name: &str,
        episodes: &[Range<usize>],
        (validation, test): (f64, f64),
        seed: u64,
        n: usize,
    ) -> Result<Self, TransitionError> {
        let rows = episodes.last().map_or(0, |last| last.end);
        let goals = [validation, test].map(|share| (share * rows as f64).ceil() as usize);
        let split = match episodes {
            [only] => Self::by_time(only.end, goals, n),
            _ => Self::by_episodes(episodes, goals, seed),
        };
        let parts = [&split.learned, &split.validation, &split.test];
        if parts.iter().any(|part| part.is_empty()) {
            let message = format!(
                "{rows} transitions in {} episode(s) are too few to learn from and to hold out {validation} \
                 (transitions.validation) and {test} (transitions.test) of them, in whole episodes where there are several",
                episodes.len()
            );
            return Err(TransitionError::file(name, message));
        }
        Ok(split)
    }

    fn by_time(rows: usize, [validation, test]: [usize; 2], n: usize) -> Self {
        let test_start = rows.saturating_sub(test);
        let validation_end = test_start.saturating_sub(n);
        let validation_start = validation_end.saturating_sub(validation);
        let range = |from: usize, to: usize| (from as u32..to as u32).collect();
        Self {
            learned: range(0, validation_start.saturating_sub(n)),
            validation: range(validation_start, validation_end),
            test: range(test_start, rows),
        }
    }

    fn by_episodes(episodes: &[Range<usize>], goals: [usize; 2], seed: u64) -> Self {
        let mut drawn: Vec<(u64, usize)> = (0..episodes.len())
            .map(|i| {
                let mut hash = Fnv64::default();
                hash.update(&seed.to_le_bytes());
                hash.update(&(i as u64).to_le_bytes());
                (hash.finish(), i)
            })
            .collect();
        drawn.sort_unstable();
        // 0 is learned from, 1 and 2 are held out.
        let mut part_of = vec![0_usize; episodes.len()];
        let mut left = drawn.into_iter().map(|(_, i)| i);
        let mut free = episodes.len();
        for (part, goal) in (1..).zip(goals) {
            let mut rows = 0;
            // The parts behind this one and the learned one get an episode each.
            while rows < goal && free > 3 - part {
                let Some(i) = left.next() else { break };
                part_of[i] = part;
                rows += episodes[i].len();
                free -= 1;
            }
        }
        let mut parts = <[Vec<u32>; 3]>::default();
        for (episode, part) in episodes.iter().zip(part_of) {
            parts[part].extend(episode.start as u32..episode.end as u32);
        }
        let [learned, validation, test] = parts;
        Self { learned, validation, test }
    }
}
