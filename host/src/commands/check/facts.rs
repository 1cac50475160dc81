//! A report for programs.

use bars::{ClosureKind, Report, utc_text};
use serde_json::{Value, json};

/// A report as JSON.
pub(super) fn facts(report: &Report) -> Value {
    let calendar = &report.calendar;
    let count = |kind| calendar.closures.iter().filter(|closure| closure.kind == kind).count();
    let patterns: Vec<Value> = calendar
        .patterns()
        .into_iter()
        .map(|(pattern, times)| {
            json!({
                "weekday": pattern.weekday,
                "start_of_day_ms": pattern.start_of_day_ms,
                "length_ms": pattern.length_ms,
                "times": times,
            })
        })
        .collect();
    let missing = |run: &bars::Missing| json!({ "after": utc_text(run.after_ms), "before": utc_text(run.before_ms), "bars": run.bars });
    let holidays = calendar.closures.iter().filter(|closure| closure.kind == ClosureKind::Holiday);
    let dropped = report.repaired.dropped.iter().map(|(problem, dropped)| {
        let first: Vec<String> = dropped.examples.iter().map(ToString::to_string).collect();
        json!({ "problem": problem.text(), "rows": dropped.count, "first": first })
    });
    json!({
        "rows": report.rows,
        "bars": report.bars,
        "first": utc_text(report.first_ms),
        "last": utc_text(report.last_ms),
        "interval_ms": calendar.interval_ms,
        "regular_steps": calendar.regular,
        "short_steps": calendar.short_steps,
        "bars_per_year": calendar.bars_per_year,
        "closures": {
            "recurring": count(ClosureKind::Recurring),
            "extended": count(ClosureKind::Extended),
            "holidays": holidays.map(|closure| missing(&closure.run)).collect::<Vec<_>>(),
            "patterns": patterns,
        },
        "gaps": calendar.gaps.iter().map(missing).collect::<Vec<_>>(),
        "missing_bars": calendar.missing(),
        "segments": calendar.segments.len(),
        "has_volume": report.has_volume,
        "zero_volume": report.zero_volume,
        "repaired": {
            "dropped": dropped.collect::<Vec<_>>(),
            "widened": report.repaired.widened,
            "sorted": report.repaired.out_of_order,
            "filled": report.repaired.filled,
        },
        "warnings": report.warnings(),
        "file_hash": report.file_hash.map(|hash| format!("{hash:016x}")),
        "bars_hash": format!("{:016x}", report.content_hash),
    })
}
