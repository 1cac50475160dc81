//! Draws a prioritized batch from the replay ring and gathers it; then the importance weights.
//!
//! SPEC section 6; Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay" (2016), section 3.3 and appendix
//! B.2.1: sample i is drawn from the i-th of B equal parts of the total, u_i = (i + U_i) / B * total, U_i in [0, 1) from 53
//! Philox bits keyed by (seed, step, i); P_i = leaf / total; w_i = (N P_i)^-beta divided by the largest of the batch, so
//! that N and the total cancel: w_i = (least leaf of the batch / leaf_i)^beta. beta rises with the step's number, which is
//! read from device memory.
//!
//! The weights are a launch of their own because they need all of the batch's leaves; nothing waits for them before the
//! losses. Where the total is not a positive finite number (an empty ring, a priority that was none), every weight becomes
//! NaN: the step's norm shows it, and the step is skipped and counted.

use cuda_std::prelude::*;

use super::priority::{MAX_GROUPS, TILE, Walk, sum4, walk_tile, warp_sums64, widen};
use super::sample_gather::gather_rows;
use crate::{clock, philox};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Samples per block: one warp each, and as many tiles as the groups have.
pub const SAMPLES_PER_BLOCK: u32 = MAX_GROUPS / TILE;
/// Tiles of a group that are looked at together, and their leaves.
const TILES: u32 = 8;
const CHUNK: u32 = TILES * TILE;

/// Stratified sampling by the tree and gather. One warp per sample. `stride` (floats) is the row stride of states,
/// next_states and x, a multiple of 4. The indices do not decrease.
#[kernel(
    block = 32 * SAMPLES_PER_BLOCK,
    grid = batch.div_ceil(SAMPLES_PER_BLOCK),
    shared = 8 * SAMPLES_PER_BLOCK + 4 * SAMPLES_PER_BLOCK * CHUNK,
    barriers = 1,
    shuffles = 140,
    votes = 4,
    requires(
        batch > 0,
        share > 0.0,
        share * (batch as f64) <= 1.000_000_1,
        stride % 4 == 0,
        groups > 0,
        groups <= MAX_GROUPS,
        width > 0,
        width % TILE == 0,
        (groups as u64) * (width as u64) <= 1 << 31,
        capacity > 0,
        capacity <= groups * width,
        // Elements have 32-bit indices: a larger ring would be read from its beginning again.
        (capacity as u64) * (stride as u64) <= 0x1_0000_0000,
        clock_words.len() >= clock::WORDS as usize,
        sums.len() >= groups as usize,
        leaves.len() >= (groups as usize) * (width as usize),
        states.len() >= (capacity as usize) * (stride as usize),
        next_states.len() >= (capacity as usize) * (stride as usize),
        ring_actions.len() >= capacity as usize,
        ring_rewards.len() >= capacity as usize,
        ring_discounts.len() >= capacity as usize,
        x.len() >= 2 * (batch as usize) * (stride as usize),
        actions.len() >= batch as usize,
        rewards.len() >= batch as usize,
        discounts.len() >= batch as usize,
        indices.len() >= batch as usize,
        chosen.len() >= batch as usize,
    )
)]
pub fn priority_sample(
    batch: u32,
    stride: u32,
    /// Slots of the ring.
    capacity: u32,
    /// Groups of leaves.
    groups: u32,
    /// Leaves in a group.
    width: u32,
    /// 1 / B: the part of the total that each sample is drawn from.
    share: f64,
    seed: u64,
    clock_words: In<u64>,
    /// Sum of every group `[groups]`.
    sums: In<f64>,
    /// `[groups, width]`
    leaves: In<f32>,
    states: In<f32>,
    next_states: In<f32>,
    ring_actions: In<u64>,
    ring_rewards: In<f32>,
    ring_discounts: In<f32>,
    x: Out<f32>,
    actions: Out<u64>,
    rewards: Out<f32>,
    discounts: Out<f32>,
    indices: Out<u32>,
    /// Leaf of every sample `[B]`; NaN where the total is none.
    chosen: Out<f32>,
) {
    let totals = shared::array::<f64>(0, SAMPLES_PER_BLOCK);
    let (warp, lane) = (thread::warp(), thread::lane());
    let step = clock_words.get(clock::STEP);
    // The four groups of a lane of a tile.
    let four = |tile: u32| {
        let first = tile * TILE + 4 * lane;
        let get = |e: u32| if first + e < groups { sums.get(first + e) } else { 0.0 };
        [get(0), get(1), get(2), get(3)]
    };
    // The block adds up a tile of groups per warp.
    let [sum] = warp_sums64([sum4(four(warp))]);
    if lane == 0 {
        totals.set(warp, sum);
    }
    thread::sync(); // all tiles' sums are written before they are read
    let sample = thread::block_idx() * SAMPLES_PER_BLOCK + warp;
    if sample < batch {
        let mut total = 0.0;
        let mut tile = 0;
        while tile < SAMPLES_PER_BLOCK {
            total += totals.get(tile);
            tile += 1;
        }
        // Added to the leaves, so that a total that is not finite shows.
        let poison = if total < f64::INFINITY { 0.0 } else { f32::NAN };
        let word = philox::draw(seed, step, philox::Stream::Sample, sample, 0);
        let mut walk = Walk::new(place(sample, word[0], word[1], share, total));
        tile = 0;
        while tile < SAMPLES_PER_BLOCK {
            walk.pass(tile, totals.get(tile));
            tile += 1;
        }
        let (item, residual) = walk_tile(four(walk.at), walk.residual);
        // The block's last tile ends at the last group: an item beyond it is 0, and none is taken.
        let group = walk.at * TILE + item;

        let (first, tiles) = (group * width, width / TILE);
        let staged = shared::array::<f32>(8 * SAMPLES_PER_BLOCK, SAMPLES_PER_BLOCK * CHUNK);
        // Every lane copies and reads its own four leaves of each tile.
        let own = |n: u32| warp * CHUNK + n * TILE + 4 * lane;
        let mut walk = Walk::new(residual);
        tile = 0;
        while tile < tiles {
            // Through shared memory, so that all are on their way together whatever registers there are.
            let mut n = 0;
            while n < TILES {
                let (at, bytes) = if tile + n < tiles { (tile + n, 16) } else { (tile, 0) };
                shared::copy_async16(staged, own(n), &leaves, first + at * TILE + 4 * lane, bytes);
                n += 1;
            }
            shared::copy_commit();
            shared::copy_wait::<0>();
            let mut sums = [0.0f64; TILES as usize];
            n = 0;
            while n < TILES {
                sums[n as usize] = sum4(widen(staged.get4(own(n))));
                n += 1;
            }
            let sums = warp_sums64(sums);
            n = 0;
            while n < TILES {
                walk.pass(tile + n, sums[n as usize]);
                n += 1;
            }
            tile += TILES;
        }
        let tile = first + walk.at * TILE;
        let items = if tiles <= TILES { staged.get4(own(walk.at)) } else { leaves.get4(tile + 4 * lane) };
        let (item, _) = walk_tile(widen(items), walk.residual);
        // A damaged leaf behind the last slot must not read beyond the ring; those of a valid tree are 0.
        let slot = if tile + item < capacity { tile + item } else { capacity - 1 };

        // On their way beside the rows.
        let (action, reward) = (ring_actions.get(slot), ring_rewards.get(slot));
        let (discount, leaf) = (ring_discounts.get(slot), leaves.get(slot));
        gather_rows(stride, (&states, &next_states), slot, &x, sample, batch + sample);
        if lane == 0 {
            actions.set(sample, action);
            rewards.set(sample, reward);
            discounts.set(sample, discount);
            indices.set(sample, slot);
            chosen.set(sample, leaf + poison);
        }
    }
}

/// (i + U) / B * total, U in [0, 1) from 53 bits. Does not decrease with i.
#[inline(always)]
fn place(i: u32, high: u32, low: u32, share: f64, total: f64) -> f64 {
    let fraction = ((high as u64) << 21 | (low as u64) >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0);
    (i as f64 + fraction) * share * total
}

/// Threads of a block of the weights, and its share of the batch.
const WEIGHTS: u32 = 1024;

/// Importance weights `[B]` of a batch. Every block looks for the least leaf of the whole batch.
#[kernel(
    block = WEIGHTS,
    grid = batch.div_ceil(WEIGHTS),
    shared = 4 * WEIGHTS / 32,
    barriers = 1,
    shuffles = 10,
    requires(
        batch > 0,
        clock_words.len() >= clock::WORDS as usize,
        chosen.len() >= batch as usize,
        weights.len() >= batch as usize,
    )
)]
pub fn importance_weights(
    batch: u32,
    /// Steps over which beta rises, 0 for `beta_end` from the first on.
    beta_steps: u64,
    beta_start: f64,
    beta_end: f64,
    clock_words: In<u64>,
    /// Leaf of every sample, from `priority_sample`.
    chosen: In<f32>,
    weights: Out<f32>,
) {
    let scratch = shared::array::<f32>(0, WEIGHTS / 32);
    let step = clock_words.get(clock::STEP);
    let mut least = f32::INFINITY;
    let mut i = thread::thread_idx();
    while i < batch {
        least = math::min(least, chosen.get(i));
        i += WEIGHTS;
    }
    let least = -warp::max(-least);
    if thread::lane() == 0 {
        scratch.set(thread::warp(), least);
    }
    thread::sync(); // all warps' least leaves are written before they are read
    let least = -warp::max(-scratch.get(thread::lane()));
    let i = thread::global_index();
    if i < batch {
        let mut beta = beta_end;
        if step < beta_steps {
            beta = beta_start + (beta_end - beta_start) * (step as f64 / beta_steps as f64);
        }
        weights.set(i, math::exp(beta as f32 * math::ln(least / chosen.get(i))));
    }
}
