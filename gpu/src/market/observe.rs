//! The state: the window of bar features, oldest bar first, then the portfolio features.

use super::{
    account::{Account, FILLED},
    params::MarketParams,
    view::{Features, Prices, Runs},
};

/// P: portfolio features.
pub const PORTFOLIO: u32 = 8;

/// Portfolio feature k of an account at the close `close` of bar t, whose time of day is `clock` = (sin, cos) of
/// 2 pi (UTC seconds since midnight) / 86400.
///
/// | k | feature |
/// |---|---|
/// | 0 | exposure x = q close / E |
/// | 1 | open profit z / (8 + abs z), z = c q (close - entry) / E |
/// | 2 | bars since the last trade (or the start) n / (n + 32) |
/// | 3 | drawdown z / (32 + z), z = c (1 - E / peak) |
/// | 4 | remaining fraction of the planned episode (planned - t) / (planned - start) |
/// | 5, 6 | time of day, sine and cosine |
/// | 7 | 1 if the last order was filled, else 0 |
///
/// c is the reward scale, so profit and drawdown are counted in standard deviations of one bar's return and mean
/// the same on any market; the quotients keep them in (-1, 1).
#[inline(always)]
pub fn portfolio_feature(
    params: &MarketParams,
    account: &Account,
    close: f64,
    clock: [f32; 2],
    k: u32,
) -> f32 {
    match k {
        0 => account.exposure(close) as f32,
        1 => {
            if account.quantity == 0.0 {
                return 0.0;
            }
            let profit = account.quantity * (close - account.entry) / account.equity(close);
            let z = params.reward_scale * profit;
            (z / (8.0 + z.abs())) as f32
        }
        2 => {
            let bars = (account.t - account.last_trade) as f64;
            (bars / (bars + 32.0)) as f32
        }
        3 => {
            let z = params.reward_scale * account.drawdown(close);
            (z / (32.0 + z)) as f32
        }
        4 => {
            let left = (account.planned - account.t) as f64;
            (left / (account.planned - account.start) as f64) as f32
        }
        5 => clock[0],
        6 => clock[1],
        _ => (account.flags & FILLED != 0) as u32 as f32,
    }
}

/// W and F, which lay out a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// W: bars in the window.
    pub window: u32,
    /// F: features of a bar.
    pub features: u32,
}

impl StateShape {
    /// S = W*F + P.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.window * self.features + PORTFOLIO
    }

    /// Never: a state has at least the portfolio features.
    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Element j of the state `[S]` of an account.
///
/// The bar features are row-major `[T, F]`, so the window is one run of W*F elements that ends with bar t. Where the
/// W bars do not exist without a gap (a backtest behind a gap) the window is zero and the step takes no decision.
#[inline(always)]
pub fn state_element(
    params: &MarketParams,
    prices: &impl Prices,
    runs: &impl Runs,
    features: &impl Features,
    shape: StateShape,
    account: &Account,
    j: u32,
) -> f32 {
    let t = account.t;
    let bars = shape.window * shape.features;
    if j < bars {
        let complete = runs.run_end(t) != 0;
        return if complete { features.feature((t + 1 - shape.window) * shape.features + j) } else { 0.0 };
    }
    portfolio_element(params, prices, features, account, j - bars)
}

/// Portfolio feature k of an account at its bar.
#[inline(always)]
pub fn portfolio_element(
    params: &MarketParams,
    prices: &impl Prices,
    features: &impl Features,
    account: &Account,
    k: u32,
) -> f32 {
    let t = account.t;
    let clock = if k == 5 || k == 6 { features.clock(t) } else { [0.0; 2] };
    portfolio_feature(params, account, prices.close(t), clock, k)
}
