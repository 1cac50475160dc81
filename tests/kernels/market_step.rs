//! Bodies for `market_step`, which compare with the CPU environment bit by bit. The environment's own functions are held
//! against a double-entry ledger, `market_step::reference`, in `gpu/tests/market`.

use gpu::market::{
    ActionLayout, BarSide, LOG_FIELDS, LogRow, MarketError, MarketParams, MarketTable, Part, TERMINATED,
    TRUNCATED, rollout,
};

use super::market::support::{Columns, hashed_action, params};
use super::market::{Collection, STATE, compare};
use super::{Backend, Outcome};

/// Episodes that end by their length or with the data; a number of environments that fills no warp; a ring that wraps
/// inside a step.
pub fn truncated_episodes<B: Backend>(b: &mut B) -> Outcome {
    let columns = Columns::random(31, 160, 0.01);
    let table = columns.table_with(&[0..70, 75..160], BarSide::Ask);
    let part = Part::new(&table, 3..150).expect("a part of the table");
    let (environments, capacity, steps) = if B::FULL_SIZE { (4096, 10_000, 50) } else { (37, 100, 12) };
    for layout in [ActionLayout::Exposure, ActionLayout::DirectionMagnitude] {
        let p = MarketParams { layout, episode: 7, ..params() };
        assert_eq!(compare(b, (&p, &table, &part), environments, capacity, steps)?, TRUNCATED);
    }
    Ok(())
}

/// Bars of 30% that ruin accounts: episodes that terminate.
pub fn ruined_accounts<B: Backend>(b: &mut B) -> Outcome {
    let columns = Columns::random(32, 80, 0.3);
    let table = columns.table();
    let part = Part::new(&table, 0..80).expect("a part of the table");
    let seen = compare(b, (&params(), &table, &part), 130, 130, 12)?;
    assert_eq!(seen & TERMINATED, TERMINATED, "no account was ruined: the case is not tested");
    Ok(())
}

/// A backtest logs every bar of its one episode as the CPU backtest does, and then stands still.
pub fn backtest_log<B: Backend>(b: &mut B) -> Outcome {
    let columns = Columns::random(33, 70, 0.01);
    let table = columns.table_with(&[0..30, 40..70], BarSide::Mid);
    let part = Part::new(&table, 5..65).expect("a part of the table");
    let decide = |state: &[f32]| hashed_action(state, ActionLayout::Exposure);
    let rows =
        rollout::<MarketError>(&params(), &table, &part, |state| Ok(decide(state))).expect("a backtest");
    let p = params().backtest(&part);
    let device = Collection::new(b, (&p, &table, &part), 1, 1, part.backtest_steps(), 0)?;
    device.observe(b, 0)?;
    for _ in 0..part.backtest_steps() + 3 {
        let state = b.download(device.states)?;
        device.collect(b, &[decide(&state[..STATE])])?;
    }
    let log = b.download(device.log)?;
    let logged: Vec<LogRow> = log
        .chunks(LOG_FIELDS as usize)
        .map(|row| LogRow::load(|i| row[i as usize]).expect("every row was written"))
        .collect();
    assert_eq!(logged, rows);
    Ok(())
}

/// Environments that start at any bar of two symbols: a joint table and a joint part, of which the kernels know nothing.
pub fn several_symbols<B: Backend>(b: &mut B) -> Outcome {
    let (one, other) = (Columns::random(36, 60, 0.01), Columns::random(37, 80, 0.02));
    let other = other.table_with(&[0..30, 33..80], BarSide::Mid);
    let table = MarketTable::joined(vec![one.table(), other]).expect("tables of one shape");
    let (joint, _) = Part::of_symbols(&table, &[2..50, 65..140]).expect("parts of the table");
    let p = MarketParams { episode: 9, ..params() };
    assert_eq!(compare(b, (&p, &table, &joint), 37, 100, 14)?, TRUNCATED);
    Ok(())
}
