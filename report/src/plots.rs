//! The plots of a run, each from what its files hold.

mod training;

use crate::course::{Course, by_symbol, milliseconds};
use crate::plot::{Plot, Scale, Series, Style, thinned};
use crate::run::{Part, RunData};
use crate::tables::TradeLine;

pub use training::{beliefs, training};

/// Points of a curve: more cannot be told apart on a page.
const POINTS: usize = 1200;

/// Markers of fills: with more of them a price cannot be seen.
const MARKERS: usize = 240;

/// Symbols whose fills are drawn.
const SYMBOLS: usize = 8;

/// Plots of the whole backtest: of the one part, or of all folds' parts one behind the other.
pub fn backtest(run: &RunData) -> Vec<Plot> {
    let chained;
    let course = match run.parts.as_slice() {
        [] => return Vec::new(),
        [part] => &part.course,
        parts => {
            chained = Course::chained(&parts.iter().map(|part| part.course.clone()).collect::<Vec<_>>());
            &chained
        }
    };
    if course.times_ms.len() < 2 {
        return Vec::new();
    }
    let mut plots = equity_and_drawdown(course, "");
    plots.push(timed(
        "exposure",
        "Exposure",
        "Position over equity at the closes: 100% is all of it, below zero is short.",
        "exposure, %",
        vec![Series {
            style: Style::Thin,
            ..Series::line("exposure", 0, over_time(course, |bar| 100.0 * course.strategy.exposure[bar]))
        }],
    ));
    let start = course.strategy.equity[0];
    let paid = |cost: usize| over_time(course, |bar| 100.0 * course.paid[cost][bar] / start);
    plots.push(timed(
        "costs",
        "Costs",
        "Paid so far, in percent of the start equity; spread, slippage and impact are in the fill prices and not here.",
        "paid so far, %",
        vec![
            Series::line("fees", 0, paid(0)),
            Series::line("financing", 1, paid(1)),
            Series::line("borrow", 3, paid(2)),
        ],
    ));
    plots.extend(trades(run));
    if let [only] = run.parts.as_slice() {
        plots.extend(fills(only, ""));
    }
    plots
}

/// Plots of one fold's test part.
pub fn fold(part: &Part) -> Vec<Plot> {
    let id = part.fold.map_or_else(String::new, |fold| format!("-fold-{fold:02}"));
    if part.course.times_ms.len() < 2 {
        return Vec::new();
    }
    let mut plots = equity_and_drawdown(&part.course, &id);
    plots.extend(fills(part, &id));
    plots
}

fn equity_and_drawdown(course: &Course, id: &str) -> Vec<Plot> {
    let growth = |equity: &[f64]| over_time(course, |bar| 100.0 * (equity[bar + 1] / equity[0] - 1.0));
    let under_water = |equity: &[f64]| {
        let mut peak = equity[0];
        let below = |bar: usize| {
            peak = equity[bar + 1].max(peak);
            -100.0 * (1.0 - equity[bar + 1] / peak)
        };
        over_time(course, below)
    };
    let (strategy, holding) = (&course.strategy.equity[..], &course.holding.equity[..]);
    vec![
        timed(
            &format!("equity{id}"),
            "Equity",
            "Growth since the start of the test part, all costs paid, marked at the closes.",
            "growth, %",
            vec![
                Series::line("buy-and-hold", 7, growth(holding)),
                Series::line("strategy", 0, growth(strategy)),
            ],
        ),
        timed(
            &format!("drawdown{id}"),
            "Drawdown",
            "Distance from the highest equity so far; the start equity is the first peak.",
            "below the peak, %",
            vec![
                Series::line("buy-and-hold", 7, under_water(holding)),
                Series { style: Style::Area, ..Series::line("strategy", 0, under_water(strategy)) },
            ],
        ),
    ]
}

/// Prices and fills, a plot for each symbol.
fn fills(part: &Part, id: &str) -> Vec<Plot> {
    let symbols: Vec<_> = by_symbol(&part.bars).collect();
    let several = symbols.len() > 1;
    let of_symbol = |(number, bars): (usize, &&[crate::tables::BarLine])| {
        let at = |bar: &crate::tables::BarLine| seconds(milliseconds(&bar.time));
        let side = |sign: f64| -> Vec<(f64, f64)> {
            let filled: Vec<_> = bars.iter().filter(|bar| bar.quantity * sign > 0.0).collect();
            let every = filled.len().div_ceil(MARKERS).max(1);
            filled.iter().step_by(every).map(|bar| (at(bar), bar.price.unwrap_or(bar.close))).collect()
        };
        let (buys, sells) = (side(1.0), side(-1.0));
        let filled = bars.iter().filter(|bar| bar.quantity != 0.0).count();
        let shown = match buys.len() + sells.len() {
            all if all == filled => String::new(),
            some => format!(", {some} of {filled} shown"),
        };
        let close: Vec<_> = bars.iter().map(|bar| (at(bar), bar.close)).collect();
        timed(
            &if several { format!("fills-{number}{id}") } else { format!("fills{id}") },
            &if several { format!("Fills, {}", bars[0].symbol) } else { "Fills".into() },
            &format!("Mid close, and the price of each fill with its price costs{shown}."),
            "price",
            [
                Series { style: Style::Thin, ..Series::line("close", 7, thinned(&close, POINTS)) },
                Series { style: Style::Up, ..Series::line("buy", 2, buys) },
                Series { style: Style::Down, ..Series::line("sell", 3, sells) },
            ]
            .into_iter()
            .filter(|series| !series.points.is_empty())
            .collect(),
        )
    };
    symbols.iter().enumerate().take(SYMBOLS).filter(|(_, bars)| bars.len() > 1).map(of_symbol).collect()
}

/// Profits of the closed trades, added up in the order of closing; folds one behind the other.
fn trades(run: &RunData) -> Option<Plot> {
    let start = run.parts.first()?.course.strategy.equity[0];
    let mut closed: Vec<&TradeLine> = run.parts.iter().flat_map(|part| &part.trades).collect();
    closed.sort_by_key(|trade| milliseconds(&trade.closed));
    let mut sum = 0.0;
    let mut add = |profit: f64| {
        sum += profit;
        100.0 * sum / start
    };
    let points: Vec<_> = closed.iter().enumerate().map(|(i, t)| ((i + 1) as f64, add(t.profit))).collect();
    (points.len() > 1).then(|| Plot {
        id: "trades".into(),
        title: "Closed trades".into(),
        note: "Profits after fees, added up in the order of closing.".into(),
        x: "closed trade".into(),
        y: "profit so far, % of start".into(),
        series: vec![Series::line("profit", 0, thinned(&points, POINTS))],
        ..Plot::default()
    })
}

/// A plot over time.
fn timed(id: &str, title: &str, note: &str, y: &str, series: Vec<Series>) -> Plot {
    Plot {
        id: id.into(),
        title: title.into(),
        note: note.into(),
        x: "time (UTC)".into(),
        x_scale: Scale::Time,
        y: y.into(),
        series,
        ..Plot::default()
    }
}

/// A value at each bar of a course.
fn over_time(course: &Course, mut value: impl FnMut(usize) -> f64) -> Vec<(f64, f64)> {
    let points: Vec<_> =
        course.times_ms.iter().enumerate().map(|(bar, time)| (seconds(*time), value(bar))).collect();
    thinned(&points, POINTS)
}

fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}
