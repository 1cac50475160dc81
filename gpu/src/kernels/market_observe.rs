//! States of all market environments, and their insertion into the replay ring (formulas in `docs/MARKET.md`).
//!
//! One warp per environment, a lane for every 32nd element of the state row, so that loads of the window and stores
//! are coalesced: the window is one run of W*F floats of the bar features, oldest bar first.
//!
//! With `insert` it completes the transition that `market_step` began: the slot's states get s, which is what
//! `states` still holds, and its next_states get s' of the account *before* any restart, the final observation where
//! an episode ended. Then `states` becomes what the next decision sees, of the new episode where one is due: the
//! restart is a pure function of the account, so it costs no launch of its own.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::market::{self, Account, FeatureBuffers, MarketParams, PriceBuffer, RunBuffers, StateShape};

/// Environments per block: one warp each.
pub const ENVIRONMENTS_PER_BLOCK: u32 = 8;

/// The observation of all environments. `insert = 0` for the first one, before any step: the ring is not touched.
/// Rows of all states have `stride` floats, S of them used and the rest written as 0.
#[kernel(
    block = 32 * ENVIRONMENTS_PER_BLOCK,
    grid = environments.div_ceil(ENVIRONMENTS_PER_BLOCK),
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
    let e = thread::block_idx() * ENVIRONMENTS_PER_BLOCK + thread::warp();
    if e < environments {
        let shape = StateShape { window, features: bar_features };
        let params = MarketParams::load(|k| params.get(k));
        let prices = PriceBuffer(prices);
        let runs = RunBuffers { run_end, starts, start_count };
        let features = FeatureBuffers { features, clock };
        let account =
            Account::load(|k| values.get(k * environments + e), |k| counters.get(k * environments + e));
        let next = market::resumed(&params, &runs, seed, e, account);
        let restarted = next.episodes != account.episodes;
        let slot = market::ring_slot(ring_words.get(ring::CURSOR), e, capacity);
        let mut j = thread::lane();
        while j < stride {
            let used = j < shape.len();
            let mut element = 0.0;
            if insert != 0 {
                if used {
                    element = market::state_element(&params, &prices, &runs, &features, shape, &account, j);
                }
                ring_states.set(slot * stride + j, states.get(e * stride + j));
                ring_next_states.set(slot * stride + j, element);
            }
            if used && (insert == 0 || restarted) {
                element = market::state_element(&params, &prices, &runs, &features, shape, &next, j);
            }
            states.set(e * stride + j, element);
            j += 32;
        }
    }
}
