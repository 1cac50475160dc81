//! What makes a decision at the newest bar doubtful.

use bars::{Loaded, utc_text};

use crate::train::market::MarketRecord;

/// What makes the decision doubtful: `window` are the normalised bar features that the state holds.
pub(super) fn notes(
    (record, bars_of_window): (&MarketRecord, usize),
    loaded: &Loaded,
    window: &[f32],
    now_ms: i64,
) -> Vec<String> {
    let (bars, calendar) = (&loaded.bars, &loaded.calendar);
    let (newest, t) = (loaded.report.last_ms, bars.len() - 1);
    let mut notes = Vec::new();
    // A bar is named by its begin: two intervals later the next one should be there.
    let late = now_ms.saturating_sub(newest);
    if late > 2 * calendar.interval_ms {
        let closes = if calendar.closures.is_empty() { "" } else { ", unless the market is closed" };
        notes.push(format!(
            "stale: the newest bar began {} ago, {:.0} bar intervals{closes}",
            duration(late),
            late as f64 / calendar.interval_ms as f64
        ));
    } else if late < 0 {
        notes.push(format!("the newest bar begins {} from now: is its time zone right?", duration(-late)));
    }
    if let Some(gap) = calendar.gaps.last() {
        notes.push(format!(
            "{} gap(s) in the file; the latest: {} bar(s) missing behind {} UTC, {} bars before the newest",
            calendar.gaps.len(),
            gap.bars,
            utc_text(gap.after_ms),
            t - gap.after_bar
        ));
    }
    let recent = bars.len().saturating_sub(bars_of_window)..bars.len();
    let silent = recent.filter(|&i| bars.has_volume && bars.volume[i] == 0.0).count();
    if silent > 0 {
        notes.push(format!("{silent} bar(s) of the window have no volume"));
    }
    let clip = record.fitted.normaliser.clip as f32;
    let clipped = window.iter().filter(|x| x.abs() >= clip).count();
    if clipped > 0 {
        notes.push(format!(
            "{clipped} feature(s) of the window are {clip} or more standard deviations from the training's mean"
        ));
    }
    let hash = format!("{:016x}", bars.content_hash());
    if let Some(own) = record.symbols.iter().find(|symbol| symbol.bars_hash == hash) {
        for (name, part) in own.fold.parts() {
            if part.contains(&t) || (name == "train" && t <= part.end) {
                notes.push(format!("the newest bar belongs to the {name} part of the policy's own bars"));
            }
        }
    }
    notes
}

/// `3 d 4 h`, `12 min`, `5 s`: the two largest units.
fn duration(ms: i64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")];
    let mut rest = ms;
    let mut parts = Vec::new();
    for (unit, name) in units {
        if rest >= unit && parts.len() < 2 {
            parts.push(format!("{} {name}", rest / unit));
        }
        rest %= unit;
    }
    if parts.is_empty() { "0 ms".into() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(3 * 86_400_000 + 3_600_000 * 4 + 5), "3 d 4 h");
        assert_eq!((duration(61_000), duration(0)), ("1 min 1 s".into(), "0 ms".into()));
    }
}
