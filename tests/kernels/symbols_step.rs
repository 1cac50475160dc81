//! Body for backtests of several symbols with one collector.

use gpu::market::{LOG_FIELDS, LogRow, MarketParams, MarketTable, Part};
use host::error::ExecError;
use host::step::{Collector, CollectorInput, EnvironmentInput, Matmul, Replay, TableBuffers};

use super::market::support;
use super::oracle_step::{Beside, odd};
use super::{Backend, Outcome};

/// What one collector logs after it was sent to a symbol is what a collector of that symbol's own table logs.
pub fn one_graph_walks_every_symbol<B: Backend>(b: &mut B) -> Outcome {
    let mut config = odd();
    let model = &mut config.model;
    model.state = support::SHAPE.len() as usize;
    (model.window, model.bar_features) = (support::SHAPE.window as usize, support::SHAPE.features as usize);
    model.branches = vec![9, 3, 3];
    let beside = Beside::new(b, &config, Matmul::Rust)?;
    let tables = [(21, 24), (22, 19)].map(|(seed, bars)| support::Columns::random(seed, bars, 0.01).table());
    let joined = MarketTable::joined(tables.to_vec()).expect("tables of one shape");
    let ranges = [5..20, 24 + 4..24 + 17];
    let (joint, symbols) = Part::of_symbols(&joined, &ranges).expect("parts of the table");
    let walk = |b: &mut B, collector: &Collector, steps: usize| -> Result<Vec<LogRow>, ExecError> {
        collector.record_first(b, &beside.shape)?;
        for _ in 0..steps {
            collector.record(b, &beside.shape, beside.buffers.parameters.online)?;
        }
        let log = b.download(collector.environment.market().expect("a market").log)?;
        let rows = log.chunks_exact(LOG_FIELDS as usize).take(steps);
        Ok(rows.map(|row| LogRow::load(|i| row[i as usize]).expect("every row was written")).collect())
    };
    let make = |b: &mut B, table: &MarketTable, part: &Part, name: &str| -> Result<Collector, ExecError> {
        let params: MarketParams = support::params().backtest(part);
        let input = CollectorInput {
            environment: EnvironmentInput::Market {
                params: &params,
                part,
                table: TableBuffers::upload(b, table)?,
            },
            environments: 1,
            log_rows: 20,
            clock: None,
            support: None,
            epsilon: None,
            explores: false,
        };
        let replay = Replay::alloc(b, &beside.shape, 1)?;
        Collector::alloc(b, &beside.shape, input, replay, name)
    };
    let shared = make(b, &joined, &joint, "all")?;
    for (s, (table, offset)) in tables.iter().zip([0, 24]).enumerate() {
        let alone = Part::new(table, ranges[s].start - offset..ranges[s].end - offset).expect("a part");
        let own = make(b, table, &alone, "own")?;
        let expected = walk(b, &own, alone.backtest_steps())?;

        shared.reset(b)?;
        let params = support::params().backtest(&symbols[s]);
        let market = shared.environment.market().expect("a market");
        market.begin_at(b, &params, symbols[s].backtest_start()[0])?;
        let rows = walk(b, &shared, symbols[s].backtest_steps())?;
        let shifted: Vec<LogRow> =
            expected.iter().map(|row| LogRow { bar: row.bar + offset as u32, ..*row }).collect();
        assert_eq!(rows, shifted, "symbol {s}");
    }
    Ok(())
}
