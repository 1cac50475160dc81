//! Reference of uniform sampling.

use crate::kernels::philox_fill::reference::words;

/// Number of the stream of sample indices.
const STREAM: u32 = 1;

/// Slot of sample `index` at `step`: floor(u * size), u the first two words as a 64-bit fraction.
pub fn slot(seed: u64, step: u64, index: u32, size: u64) -> u64 {
    let [high, low, ..] = words(seed, step, STREAM, index, 0);
    let bits = (u128::from(high) << 32) | u128::from(low);
    ((bits * u128::from(size)) >> 64) as u64
}

/// The same where the newest `pending` of `size` slots are left out, and `cursor` is where the oldest one is when the ring
/// is full.
pub fn complete_slot(
    (seed, step, index): (u64, u64, u32),
    (size, capacity, cursor): (u64, u64, u64),
    pending: u64,
) -> u64 {
    let age_order = slot(seed, step, index, size - pending);
    if size == capacity { (cursor + age_order) % capacity } else { age_order }
}
