//! A backtest on the CPU: one account, one pass, any policy.

use super::{
    error::MarketError,
    log::LogRow,
    params::MarketParams,
    table::{MarketTable, Part},
    vec_market::{Transitions, VecMarket},
};

/// Runs `policy` from the part's first decision bar to its last bar and returns one row per bar.
///
/// The policy gets the state `[S]` and returns a packed action. Across a gap the position is held and marked; behind
/// it no decision is taken until a window is complete, and there the policy is not asked. After ruin the pass stops:
/// the rows end with the terminated one.
///
/// # Errors
/// [`MarketError`] of the parameters or of an action, converted to the policy's own error type.
pub fn rollout<E: From<MarketError>>(
    params: &MarketParams,
    table: &MarketTable,
    part: &Part,
    mut policy: impl FnMut(&[f32]) -> Result<u64, E>,
) -> Result<Vec<LogRow>, E> {
    let mut market = VecMarket::new(params.backtest(part), table, part, 1, 0)?;
    let mut state = vec![0.0; market.state_len()];
    let mut out = Transitions::new(1, market.state_len());
    let mut rows = Vec::with_capacity(part.backtest_steps());
    let mut t = part.starts[0];
    while t < part.last() {
        let action = if part.run_end[t as usize] == 0 {
            0
        } else {
            market.observe(&mut state)?;
            policy(&state)?
        };
        market.step_logged(&[action], &mut out, |_, row| rows.push(row))?;
        if rows.last().is_some_and(|row| row.outcome.terminated) {
            break;
        }
        t += 1;
    }
    Ok(rows)
}
