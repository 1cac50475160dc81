//! States of all market environments, and their insertion into the replay ring (formulas in `docs/MARKET.md`).
//!
//! A block has 32 environments. First a warp makes one portfolio feature of all of them, a lane an environment: the
//! divisions of f64 that most features are would take a warp of one environment's lanes apart. Then every warp
//! writes the state rows of four environments, a lane for every 32nd element, so that loads of the window and stores are
//! coalesced: the window is one run of W*F floats of the bar features, oldest bar first.
//!
//! With `insert` it completes the transition that `market_step` began: the slot's states get s, which is what
//! `states` still holds, and its next_states get s' of the account *before* any restart, the final observation where
//! an episode ended. Then `states` becomes what the next decision sees, of the new episode where one is due: the
//! restart is a pure function of the account, so it costs no launch of its own.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::market::{self, Account, FeatureBuffers, MarketParams, PriceBuffer, RunBuffers, Runs, StateShape};

/// Environments of a block.
const ENVIRONMENTS: u32 = 32;
/// Warps of a block: one for every portfolio feature.
const WARPS: u32 = market::PORTFOLIO;
/// Words of shared memory for one environment: its portfolio features before and after a restart, and its bars and flags.
#[cfg(not(target_arch = "nvptx64"))]
const WORDS: u32 = 2 * market::PORTFOLIO + 3;
/// The window before a restart is complete.
const COMPLETE: u32 = 1;
/// The window behind it is.
const COMPLETE_AFTER: u32 = 2;
/// There is a restart.
const RESTARTED: u32 = 4;

/// The observation of all environments. `insert = 0` for the first one, before any step: the ring is not touched.
/// Rows of all states have `stride` floats, S of them used and the rest written as 0.
#[kernel(
    block = 32 * WARPS,
    grid = environments.div_ceil(ENVIRONMENTS),
    shared = 4 * ENVIRONMENTS * WORDS,
    barriers = 1,
    requires(
        environments > 0,
        environments <= capacity,
        capacity <= 1 << 30,
        window > 0,
        bar_features > 0,
        start_count > 0,
        stride >= window * bar_features + market::PORTFOLIO,
        (capacity as u64) * (stride as u64) <= u32::MAX as u64,
        (run_end.len() as u64) * (bar_features as u64) <= u32::MAX as u64,
        params.len() >= market::PARAM_WORDS as usize,
        prices.len() >= 4 * run_end.len(),
        clock.len() >= 2 * run_end.len(),
        features.len() >= run_end.len() * (bar_features as usize),
        starts.len() >= start_count as usize,
        values.len() >= (market::ACCOUNT_VALUES as usize) * (environments as usize),
        counters.len() >= (market::ACCOUNT_COUNTERS as usize) * (environments as usize),
        ring_words.len() >= ring::WORDS as usize,
        states.len() >= (environments as usize) * (stride as usize),
        insert == 0 || ring_states.len() >= (capacity as usize) * (stride as usize),
        insert == 0 || ring_next_states.len() >= (capacity as usize) * (stride as usize),
    )
)]
pub fn market_observe(
    /// E.
    environments: u32,
    /// Floats of a state row.
    stride: u32,
    /// W.
    window: u32,
    /// F.
    bar_features: u32,
    /// Number of start bars.
    start_count: u32,
    /// Slots of the replay ring.
    capacity: u32,
    /// 1 to complete the transition of the step before, 0 for the first observation.
    insert: u32,
    /// Seed of the start bars, as for `market_step`.
    seed: u64,
    /// `MarketParams::words`, `[PARAM_WORDS]`.
    params: In<f64>,
    /// Mid open, high, low, close, `[T, 4]`.
    prices: In<f64>,
    /// Sine and cosine of the time of day, `[T, 2]`.
    clock: In<f32>,
    /// Bar features, `[T, F]`.
    features: In<f32>,
    /// End of the run of decision bars, 0 outside, `[T]`: its length is T.
    run_end: In<u32>,
    /// Start bars, `[start_count]`.
    starts: In<u32>,
    /// Accounts, `[ACCOUNT_VALUES, E]`.
    values: In<f64>,
    /// Accounts, `[ACCOUNT_COUNTERS, E]`.
    counters: In<u32>,
    /// Size and cursor of the ring.
    ring_words: In<u64>,
    /// In: s of the step before. Out: s of the next decision. `[E, stride]`.
    states: InOut<f32>,
    /// s, `[capacity, stride]`.
    ring_states: Out<f32>,
    /// s', `[capacity, stride]`.
    ring_next_states: Out<f32>,
) {
    let first = thread::block_idx() * ENVIRONMENTS;
    let shape = StateShape { window, features: bar_features };
    let kept = shared::array::<f32>(0, 2 * ENVIRONMENTS * market::PORTFOLIO);
    let bars = shared::array::<u32>(4 * 2 * ENVIRONMENTS * market::PORTFOLIO, 3 * ENVIRONMENTS);
    let (k, local) = (thread::warp(), thread::lane());
    let e = first + local;
    if e < environments {
        let params = MarketParams::load(|k| params.get(k));
        let (prices, features) = (PriceBuffer(prices), FeatureBuffers { features, clock });
        let runs = RunBuffers { run_end, starts, start_count };
        let account =
            Account::load(|k| values.get(k * environments + e), |k| counters.get(k * environments + e));
        let next = market::resumed(&params, &runs, seed, e, account);
        let restarted = next.episodes != account.episodes;
        let feature = |account: &Account| market::portfolio_element(&params, &prices, &features, account, k);
        let before = if insert != 0 || !restarted { feature(&account) } else { 0.0 };
        let after = if restarted { feature(&next) } else { before };
        kept.set(local * market::PORTFOLIO + k, before);
        kept.set((ENVIRONMENTS + local) * market::PORTFOLIO + k, after);
        if k == 0 {
            bars.set(local, account.t);
            bars.set(ENVIRONMENTS + local, next.t);
            let flag = |is: bool, flag: u32| if is { flag } else { 0 };
            let complete = |t: u32| runs.run_end(t) != 0;
            let flags = flag(complete(account.t), COMPLETE)
                | flag(complete(next.t), COMPLETE_AFTER)
                | flag(restarted, RESTARTED);
            bars.set(2 * ENVIRONMENTS + local, flags);
        }
    }
    thread::sync(); // all features are there
    let cursor = ring_words.get(ring::CURSOR);
    let len = shape.window * shape.features;
    let mut local = thread::warp();
    while local < ENVIRONMENTS && first + local < environments {
        let e = first + local;
        let (t, next_t) = (bars.get(local), bars.get(ENVIRONMENTS + local));
        let flags = bars.get(2 * ENVIRONMENTS + local);
        let slot = market::ring_slot(cursor, e, capacity);
        let mut j = thread::lane();
        while j < stride {
            let element = |after: u32, t: u32, complete: u32| {
                if j >= shape.len() {
                    0.0
                } else if j >= len {
                    kept.get((after * ENVIRONMENTS + local) * market::PORTFOLIO + (j - len))
                } else if flags & complete != 0 {
                    features.get((t + 1 - shape.window) * shape.features + j)
                } else {
                    0.0
                }
            };
            let next = element(1, next_t, COMPLETE_AFTER);
            if insert != 0 {
                let end = if flags & RESTARTED != 0 { element(0, t, COMPLETE) } else { next };
                ring_states.set(slot * stride + j, states.get(e * stride + j));
                ring_next_states.set(slot * stride + j, end);
            }
            states.set(e * stride + j, next);
            j += 32;
        }
        local += WARPS;
    }
}
