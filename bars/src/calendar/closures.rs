//! Which runs of missing bars are the market's calendar.

use super::sessions::{Sessions, Span};
use super::{Closure, DAY_MS, Missing, weekday};

const WEEK_MS: i64 = 7 * DAY_MS;
const HOUR_MS: i64 = 3_600_000;
/// Neighbouring weeks that are asked on each side.
const WEEKS: i64 = 4;
/// Shortest closure: an exchange's settlement break. Shorter coincidences of missing minutes are no calendar.
const SHORTEST_MS: i64 = 15 * 60_000;
/// Longest closure (the longest holidays of the last decades closed exchanges for eleven days).
const LONGEST_MS: i64 = 12 * DAY_MS;
/// A whole day that is missing, with an hour's allowance for a change of clocks.
const WHOLE_DAY_MS: i64 = DAY_MS - HOUR_MS;

/// Why a run of missing bars is a closure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClosureKind {
    /// All of it is missing in the neighbouring weeks too, or on every other day, or it is a weekend.
    Recurring,
    /// A recurring closure that began early or ended late: half-day, holiday beside a night or weekend.
    Extended,
    /// A whole day without any bar, in a market that has recurring closures.
    Holiday,
}

/// Divides the runs of missing bars into closures and gaps.
pub(super) fn divide(times: &[i64], interval: i64, runs: Vec<Missing>) -> (Vec<Closure>, Vec<Missing>) {
    let sessions = Sessions::new(times, interval, &runs);
    let shortest = SHORTEST_MS.max(interval);
    let nights = if interval < DAY_MS { sessions.nights(shortest) } else { Vec::new() };
    let rules = Rules { sessions, nights, shortest, weekends: !Sessions::on_saturdays(times) };
    let judged: Vec<(Missing, Option<ClosureKind>)> =
        runs.into_iter().map(|run| (run, rules.judge(run, interval))).collect();
    let has_closures = judged.iter().any(|(_, kind)| *kind == Some(ClosureKind::Recurring));
    let (mut closures, mut gaps) = (Vec::new(), Vec::new());
    for (run, kind) in judged {
        let missing_ms = i64::try_from(run.bars).unwrap_or(i64::MAX).saturating_mul(interval);
        let whole_day = has_closures && (WHOLE_DAY_MS..=LONGEST_MS).contains(&missing_ms);
        match kind.or(whole_day.then_some(ClosureKind::Holiday)) {
            Some(kind) => closures.push(Closure { run, kind }),
            None => gaps.push(run),
        }
    }
    (closures, gaps)
}

struct Rules {
    sessions: Sessions,
    /// Parts of the day that never have a bar.
    nights: Vec<Span>,
    shortest: i64,
    /// Whether the file has no bar on any Saturday.
    weekends: bool,
}

impl Rules {
    /// Recurring, Extended, or neither.
    fn judge(&self, run: Missing, interval: i64) -> Option<ClosureKind> {
        let half = interval / 2;
        let span = (run.after_ms + half, run.before_ms - half);
        if span.1 - span.0 > LONGEST_MS {
            return None;
        }
        // Cut the run wherever an answer may change, then ask in the middle of each piece.
        let mut edges = vec![span.0, span.1];
        for week in (-WEEKS..=WEEKS).filter(|week| *week != 0) {
            let shift = week * WEEK_MS;
            edges.extend(self.sessions.edges((span.0 + shift, span.1 + shift)).map(|edge| edge - shift));
            let bounds = [self.sessions.whole.0 - shift, self.sessions.whole.1 - shift];
            edges.extend(bounds.into_iter().filter(|edge| span.0 < *edge && *edge < span.1));
        }
        let days = span.0.div_euclid(DAY_MS)..=span.1.div_euclid(DAY_MS);
        for day in days.clone() {
            let ends = self.nights.iter().flat_map(|night| [night.0, night.1]);
            edges.extend(ends.map(|end| end + day * DAY_MS).filter(|edge| span.0 < *edge && *edge < span.1));
        }
        let weekend = self.weekend(span);
        edges.extend(weekend.into_iter().flat_map(|(from, to)| [from, to]));
        edges.sort_unstable();
        edges.dedup();

        // Adjacent pieces of one answer count as one.
        let (mut recurring, mut current) = (0, 0);
        for piece in edges.windows(2) {
            let middle = piece[0] + (piece[1] - piece[0]) / 2;
            let in_weekend = weekend.is_some_and(|(from, to)| from <= middle && middle < to);
            let recurs = self.weekly(middle).unwrap_or(in_weekend);
            if recurs || self.nightly(middle) {
                current += piece[1] - piece[0];
            } else {
                recurring += if current >= self.shortest { current } else { 0 };
                current = 0;
            }
        }
        recurring += if current >= self.shortest { current } else { 0 };
        match span.1 - span.0 - recurring {
            _ if recurring == 0 => None,
            unexpected if unexpected <= half => Some(ClosureKind::Recurring),
            _ => Some(ClosureKind::Extended),
        }
    }

    /// Missing in the same hour of neighbouring weeks; None if the file has no neighbouring week. One side
    /// suffices, so that a change of clocks, after which closures move by an hour, is followed at once; a
    /// week with a bar among four is tolerated.
    fn weekly(&self, t: i64) -> Option<bool> {
        let (mut asked, mut closed) = ([0; 2], [0; 2]);
        for week in (-WEEKS..=WEEKS).filter(|week| *week != 0) {
            let other = t + week * WEEK_MS;
            if self.sessions.covers(other) {
                let side = usize::from(week > 0);
                asked[side] += 1;
                closed[side] += i64::from(!self.sessions.is_open(other));
            }
        }
        let one_side =
            (0..2).any(|side| asked[side] >= 2 && closed[side] >= asked[side] - asked[side] / WEEKS);
        // In a file of two or three weeks both sides together must agree.
        let few = asked[0] + asked[1];
        (few > 0).then_some(one_side || (few < WEEKS && closed[0] + closed[1] == few))
    }

    /// In a part of the day that never has a bar, seen on at least one other day.
    fn nightly(&self, t: i64) -> bool {
        let of_day = t.rem_euclid(DAY_MS);
        let at = self.nights.partition_point(|night| night.1 <= of_day);
        self.nights.get(at).is_some_and(|night| night.0 <= of_day)
            && [t - DAY_MS, t + DAY_MS].into_iter().any(|other| self.sessions.covers(other))
    }

    /// The weekend inside a run, for files too short to show that it recurs: if it contains a whole Saturday and the file has no bar on any Saturday,
    /// what lies between Friday noon and Monday noon.
    fn weekend(&self, span: Span) -> Option<Span> {
        if !self.weekends {
            return None;
        }
        let first = span.0.div_euclid(DAY_MS) * DAY_MS;
        let midnights = (0..=LONGEST_MS / DAY_MS + 1).map(|day| first + day * DAY_MS);
        let saturday = midnights
            .filter(|midnight| span.0 <= *midnight && midnight + DAY_MS <= span.1)
            .find(|midnight| weekday(*midnight) == 5)?;
        let noon = DAY_MS / 2;
        Some((span.0.max(saturday - noon), span.1.min(saturday + 2 * DAY_MS + noon)))
    }
}
