//! The times at which the file has bars, as a union of intervals, and questions about it.

use super::{DAY_MS, Missing};

/// Half-open interval of milliseconds.
pub(super) type Span = (i64, i64);

/// Sorted disjoint intervals in which bars follow each other at the bar interval.
pub(super) struct Sessions {
    spans: Vec<Span>,
    /// From half an interval before the first bar to half an interval behind the last.
    pub(super) whole: Span,
}

impl Sessions {
    /// The intervals between the runs of missing bars. A bar at t stands for t - interval/2 .. t + interval/2,
    /// so that neighbouring weeks match even when bars are not exactly on a grid.
    pub(super) fn new(times: &[i64], interval: i64, runs: &[Missing]) -> Self {
        let half = interval / 2;
        let whole = (times[0] - half, times[times.len() - 1] + half.max(1));
        let mut spans = Vec::with_capacity(runs.len() + 1);
        let mut start = whole.0;
        for run in runs {
            spans.push((start, run.after_ms + half));
            start = run.before_ms - half;
        }
        spans.push((start, whole.1));
        Self { spans, whole }
    }

    /// Number of the first interval that ends behind t.
    fn behind(&self, t: i64) -> usize {
        self.spans.partition_point(|span| span.1 <= t)
    }

    /// Whether there is a bar around t.
    pub(super) fn is_open(&self, t: i64) -> bool {
        self.spans.get(self.behind(t)).is_some_and(|span| span.0 <= t)
    }

    /// Whether t lies between the file's first and last bar.
    pub(super) fn covers(&self, t: i64) -> bool {
        (self.whole.0..self.whole.1).contains(&t)
    }

    /// All interval ends strictly inside a span.
    pub(super) fn edges(&self, within: Span) -> impl Iterator<Item = i64> + '_ {
        self.spans[self.behind(within.0)..]
            .iter()
            .take_while(move |span| span.0 < within.1)
            .flat_map(|span| [span.0, span.1])
            .filter(move |edge| within.0 < *edge && *edge < within.1)
    }

    /// Whether any bar lies on a Saturday (UTC).
    pub(super) fn on_saturdays(times: &[i64]) -> bool {
        times.iter().any(|&t| super::weekday(t) == 5)
    }

    /// Parts of the day (UTC) in which the file has no bar on any day, each at least `shortest` long.
    pub(super) fn nights(&self, shortest: i64) -> Vec<Span> {
        let mut occupied: Vec<Span> = Vec::with_capacity(self.spans.len());
        for &(start, end) in &self.spans {
            if end - start >= DAY_MS {
                return Vec::new();
            }
            let (from, to) = (start.rem_euclid(DAY_MS), start.rem_euclid(DAY_MS) + (end - start));
            occupied.push((from, to.min(DAY_MS)));
            if to > DAY_MS {
                occupied.push((0, to - DAY_MS));
            }
        }
        occupied.sort_unstable();
        let mut nights = Vec::new();
        let mut free = 0;
        for (from, to) in occupied.into_iter().chain([(DAY_MS, DAY_MS)]) {
            if from - free >= shortest {
                nights.push((free, from));
            }
            free = free.max(to);
        }
        nights
    }
}
