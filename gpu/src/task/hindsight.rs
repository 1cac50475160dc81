//! Hindsight experience replay, "future" strategy (Andrychowicz et al., "Hindsight Experience Replay", 2017, section 4.5):
//! a drawn transition is, with probability k / (k + 1), given a goal that its own episode achieved at this step or later.
//!
//! Achieved by step j means: by the state *after* step j, so that the step itself may be the one that reaches its goal;
//! and the reward is that of the state after the relabelled step. Steps that count are those from the transition's own to
//! the episode's last one, or to the newest one in the ring where the episode still runs.

use crate::philox::{Stream, below, draw, uniform};

/// What is drawn for a sample of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Whether the sample gets another goal.
    pub relabel: bool,
    high: u32,
    low: u32,
}

impl Choice {
    /// The draw of sample `index` at training step `step`; `share` is k / (k + 1).
    #[inline(always)]
    pub fn new(seed: u64, step: u64, index: u32, share: f32) -> Self {
        let words = draw(seed, step, Stream::Hindsight, index, 0);
        Self { relabel: uniform(words[0]) < share, high: words[1], low: words[2] }
    }

    /// How many steps after the transition's own the goal is achieved, where `later` steps of its episode follow: 0 to
    /// `later`, equally likely.
    #[inline(always)]
    pub fn ahead(&self, later: u32) -> u32 {
        below(self.high, self.low, later as u64 + 1) as u32
    }
}

/// Steps of the same environment that were written after the one in `slot`, into a ring that every step of
/// `environments` environments fills by as many and that `cursor` is the next slot of.
#[inline(always)]
pub fn newer(slot: u32, cursor: u32, capacity: u32, environments: u32) -> u32 {
    let behind = if cursor > slot { cursor - 1 - slot } else { cursor + (capacity - 1) - slot };
    behind / environments
}

/// Slot of the same environment's step `ahead` steps after the one in `slot`; at most one turn of the ring.
#[inline(always)]
pub fn slot_ahead(slot: u32, ahead: u32, capacity: u32, environments: u32) -> u32 {
    let at = slot as u64 + ahead as u64 * environments as u64;
    (if at >= capacity as u64 { at - capacity as u64 } else { at }) as u32
}
