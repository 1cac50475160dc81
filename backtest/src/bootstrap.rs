//! Confidence intervals by the stationary bootstrap.
//!
//! Politis and Romano, The stationary bootstrap (Journal of the American Statistical Association, 1994). Returns of bars
//! are not independent, so whole blocks of them are drawn: a resample starts at a random bar and goes on with the next
//! one, round the end, until it starts anew with probability 1 / b at every bar. Every number is computed of each
//! resample as of the track itself, and the interval holds the middle share of what came out (percentile method).
//! Strategy and buy-and-hold are resampled with the same bars, and trades by themselves, in the order in which they closed.

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::block::block_length;
use crate::ratios::{Ratios, Series, TradeRatios};

/// Bars in all resamples together beyond which fewer of them are drawn: a pooled track of a million bars gets its
/// intervals within seconds.
const MOST_BARS: usize = 400_000_000;

/// Fewest resamples for an interval.
const FEWEST: usize = 200;

/// Share of the resamples that may leave a number undefined; with more of them its interval is undefined too.
const MOST_UNDEFINED: f64 = 0.05;

/// How intervals are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// Share of the resamples inside an interval, in (0, 1).
    pub level: f64,
    /// Resamples; 0 for no intervals.
    pub resamples: usize,
    /// Expected block length in bars; [`block_length`] finds it when absent.
    pub block: Option<f64>,
    /// Seed of the draws: the same track has the same intervals.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { level: 0.95, resamples: 1000, block: None, seed: 1 }
    }
}

/// The middle share of a number's resamples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Interval of each number by its name in [`Ratios`] or [`TradeRatios`]; `None` where too many resamples leave it
/// undefined.
pub type Intervals = BTreeMap<String, Option<Interval>>;

/// Intervals of strategy and buy-and-hold, and how they were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    /// Share of the resamples inside.
    pub level: f64,
    /// Resamples drawn.
    pub resamples: usize,
    /// Expected block length in bars.
    pub block: f64,
    /// Expected block length in closed trades.
    pub trade_block: f64,
    /// Of the strategy.
    pub strategy: Intervals,
    /// Of buy-and-hold.
    pub buy_and_hold: Intervals,
}

impl Bootstrap {
    /// Intervals of a strategy's returns and buy-and-hold's on the same bars, and of the profits of closed trades.
    pub(crate) fn intervals(
        &self,
        returns: &[f64],
        benchmark: &[f64],
        profits: &[f64],
        bars_per_year: f64,
    ) -> Confidence {
        let n = returns.len();
        let count = self.resamples.min((MOST_BARS / n.max(1)).max(FEWEST));
        let block = self.block.unwrap_or_else(|| block_length(returns));
        let trade_block = self.block.map_or_else(|| block_length(profits), |_| 1.0);
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut drawn = Drawn::default();
        let mut holding = Drawn::default();
        let (mut bars, mut r, mut b, mut equity) = (vec![0; n], vec![0.0; n], vec![0.0; n], vec![1.0; n + 1]);
        for _ in 0..count {
            resample(&mut rng, block, &mut bars);
            for (i, &bar) in bars.iter().enumerate() {
                (r[i], b[i]) = (returns[bar], benchmark[bar]);
            }
            compound(&r, &mut equity);
            drawn.take(
                &Ratios::NAMES,
                &ratios(Series { returns: &r, benchmark: Some(&b) }, &equity, bars_per_year),
            );
            compound(&b, &mut equity);
            holding.take(
                &Ratios::NAMES,
                &ratios(Series { returns: &b, benchmark: None }, &equity, bars_per_year),
            );
        }
        let (mut order, mut p) = (vec![0; profits.len()], vec![0.0; profits.len()]);
        for _ in 0..count {
            resample(&mut rng, trade_block, &mut order);
            for (profit, &trade) in p.iter_mut().zip(&order) {
                *profit = profits[trade];
            }
            drawn.take(&TradeRatios::NAMES, &TradeRatios::new(&p).values());
        }
        let (strategy, buy_and_hold) =
            (drawn.intervals(count, self.level), holding.intervals(count, self.level));
        Confidence { level: self.level, resamples: count, block, trade_block, strategy, buy_and_hold }
    }
}

fn ratios(series: Series<'_>, equity: &[f64], bars_per_year: f64) -> [Option<f64>; 10] {
    Ratios::new(series, equity, bars_per_year).values()
}

/// Equity curve of returns, from 1.
fn compound(returns: &[f64], equity: &mut [f64]) {
    for (t, r) in returns.iter().enumerate() {
        equity[t + 1] = equity[t] * (1.0 + r);
    }
}

/// Positions of a resample: blocks of geometric length with mean `block`, round the end.
fn resample(rng: &mut ChaCha8Rng, block: f64, positions: &mut [usize]) {
    let n = positions.len();
    let restart = 1.0 / block.max(1.0);
    let mut at = 0;
    for (i, position) in positions.iter_mut().enumerate() {
        at = if i == 0 || rng.random::<f64>() < restart { rng.random_range(0..n) } else { (at + 1) % n };
        *position = at;
    }
}

/// What the resamples made of each number.
#[derive(Default)]
struct Drawn(BTreeMap<&'static str, Vec<f64>>);

impl Drawn {
    fn take(&mut self, names: &[&'static str], values: &[Option<f64>]) {
        for (name, value) in names.iter().zip(values) {
            self.0.entry(name).or_default().extend(value.filter(|v| v.is_finite()));
        }
    }

    fn intervals(self, resamples: usize, level: f64) -> Intervals {
        let interval = |mut values: Vec<f64>| {
            let undefined = 1.0 - values.len() as f64 / resamples as f64;
            if values.is_empty() || undefined > MOST_UNDEFINED {
                return None;
            }
            values.sort_by(f64::total_cmp);
            let tail = 0.5 * (1.0 - level);
            Some(Interval { low: quantile(&values, tail), high: quantile(&values, 1.0 - tail) })
        };
        self.0.into_iter().map(|(name, values)| (name.to_owned(), interval(values))).collect()
    }
}

/// Quantile of sorted values, linear between neighbours (the default of NumPy and R).
fn quantile(sorted: &[f64], p: f64) -> f64 {
    let place = p * (sorted.len() - 1) as f64;
    let (below, share) = (place.floor() as usize, place.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + share * (sorted[above] - sorted[below])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{normal, returns};

    fn draws(seed: u64, n: usize) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| normal::quantile(rng.random_range(1e-9..1.0 - 1e-9)).unwrap()).collect()
    }

    #[test]
    fn blocks_have_the_mean_length_and_go_round_the_end() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut positions = vec![0; 200_000];
        resample(&mut rng, 20.0, &mut positions);
        let n = positions.len();
        let breaks = positions.windows(2).filter(|pair| pair[1] != (pair[0] + 1) % n).count();
        // Binomial with probability 1/20: mean 10000, five standard deviations 487.
        assert!((breaks as f64 - 10_000.0).abs() < 487.0, "{breaks}");
        let mut all = vec![0; 50];
        resample(&mut rng, 1e9, &mut all);
        assert!(all.windows(2).all(|pair| pair[1] == (pair[0] + 1) % 50), "one block: {all:?}");
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let values = [1.0, 2.0, 4.0, 8.0];
        assert_eq!([0.0, 0.5, 1.0].map(|p| quantile(&values, p)), [1.0, 3.0, 8.0]);
    }

    /// 95 % intervals of the Sharpe ratio of independent returns with a known ratio hold it in about 95 of 100 cases:
    /// binomial, standard deviation 2.2 of 100; four of them, and some for the finite sample, are allowed below.
    #[test]
    fn intervals_cover_the_truth() {
        let truth = 0.1;
        let covered = (0..100).filter(|&seed| {
            let r: Vec<f64> = draws(seed, 250).iter().map(|z| 0.01 * (z + truth)).collect();
            let bootstrap = Bootstrap { resamples: 300, seed: 3, ..Bootstrap::default() };
            let found = bootstrap.intervals(&r, &r, &[], 1.0).strategy["sharpe"].expect("defined");
            found.low <= truth && truth <= found.high
        });
        let covered = covered.count();
        assert!((86..=100).contains(&covered), "{covered} of 100");
    }

    /// With returns that repeat themselves the mean varies more than single bars would show, and blocks show it.
    #[test]
    fn dependence_widens_intervals() {
        let r: Vec<f64> = draws(9, 100).iter().flat_map(|z| [0.01 * z; 10]).collect();
        let width = |block| {
            let bootstrap = Bootstrap { resamples: 400, block, ..Bootstrap::default() };
            let found = bootstrap.intervals(&r, &r, &[], 252.0).strategy["annual_return"].expect("defined");
            found.high - found.low
        };
        // Ten equal bars in a row: the standard error is the root of 10 times that of single bars.
        assert!(width(None) > 2.0 * width(Some(1.0)), "{} {}", width(None), width(Some(1.0)));
    }

    #[test]
    fn the_same_seed_is_the_same_interval_and_what_is_undefined_has_none() {
        let r: Vec<f64> = draws(2, 120).iter().map(|z| 0.01 * z.abs()).collect();
        let bootstrap = Bootstrap { resamples: 250, ..Bootstrap::default() };
        let one = bootstrap.intervals(&r, &r, &[1.0, 2.0], 252.0);
        assert_eq!(one, bootstrap.intervals(&r, &r, &[1.0, 2.0], 252.0));
        let other = Bootstrap { seed: 2, ..bootstrap }.intervals(&r, &r, &[1.0, 2.0], 252.0);
        assert_ne!(one.strategy["sharpe"], other.strategy["sharpe"]);
        for name in ["sortino", "calmar", "omega", "profit_factor"] {
            assert_eq!(one.strategy[name], None, "{name} of gains alone");
        }
        assert_eq!(one.buy_and_hold["beta"], None, "the benchmark has no benchmark");
        let beta = one.strategy["beta"].unwrap();
        assert!((beta.low - 1.0).abs() < 1e-12 && (beta.high - 1.0).abs() < 1e-12);
        assert!(returns::sharpe(&r, 252.0).is_some());
    }
}
