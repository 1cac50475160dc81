//! A trader who knows the synthetic market's hidden state and its formulas: what a policy that sees bars only is measured
//! against.
//!
//! It knows regime s and signal x at the close of each bar (`bars::synthetic`), not what comes. Its policy is the
//! solution of the decision problem by value iteration on a grid of x, for the exposures that the market's layout has,
//! with the market's own costs of market orders:
//!
//! V(s, x, e) = max over a of -cost(a - e) + sum over s' of P(s'|s) [a mu(s', x) - rho/2 a^2 sigma(s')^2 + g E V(s', x', a)],
//!
//! x' = DECAY x + sqrt(1 - DECAY^2) (phi(s') tanh(x) - sigma(s')/2 + z), z standard normal. g is 0.99. Of several
//! aversions to risk rho, the one with the best Sharpe ratio on the training part is taken.

use anyhow::Context;
use backtest::{Track, returns};
use bars::synthetic::{DECAY, PHI, SIGMA, SWITCH, Truth};
use gpu::action;
use gpu::market::{ActionLayout, LogRow, MarketParams, MarketTable, Part, Prices, Transitions, VecMarket};

use crate::train::Stop;

/// Grid of x, whose standard deviation is about 1.
const POINTS: usize = 41;
const WIDEST: f64 = 4.0;
/// Discount of the value iteration.
const DISCOUNT: f64 = 0.99;
/// Aversions to risk that are tried; 1 is that of logarithmic growth.
const AVERSIONS: [f64; 5] = [1.0, 10.0, 30.0, 100.0, 300.0];
/// Gauss-Hermite quadrature of a standard normal with seven points (Abramowitz and Stegun 25.4.46, x sqrt(2),
/// weights / sqrt(pi)).
const NODES: [(f64, f64); 7] = [
    (-3.750_439_717_725_742, 0.000_548_268_855_972_217_9),
    (-2.366_759_410_734_541, 0.030_757_123_967_586_49),
    (-1.154_405_394_739_968_2, 0.240_123_178_605_012_73),
    (0.0, 0.457_142_857_142_857_15),
    (1.154_405_394_739_968_2, 0.240_123_178_605_012_73),
    (2.366_759_410_734_541, 0.030_757_123_967_586_49),
    (3.750_439_717_725_742, 0.000_548_268_855_972_217_9),
];

/// A solved decision problem.
pub struct Oracle {
    costs: Costs,
    /// Exposures that the layout has, with their actions.
    levels: Vec<(f64, u64)>,
    /// Worth of leaving the close with exposure a, before costs, `[regime][x][a]`.
    worth: Vec<Vec<Vec<f64>>>,
}

#[derive(Clone, Copy)]
struct Costs {
    /// Of a unit of exposure.
    linear: f64,
    /// Of its square.
    square: f64,
    /// Of a short unit over a bar.
    borrow: f64,
}

impl Costs {
    fn of(&self, change: f64) -> f64 {
        self.linear * change.abs() + self.square * change * change
    }
}

impl Oracle {
    /// Solves the problem for an aversion to risk.
    pub fn solve(params: &MarketParams, bars_per_year: f64, aversion: f64) -> Self {
        let costs = Costs {
            linear: params.half_spread + params.slippage + params.taker_fee,
            square: params.impact,
            borrow: params.borrow / bars_per_year,
        };
        let levels = levels(params.layout);
        let n = levels.len();
        let mut value = vec![vec![vec![0.0; n]; POINTS]; SIGMA.len()];
        let mut worth = value.clone();
        for _ in 0..5000 {
            // What bar s' is worth to who holds a through it, seen from x.
            let through: Vec<Vec<Vec<f64>>> = (0..SIGMA.len())
                .map(|s| {
                    (0..POINTS).map(|i| held(&levels, &costs, &value[s], s, grid(i), aversion)).collect()
                })
                .collect();
            let mut change = 0.0_f64;
            for s in 0..SIGMA.len() {
                for i in 0..POINTS {
                    for a in 0..n {
                        let all: f64 = (0..SIGMA.len()).map(|to| transition(s, to) * through[to][i][a]).sum();
                        worth[s][i][a] = all;
                    }
                    for e in 0..n {
                        let best = (0..n).map(|a| worth[s][i][a] - costs.of(levels[a].0 - levels[e].0));
                        let best = best.fold(f64::NEG_INFINITY, f64::max);
                        change = change.max((best - value[s][i][e]).abs());
                        value[s][i][e] = best;
                    }
                }
            }
            // A bar earns some 1e-4 at best.
            if change < 1e-10 {
                break;
            }
        }
        Self { costs, levels, worth }
    }

    /// What to do with this exposure in this state.
    pub fn action(&self, truth: Truth, exposure: f64) -> u64 {
        let rows = &self.worth[truth.regime];
        let (i, f) = place(truth.signal);
        let worth = |a: usize| {
            (1.0 - f) * rows[i][a] + f * rows[i + 1][a] - self.costs.of(self.levels[a].0 - exposure)
        };
        let best = (0..self.levels.len()).max_by(|&a, &b| worth(a).total_cmp(&worth(b)));
        best.map_or(0, |a| self.levels[a].1)
    }

    /// A pass over a part; `truth` has one entry for every bar of the table.
    ///
    /// # Errors
    /// What the environment refuses; too few hidden states; [`Stopped`](crate::train::Stopped).
    pub fn backtest(
        &self,
        params: &MarketParams,
        table: &MarketTable,
        part: &Part,
        truth: &[Truth],
        stop: &Stop,
    ) -> anyhow::Result<Vec<LogRow>> {
        let mut market = VecMarket::new(params.backtest(part), table, part, 1, 0)?;
        let mut out = Transitions::new(1, market.state_len());
        let mut rows = Vec::with_capacity(part.backtest_steps());
        for t in part.backtest_start()[0]..part.last() {
            stop.check()?;
            let state = *truth.get(t as usize).with_context(|| format!("no hidden state of bar {t}"))?;
            let exposure = market.account(0).exposure(table.close(t));
            let action = if part.run_end[t as usize] == 0 { 0 } else { self.action(state, exposure) };
            market.step_logged(&[action], &mut out, |_, row| rows.push(row))?;
            if rows.last().is_some_and(|row| row.outcome.terminated) {
                break;
            }
        }
        Ok(rows)
    }

    /// The oracle whose aversion to risk has the best Sharpe ratio on the training part.
    ///
    /// # Errors
    /// As for [`Self::backtest`].
    pub fn best(
        params: &MarketParams,
        bars_per_year: f64,
        table: &MarketTable,
        train: &Part,
        truth: &[Truth],
        stop: &Stop,
    ) -> anyhow::Result<Self> {
        let mut best: Option<(f64, Self)> = None;
        for aversion in AVERSIONS {
            let oracle = Self::solve(params, bars_per_year, aversion);
            let rows = oracle.backtest(params, table, train, truth, stop)?;
            let track = Track::new(&rows, params.initial_equity, train.backtest_steps())?;
            let sharpe = sharpe(&track, bars_per_year).unwrap_or(0.0);
            if best.as_ref().is_none_or(|(other, _)| sharpe > *other) {
                best = Some((sharpe, oracle));
            }
        }
        Ok(best.context("no aversion to risk to try")?.1)
    }
}

/// Sharpe ratio of a track.
pub fn sharpe(track: &Track, bars_per_year: f64) -> Option<f64> {
    returns::sharpe(&returns::simple_returns(&track.equity)?, bars_per_year)
}

/// Exposures and their actions: market orders for the whole way.
fn levels(layout: ActionLayout) -> Vec<(f64, u64)> {
    let of = |branches: &[usize]| {
        let action = action::pack(branches);
        (gpu::market::decode(layout, action).target, action)
    };
    match layout {
        ActionLayout::Exposure => (0..9).map(|level| of(&[level, 0, 2])).collect(),
        ActionLayout::DirectionMagnitude => {
            let sided = [0, 2].into_iter().flat_map(|side| (0..3).map(move |size| [side, size, 0, 2]));
            std::iter::once([1, 0, 0, 2]).chain(sided).map(|branches| of(&branches)).collect()
        }
    }
}

/// Worth of holding each exposure through a bar of regime `s` that is entered with signal `x`.
fn held(
    levels: &[(f64, u64)],
    costs: &Costs,
    value: &[Vec<f64>],
    s: usize,
    x: f64,
    aversion: f64,
) -> Vec<f64> {
    let pull = PHI[s] * x.tanh();
    let innovation = (1.0 - DECAY * DECAY).sqrt();
    let next: Vec<(usize, f64, f64)> = NODES
        .iter()
        .map(|(z, weight)| {
            let (i, f) = place(DECAY * x + innovation * (pull - 0.5 * SIGMA[s] + z));
            (i, f, *weight)
        })
        .collect();
    levels
        .iter()
        .enumerate()
        .map(|(a, (exposure, _))| {
            let later: f64 =
                next.iter().map(|&(i, f, w)| w * ((1.0 - f) * value[i][a] + f * value[i + 1][a])).sum();
            let risk = 0.5 * aversion * (exposure * SIGMA[s]).powi(2);
            exposure * pull * SIGMA[s] - risk - costs.borrow * (-exposure).max(0.0) + DISCOUNT * later
        })
        .collect()
}

fn transition(from: usize, to: usize) -> f64 {
    if from == to { 1.0 - SWITCH } else { SWITCH / 2.0 }
}

fn grid(i: usize) -> f64 {
    WIDEST * (2.0 * i as f64 / (POINTS - 1) as f64 - 1.0)
}

/// The grid's interval that holds x, and where in it, 0 to 1; beyond the grid its ends.
fn place(x: f64) -> (usize, f64) {
    let at = ((x / WIDEST + 1.0) / 2.0 * (POINTS - 1) as f64).clamp(0.0, (POINTS - 1) as f64);
    let i = (at as usize).min(POINTS - 2);
    (i, at - i as f64)
}

#[cfg(test)]
mod tests {
    use settings::Config;

    use super::*;
    use crate::train::market::{Market, synthetic};

    fn market(layout: settings::MarketLayout) -> (Market, Vec<Truth>) {
        let mut config = Config::default();
        config.data.synthetic_bars = 8000;
        config.market.layout = Some(layout);
        let (bars, truth) = synthetic(&config.data).unwrap().generate_with_truth().unwrap();
        let market = Market::prepare(&mut config).unwrap();
        assert_eq!((bars.len(), truth.len()), (market.table.bars(), 8000));
        (market, truth)
    }

    #[test]
    fn quadrature_has_the_moments_of_a_standard_normal() {
        for (power, expected) in [(0, 1.0), (2, 1.0), (4, 3.0), (6, 15.0)] {
            let moment: f64 = NODES.iter().map(|(z, w)| w * z.powi(power)).sum();
            assert!((moment - expected).abs() < 1e-12 * expected.max(1.0), "{power}: {moment}");
        }
    }

    #[test]
    fn it_trades_with_the_signal_in_a_trend_and_against_it_in_reversion() {
        let (market, _) = market(settings::MarketLayout::Exposure);
        let oracle = Oracle::solve(&market.params, market.bars_per_year, 1.0);
        let target = |regime, signal| {
            gpu::market::decode(market.params.layout, oracle.action(Truth { regime, signal }, 0.0)).target
        };
        assert!(target(1, 2.0) > 0.5 && target(1, -2.0) < -0.5);
        assert!(target(2, 2.0) < -0.5 && target(2, -2.0) > 0.5);
        // Without a signal nothing pays for a trade.
        assert_eq!((target(0, 0.0), target(1, 0.0)), (0.0, 0.0));
    }

    #[test]
    fn it_earns_after_costs_in_both_layouts() {
        for layout in [settings::MarketLayout::Exposure, settings::MarketLayout::Direction] {
            let (market, truth) = market(layout);
            let (train, years) = (market.part(crate::train::agent::PartName::Train), market.bars_per_year);
            let oracle =
                Oracle::best(&market.params, years, &market.table, train, &truth, &Stop::default()).unwrap();
            let part = market.part(crate::train::agent::PartName::Test);
            let rows =
                oracle.backtest(&market.params, &market.table, part, &truth, &Stop::default()).unwrap();
            let track = Track::new(&rows, market.params.initial_equity, part.backtest_steps()).unwrap();
            let sharpe = sharpe(&track, years).unwrap();
            assert!(sharpe > 2.0, "{layout:?}: {sharpe}");
        }
    }
}
