//! What changes the tree of prioritized replay: the priorities of a batch after its losses, and new transitions.
//!
//! SPEC sections 3 and 6; Schaul et al. (2016), algorithm 1. p = (1 - w) c + w l, c the column of the C51 statistics that
//! the configuration chose (|td| or the cross-entropy, neither importance-weighted), l the IQN head's loss; leaf =
//! (p + eps)^alpha. A new transition gets the largest leaf that was ever set (1 before any).
//!
//! One warp a group, eight a block: it writes the group's leaves and adds all of them up, in one launch, because no other
//! block writes them. A slot that a batch has more than once gets the priority of its last sample, as a loop over the batch
//! would leave it.

use cuda_std::prelude::*;

use super::c51_loss::stat;
#[cfg(not(target_arch = "nvptx64"))]
use super::priority::MAX_GROUPS;
use super::priority::{GROUPS_PER_BLOCK, TILE, sum4, warp_sums64, widen};
use super::sample_gather::ring;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// New priorities of a batch. Nothing changes unless the sum of `norms` is finite, which is how the optimizer decides
/// too: `adam_ema`'s partial sums of squares, added in its order, or the norms that `update_scales` wrote.
#[kernel(
    block = 32 * GROUPS_PER_BLOCK,
    grid = groups.div_ceil(GROUPS_PER_BLOCK),
    shared = 2 * 4 * GROUPS_PER_BLOCK,
    barriers = 2,
    shuffles = 20,
    requires(
        batch > 0,
        groups > 0,
        groups <= MAX_GROUPS,
        width > 0,
        width % TILE == 0,
        (groups as u64) * (width as u64) <= 1 << 31,
        column < stat::COLUMNS,
        count > 0,
        norms.len() >= count as usize,
        indices.len() >= batch as usize,
        stats.len() >= (batch as usize) * (stat::COLUMNS as usize),
        iqn_weight == 0.0 || iqn.len() >= batch as usize,
        leaves.len() >= (groups as usize) * (width as usize),
        sums.len() >= groups as usize,
        highest.len() >= 1,
    )
)]
pub fn priority_update(
    batch: u32,
    /// Groups of leaves.
    groups: u32,
    /// Leaves in a group.
    width: u32,
    /// Which of `c51_loss::stat` the priority is.
    column: u32,
    /// Number of `norms`.
    count: u32,
    /// w.
    iqn_weight: f32,
    eps: f32,
    alpha: f32,
    norms: In<f32>,
    /// Slots `[B]`, equal ones side by side, as `priority_sample` leaves them.
    indices: In<u32>,
    /// C51 statistics `[B, 8]`.
    stats: In<f32>,
    /// IQN loss without the importance weight `[B]`; not read where w is 0.
    iqn: In<f32>,
    /// `[groups, width]`
    leaves: InOut<f32>,
    /// `[groups]`
    sums: Out<f64>,
    /// Bits of the largest leaf so far, one word: for positive floats they are in the floats' order.
    highest: InOut<u32>,
) {
    let (thread, lane, warp) = (thread::thread_idx(), thread::lane(), thread::warp());
    let squares = shared::array::<f32>(0, GROUPS_PER_BLOCK);
    let largest = shared::array::<f32>(4 * GROUPS_PER_BLOCK, GROUPS_PER_BLOCK);
    let index = |i: u32| if i < batch { indices.get(i) } else { u32::MAX };
    // Four samples a thread, and the one behind them. The first are on their way while the norms are added up.
    let five = |i: u32| {
        let mut out = [0; 5];
        if i + 4 <= batch {
            let four = indices.get4(i);
            out = [four[0], four[1], four[2], four[3], index(i + 4)];
        } else {
            let mut e = 0;
            while e < 5 {
                out[e] = index(i + e as u32);
                e += 1;
            }
        }
        out
    };
    let mut slots = five(4 * thread);
    let mut square = 0.0;
    let mut i = thread;
    while i < count {
        square += norms.get(i);
        i += 32 * GROUPS_PER_BLOCK;
    }
    let square = warp::sum(square);
    if lane == 0 {
        squares.set(warp, square);
    }
    thread::sync(); // all warps' sums are written before all threads add them
    let mut total = 0.0;
    let mut w = 0;
    while w < GROUPS_PER_BLOCK {
        total += squares.get(w);
        w += 1;
    }
    let finite = total < f32::INFINITY; // false for NaN too
    if !finite {
        return; // the whole grid agrees
    }

    let first = thread::block_idx() * GROUPS_PER_BLOCK * width;
    let own = GROUPS_PER_BLOCK * width;
    let mut top = 0.0;
    i = 4 * thread;
    while i < batch {
        let mut e = 0;
        while e < 4 {
            let slot = slots[e];
            // The last of equal ones, if it is this block's.
            if slot != slots[e + 1] && slot.wrapping_sub(first) < own {
                let sample = i + e as u32;
                let mut p = stats.get(sample * stat::COLUMNS + column);
                if iqn_weight != 0.0 {
                    p = math::fma(iqn_weight, iqn.get(sample), (1.0 - iqn_weight) * p);
                }
                let leaf = math::exp(alpha * math::ln(p + eps));
                leaves.set(slot, leaf);
                top = math::max(top, leaf);
            }
            e += 1;
        }
        i += 4 * 32 * GROUPS_PER_BLOCK;
        slots = five(i);
    }
    let top = warp::max(top);
    if lane == 0 {
        largest.set(warp, top);
    }
    thread::sync(); // leaves and largest leaves are written before they are read
    if thread == 0 {
        let mut top = 0.0;
        let mut w = 0;
        while w < GROUPS_PER_BLOCK {
            top = math::max(top, largest.get(w));
            w += 1;
        }
        if top > 0.0 {
            highest.atomic_max(0, top.to_bits());
        }
    }
    let group = thread::block_idx() * GROUPS_PER_BLOCK + warp;
    if group < groups {
        let (first, tiles) = (group * width, width / TILE);
        let (mut sum, mut tile) = (0.0, 0);
        // Eight loads at once where there are eight, as in a ring of 2^20; then two, then one.
        while tile + 8 <= tiles {
            sum = add::<8>(sum, &leaves, first, tile);
            tile += 8;
        }
        while tile + 2 <= tiles {
            sum = add::<2>(sum, &leaves, first, tile);
            tile += 2;
        }
        if tile < tiles {
            sum = add::<1>(sum, &leaves, first, tile);
        }
        let [sum] = warp_sums64([sum]);
        if lane == 0 {
            sums.set(group, sum);
        }
    }
}

/// Adds the own lane's leaves of N tiles to a sum, tile by tile.
#[inline(always)]
fn add<const N: usize>(mut sum: f64, leaves: &InOut<f32>, first: u32, tile: u32) -> f64 {
    let mut loaded = [[0.0f32; 4]; N];
    let mut n = 0;
    while n < N {
        loaded[n] = leaves.get4(first + (tile + n as u32) * TILE + 4 * thread::lane());
        n += 1;
    }
    n = 0;
    while n < N {
        sum += sum4(widen(loaded[n]));
        n += 1;
    }
    sum
}

/// New transitions, before `market_count` moves the cursor: those whose window is complete with this step, written
/// `pending / inserted` steps ago, can be drawn from now on; those just written cannot, unless `pending` is 0.
#[kernel(
    block = 32 * GROUPS_PER_BLOCK,
    grid = groups.div_ceil(GROUPS_PER_BLOCK),
    shuffles = 10,
    requires(
        inserted > 0,
        (inserted as u64) + (pending as u64) <= capacity as u64,
        capacity <= 1 << 30,
        groups > 0,
        groups <= MAX_GROUPS,
        width > 0,
        width % TILE == 0,
        (groups as u64) * (width as u64) <= 1 << 31,
        capacity <= groups * width,
        ring_words.len() >= ring::WORDS as usize,
        highest.len() >= 1,
        leaves.len() >= (groups as usize) * (width as usize),
        sums.len() >= groups as usize,
    )
)]
pub fn priority_insert(
    /// Transitions that the step wrote.
    inserted: u32,
    /// Slots behind them whose windows are not complete: (n - 1) times as many.
    pending: u32,
    /// Slots of the ring.
    capacity: u32,
    /// Groups of leaves.
    groups: u32,
    /// Leaves in a group.
    width: u32,
    /// Size and cursor of the ring, as before the step.
    ring_words: In<u64>,
    /// Bits of the largest leaf so far.
    highest: In<u32>,
    /// `[groups, width]`
    leaves: InOut<f32>,
    /// `[groups]`
    sums: Out<f64>,
) {
    let group = thread::block_idx() * GROUPS_PER_BLOCK + thread::warp();
    if group < groups {
        let cursor = ring_words.get(ring::CURSOR) as u32;
        // In the first steps no window is complete yet.
        let complete = if ring_words.get(ring::SIZE) >= pending as u64 { inserted } else { 0 };
        let new = f32::from_bits(highest.get(0));
        let ready = if cursor >= pending { cursor - pending } else { cursor + (capacity - pending) };
        // How far a slot is behind another one, in the ring's order.
        let behind =
            |slot: u32, start: u32| if slot >= start { slot - start } else { slot + (capacity - start) };
        let (first, mut sum) = (group * width, 0.0);
        let mut at = 4 * thread::lane();
        while at < width {
            let old = leaves.get4(first + at);
            let mut four = old;
            let mut e = 0;
            while e < 4 {
                let slot = first + at + e as u32;
                if slot < capacity {
                    if behind(slot, ready) < complete {
                        four[e] = new;
                    } else if behind(slot, cursor) < inserted {
                        four[e] = 0.0;
                    }
                }
                e += 1;
            }
            leaves.set4(first + at, four);
            sum += sum4(widen(four));
            at += TILE;
        }
        let [sum] = warp_sums64([sum]);
        if thread::lane() == 0 {
            sums.set(group, sum);
        }
    }
}
