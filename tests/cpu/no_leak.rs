//! Nothing is known before it happens: on a market without anything to know a learner that would use whatever it is
//! given finds nothing, and the same learner finds a leak that is planted. The way of the numbers is that of `train`:
//! bars, calendar, features, normaliser, parts, environment, execution.

use backtest::Gross;
use bars::{Bars, FEATURES, LoadOptions, Symbol, from_bars};
use gpu::action::pack;
use gpu::market::{LogRow, MarketError, Prices, rollout};
use host::train::Stop;
use host::train::agent::{Agent, PartName};
use host::train::cpu::CpuAgent;
use host::train::market::{Market, load};
use settings::{Config, MarketLayout};

/// Synthetic bars without costs, an eighth of them to learn from.
fn free_market(kind: &str, bars: usize, seed: u64) -> Market {
    let mut config = Config::default();
    config.data.synthetic = kind.into();
    (config.data.synthetic_bars, config.data.synthetic_seed) = (bars, seed);
    (config.split.train, config.split.validation) = (0.125, 0.005);
    let m = &mut config.market;
    (m.half_spread, m.slippage, m.impact) = (0.0, 0.0, 0.0);
    (m.taker_fee, m.maker_fee, m.financing, m.borrow) = (0.0, 0.0, 0.0, 0.0);
    Market::prepare(&mut config).unwrap()
}

/// Least squares with a small ridge: the next bar's return from the window that a state shows.
struct Linear {
    weights: Vec<f64>,
    scale: f64,
}

impl Linear {
    /// Fits on the decisions of the training part.
    fn fit(market: &Market) -> Self {
        let (table, part) = (&market.table, market.part(PartName::Train));
        let width = 8 * FEATURES;
        // Normal equations of [window, 1], lower triangle, with the right-hand side as their last row.
        let n = width + 2;
        let mut sums = vec![0.0; n * n];
        let mut row = vec![1.0; n];
        let decisions: Vec<usize> = part.starts.iter().map(|&t| t as usize).collect();
        for &t in &decisions {
            for (x, &feature) in row.iter_mut().zip(&table.features[(t + 1) * FEATURES - width..]).take(width)
            {
                *x = feature.into();
            }
            let (now, next) = (table.bar(t as u32), table.bar(t as u32 + 1));
            row[n - 1] = (next.close - next.open) / now.close;
            for i in 0..n {
                let x = row[i];
                for (sum, &y) in sums[i * n..].iter_mut().zip(&row).take(i + 1) {
                    *sum += x * y;
                }
            }
        }
        let k = width + 1;
        let mut l = vec![0.0; k * k];
        for i in 0..k {
            for j in 0..=i {
                let dot: f64 = (0..j).map(|m| l[i * k + m] * l[j * k + m]).sum();
                let ridge = if i == j { 1e-3 * decisions.len() as f64 } else { 0.0 };
                let rest = sums[i * n + j] + ridge - dot;
                l[i * k + j] = if i == j { rest.sqrt() } else { rest / l[j * k + j] };
            }
        }
        let mut weights: Vec<f64> = sums[(n - 1) * n..][..k].to_vec();
        for i in 0..k {
            let dot: f64 = (0..i).map(|m| l[i * k + m] * weights[m]).sum();
            weights[i] = (weights[i] - dot) / l[i * k + i];
        }
        for i in (0..k).rev() {
            let dot: f64 = (i + 1..k).map(|m| l[m * k + i] * weights[m]).sum();
            weights[i] = (weights[i] - dot) / l[i * k + i];
        }
        let mut fitted = Self { weights, scale: 1.0 };
        let squares: f64 = decisions
            .iter()
            .map(|&t| {
                fitted.expected(&table.features[(t + 1) * FEATURES - width..(t + 1) * FEATURES]).powi(2)
            })
            .sum();
        fitted.scale = (squares / decisions.len() as f64).sqrt();
        fitted
    }

    fn expected(&self, window: &[f32]) -> f64 {
        let bias = self.weights[self.weights.len() - 1];
        self.weights.iter().zip(window).map(|(w, &x)| w * f64::from(x)).sum::<f64>() + bias
    }

    /// An exposure in proportion to what is expected, by a market order for the whole way.
    fn action(&self, state: &[f32]) -> u64 {
        let exposure = (self.expected(&state[..8 * FEATURES]) / self.scale).clamp(-1.0, 1.0);
        pack(&[(4.0 * (exposure + 1.0)).round() as usize, 0, 2])
    }
}

/// Learns on the training part and trades the test part.
fn learn_and_trade(market: &Market, gross: &mut Gross) -> Vec<LogRow> {
    let policy = Linear::fit(market);
    let part = market.symbol_part(PartName::Test, 0);
    let rows = rollout::<MarketError>(&market.params, &market.table, part, |s| Ok(policy.action(s))).unwrap();
    gross.add(&rows, &market.table, market.params.layout, market.params.initial_equity);
    rows
}

#[test]
fn on_a_martingale_nothing_is_earned_before_costs() {
    let mut gross = Gross::default();
    for seed in 1..=5 {
        let market = free_market("martingale", 232_000, seed);
        let rows = learn_and_trade(&market, &mut gross);
        // Without costs the accounts' returns are the returns before costs.
        let mut equity = market.params.initial_equity;
        let before = backtest::gross_returns(&rows, &market.table, market.params.layout, equity);
        for (row, before) in rows.iter().zip(before) {
            let after = row.outcome.equity / equity - 1.0;
            assert!((after - before).abs() < 1e-12, "bar {}: {after} and {before}", row.bar);
            equity = row.outcome.equity;
        }
    }
    let (z, exposure) = (gross.z().unwrap(), gross.mean_exposure().unwrap());
    println!("{} bars, z {z:.3}, mean absolute exposure {exposure:.3}", gross.bars);
    assert!(gross.bars >= 1_000_000, "{} bars", gross.bars);
    assert!(exposure >= 0.25, "mean absolute exposure {exposure}: nothing is at stake");
    assert!(z.abs() < 3.0, "the mean return before costs is {z} standard errors from zero");
}

#[test]
fn a_planted_leak_of_one_bar_is_found() {
    let mut market = free_market("martingale", 40_000, 1);
    // Every bar shows the features of the next one.
    market.table.features.rotate_left(FEATURES);
    let mut gross = Gross::default();
    learn_and_trade(&market, &mut gross);
    let z = gross.z().unwrap();
    println!("{} bars, z {z:.1}", gross.bars);
    assert!(z > 10.0, "a leak of a whole bar gives {z} standard errors only");
}

#[test]
fn what_can_be_predicted_is_found() {
    let mut gross = Gross::default();
    learn_and_trade(&free_market("regimes", 100_000, 1), &mut gross);
    let z = gross.z().unwrap();
    println!("{} bars, z {z:.1}", gross.bars);
    assert!(z > 3.0, "the learner of these tests learns nothing: {z}");
}

/// The same bars up to `t` and others behind, at the same times.
fn changed_after(symbol: &Symbol, t: usize) -> Symbol {
    let mut bars = Bars { has_volume: true, ..Bars::default() };
    for i in 0..symbol.loaded.bars.len() {
        let mut bar = symbol.loaded.bars.bar(i);
        if i > t {
            let factor = 1.5 + ((i * 7919) % 101) as f64 / 100.0;
            (bar.open, bar.high) = (bar.open * factor, bar.high * factor * 1.01);
            (bar.low, bar.close, bar.volume) = (bar.low * factor, bar.close * factor, bar.volume * factor);
        }
        bars.push(bar);
    }
    let loaded = from_bars(&symbol.name, bars, &LoadOptions::default()).unwrap();
    Symbol { name: symbol.name.clone(), loaded }
}

#[test]
fn with_a_frozen_policy_and_normaliser_later_bars_change_nothing_before() {
    for layout in [MarketLayout::Exposure, MarketLayout::Direction] {
        let mut config = Config::cpu_preset();
        config.data.synthetic_bars = 1500;
        config.market.layout = Some(layout);
        (config.collect.environments, config.collect.capacity, config.collect.warmup) = (2, 64, 1);
        let symbols = load(&config.data).unwrap();
        let market = Market::of_symbols(&mut config, &symbols).unwrap();
        let trade = |market: &Market| {
            // The networks as the seed makes them: one state and another get different actions.
            let mut agent = CpuAgent::new(&config, market).unwrap();
            agent.backtest(PartName::Test, 0, &Stop::default()).unwrap()
        };
        let rows = trade(&market);
        let first = rows[0].bar as usize - 1;
        let actions: std::collections::BTreeSet<u64> = rows.iter().map(|row| row.action).collect();
        assert!(actions.len() > 1, "{layout:?}: one action only, which would be the same after any change");
        for t in [first, first + 1, first + 60, 1490] {
            let changed = changed_after(&symbols[0], t);
            let mut frozen = config.clone();
            let other = Market::frozen(&mut frozen, &[changed], &market.record).unwrap();
            let features = |market: &Market| -> Vec<u32> {
                market.table.features[..(t + 1) * FEATURES].iter().map(|x| x.to_bits()).collect()
            };
            assert!(features(&market) == features(&other), "features up to bar {t}");
            let other_rows = trade(&other);
            for (a, b) in rows.iter().zip(&other_rows) {
                // Row of bar b: the action of bar b - 1, the reward that is known at bar b.
                let bar = a.bar as usize;
                if bar - 1 <= t {
                    assert_eq!((a.action, a.decided), (b.action, b.decided), "action of bar {}", bar - 1);
                }
                if bar <= t {
                    assert_eq!(a.outcome.reward.to_bits(), b.outcome.reward.to_bits(), "reward of bar {bar}");
                    assert_eq!(a, b);
                }
            }
            // The change is felt in the first bar that it touches: the test can fail.
            let touched = rows.iter().position(|row| row.bar as usize == t + 1).unwrap();
            assert_ne!(rows[touched].close, other_rows[touched].close);
        }
    }
}
