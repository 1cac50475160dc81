//! A data set larger than what is resident: which transitions can be drawn in which step.
//!
//! Every pass over the data set has an order of its own, cut into shards of nearly equal size. A shard is drawn from for
//! `transitions.shard_steps` training steps. All of it is a function of the seed and the step, so a run that goes on needs
//! nothing besides its step.

use gpu::kernels::probe::permuted;
use settings::Config;

/// In place of a feature of the causal probe, whose permutations are of other numbers.
const ORDER: u32 = u32::MAX;

/// The shards of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    /// N: transitions that are learned from.
    rows: usize,
    /// Shards of a pass.
    count: usize,
    /// Training steps of a shard.
    steps: u64,
    seed: u64,
}

impl Shards {
    /// Of `rows` transitions; `None` if all of them are resident.
    pub fn new(config: &Config, rows: usize) -> Option<Self> {
        let keys = &config.transitions;
        if keys.resident == 0 || keys.resident >= rows {
            return None;
        }
        let count = rows.div_ceil(keys.resident / 2);
        Some(Self { rows, count, steps: keys.shard_steps as u64, seed: config.train.seed })
    }

    /// Slots that any shard fits into.
    pub fn capacity(&self) -> usize {
        self.rows.div_ceil(self.count)
    }

    /// The shard that a training step draws from, the steps counted from 0.
    pub fn of_step(&self, step: u64) -> u64 {
        step / self.steps
    }

    /// Places of a shard's transitions among those that are learned from.
    pub fn rows(&self, shard: u64) -> impl ExactSizeIterator<Item = usize> + use<> {
        let Self { rows, count, seed, .. } = *self;
        let (pass, part) = (shard / count as u64, (shard % count as u64) as usize);
        let bound = |part: usize| (part as u128 * rows as u128 / count as u128) as usize;
        (bound(part)..bound(part + 1))
            .map(move |i| permuted(seed, pass, ORDER, rows as u32, i as u32) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(rows: usize, resident: usize) -> Option<Shards> {
        let mut config = Config::default();
        (config.transitions.resident, config.transitions.shard_steps) = (resident, 10);
        Shards::new(&config, rows)
    }

    #[test]
    fn a_pass_has_every_transition_once_in_an_order_of_its_own() {
        for (rows, resident) in [(1000, 300), (101, 100), (7, 2), (999, 998), (4097, 64)] {
            let shards = shards(rows, resident).unwrap();
            assert!(shards.capacity() <= resident / 2);
            let pass = |pass: u64| -> Vec<usize> {
                let count = shards.count as u64;
                let own = pass * count..(pass + 1) * count;
                own.flat_map(|shard| {
                    let rows = shards.rows(shard);
                    assert!(rows.len() <= shards.capacity() && rows.len() + 1 >= shards.capacity());
                    rows
                })
                .collect()
            };
            let orders = [pass(0), pass(1), pass(2)];
            for order in &orders {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..rows).collect::<Vec<_>>());
            }
            if rows > 10 {
                assert!(orders[0] != orders[1] && orders[1] != orders[2]);
            }
        }
    }

    #[test]
    fn shards_follow_the_steps_and_what_fits_has_none() {
        let shards = shards(1000, 300).unwrap();
        assert_eq!([0, 9, 10, 25].map(|step| shards.of_step(step)), [0, 0, 1, 2]);
        assert_eq!(self::shards(1000, 0), None);
        assert_eq!(self::shards(1000, 1000), None);
    }
}
