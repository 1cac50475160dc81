//! A backtest bar by bar and trade by trade, as CSV.
//!
//! `NAME-bars.csv` has a row for every bar of the pass, `NAME-trades.csv` one for every closed trade. Money is in the
//! quote currency, times are UTC, fractions are fractions and not percent. Numbers are written so that they read back to
//! the same bits.

use std::path::{Path, PathBuf};

use backtest::{Track, trades};
use gpu::action::branch;
use gpu::market::LogRow;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ReportError;

/// One bar: the one in which the order was executed that was decided at the close before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BarLine {
    /// The symbol.
    pub symbol: String,
    /// Opening time of the bar, ISO 8601.
    pub time: String,
    /// Index of the bar among the symbol's, from 0.
    pub bar: usize,
    /// Mid close.
    pub close: f64,
    /// The decision, one number per branch, as in `8-0-2`; empty where none was possible (a gap).
    pub action: String,
    /// Whether an order was sent.
    pub ordered: bool,
    /// Units bought, negative when sold; 0 without a fill.
    pub quantity: f64,
    /// Price of the fill, price costs included; empty without one.
    pub price: Option<f64>,
    /// Fee paid.
    pub fee: f64,
    /// Interest paid on borrowed cash.
    pub financing: f64,
    /// Paid for borrowed units.
    pub borrow: f64,
    /// Position at the close in units.
    pub units: f64,
    /// Position at the close as a fraction of the equity.
    pub exposure: f64,
    /// Equity at the close.
    pub equity: f64,
    /// 1 - equity / highest equity so far.
    pub drawdown: f64,
    /// Reward of the environment.
    pub reward: f64,
    /// Equity of buy-and-hold at the close.
    pub buy_and_hold: f64,
}

/// One closed trade.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TradeLine {
    /// The symbol.
    pub symbol: String,
    /// Opening time of the bar that opened the position.
    pub opened: String,
    /// Opening time of the bar that closed these units.
    pub closed: String,
    /// Bars between the two.
    pub bars: usize,
    /// `long` or `short`.
    pub side: String,
    /// Units, negative for a short trade.
    pub quantity: f64,
    /// Average entry price.
    pub entry: f64,
    /// Exit price.
    pub exit: f64,
    /// Fees of both sides.
    pub fees: f64,
    /// Profit after fees.
    pub profit: f64,
    /// Profit over the notional at entry.
    pub profit_fraction: f64,
}

/// A pass over the bars of one symbol.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The symbol.
    pub symbol: &'a str,
    /// Rows of the backtest.
    pub rows: &'a [LogRow],
    /// The track made of them.
    pub strategy: &'a Track,
    /// Buy-and-hold on the same bars.
    pub holding: &'a Track,
    /// Opening times of the bars that the rows name, epoch milliseconds UTC.
    pub time_ms: &'a [i64],
    /// The symbol's first bar among them.
    pub first: usize,
    /// Number of branches of an action.
    pub branches: usize,
}

impl Pass<'_> {
    fn time(&self, row: usize) -> String {
        let ms = self.rows.get(row).and_then(|row| self.time_ms.get(row.bar as usize));
        ms.and_then(|ms| Timestamp::from_millisecond(*ms).ok()).map_or_else(String::new, |t| t.to_string())
    }

    /// The bars of the pass; after ruin there are none.
    pub fn bars(&self) -> Vec<BarLine> {
        let mut units = 0.0;
        let mut peak = self.strategy.equity[0];
        let line = |(i, row): (usize, &LogRow)| {
            let out = &row.outcome;
            // A ruined account is closed out at the close of the same bar.
            units += out.quantity + out.closed_out;
            peak = out.equity.max(peak);
            let decision = (0..self.branches as u32).map(|b| branch(row.action, b).to_string());
            BarLine {
                symbol: self.symbol.to_owned(),
                time: self.time(i),
                bar: row.bar as usize - self.first,
                close: row.close,
                action: if row.decided { decision.collect::<Vec<_>>().join("-") } else { String::new() },
                ordered: out.ordered,
                quantity: out.quantity,
                price: (out.quantity != 0.0).then_some(out.price),
                fee: out.fee,
                financing: out.financing,
                borrow: out.borrow,
                units,
                exposure: row.exposure,
                equity: out.equity,
                drawdown: 1.0 - out.equity / peak,
                reward: out.reward,
                buy_and_hold: self.holding.equity[i + 1],
            }
        };
        self.rows.iter().enumerate().map(line).collect()
    }

    /// The closed trades.
    pub fn trades(&self) -> Vec<TradeLine> {
        let line = |t: &backtest::Trade| TradeLine {
            symbol: self.symbol.to_owned(),
            // A fill's bar counts from 1, the first row's.
            opened: self.time(t.opened - 1),
            closed: self.time(t.closed - 1),
            bars: t.closed - t.opened,
            side: if t.quantity > 0.0 { "long".into() } else { "short".into() },
            quantity: t.quantity,
            entry: t.entry,
            exit: t.exit,
            fees: t.fees,
            profit: t.profit,
            profit_fraction: t.profit / (t.quantity.abs() * t.entry),
        };
        trades(&self.strategy.fills).0.iter().map(line).collect()
    }
}

/// Both tables of the passes as the bytes of `NAME-bars.csv` and `NAME-trades.csv`, with where they belong in a folder; one
/// symbol behind the other.
///
/// # Errors
/// [`ReportError::Content`] if a line has no CSV, which no line has.
pub fn files(passes: &[Pass<'_>], folder: &Path, name: &str) -> Result<[(PathBuf, Vec<u8>); 2], ReportError> {
    let (bars, trades) = (bars_file(folder, name), trades_file(folder, name));
    let of_bars: Vec<BarLine> = passes.iter().flat_map(Pass::bars).collect();
    let of_trades: Vec<TradeLine> = passes.iter().flat_map(Pass::trades).collect();
    let bytes = (to_bytes(&bars, &of_bars)?, to_bytes(&trades, &of_trades)?);
    Ok([(bars, bytes.0), (trades, bytes.1)])
}

/// Where the bars of a pass are.
pub fn bars_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}-bars.csv"))
}

/// Where the trades of a pass are.
pub fn trades_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}-trades.csv"))
}

/// Lines with a header, which a table without lines has too.
fn to_bytes<T: Serialize + Header>(path: &Path, lines: &[T]) -> Result<Vec<u8>, ReportError> {
    let content = |error: &dyn std::fmt::Display| ReportError::content(path, None, error);
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    writer.write_record(T::HEADER).map_err(|e| content(&e))?;
    for line in lines {
        writer.serialize(line).map_err(|e| content(&e))?;
    }
    writer.into_inner().map_err(|e| content(&e))
}

/// Column names of a table.
trait Header {
    const HEADER: &'static [&'static str];
}

impl Header for BarLine {
    const HEADER: &'static [&'static str] = &[
        "symbol",
        "time",
        "bar",
        "close",
        "action",
        "ordered",
        "quantity",
        "price",
        "fee",
        "financing",
        "borrow",
        "units",
        "exposure",
        "equity",
        "drawdown",
        "reward",
        "buy_and_hold",
    ];
}

impl Header for TradeLine {
    const HEADER: &'static [&'static str] = &[
        "symbol",
        "opened",
        "closed",
        "bars",
        "side",
        "quantity",
        "entry",
        "exit",
        "fees",
        "profit",
        "profit_fraction",
    ];
}

/// Reads a table back; `None` where there is no such file.
///
/// # Errors
/// [`ReportError`] with file and line.
pub fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<Vec<T>>, ReportError> {
    if !path.exists() {
        return Ok(None);
    }
    let place = |error: csv::Error| {
        let line = error.position().map(|position| position.line() as usize);
        ReportError::content(path, line, error)
    };
    let mut reader = csv::Reader::from_path(path).map_err(place)?;
    reader.deserialize().collect::<Result<Vec<T>, _>>().map(Some).map_err(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn tables_read_back_to_the_same_bits_and_add_up() {
        let sample = sample::Passed::new("A", 0);
        let pass = sample.pass();
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in files(&[pass], folder.path(), "test").unwrap() {
            std::fs::write(path, bytes).unwrap();
        }
        let bars: Vec<BarLine> = read(&bars_file(folder.path(), "test")).unwrap().unwrap();
        assert_eq!(bars, pass.bars());
        let trades: Vec<TradeLine> = read(&trades_file(folder.path(), "test")).unwrap().unwrap();
        assert_eq!(trades, pass.trades());

        assert_eq!((bars.len(), trades.len()), (sample::BARS, sample::BARS / 20));
        // Bar 51 of the file, an hour each.
        assert_eq!((bars[0].bar, bars[0].time.as_str()), (51, "2023-11-17T01:13:20Z"));
        assert_eq!((bars[5].action.as_str(), bars[6].action.as_str()), ("8-0-2", ""));
        for (i, bar) in bars.iter().enumerate() {
            let cash: f64 = 100_000.0
                - bars[..=i].iter().map(|b| b.quantity * b.price.unwrap_or(0.0) + b.fee).sum::<f64>();
            assert!((cash + bar.units * bar.close - bar.equity).abs() < 1e-6, "bar {i}");
            assert_eq!(bar.price.is_some(), bar.quantity != 0.0);
        }
        let first = &trades[0];
        assert_eq!(
            (first.side.as_str(), first.bars, first.opened.as_str()),
            ("long", 10, bars[4].time.as_str())
        );
        let profits: f64 = trades.iter().map(|t| t.profit).sum();
        let last = &bars[sample::BARS - 1];
        assert_eq!(last.units, 0.0);
        assert!((profits - (last.equity - 100_000.0)).abs() < 1e-6, "all is closed: {profits}");
    }

    #[test]
    fn a_bad_table_is_an_error_with_the_line_and_an_absent_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = bars_file(folder.path(), "test");
        assert_eq!(read::<TradeLine>(&path).unwrap(), None);
        std::fs::write(&path, "opened,closed\nyesterday\n").unwrap();
        let message = read::<TradeLine>(&path).unwrap_err().to_string();
        assert!(message.contains("test-bars.csv line 2: "), "{message}");
    }
}
