//! One bar of every market environment (SPEC section 6; formulas in `crate::market` and `docs/MARKET.md`).
//!
//! One thread per environment: takes its packed action, starts an episode if the last one has ended, advances the
//! account from the close of bar t to the close of bar t + 1, and writes action, reward and discount into its slot
//! of the replay ring, (cursor + e) mod capacity. The cursor is read here and moved by `market_count`, at the end of
//! the collection step; in between `market_observe` writes the slot's states.

use cuda_std::prelude::*;

use super::sample_gather::ring;
use crate::market::{self, Account, LOG_FIELDS, MarketParams, PriceBuffer, RunBuffers, TimeBuffer};

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// The step of all environments. `values` `[ACCOUNT_VALUES, E]` and `counters` `[ACCOUNT_COUNTERS, E]` are the
/// accounts; zeroed memory starts all of them.
///
/// `log` `[E, log_rows, LOG_FIELDS]` keeps the first `log_rows` bars of each environment's episode, row by bar
/// since its start: for a backtest, which has one episode. `log_rows = 0` keeps nothing.
#[kernel(
    block = 128,
    grid = environments.div_ceil(128),
    requires(
        environments > 0,
        environments <= capacity,
        capacity <= 1 << 30,
        start_count > 0,
        params.len() >= market::PARAM_WORDS as usize,
        prices.len() >= 4 * run_end.len(),
        elapsed.len() >= run_end.len(),
        starts.len() >= start_count as usize,
        actions.len() >= environments as usize,
        values.len() >= (market::ACCOUNT_VALUES as usize) * (environments as usize),
        counters.len() >= (market::ACCOUNT_COUNTERS as usize) * (environments as usize),
        ring_words.len() >= ring::WORDS as usize,
        ring_actions.len() >= capacity as usize,
        ring_rewards.len() >= capacity as usize,
        ring_discounts.len() >= capacity as usize,
        flags.len() >= environments as usize,
        log.len() >= (environments as usize) * (log_rows as usize) * (LOG_FIELDS as usize),
        (environments as u64) * (log_rows as u64) * (LOG_FIELDS as u64) <= u32::MAX as u64,
    )
)]
pub fn market_step(
    /// E.
    environments: u32,
    /// Number of start bars.
    start_count: u32,
    /// Slots of the replay ring.
    capacity: u32,
    /// Rows of the log of one environment, 0 for none.
    log_rows: u32,
    /// Seed of the start bars.
    seed: u64,
    /// `MarketParams::words`, `[PARAM_WORDS]`.
    params: In<f64>,
    /// Mid open, high, low, close, `[T, 4]`.
    prices: In<f64>,
    /// Years since the bar before, `[T]`.
    elapsed: In<f64>,
    /// End of the run of decision bars, 0 outside, `[T]`: its length is T.
    run_end: In<u32>,
    /// Start bars, `[start_count]`.
    starts: In<u32>,
    /// One byte per branch, `[E]`, from `select_action`.
    actions: In<u64>,
    /// Accounts, `[ACCOUNT_VALUES, E]`.
    values: InOut<f64>,
    /// Accounts, `[ACCOUNT_COUNTERS, E]`.
    counters: InOut<u32>,
    /// Size and cursor of the ring.
    ring_words: In<u64>,
    /// `[capacity]`.
    ring_actions: Out<u64>,
    /// r, `[capacity]`.
    ring_rewards: Out<f32>,
    /// gamma (1 - terminated), `[capacity]`.
    ring_discounts: Out<f32>,
    /// `TERMINATED` and `TRUNCATED` bits of this step, `[E]`.
    flags: Out<u32>,
    /// `LogRow`s, `[E, log_rows, LOG_FIELDS]`.
    log: Out<f64>,
) {
    let e = thread::global_index();
    if e < environments {
        let params = MarketParams::load(|i| params.get(i));
        let runs = RunBuffers { run_end, starts, start_count };
        let mut account =
            Account::load(|i| values.get(i * environments + e), |i| counters.get(i * environments + e));
        let action = actions.get(e);
        let row = market::advance(
            &params,
            &PriceBuffer(prices),
            &TimeBuffer(elapsed),
            &runs,
            seed,
            e,
            &mut account,
            action,
        );
        account
            .store(|i, v| values.set(i * environments + e, v), |i, v| counters.set(i * environments + e, v));

        let slot = market::ring_slot(ring_words.get(ring::CURSOR), e, capacity);
        // A finished backtest stands still: reward 0 and no bootstrap.
        let (mut reward, mut over) = (0.0, true);
        if let Some(row) = row {
            (reward, over) = (row.outcome.reward, row.outcome.terminated);
            let k = row.bar - 1 - account.start;
            if k < log_rows {
                let first = (e * log_rows + k) * LOG_FIELDS;
                row.store(|i, v| log.set(first + i, v));
            }
        }
        ring_actions.set(slot, action);
        ring_rewards.set(slot, reward as f32);
        ring_discounts.set(slot, market::discount(params.gamma, over) as f32);
        flags.set(e, account.end_flags());
    }
}
