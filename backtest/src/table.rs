//! A report as text: the lines of its table, for a terminal and for a page.

use std::fmt;

use crate::{Confidence, Interval, Intervals, Metrics, Report};

/// How a number is written.
#[derive(Clone, Copy)]
enum Unit {
    Percent,
    Number,
    Money,
}

/// One line: a quantity of the strategy and of buy-and-hold, each with its interval where it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Name of the quantity.
    pub name: &'static str,
    /// The strategy's.
    pub strategy: String,
    /// Its interval; empty without one.
    pub strategy_interval: String,
    /// Buy-and-hold's.
    pub holding: String,
    /// Its interval; empty without one.
    pub holding_interval: String,
}

/// All lines of a report, in reading order.
pub fn lines(report: &Report) -> Vec<Line> {
    use Unit::{Money, Number, Percent};
    let mut table = Table { report, lines: Vec::new() };
    table.number("total return", "", Percent, |m| Some(m.total_return));
    table.number("CAGR", "cagr", Percent, |m| m.cagr);
    table.number("annualised return", "annual_return", Percent, |m| m.annual_return);
    table.number("annualised volatility", "annual_volatility", Percent, |m| m.annual_volatility);
    table.number("Sharpe ratio", "sharpe", Number, |m| m.sharpe);
    if let Some(deflated) = &report.deflated {
        table.of_strategy("  policies compared", deflated.trials.to_string());
        table.of_strategy("  Sharpe ratio of the luckiest", Number.write(deflated.threshold));
        table.of_strategy("  deflated: probability of more", Percent.write(deflated.probability));
    }
    table.number("Sortino ratio", "sortino", Number, |m| m.sortino);
    table.number("Calmar ratio", "calmar", Number, |m| m.calmar);
    table.number("Omega ratio", "omega", Number, |m| m.omega);
    table.number("alpha a year", "alpha", Percent, |m| m.alpha);
    table.number("beta", "beta", Number, |m| m.beta);
    table.number("max drawdown", "max_drawdown", Percent, |m| Some(m.max_drawdown.relative));
    table.text("max drawdown, bars", |m| {
        let open = m.max_drawdown.relative > 0.0 && m.max_drawdown.recovery.is_none();
        format!("{}{}", m.max_drawdown.bars, if open { " (open)" } else { "" })
    });
    table.number("average drawdown", "", Percent, |m| m.drawdowns.average);
    table.text("average drawdown, bars", |m| {
        m.drawdowns.average_bars.map_or_else(|| UNDEFINED.to_owned(), |bars| format!("{bars:.1}"))
    });
    table.text("longest drawdown, bars", |m| m.drawdowns.longest.to_string());
    table.number("time in the market", "", Percent, |m| Some(m.exposed));
    table.number("average exposure", "", Percent, |m| Some(m.average_exposure));
    table.number("average gross exposure", "", Percent, |m| Some(m.average_gross_exposure));
    table.number("turnover per year", "", Money, |m| Some(m.turnover));
    table.text("filled orders", |m| m.fills.to_string());
    table.text("closed trades", |m| m.trades.to_string());
    table.number("win rate", "win_rate", Percent, |m| m.win_rate);
    table.number("profit factor", "profit_factor", Number, |m| m.profit_factor);
    table.number("expectancy per trade", "expectancy", Money, |m| m.expectancy);
    table.number("fees paid", "", Money, |m| Some(m.fees));
    table.number("financing paid", "", Money, |m| Some(m.financing));
    table.number("borrow paid", "", Money, |m| Some(m.borrow));
    table.number("start equity", "", Money, |m| Some(m.start_equity));
    table.number("end equity", "", Money, |m| Some(m.end_equity));
    table.lines
}

/// Lines under construction.
struct Table<'a> {
    report: &'a Report,
    lines: Vec<Line>,
}

impl Table<'_> {
    /// A number, with its interval where there is one under `key`.
    fn number(&mut self, name: &'static str, key: &str, unit: Unit, value: fn(&Metrics) -> Option<f64>) {
        let interval = |of: fn(&Confidence) -> &Intervals| {
            let intervals = self.report.confidence.as_ref().map(of);
            match intervals.and_then(|intervals| intervals.get(key)) {
                Some(Some(interval)) => unit.interval(*interval),
                _ => String::new(),
            }
        };
        self.lines.push(Line {
            name,
            strategy: unit.write(value(&self.report.strategy)),
            strategy_interval: interval(|c| &c.strategy),
            holding: unit.write(value(&self.report.buy_and_hold)),
            holding_interval: interval(|c| &c.buy_and_hold),
        });
    }

    fn text(&mut self, name: &'static str, text: fn(&Metrics) -> String) {
        let (strategy, holding) = (text(&self.report.strategy), text(&self.report.buy_and_hold));
        self.lines.push(Line { name, strategy, holding, ..Line::default() });
    }

    /// A line that buy-and-hold has nothing to say to.
    fn of_strategy(&mut self, name: &'static str, strategy: String) {
        self.lines.push(Line { name, strategy, ..Line::default() });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} bars, {:.0} a year", self.strategy.bars, self.bars_per_year);
        let interval = match &self.confidence {
            Some(c) => format!("{:.0}% interval", 100.0 * c.level),
            None => String::new(),
        };
        let heads = [title, "strategy".to_owned(), interval.clone(), "buy-and-hold".to_owned(), interval];
        let mut rows = vec![heads];
        rows.extend(
            lines(self)
                .into_iter()
                .map(|l| [l.name.to_owned(), l.strategy, l.strategy_interval, l.holding, l.holding_interval]),
        );
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..5).map(width).collect();
        for row in &rows {
            write!(f, "{:<1$}", row[0], widths[0])?;
            for (text, width) in row.iter().zip(&widths).skip(1).filter(|(_, width)| **width > 0) {
                write!(f, "  {text:>width$}")?;
            }
            writeln!(f)?;
        }
        if let Some(c) = &self.confidence {
            writeln!(
                f,
                "intervals: stationary bootstrap, {} resamples, blocks of {:.1} bars and {:.1} trades on average",
                c.resamples, c.block, c.trade_block
            )?;
        }
        Ok(())
    }
}

/// How an undefined number is written.
const UNDEFINED: &str = "undefined";

impl Unit {
    fn write(self, value: Option<f64>) -> String {
        value.map_or_else(|| UNDEFINED.to_owned(), |v| self.defined(v))
    }

    fn defined(self, value: f64) -> String {
        match self {
            Self::Percent => format!("{:.2}%", 100.0 * value),
            Self::Number => format!("{value:.3}"),
            Self::Money => format!("{value:.2}"),
        }
    }

    fn interval(self, interval: Interval) -> String {
        format!("[{}, {}]", self.defined(interval.low), self.defined(interval.high))
    }
}
