//! Ends a collection step: moves the ring's cursor, its size, and the number of collection steps.
//!
//! One thread. A kernel of its own because every thread of `market_step` and `market_observe` reads the cursor.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::{clock, market};

/// cursor = (cursor + inserted) mod capacity, size = min(size + inserted, capacity), collection steps + 1.
#[kernel(
    block = 32,
    grid = 1,
    requires(
        inserted <= capacity,
        capacity <= 1 << 30,
        ring_words.len() >= ring::WORDS as usize,
        clock_words.len() >= clock::WORDS as usize,
    )
)]
pub fn market_count(
    /// Transitions that the step wrote, one per environment.
    inserted: u32,
    /// Slots of the replay ring.
    capacity: u32,
    /// Size and cursor of the ring.
    ring_words: InOut<u64>,
    /// Counters; `clock::COLLECT` is advanced.
    clock_words: InOut<u64>,
) {
    if thread::global_index() == 0 {
        let size = ring_words.get(ring::SIZE) + inserted as u64;
        ring_words.set(ring::SIZE, if size < capacity as u64 { size } else { capacity as u64 });
        let cursor = market::ring_slot(ring_words.get(ring::CURSOR), inserted, capacity);
        ring_words.set(ring::CURSOR, cursor as u64);
        clock_words.set(clock::COLLECT, clock_words.get(clock::COLLECT) + 1);
    }
}
