//! What is a closure, what is a gap.

use bars::{Calendar, ClosureKind, LoadOptions, Segment, from_bars};

use crate::{csv_at, load_text};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
/// Monday, 2017-01-02 00:00 UTC.
const MONDAY: i64 = 1_483_315_200_000;

fn infer(times: &[i64]) -> Calendar {
    Calendar::infer("t.csv", times, None).unwrap()
}

/// Bars every `step` in the given minutes-of-week ranges of consecutive weeks.
fn weekly(weeks: i64, step: i64, open: &[(i64, i64)]) -> Vec<i64> {
    let mut times = Vec::new();
    for week in 0..weeks {
        for &(from, to) in open {
            let (from, to) = (MONDAY + week * 7 * DAY + from, MONDAY + week * 7 * DAY + to);
            times.extend((0..).map(|i| from + i * step).take_while(|t| *t < to));
        }
    }
    times
}

/// Currency hours in UTC: Sunday 22:00 to Friday 22:00, hourly.
fn currency(weeks: i64) -> Vec<i64> {
    weekly(weeks, HOUR, &[(0, 4 * DAY + 22 * HOUR), (6 * DAY + 22 * HOUR, 7 * DAY)])
}

/// Equity hours: five days from 14:30 to 21:00, every 15 minutes.
fn equity(weeks: i64) -> Vec<i64> {
    let days: Vec<_> = (0..5).map(|d| (d * DAY + 14 * HOUR + 30 * MINUTE, d * DAY + 21 * HOUR)).collect();
    weekly(weeks, 15 * MINUTE, &days)
}

fn kinds(calendar: &Calendar) -> Vec<ClosureKind> {
    calendar.closures.iter().map(|closure| closure.kind).collect()
}

#[test]
fn weekends_recur() {
    let calendar = infer(&currency(8));
    assert_eq!(calendar.interval_ms, HOUR);
    assert!(calendar.gaps.is_empty());
    assert_eq!(kinds(&calendar), [ClosureKind::Recurring; 8]);
    let patterns = calendar.patterns();
    assert_eq!((patterns.len(), patterns[0].1), (1, 8));
    let pattern = patterns[0].0;
    assert_eq!((pattern.weekday, pattern.start_of_day_ms, pattern.length_ms), (Some(4), 22 * HOUR, 2 * DAY));
    // 120 bars a week are 6261 a year.
    assert!((calendar.bars_per_year - 120.0 / 7.0 * 365.2425).abs() < 40.0, "{}", calendar.bars_per_year);
    assert_eq!(calendar.segments, [Segment { start: 0, end: 960 }]);
}

#[test]
fn a_single_weekend_is_a_weekend_but_not_in_a_market_that_is_open_on_saturdays() {
    let times = currency(2);
    let monday_to_monday = &times[..times.len() - 100];
    assert_eq!(kinds(&infer(monday_to_monday)), [ClosureKind::Recurring]);

    // Hourly round the clock for three weeks, with one weekend missing.
    let all = weekly(3, HOUR, &[(0, 7 * DAY)]);
    let missing = MONDAY + 11 * DAY..MONDAY + 14 * DAY;
    let times: Vec<i64> = all.into_iter().filter(|t| !missing.contains(t)).collect();
    let calendar = infer(&times);
    assert!(calendar.closures.is_empty());
    assert_eq!((calendar.gaps.len(), calendar.gaps[0].bars), (1, 72));
    assert_eq!(calendar.segments.len(), 2);
}

#[test]
fn nights_recur_after_a_few_days() {
    let calendar = infer(&equity(1));
    assert!(calendar.gaps.is_empty(), "{:?}", calendar.gaps);
    assert_eq!(kinds(&calendar), [ClosureKind::Recurring; 4]);
    let calendar = infer(&equity(6));
    assert!(calendar.gaps.is_empty());
    assert_eq!(calendar.closures.len(), 29);
    let patterns = calendar.patterns();
    assert_eq!((patterns[0].1, patterns[1].1), (24, 5), "nights, then weekends");
    assert_eq!(patterns[0].0.weekday, None);
}

#[test]
fn a_hole_in_a_session_is_a_gap() {
    let mut times = currency(8);
    let hole = times.iter().position(|t| *t == MONDAY + 16 * DAY + 9 * HOUR).unwrap();
    times.drain(hole..hole + 5);
    let calendar = infer(&times);
    assert_eq!(calendar.gaps.len(), 1);
    let gap = calendar.gaps[0];
    assert_eq!((gap.after_bar, gap.bars, gap.after_ms), (hole - 1, 5, MONDAY + 16 * DAY + 8 * HOUR));
    assert_eq!(calendar.closures.len(), 8);
    assert_eq!(
        calendar.segments,
        [Segment { start: 0, end: hole }, Segment { start: hole, end: times.len() }]
    );
    // The gap is no time in which bars could have been.
    assert!((calendar.bars_per_year - infer(&currency(8)).bars_per_year).abs() < 15.0);
}

#[test]
fn holidays_and_half_days_extend_closures() {
    let mut times = currency(10);
    // Thursday midnight to Friday midnight: a whole day in the middle of the week.
    let holiday = MONDAY + 24 * DAY..MONDAY + 25 * DAY;
    // Friday afternoon: an early close before the weekend.
    let half = MONDAY + 39 * DAY + 15 * HOUR..MONDAY + 40 * DAY;
    // Fourteen hours on a Wednesday: neither.
    let outage = MONDAY + 51 * DAY + 5 * HOUR..MONDAY + 51 * DAY + 19 * HOUR;
    times.retain(|t| !holiday.contains(t) && !half.contains(t) && !outage.contains(t));
    let calendar = infer(&times);
    let count = |kind| kinds(&calendar).iter().filter(|k| **k == kind).count();
    assert_eq!(count(ClosureKind::Holiday), 1);
    assert_eq!(count(ClosureKind::Extended), 1);
    assert_eq!(count(ClosureKind::Recurring), 9);
    assert_eq!((calendar.gaps.len(), calendar.gaps[0].bars), (1, 14));

    // In a market that never closes a missing day is a gap.
    let all = weekly(5, HOUR, &[(0, 7 * DAY)]);
    let times: Vec<i64> = all.into_iter().filter(|t| !holiday.contains(t)).collect();
    assert_eq!(infer(&times).gaps.len(), 1);
}

#[test]
fn closures_follow_a_change_of_clocks() {
    // From week 10 on everything is an hour earlier in UTC.
    let times: Vec<i64> =
        currency(20).into_iter().map(|t| if t < MONDAY + 67 * DAY { t } else { t - HOUR }).collect();
    let times: Vec<i64> = {
        let mut t = times;
        t.dedup();
        t
    };
    let calendar = infer(&times);
    assert!(calendar.gaps.is_empty(), "{:?}", calendar.gaps);
    assert_eq!(calendar.closures.len(), 20);
    assert!(kinds(&calendar).iter().filter(|kind| **kind == ClosureKind::Recurring).count() >= 19);
}

#[test]
fn daily_bars_have_weekends_and_holidays() {
    let mut times = weekly(30, DAY, &[(0, 5 * DAY)]);
    let gone = [MONDAY + 17 * DAY, MONDAY + 21 * DAY, MONDAY + 22 * DAY];
    times.retain(|t| !gone.contains(t));
    let calendar = infer(&times);
    assert!(calendar.gaps.is_empty(), "{:?}", calendar.gaps);
    let count = |kind| kinds(&calendar).iter().filter(|k| **k == kind).count();
    assert_eq!(count(ClosureKind::Holiday), 1, "a Thursday");
    assert_eq!(count(ClosureKind::Extended), 1, "Monday and Tuesday behind a weekend");
    assert_eq!(count(ClosureKind::Recurring), 28);
    assert!((calendar.bars_per_year - 260.0).abs() < 5.0, "{}", calendar.bars_per_year);
    // Three missing weeks are no holiday.
    times.retain(|t| !(MONDAY + 100 * DAY..MONDAY + 121 * DAY).contains(t));
    assert_eq!(infer(&times).gaps.len(), 1);
}

#[test]
fn weekly_and_monthly_bars_have_no_gaps() {
    let weekly: Vec<i64> = (0..60).map(|i| MONDAY + i * 7 * DAY).collect();
    let calendar = infer(&weekly);
    assert!(calendar.gaps.is_empty() && calendar.closures.is_empty());
    let mut monthly = Vec::new();
    for year in 2010..2016 {
        for month in 1..=12 {
            let date = jiff::civil::date(year, month, 1).to_zoned(jiff::tz::TimeZone::UTC).unwrap();
            monthly.push(date.timestamp().as_millisecond());
        }
    }
    let calendar = infer(&monthly);
    assert_eq!(calendar.interval_ms, 31 * DAY);
    assert!(calendar.gaps.is_empty() && calendar.closures.is_empty() && calendar.short_steps == 0);
    assert!((calendar.bars_per_year - 12.0).abs() < 0.1);
}

#[test]
fn scattered_missing_minutes_stay_gaps() {
    // One minute in seven is missing, by a rule that does not repeat by day or week.
    let times: Vec<i64> = (0..20_000_i64)
        .filter(|i| (i * i * 31 + i * 17) % 1009 % 7 != 0)
        .map(|i| MONDAY + i * MINUTE)
        .collect();
    let calendar = infer(&times);
    assert!(calendar.closures.is_empty());
    assert_eq!(calendar.missing() as usize + times.len(), 20_000 - usize::from(times[0] != MONDAY));
    let loaded = load_text(&csv_at(&times)).unwrap();
    let warnings = loaded.report.warnings().join("\n");
    assert!(warnings.contains("of the expected bars are missing"), "{warnings}");
}

#[test]
fn absurd_steps_are_judged_without_listing_every_missing_bar() {
    // A millisecond, then 300 years.
    let times = [-2_208_988_800_000, -2_208_988_799_999, -2_208_988_799_998, 7_258_118_399_999];
    let calendar = infer(&times);
    assert_eq!(calendar.gaps.len(), 1);
    assert_eq!(calendar.gaps[0].bars, (times[3] - times[2]) as u64 - 1);
}

#[test]
fn the_interval_can_be_given_and_short_steps_are_reported() {
    let mut times: Vec<i64> = (0..100).map(|i| MONDAY + i * HOUR).collect();
    times.push(times[99] + MINUTE);
    let loaded = load_text(&csv_at(&times)).unwrap();
    assert_eq!((loaded.calendar.interval_ms, loaded.calendar.short_steps), (HOUR, 1));
    assert!(loaded.report.to_string().contains("1 step(s) shorter than half an interval"));
    let options = LoadOptions { interval_ms: Some(30 * MINUTE), ..LoadOptions::default() };
    let loaded = from_bars("t", loaded.bars, &options).unwrap();
    // Every other half hour is missing then: in the middle of the file as part of the day that never has a
    // bar, at its ends as gaps.
    assert_eq!(loaded.calendar.closures.len() + loaded.calendar.gaps.len(), 99);
    assert_eq!(loaded.calendar.regular, 0.0);
}
