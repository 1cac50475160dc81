//! The published cases on annualisation, drawdown, fees, execution and episode ends. Each file says what goes wrong
//! elsewhere; `known_wrong` is what a program with that mistake would give.

use backtest::{Drawdown, Fill, returns, trades};
use gpu::market::{
    Account, ActionLayout, Bar, MarketParams, Mode, OrderKind, RUNNING, all_in_quantity, discount, execute,
};
use serde_json::Value;

fn case(id: &str) -> Value {
    let path = format!("{}/tests/cases/{id}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// Within the case's own tolerance (read from the file, never widened here).
fn near(case: &Value, got: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap();
    let tolerance = |key| case["tolerance"][key].as_f64().unwrap_or(0.0);
    let bound = tolerance("atol") + tolerance("exact") + tolerance("rtol") * expected.abs();
    assert!((got - expected).abs() <= bound, "{}: {got}, expected {expected}", case["id"]);
}

/// An environment that costs nothing but the given fee.
fn only_fee(taker_fee: f64) -> MarketParams {
    MarketParams {
        half_spread: 0.0,
        slippage: 0.0,
        impact: 0.0,
        taker_fee,
        maker_fee: 0.0,
        financing: 0.0,
        borrow: 0.0,
        drawdown_penalty: 0.0,
        ruin: 0.0,
        ruin_reward: -1.0,
        reward_scale: 1.0,
        initial_equity: 10_000.0,
        gamma: 0.99,
        episode: 100,
        last_bar: 0,
        layout: ActionLayout::Exposure,
        mode: Mode::Train,
    }
}

fn flat_bar(price: f64) -> Bar {
    Bar { open: price, high: price, low: price, close: price }
}

#[test]
fn c68_sharpe_annualisation() {
    let case = case("C68");
    let returns = numbers(&case["input"]["returns"]);
    let expected = &case["expected"]["sharpe_rf0"];
    for (name, bars_per_year) in [
        ("daily_252", 252.0),
        ("us_15min_252x26", 252.0 * 26.0),
        ("crypto_hourly", 365.0 * 24.0),
        ("none", 1.0),
    ] {
        let sharpe = returns::sharpe(&returns, bars_per_year).unwrap();
        near(&case, sharpe, &expected[name]["ddof1"]);
    }
}

#[test]
fn c70_the_start_equity_is_the_first_peak() {
    let case = case("C70");
    let expected = &case["expected"];
    let drawdown = Drawdown::deepest(&numbers(&case["input"]["equity"]));
    near(&case, drawdown.relative, &expected["max_drawdown_relative"]);
    near(&case, drawdown.absolute, &expected["max_drawdown_absolute"]);
    assert_eq!(drawdown.peak as u64, expected["peak_index"].as_u64().unwrap());
    assert_eq!(drawdown.trough as u64, expected["trough_index"].as_u64().unwrap());
    assert_eq!(Drawdown::deepest(&[1.0, 2.0, 3.0]).relative, 0.0);
    assert_eq!(Drawdown::deepest(&[7.0; 5]).relative, 0.0);
}

#[test]
fn c72_fees_on_both_sides() {
    let case = case("C72");
    let (input, expected) = (&case["input"]["a"], &case["expected"]["a"]);
    let number = |key: &str| input[key].as_f64().unwrap();
    let params = only_fee(number("fee_rate_per_side"));
    let (open, close, units) = (flat_bar(number("open")), flat_bar(number("close")), number("units"));
    let mut account = Account { flags: RUNNING, ..Account::default() };

    let buy = execute(&params, OrderKind::Market, units, 1.0, &open, &open).unwrap();
    account.trade(units, buy.price, buy.fee);
    near(&case, -account.cash, &expected["buy_cost"]);
    let sell = execute(&params, OrderKind::Market, -units, 1.0, &close, &close).unwrap();
    account.trade(-units, sell.price, sell.fee);
    near(&case, units * sell.price - sell.fee, &expected["sell_proceeds"]);
    // Cash after both is the profit: a difference of the two, so it keeps their absolute error; the case's relative
    // tolerance of 1e-6 is far above it.
    near(&case, account.cash, &expected["profit"]);
    near(&case, account.cash / (units * buy.price + buy.fee), &expected["profit_ratio"]);

    let fill = |bar, quantity, f: gpu::market::Execution| Fill { bar, quantity, price: f.price, fee: f.fee };
    let (closed, _) = trades(&[fill(1, units, buy), fill(2, -units, sell)]);
    near(&case, closed[0].profit, &expected["profit"]);
}

#[test]
fn c72_all_in_leaves_no_cash() {
    let case = case("C72");
    let (input, expected) = (&case["input"]["b"], &case["expected"]["b"]);
    let number = |key: &str| input[key].as_f64().unwrap();
    let params = only_fee(number("fee_rate"));
    let cash = number("cash");
    let (at_buy, at_sell) = (flat_bar(number("buy_price")), flat_bar(number("sell_price")));

    let units = all_in_quantity(&params, cash, cash, &at_buy, &at_buy);
    near(&case, units, &expected["units"]);
    let buy = execute(&params, OrderKind::Market, units, cash, &at_buy, &at_buy).unwrap();
    near(&case, buy.fee, &expected["fee_buy"]);
    let sell = execute(&params, OrderKind::Market, -units, cash, &at_sell, &at_sell).unwrap();
    let final_cash = units * sell.price - sell.fee;
    near(&case, final_cash, &expected["final_cash"]);
    near(&case, final_cash / cash - 1.0, &expected["return"]);

    // The track books what the units do not cost as the fee, so that the cash is used up exactly.
    let prices = [number("buy_price"), number("buy_price"), number("sell_price")];
    let track = hold(&params, &prices);
    let bought = track.fills[0];
    assert_eq!(
        cash - bought.quantity * bought.price - bought.fee,
        expected["cash_after_buy"].as_f64().unwrap()
    );
    near(&case, bought.fee, &expected["fee_buy"]);
    near(&case, track.equity[2], &serde_json::json!(units * number("sell_price")));
}

/// Buy-and-hold over bars of these prices.
fn hold(params: &MarketParams, prices: &[f64]) -> backtest::Track {
    use gpu::market::{BarColumns, BarSide, MarketTable, Part, StateShape};
    let time_ms: Vec<i64> = (0..prices.len() as i64).map(|t| t * 60_000).collect();
    let columns = BarColumns { time_ms: &time_ms, open: prices, high: prices, low: prices, close: prices };
    let shape = StateShape { window: 1, features: 1 };
    let bars = 0..prices.len();
    let table = MarketTable::new(
        columns,
        vec![0.0; prices.len()],
        shape,
        std::slice::from_ref(&bars),
        BarSide::Mid,
        0.0,
    )
    .unwrap();
    let part = Part::new(&table, bars).unwrap();
    backtest::buy_and_hold(params, &table, &part)
}

#[test]
fn c74_a_decision_fills_in_the_next_bar() {
    let case = case("C74");
    let (open, close) = (numbers(&case["input"]["open"]), numbers(&case["input"]["close"]));
    let bars: Vec<Bar> = open
        .iter()
        .zip(&close)
        .map(|(&open, &close)| Bar { open, high: open.max(close), low: open.min(close), close })
        .collect();
    let signals: Vec<f64> = bars.iter().map(|bar| (bar.close - bar.open).signum()).collect();
    assert_eq!(signals, numbers(&case["expected"]["signal"]));

    // One unit in the signal's direction, decided at each close but the last, whose order has no bar to fill in.
    let params = only_fee(0.0);
    let start = 10_000.0;
    let mut account = Account { cash: start, ..Account::default() };
    for t in 0..bars.len() - 1 {
        let quantity = signals[t] - account.quantity;
        if quantity != 0.0 {
            let equity = account.equity(bars[t].close);
            let fill = execute(&params, OrderKind::Market, quantity, equity, &bars[t], &bars[t + 1]).unwrap();
            assert_eq!(fill.price, bars[t + 1].open);
            account.trade(quantity, fill.price, fill.fee);
        }
    }
    let last = bars[bars.len() - 1].close;
    near(&case, account.equity(last) - start, &case["expected"]["pnl"]);
}

/// The returns of n steps from the environment's per-step rewards and discounts, as a replay sums them: until a
/// discount of 0.
fn n_step(rewards: &[f64], discounts: &[f64], start: usize, n: usize) -> Option<(f64, usize, f64)> {
    let (mut sum, mut factor) = (0.0, 1.0);
    for m in 0..n {
        let (reward, discount) = (rewards.get(start + m)?, discounts[start + m]);
        sum += factor * reward;
        factor *= discount;
        if discount == 0.0 {
            return Some((sum, m + 1, 0.0));
        }
    }
    Some((sum, n, factor))
}

#[test]
fn c26_a_window_of_the_environments_discounts_stops_at_the_terminal_step() {
    let case = case("C26");
    let input = &case["input"];
    let gamma = input["gamma"].as_f64().unwrap();
    let rewards = numbers(&input["rewards"]);
    let discounts: Vec<f64> =
        numbers(&input["terminated"]).iter().map(|&terminated| discount(gamma, terminated != 0.0)).collect();
    let n = input["n"].as_u64().unwrap() as usize;
    for start in 0..8 {
        let got = n_step(&rewards, &discounts, start, n);
        match case["expected"]["per_start"].get(start.to_string()) {
            Some(expected) => {
                let (sum, steps, factor) = got.unwrap();
                near(&case, sum, &expected["R"]);
                assert_eq!(steps as u64, expected["steps"].as_u64().unwrap());
                near(&case, factor, &expected["discount"]);
            }
            None => assert_eq!(got, None, "start {start} is not complete yet"),
        }
    }
}

#[test]
fn c28_termination_wins_over_truncation() {
    let case = case("C28");
    let input = &case["input"];
    let gamma = input["gamma"].as_f64().unwrap();
    let (rewards, next) = (numbers(&input["rewards"]), numbers(&input["V_next"]));
    let (terminated, truncated) = (numbers(&input["terminated"]), numbers(&input["truncated"]));
    let targets = case["expected"]["targets"].as_array().unwrap();
    let mask = numbers(&case["expected"]["bootstrap_mask"]);

    // The environment's own last step: ruined on the episode's last bar, it reports both flags.
    let params = MarketParams { initial_equity: 1000.0, ruin: 0.1, ..only_fee(0.0) };
    let mut account = Account { quantity: 10.0, peak: 1000.0, end: 1, flags: RUNNING, ..Account::default() };
    let (now, next_bar) = (flat_bar(100.0), flat_bar(1.0));
    let out = gpu::market::step(&params, &now, &next_bar, 0.0, &mut account, None);
    assert_eq!([out.terminated, out.truncated], [terminated[2] != 0.0, truncated[2] != 0.0]);

    for i in 0..3 {
        let d = discount(gamma, terminated[i] != 0.0);
        near(&case, rewards[i] + d * next[i], &targets[i]);
        assert_eq!(d != 0.0, mask[i] != 0.0);
    }
}
