//! From random bars through a rollout to a report.

use backtest::{BacktestError, Metrics, Report, Track, bar_side, buy_and_hold, market_params, trades};
use gpu::action::pack;
use gpu::market::{
    BarColumns, BarSide, LogRow, MarketError, MarketParams, MarketTable, Part, StateShape, rollout,
};
use gpu::philox::{Stream, draw, normal_pair};
use settings::Config;

const BARS: usize = 300;
const PER_YEAR: f64 = 6_000.0;

fn table(seed: u64, volatility: f64) -> MarketTable {
    let (mut open, mut high, mut low, mut close) = (vec![], vec![], vec![], vec![]);
    let mut last = 80.0f64;
    for t in 0..BARS as u64 {
        let w = draw(seed, t, Stream::Fill, 0, 0);
        let [jump, body] = normal_pair(w[0], w[1]).map(|z| volatility * z as f64);
        let first = last * (0.3 * jump).exp();
        last = first * body.exp();
        open.push(first);
        close.push(last);
        high.push(first.max(last) * 1.001);
        low.push(first.min(last) / 1.001);
    }
    let time_ms: Vec<i64> = (0..BARS as i64).map(|t| t * 3_600_000).collect();
    let features = close.iter().map(|c| (c / 80.0).ln() as f32).collect();
    let columns = BarColumns { time_ms: &time_ms, open: &open, high: &high, low: &low, close: &close };
    let shape = StateShape { window: 3, features: 1 };
    let all = 0..BARS;
    MarketTable::new(columns, features, shape, std::slice::from_ref(&all), BarSide::Mid, 0.0).unwrap()
}

/// Costs that show; the reward's scale does not enter a report.
fn costly() -> MarketParams {
    let mut config = Config::default();
    config.market.taker_fee = 5e-4;
    config.market.maker_fee = 2e-4;
    config.market.financing = 0.3;
    config.market.borrow = 0.4;
    market_params(&config, 100.0).unwrap()
}

fn run(params: &MarketParams, table: &MarketTable, part: &Part, seed: u64) -> Vec<LogRow> {
    let mut step = 0;
    rollout::<MarketError>(params, table, part, |_| {
        step += 1;
        let w = draw(seed, step, Stream::Explore, 0, 0);
        Ok(pack(&[w[0] as usize % 9, w[1] as usize % 3, w[2] as usize % 3]))
    })
    .unwrap()
}

/// Everything that the account earned is in the trades, the open position, and the interest.
#[test]
fn trades_and_costs_add_up_to_the_change_of_equity() {
    for seed in 0..6 {
        let table = table(seed, 0.01);
        let part = Part::new(&table, 0..BARS).unwrap();
        let params = costly();
        let rows = run(&params, &table, &part, seed);
        let track = Track::new(&rows, params.initial_equity, part.backtest_steps()).unwrap();
        let (closed, open) = trades(&track.fills);
        assert!(closed.len() > 50, "{} trades", closed.len());
        let realised: f64 = closed.iter().map(|t| t.profit).sum();
        let last = rows.last().unwrap();
        let unrealised = open.quantity * (last.close - open.entry) - open.fees;
        let earned = realised + unrealised - track.financing - track.borrow;
        let change = last.outcome.equity - params.initial_equity;
        // Some hundred fills of at most 2e5 in the quote currency, each rounded a few times.
        let bound = 16.0 * f64::EPSILON * 2e5 * track.fills.len() as f64;
        assert!(bound < 0.005 && (earned - change).abs() <= bound, "{earned} against {change}");
        let fees: f64 = closed.iter().map(|t| t.fees).sum::<f64>() + open.fees;
        assert!((fees - track.fees).abs() <= bound);
        assert!(track.financing > 0.0 && track.borrow > 0.0);
    }
}

#[test]
fn buy_and_hold_pays_the_same_costs_on_the_same_bars() {
    let table = table(9, 0.01);
    let part = Part::new(&table, 10..200).unwrap();
    let params = costly();
    let rows = run(&params, &table, &part, 1);
    let report = Report::new(&rows, &params, &table, &part, PER_YEAR).unwrap();
    assert_eq!(report.strategy.bars, report.buy_and_hold.bars);
    assert_eq!(report.strategy.bars, 189);

    let track = buy_and_hold(&params, &table, &part);
    let (first, close) = (table.prices[4 * 11], table.prices[4 * 199 + 3]);
    // Bought at the open of bar 11, decided at the close of bar 10; impact of a whole equity, up to the fee.
    let fill = track.fills[0];
    let impact = params.impact * fill.quantity * table.prices[4 * 10 + 3] / params.initial_equity;
    let price = first * (1.0 + params.half_spread + params.slippage + impact);
    assert!((fill.price - price).abs() <= 4.0 * f64::EPSILON * price);
    let expected = close * params.initial_equity / (price * (1.0 + params.taker_fee));
    assert!((track.equity[189] - expected).abs() <= 16.0 * f64::EPSILON * expected);
    assert_eq!(report.buy_and_hold.trades, 0, "it is never sold");
    assert_eq!(report.buy_and_hold.win_rate, None);
    assert_eq!(report.buy_and_hold.average_exposure, 1.0);
    assert_eq!(report.buy_and_hold.financing, 0.0);
}

#[test]
fn metrics_by_hand() {
    let track = Track {
        equity: vec![1000.0, 1100.0, 990.0, 1210.0],
        exposure: vec![1.0, -0.5, 0.0],
        fills: vec![
            backtest::Fill { bar: 1, quantity: 10.0, price: 100.0, fee: 1.0 },
            backtest::Fill { bar: 2, quantity: -15.0, price: 110.0, fee: 1.5 },
            backtest::Fill { bar: 3, quantity: 5.0, price: 120.0, fee: 0.5 },
        ],
        fees: 3.0,
        ..Track::default()
    };
    let m = Metrics::new(&track, None, 12.0).unwrap();
    let near =
        |got: f64, expected: f64| assert!((got - expected).abs() < 1e-12, "{got}, expected {expected}");
    near(m.total_return, 0.21);
    near(m.cagr.unwrap(), 1.21f64.powi(4) - 1.0);
    let r = [0.1, -0.1, 1210.0 / 990.0 - 1.0];
    let mean = r.iter().sum::<f64>() / 3.0;
    near(m.annual_return.unwrap(), 12.0 * mean);
    let deviation = (r.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    near(m.annual_volatility.unwrap(), deviation * 12f64.sqrt());
    near(m.sharpe.unwrap(), mean / deviation * 12f64.sqrt());
    near(m.sortino.unwrap(), mean / (0.1 / 3f64.sqrt()) * 12f64.sqrt());
    near(m.max_drawdown.relative, 0.1);
    near(m.calmar.unwrap(), (1.21f64.powi(4) - 1.0) / 0.1);
    near(m.average_exposure, 0.5 / 3.0);
    near(m.average_gross_exposure, 0.5);
    near(m.turnover, 4.0 * (1.0 + 1.5 + 600.0 / 990.0));
    // +100 - 2 on ten long units, -50 - 1 on five short ones.
    assert_eq!((m.fills, m.trades), (3, 2));
    near(m.win_rate.unwrap(), 0.5);
    near(m.profit_factor.unwrap(), 98.0 / 51.0);
}

#[test]
fn a_flat_strategy_has_undefined_ratios_and_prints_them_so() {
    let table = table(3, 0.01);
    let part = Part::new(&table, 0..BARS).unwrap();
    let params = costly();
    let rows = rollout::<MarketError>(&params, &table, &part, |_| Ok(pack(&[4, 0, 2]))).unwrap();
    let report = Report::new(&rows, &params, &table, &part, PER_YEAR).unwrap();
    let m = &report.strategy;
    assert_eq!((m.total_return, m.cagr, m.annual_return), (0.0, Some(0.0), Some(0.0)));
    assert_eq!([m.sharpe, m.sortino, m.calmar, m.win_rate, m.profit_factor], [None; 5]);
    let text = report.to_string();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(line("Sharpe ratio").contains("undefined"), "{text}");
    assert!(line("Calmar ratio").contains("undefined") && line("win rate").matches("undefined").count() == 2);
    assert!(!text.contains("NaN") && !text.contains("inf"));
    let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|w| *w == widths[0]), "the table is aligned:\n{text}");
    assert!(text.starts_with("297 bars, 6000 a year"), "{text}");
}

#[test]
fn a_ruined_strategy_is_reported_to_the_end_of_the_part() {
    let table = table(5, 0.4);
    let part = Part::new(&table, 0..BARS).unwrap();
    let params = costly();
    let rows = rollout::<MarketError>(&params, &table, &part, |_| Ok(pack(&[0, 0, 2]))).unwrap();
    assert!(rows.len() < part.backtest_steps() && rows.last().unwrap().outcome.terminated);
    let report = Report::new(&rows, &params, &table, &part, PER_YEAR).unwrap();
    assert_eq!(report.strategy.bars, report.buy_and_hold.bars);
    assert!(report.strategy.total_return <= -0.9);
    assert_eq!(report.strategy.cagr.is_some(), report.strategy.end_equity > 0.0);
    assert!(report.strategy.max_drawdown.recovery.is_none());
    let (_, open) = trades(&Track::new(&rows, params.initial_equity, 1).unwrap().fills);
    assert_eq!(open.quantity, 0.0, "the close-out is a fill");
}

#[test]
fn a_report_survives_json() {
    let table = table(6, 0.01);
    let part = Part::new(&table, 0..BARS).unwrap();
    let params = costly();
    let report = Report::new(&run(&params, &table, &part, 4), &params, &table, &part, PER_YEAR).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["buy_and_hold"]["win_rate"].is_null(), "undefined is null");
    assert!(json["strategy"]["sharpe"].is_number());
    let back: Report = serde_json::from_value(json).unwrap();
    assert_eq!(back, report);
}

#[test]
fn errors_name_the_value() {
    let table = table(7, 0.01);
    let part = Part::new(&table, 0..BARS).unwrap();
    let params = costly();
    let rows = run(&params, &table, &part, 4);
    for factor in [0.0, -252.0, f64::NAN, f64::INFINITY] {
        let error = Report::new(&rows, &params, &table, &part, factor).unwrap_err();
        assert_eq!(error.to_string(), format!("{factor} bars a year: expected a positive finite number"));
    }
    assert_eq!(Report::new(&[], &params, &table, &part, PER_YEAR).unwrap_err(), BacktestError::Empty);

    let mut config = Config::default();
    config.model.branches = vec![9, 3];
    let error = market_params(&config, 1.0).unwrap_err();
    assert!(error.to_string().starts_with("model.branches = [9, 3]"), "{error}");
    let mut config = Config::default();
    config.market.ruin = -0.5;
    assert_eq!(
        market_params(&config, 1.0).unwrap_err().to_string(),
        "market.ruin = -0.5: expected a fraction, 0 <= ruin < 1"
    );
    assert_eq!(bar_side(settings::BarSide::Ask), BarSide::Ask);
}
