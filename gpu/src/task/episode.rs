//! Episodes of one environment: starts, step limit, returns.

use super::{Environment, Random, Words};
use crate::market::{RUNNING, TERMINATED, TRUNCATED};

/// Most words of a state.
pub const MAX_STATE: u32 = 8;
/// Words of an environment in memory: the return so far, then the state. Word i of environment e lies at `i * E + e`.
pub const WORDS: u32 = 1 + MAX_STATE;
/// Counters of an environment: steps of the running episode, episodes begun, flags; laid out like the words.
pub const COUNTERS: u32 = 3;
/// Numbers of a finished episode in a log: undiscounted return, steps, end flags.
pub const LOG_FIELDS: u32 = 3;

/// Where an environment's running episode is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Episode {
    /// Sum of the rewards so far.
    pub total: f64,
    /// Steps so far.
    pub steps: u32,
    /// Episodes begun, this one included; the counter of the start's random draw.
    pub episodes: u32,
    /// [`RUNNING`], and [`TERMINATED`] and [`TRUNCATED`] of the step that ended it.
    pub flags: u32,
}

impl Episode {
    /// Reads an episode and its state; `word(i)` and `counter(i)` read this environment's.
    #[inline(always)]
    pub fn load<S: Words>(word: impl Fn(u32) -> u64, counter: impl Fn(u32) -> u32) -> (Self, S) {
        let episode = Self {
            total: f64::from_bits(word(0)),
            steps: counter(0),
            episodes: counter(1),
            flags: counter(2),
        };
        (episode, S::load(|i| word(1 + i)))
    }

    /// Writes both.
    #[inline(always)]
    pub fn store<S: Words>(
        &self,
        state: &S,
        mut word: impl FnMut(u32, u64),
        mut counter: impl FnMut(u32, u32),
    ) {
        word(0, self.total.to_bits());
        counter(0, self.steps);
        counter(1, self.episodes);
        counter(2, self.flags);
        state.store(|i, v| word(1 + i, v));
    }

    /// Whether an episode is under way; zeroed memory says no.
    #[inline(always)]
    pub fn runs(&self) -> bool {
        self.flags == RUNNING
    }

    /// The end bits of the last step.
    #[inline(always)]
    pub fn end_flags(&self) -> u32 {
        self.flags & (TERMINATED | TRUNCATED)
    }
}

/// The next episode of an environment, and its first state.
#[inline(always)]
pub fn begin<E: Environment>(
    environment: &E,
    seed: u64,
    number: u32,
    before: Episode,
) -> (Episode, E::State) {
    let state = environment.start(&mut Random::new(seed, number, before.episodes));
    let episodes = before.episodes.wrapping_add(1);
    (Episode { total: 0.0, steps: 0, episodes, flags: RUNNING }, state)
}

/// One step of a running episode; returns the reward. Both end flags are set where the last allowed step terminates.
#[inline(always)]
pub fn advance<E: Environment>(
    environment: &E,
    limit: u32,
    episode: &mut Episode,
    state: &mut E::State,
    action: u64,
) -> f64 {
    let outcome = environment.step(state, action);
    episode.total += outcome.reward;
    episode.steps += 1;
    if outcome.terminated {
        episode.flags |= TERMINATED;
    }
    if episode.steps >= limit {
        episode.flags |= TRUNCATED;
    }
    outcome.reward
}
