//! From the configuration to the environment's parameters.

use gpu::market::{ActionLayout, BarSide, MarketParams, Mode};
use settings::Config;

use crate::BacktestError;

/// Cash at the start of every episode and backtest, in units of the quote currency. All costs are fractions, so
/// results do not depend on it; it is what the money columns of logs and reports refer to.
pub const INITIAL_EQUITY: f64 = 100_000.0;

/// The environment of a configuration for training; [`MarketParams::backtest`] makes the backtest's of it.
/// `reward_scale` is c, which the crate `bars` fits on the training part.
///
/// # Errors
/// [`BacktestError::Layout`] for branches that are no layout, [`BacktestError::Market`] for a number out of range,
/// with its key.
pub fn market_params(config: &Config, reward_scale: f64) -> Result<MarketParams, BacktestError> {
    let market = &config.market;
    let branches = &config.model.branches;
    let params = MarketParams {
        half_spread: market.half_spread,
        slippage: market.slippage,
        impact: market.impact,
        taker_fee: market.taker_fee,
        maker_fee: market.maker_fee,
        financing: market.financing,
        borrow: market.borrow,
        drawdown_penalty: market.drawdown_penalty,
        ruin: market.ruin,
        ruin_reward: market.ruin_reward,
        reward_scale,
        initial_equity: INITIAL_EQUITY,
        gamma: config.train.gamma as f64,
        // Saturates; the check refuses anything above 2^30.
        episode: u32::try_from(config.collect.episode).unwrap_or(u32::MAX),
        last_bar: 0,
        layout: ActionLayout::from_branches(branches)
            .ok_or_else(|| BacktestError::Layout { branches: branches.clone() })?,
        mode: Mode::Train,
    };
    params.check()?;
    Ok(params)
}

/// The environment's name for the configured side of the file's prices.
pub fn bar_side(side: settings::BarSide) -> BarSide {
    match side {
        settings::BarSide::Mid => BarSide::Mid,
        settings::BarSide::Bid => BarSide::Bid,
        settings::BarSide::Ask => BarSide::Ask,
    }
}
