//! Start of an episode.

use super::{
    account::{Account, RUNNING},
    params::{MarketParams, Mode},
    view::Runs,
};
use crate::philox::{Stream, below, draw};

/// The account with which environment `environment` takes its next step: the same one while its episode runs, a
/// fresh one when the episode has ended or none was begun.
///
/// Pure, so that the kernel that writes the next observation and the kernel that advances the account both compute
/// it, and no launch is spent on resets. A training episode starts at a random bar of `runs`, keyed by (seed,
/// environment, episodes begun so far). A backtest starts once, environment e at
/// the e-th start (at the last one if there are fewer).
#[inline(always)]
pub fn resumed(
    params: &MarketParams,
    runs: &impl Runs,
    seed: u64,
    environment: u32,
    account: Account,
) -> Account {
    let begun = account.flags & RUNNING != 0;
    if begun && (!account.ended() || params.mode == Mode::Backtest) {
        return account;
    }
    let (t, end, planned) = match params.mode {
        Mode::Train => {
            let words = draw(seed, account.episodes as u64, Stream::Reset, environment, 0);
            let t = runs.start(below(words[0], words[1], runs.starts() as u64) as u32);
            let planned = t + params.episode;
            let last = runs.run_end(t) - 1;
            (t, if planned < last { planned } else { last }, planned)
        }
        Mode::Backtest => {
            let last = runs.starts() - 1;
            let t = runs.start(if environment < last { environment } else { last });
            (t, params.last_bar, params.last_bar)
        }
    };
    Account {
        cash: params.initial_equity,
        quantity: 0.0,
        peak: params.initial_equity,
        entry: 0.0,
        t,
        start: t,
        end,
        planned,
        last_trade: t,
        flags: RUNNING,
        episodes: account.episodes.wrapping_add(1),
    }
}
