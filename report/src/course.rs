//! A backtest over time, made of its table of bars: of one symbol, of a portfolio of several, of folds one behind the other.

use backtest::Track;
use jiff::Timestamp;

use crate::tables::BarLine;

/// Equity, exposure and costs at the closes of all bars.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// Opening times of the bars, epoch milliseconds UTC, `[bars]`.
    pub times_ms: Vec<i64>,
    /// The strategy; of its track the equity and the exposure alone.
    pub strategy: Track,
    /// Buy-and-hold, its equity alone.
    pub holding: Track,
    /// Fees, financing and borrow paid up to each close, money of the course, `[bars]`.
    pub paid: [Vec<f64>; 3],
}

impl Course {
    /// Of the lines of one table, one symbol behind the other; every symbol's account began with `start`.
    pub fn new(lines: &[BarLine], start: f64) -> Self {
        let symbols: Vec<Self> = by_symbol(lines).map(|lines| Self::of_symbol(lines, start)).collect();
        match <[Self; 1]>::try_from(symbols) {
            Ok([only]) => only,
            Err(several) => Self::side_by_side(&several),
        }
    }

    fn of_symbol(lines: &[BarLine], start: f64) -> Self {
        let track = |equity: fn(&BarLine) -> f64, exposure: fn(&BarLine) -> f64| Track {
            equity: std::iter::once(start).chain(lines.iter().map(equity)).collect(),
            exposure: lines.iter().map(exposure).collect(),
            ..Track::default()
        };
        Self {
            times_ms: lines.iter().map(|line| milliseconds(&line.time)).collect(),
            strategy: track(|line| line.equity, |line| line.exposure),
            holding: track(|line| line.buy_and_hold, |_| 0.0),
            paid: [|line: &BarLine| line.fee, |line: &BarLine| line.financing, |line: &BarLine| line.borrow]
                .map(|cost| {
                    let mut sum = 0.0;
                    let add = |line| {
                        sum += cost(line);
                        sum
                    };
                    lines.iter().map(add).collect()
                }),
        }
    }

    /// Each account stays at its last close where its symbol has no bar.
    fn side_by_side(symbols: &[Self]) -> Self {
        let together = |track: fn(&Self) -> &Track| {
            let tracks: Vec<(&[i64], &Track)> =
                symbols.iter().map(|course| (&course.times_ms[..], track(course))).collect();
            Track::side_by_side(&tracks)
        };
        let (times_ms, strategy) = together(|course| &course.strategy);
        let holding = together(|course| &course.holding).1;
        let paid = [0, 1, 2].map(|cost| {
            let until = |time: &i64| {
                let of_symbol = |course: &Self| {
                    let bars = course.times_ms.partition_point(|own| own <= time);
                    bars.checked_sub(1).map_or(0.0, |bar| course.paid[cost][bar])
                };
                symbols.iter().map(of_symbol).sum()
            };
            times_ms.iter().map(until).collect()
        });
        Self { times_ms, strategy, holding, paid }
    }

    /// Folds one behind the other, as if each began with the equity that the one before ended with (`docs/METRICS.md`).
    pub fn chained(folds: &[Self]) -> Self {
        let chain = |track: fn(&Self) -> &Track| {
            Track::chained(&folds.iter().map(|fold| track(fold).clone()).collect::<Vec<_>>())
        };
        let (strategy, holding) = (chain(|fold| &fold.strategy), chain(|fold| &fold.holding));
        let mut paid: [Vec<f64>; 3] = Default::default();
        for fold in folds {
            let before = strategy.equity[paid[0].len()];
            let scale = (before / fold.strategy.equity[0]).max(0.0);
            for (all, own) in paid.iter_mut().zip(&fold.paid) {
                let sum = all.last().copied().unwrap_or(0.0);
                all.extend(own.iter().map(|paid| sum + scale * paid));
            }
        }
        let times_ms = folds.iter().flat_map(|fold| fold.times_ms.iter().copied()).collect();
        Self { times_ms, strategy, holding, paid }
    }
}

/// The lines of each symbol.
pub fn by_symbol(lines: &[BarLine]) -> impl Iterator<Item = &[BarLine]> {
    lines.chunk_by(|a, b| a.symbol == b.symbol)
}

/// Epoch milliseconds of a table's time; a time that is none lies at the beginning of 1970.
pub fn milliseconds(time: &str) -> i64 {
    time.parse::<Timestamp>().map_or(0, |time| time.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{BARS, Passed};

    #[test]
    fn a_portfolio_is_the_sum_of_its_accounts() {
        let (a, b) = (Passed::new("A", 0), Passed::new("B", 100));
        let lines = [a.pass().bars(), b.pass().bars()].concat();
        let course = Course::new(&lines, 100_000.0);
        assert_eq!(course.times_ms.len(), BARS + 100);
        let equity = &course.strategy.equity;
        assert_eq!(equity.len(), BARS + 101);
        assert_eq!(equity[0], 200_000.0);
        // Before the second symbol's first bar its account stands still; behind the first one's last bar that one does.
        assert_eq!(equity[60], a.strategy.equity[60] + 100_000.0);
        assert_eq!(equity[150], a.strategy.equity[150] + b.strategy.equity[50]);
        assert_eq!(equity[BARS + 100], a.strategy.equity[BARS] + b.strategy.equity[BARS]);
        let fees = course.paid[0].last().unwrap();
        assert!((fees - a.strategy.fees - b.strategy.fees).abs() < 1e-9, "{fees}");
        assert!(course.paid[0].windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn folds_go_on_with_what_the_one_before_left() {
        let folds = [Passed::new("A", 0), Passed::new("A", BARS)];
        let courses = folds.each_ref().map(|fold| Course::new(&fold.pass().bars(), 100_000.0));
        let chain = Course::chained(&courses);
        assert_eq!((chain.times_ms.len(), chain.paid[0].len()), (2 * BARS, 2 * BARS));
        assert!(chain.times_ms.windows(2).all(|pair| pair[0] < pair[1]));
        let growth = folds[0].strategy.equity[BARS] / 100_000.0;
        let expected = growth * folds[1].strategy.equity[BARS];
        assert!((chain.strategy.equity[2 * BARS] - expected).abs() < 1e-6);
        let fees = folds[0].strategy.fees + growth * folds[1].strategy.fees;
        assert!((chain.paid[0][2 * BARS - 1] - fees).abs() < 1e-9);
    }
}
