//! Bit flipping (Andrychowicz et al., "Hindsight Experience Replay", 2017, section 3.1): the task that hindsight was made
//! for, because random actions hardly ever reach its goal.

use super::{Environment, Goal, Outcome, Random, Sizes, Spec};
use crate::action::with_branch;

/// n bits and a goal of n bits, both uniformly random; action i flips bit i. Reward -1, and 0 for the step that reaches the
/// goal, which ends the episode (terminated); truncated after n steps. A goal that is the first state has to be left and
/// reached again.
///
/// The observation is the bits, then the goal, 0 or 1 each.
#[derive(Clone, Copy, Debug)]
pub struct BitFlip {
    bits: u32,
}

impl BitFlip {
    /// The lowest n bits.
    #[inline(always)]
    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }
}

/// A step's outcome.
#[inline(always)]
fn outcome(reached: bool) -> Outcome {
    Outcome { reward: if reached { 0.0 } else { -1.0 }, terminated: reached }
}

impl Environment for BitFlip {
    const NAME: &'static str = "bit_flip";
    /// n; a branch has at most 64 actions, and at least 2.
    const SIZES: Sizes = Sizes { least: 2, most: 64, default: 30 };
    /// Bits and goal.
    type State = [u64; 2];

    #[inline(always)]
    fn new(size: u32) -> Self {
        Self { bits: size }
    }

    #[inline(always)]
    fn spec(&self) -> Spec {
        Spec {
            observation: 2 * self.bits,
            branches: with_branch(0, 0, self.bits),
            limit: self.bits,
            goal: Goal { achieved: 0, desired: self.bits, len: self.bits },
        }
    }

    #[inline(always)]
    fn start(&self, random: &mut Random) -> [u64; 2] {
        [random.bits() & self.mask(), random.bits() & self.mask()]
    }

    #[inline(always)]
    fn step(&self, state: &mut [u64; 2], action: u64) -> Outcome {
        state[0] ^= 1 << (action & 63);
        outcome(state[0] == state[1])
    }

    #[inline(always)]
    fn observe(&self, state: &[u64; 2], i: u32) -> f32 {
        let (word, bit) = if i < self.bits { (state[0], i) } else { (state[1], i - self.bits) };
        ((word >> bit) & 1) as f32
    }

    #[inline(always)]
    fn judge(&self, achieved: impl Fn(u32) -> f32, desired: impl Fn(u32) -> f32) -> Outcome {
        let mut same = true;
        let mut i = 0;
        while i < self.bits {
            same &= achieved(i) == desired(i);
            i += 1;
        }
        outcome(same)
    }
}
