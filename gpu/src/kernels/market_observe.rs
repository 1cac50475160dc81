//! States of all market environments, and their insertion into the replay ring (formulas in `docs/MARKET.md`).
//!
//! One thread per element of a state row, so that loads of the window and stores are coalesced: the window of an
//! environment is one run of W*F floats of the bar features, oldest bar first.
//!
//! With `insert` it completes the transition that `market_step` began: the slot's states get s, which is what
//! `states` still holds, and its next_states get s' of the account *before* any restart, the final observation where
//! an episode ended. Then `states` becomes what the next decision sees, of the new episode where one is due: the
//! restart is a pure function of the account, so no thread has to wait for another that performs it.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::market::{
    ACCOUNT_COUNTERS, ACCOUNT_VALUES, Account, FeatureBuffers, MarketParams, PARAM_WORDS, PORTFOLIO,
    PriceBuffer, RunBuffers, StateShape, resumed, state_element,
};

/// The observation of all environments. `insert = 0` for the first one, before any step: the ring is not touched.
/// Rows of all states have `stride` floats, S of them used and the rest written as 0.
#[kernel(
    block = 256,
    grid = (environments * stride).div_ceil(256),
    requires(
        environments > 0,
        environments <= capacity,
        window > 0,
        bar_features > 0,
        start_count > 0,
        stride >= window * bar_features + PORTFOLIO,
        (capacity as u64) * (stride as u64) <= u32::MAX as u64,
        (run_end.len() as u64) * (bar_features as u64) <= u32::MAX as u64,
        params.len() >= PARAM_WORDS as usize,
        prices.len() >= 4 * run_end.len(),
        clock.len() >= 2 * run_end.len(),
        features.len() >= run_end.len() * (bar_features as usize),
        starts.len() >= start_count as usize,
        values.len() >= (ACCOUNT_VALUES as usize) * (environments as usize),
        counters.len() >= (ACCOUNT_COUNTERS as usize) * (environments as usize),
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
    let i = thread::global_index();
    if i < environments * stride {
        let (e, j) = (i / stride, i % stride);
        let shape = StateShape { window, features: bar_features };
        let params = MarketParams::load(|k| params.get(k));
        let prices = PriceBuffer(prices);
        let runs = RunBuffers { run_end, starts, start_count };
        let features = FeatureBuffers { features, clock };
        let account =
            Account::load(|k| values.get(k * environments + e), |k| counters.get(k * environments + e));
        let next = resumed(&params, &runs, seed, e, account);
        let used = j < shape.len();

        let mut element = 0.0;
        if insert != 0 {
            if used {
                element = state_element(&params, &prices, &runs, &features, shape, &account, j);
            }
            let slot = (ring_words.get(ring::CURSOR) as u32 + e) % capacity;
            ring_states.set(slot * stride + j, states.get(i));
            ring_next_states.set(slot * stride + j, element);
        }
        if used && (insert == 0 || next.episodes != account.episodes) {
            element = state_element(&params, &prices, &runs, &features, shape, &next, j);
        }
        states.set(i, element);
    }
}
