//! What an environment is.

use super::Sizes;
use crate::philox::{Stream, draw};

/// A state as 64-bit words, which is how all environments' states lie in device memory.
pub trait Words: Copy {
    /// Number of words.
    const COUNT: u32;
    /// Reads a state; `word(i)` reads word i.
    fn load(word: impl Fn(u32) -> u64) -> Self;
    /// Writes a state; `word(i, v)` writes word i.
    fn store(&self, word: impl FnMut(u32, u64));
}

impl<const N: usize> Words for [f64; N] {
    const COUNT: u32 = N as u32;

    #[inline(always)]
    fn load(word: impl Fn(u32) -> u64) -> Self {
        let mut out = [0.0; N];
        let mut i = 0;
        while i < N {
            out[i] = f64::from_bits(word(i as u32));
            i += 1;
        }
        out
    }

    #[inline(always)]
    fn store(&self, mut word: impl FnMut(u32, u64)) {
        let mut i = 0;
        while i < N {
            word(i as u32, self[i].to_bits());
            i += 1;
        }
    }
}

impl<const N: usize> Words for [u64; N] {
    const COUNT: u32 = N as u32;

    #[inline(always)]
    fn load(word: impl Fn(u32) -> u64) -> Self {
        let mut out = [0; N];
        let mut i = 0;
        while i < N {
            out[i] = word(i as u32);
            i += 1;
        }
        out
    }

    #[inline(always)]
    fn store(&self, mut word: impl FnMut(u32, u64)) {
        let mut i = 0;
        while i < N {
            word(i as u32, self[i]);
            i += 1;
        }
    }
}

/// Where a goal-conditioned task's goals are in an observation: `len` floats each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    /// First float of what the state achieves.
    pub achieved: u32,
    /// First float of the goal of the episode.
    pub desired: u32,
    /// Floats of a goal; 0 for a task without goals.
    pub len: u32,
}

/// Sizes of an environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// S: floats of an observation.
    pub observation: u32,
    /// Number of actions of every branch, packed as in [`crate::action`].
    pub branches: u64,
    /// Steps after which an episode is truncated, if the configuration does not say.
    pub limit: u32,
    /// Goals, for hindsight.
    pub goal: Goal,
}

/// What a step gives besides the next state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// r.
    pub reward: f64,
    /// The episode has ended in the task itself: there is nothing to bootstrap from. (Truncation by the step limit is
    /// not the environment's business.)
    pub terminated: bool,
}

/// Random numbers of an episode's start: a function of (seed, environment, episode) alone.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    seed: u64,
    environment: u32,
    episode: u32,
    block: u32,
}

impl Random {
    /// The stream of one episode of one environment.
    #[inline(always)]
    pub fn new(seed: u64, environment: u32, episode: u32) -> Self {
        Self { seed, environment, episode, block: 0 }
    }

    /// 64 random bits.
    #[inline(always)]
    pub fn bits(&mut self) -> u64 {
        let words = draw(self.seed, self.episode as u64, Stream::Reset, self.environment, self.block);
        self.block += 1;
        (words[0] as u64) << 32 | words[1] as u64
    }

    /// Uniform in [low, high), from 53 bits.
    #[inline(always)]
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.bits() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0))
    }
}

/// A task: pure functions of a small state. They run in a kernel, one thread per environment, in the emulator and on the
/// CPU, so they do not allocate, do not panic, and use [`super::trigonometry`] and `libm` instead of `std`'s mathematics.
pub trait Environment {
    /// Its `task.name` in the configuration.
    const NAME: &'static str;
    /// Values of `task.size` that it takes.
    const SIZES: Sizes = Sizes::NONE;
    /// What is kept of an episode from step to step: `[f64; N]` or `[u64; N]`, N at most [`super::MAX_STATE`].
    type State: Words;

    /// The environment of a size (`task.size`).
    fn new(size: u32) -> Self;

    /// Its sizes.
    fn spec(&self) -> Spec;

    /// First state of an episode.
    fn start(&self, random: &mut Random) -> Self::State;

    /// One step: changes the state. `action` is packed as in [`crate::action`]; with one branch it is the action's number.
    fn step(&self, state: &mut Self::State, action: u64) -> Outcome;

    /// Float i of the observation, i below [`Spec::observation`].
    fn observe(&self, state: &Self::State, i: u32) -> f32;

    /// Of a goal-conditioned task: what a step into a state that achieves `achieved(i)` gives when the goal is `desired(i)`,
    /// i below [`Goal::len`]. [`Self::step`] must give the same for the episode's own goal.
    #[inline(always)]
    fn judge(&self, achieved: impl Fn(u32) -> f32, desired: impl Fn(u32) -> f32) -> Outcome {
        let _ = (achieved, desired);
        Outcome::default()
    }
}
