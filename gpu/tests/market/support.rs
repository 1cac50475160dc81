//! Bars, costs and actions for the tests.

use core::ops::Range;

use gpu::market::{ActionLayout, BarColumns, BarSide, MarketParams, MarketTable, Mode, StateShape};
use gpu::philox::{Stream, draw, normal_pair, uniform};

pub const HOUR_MS: i64 = 3_600_000;
pub const SHAPE: StateShape = StateShape { window: 4, features: 3 };

/// Columns of a bar file.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    pub time_ms: Vec<i64>,
    pub open: Vec<f64>,
    pub high: Vec<f64>,
    pub low: Vec<f64>,
    pub close: Vec<f64>,
}

impl Columns {
    /// A random walk of hourly bars with `volatility` per bar, deterministic in `seed`. Opens jump away from the last
    /// close, so that limit orders fill at the open, at the limit, and not at all.
    pub fn random(seed: u64, bars: usize, volatility: f64) -> Self {
        let mut columns = Self::default();
        let mut last = 1.25;
        for t in 0..bars {
            let w = draw(seed, t as u64, Stream::Fill, 0, 0);
            let v = draw(seed, t as u64, Stream::Fill, 1, 0);
            let [jump, body] = normal_pair(w[0], w[1]).map(|z| volatility * z as f64);
            let open = last * (0.3 * jump).exp();
            let close = open * body.exp();
            let wick = |word| 0.5 * volatility * uniform(word) as f64;
            columns.time_ms.push(1_500_000_000_000 + t as i64 * HOUR_MS);
            columns.open.push(open);
            columns.close.push(close);
            columns.high.push(open.max(close) * (1.0 + wick(v[0])));
            columns.low.push(open.min(close) / (1.0 + wick(v[1])));
            last = close;
        }
        columns
    }

    pub fn len(&self) -> usize {
        self.close.len()
    }

    pub fn view(&self) -> BarColumns<'_> {
        BarColumns {
            time_ms: &self.time_ms,
            open: &self.open,
            high: &self.high,
            low: &self.low,
            close: &self.close,
        }
    }

    /// Three features that use bars up to t only: log return, range, distance to a slow mean.
    pub fn features(&self) -> Vec<f32> {
        let mut mean = self.close[0];
        (0..self.len())
            .flat_map(|t| {
                let before = self.close[t.saturating_sub(1)];
                mean += 0.1 * (self.close[t] - mean);
                [
                    (100.0 * (self.close[t] / before).ln()) as f32,
                    (100.0 * (self.high[t] / self.low[t]).ln()) as f32,
                    (100.0 * (self.close[t] / mean).ln()) as f32,
                ]
            })
            .collect()
    }

    pub fn table_with(&self, runs: &[Range<usize>], side: BarSide) -> MarketTable {
        MarketTable::new(self.view(), self.features(), SHAPE, runs, side, params().half_spread).unwrap()
    }

    pub fn table(&self) -> MarketTable {
        self.table_with(std::slice::from_ref(&(0..self.len())), BarSide::Mid)
    }
}

/// Costs large enough to show in every number.
pub fn params() -> MarketParams {
    MarketParams {
        half_spread: 4e-4,
        slippage: 1e-4,
        impact: 2e-4,
        taker_fee: 3e-4,
        maker_fee: 1e-4,
        financing: 0.4,
        borrow: 0.3,
        drawdown_penalty: 2.0,
        ruin: 0.1,
        ruin_reward: -7.0,
        reward_scale: 50.0,
        initial_equity: 100_000.0,
        gamma: 0.97,
        episode: 40,
        last_bar: 0,
        layout: ActionLayout::Exposure,
        mode: Mode::Train,
    }
}

/// One uniformly random index per branch.
pub fn random_branches(seed: u64, step: u64, layout: ActionLayout) -> Vec<usize> {
    layout
        .branches()
        .iter()
        .enumerate()
        .map(|(d, &n)| draw(seed, step, Stream::Explore, d as u32, 0)[0] as usize % n)
        .collect()
}

/// A policy without structure: an action that depends on every bit of the state.
pub fn hashed_action(state: &[f32], layout: ActionLayout) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for value in state {
        hash = (hash ^ value.to_bits() as u64).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    let branches: Vec<usize> =
        layout.branches().iter().enumerate().map(|(d, &n)| (hash >> (13 * d + 5)) as usize % n).collect();
    gpu::action::pack(&branches)
}
