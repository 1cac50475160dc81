//! From a file to checked bars with their calendar.

use std::path::Path;

use crate::calendar::{Calendar, Missing};
use crate::checks::{Collected, Repaired};
use crate::collectors::{SymbolBars, full_name};
use crate::csv_file;
use crate::error::{BarError, Place};
use crate::hash::hash_all;
use crate::options::{Gaps, LoadOptions};
use crate::parquet_file;
use crate::report::{Format, Report};
use crate::series::{Bar, Bars};
use crate::source::{Source, io_error};
use crate::symbols::Symbol;

/// Checked bars, their calendar, and what there is to say about the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The bars.
    pub bars: Bars,
    /// Interval, closures, gaps, segments.
    pub calendar: Calendar,
    /// For the user.
    pub report: Report,
}

/// Reads and checks a bar file, CSV or Parquet by its first bytes.
///
/// # Errors
/// Every problem of [`crate::error::Problem`] that no repair in `options` covers, with file, line (or row),
/// column and value; formats that cannot be decided; files too large or too short.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, BarError> {
    only(&path.display().to_string(), Source::Path(path), options)
}

/// The same from memory; `name` stands for the file in texts.
pub fn load_bytes(name: &str, bytes: &[u8], options: &LoadOptions) -> Result<Loaded, BarError> {
    only(name, Source::Bytes(bytes), options)
}

/// Reads a file of one symbol, or of several where `options` names the column that tells them apart; these come in the
/// order of their names. The symbol of a file without such a column is called as the file, without folder and ending.
///
/// # Errors
/// As for [`load`]; what concerns one symbol names it.
pub fn load_symbols(path: &Path, options: &LoadOptions) -> Result<Vec<Symbol>, BarError> {
    load_source(&path.display().to_string(), Source::Path(path), options)
}

/// The same from memory; `name` stands for the file in texts.
///
/// # Errors
/// As for [`load_symbols`].
pub fn load_symbols_bytes(name: &str, bytes: &[u8], options: &LoadOptions) -> Result<Vec<Symbol>, BarError> {
    load_source(name, Source::Bytes(bytes), options)
}

fn load_source(name: &str, source: Source<'_>, options: &LoadOptions) -> Result<Vec<Symbol>, BarError> {
    let (symbols, format, file_hash) = read_source(name, source, options)?;
    let stem = || Path::new(name).file_stem().map_or(name.into(), |stem| stem.to_string_lossy().into_owned());
    if options.symbol_column.is_none() && stem().contains(char::is_control) {
        let message = "the symbol is called as the file, and a control character cannot be in its name: rename the file";
        return Err(BarError::file(&name.escape_debug().to_string(), message));
    }
    symbols
        .into_iter()
        .map(|SymbolBars { name: symbol, collected }| {
            let full = full_name(name, symbol.as_deref());
            let loaded = assemble(&full, collected, Some(format.clone()), Some(file_hash), options)?;
            Ok(Symbol { name: symbol.unwrap_or_else(stem), loaded })
        })
        .collect()
}

/// The one symbol of a file.
fn only(name: &str, source: Source<'_>, options: &LoadOptions) -> Result<Loaded, BarError> {
    one(name, load_source(name, source, options)?, |symbol| &symbol.name).map(|symbol| symbol.loaded)
}

/// The one element of a list of symbols.
fn one<T>(name: &str, mut symbols: Vec<T>, called: impl Fn(&T) -> &str) -> Result<T, BarError> {
    match (symbols.pop(), symbols.as_slice()) {
        (Some(only), []) => Ok(only),
        (Some(last), rest) => {
            let message = format!(
                "{} symbols, {:?} to {:?}, where one is expected",
                rest.len() + 1,
                called(&rest[0]),
                called(&last)
            );
            Err(BarError::file(name, message))
        }
        (None, _) => Err(BarError::file(name, "no symbol")),
    }
}

/// Bars that did not come from a file, for example [`crate::synthetic`] ones, as if they had been loaded.
///
/// # Errors
/// As for [`load`]; a violated invariant of [`Bars`] is reported with its row.
pub fn from_bars(name: &str, bars: Bars, options: &LoadOptions) -> Result<Loaded, BarError> {
    options.check()?;
    let mut collector = crate::checks::Collector::new(name, options, Place::Row, bars.has_volume);
    for i in 0..bars.len() {
        collector.push(i as u64 + 1, Ok(crate::checks::Row { bar: bars.bar(i), adjusted: None }))?;
    }
    assemble(name, collector.finish()?, None, None, options)
}

/// Rows of a file after checks and repairs, before any calendar: what `data check` shows for a file of which
/// too little is left.
///
/// # Errors
/// As for [`load`], without those of the calendar.
pub fn read(name: &str, bytes: &[u8], options: &LoadOptions) -> Result<(Bars, Repaired), BarError> {
    let (symbols, _, _) = read_source(name, Source::Bytes(bytes), options)?;
    let SymbolBars { collected, .. } =
        one(name, symbols, |symbol| symbol.name.as_deref().unwrap_or_default())?;
    Ok((collected.bars, collected.repaired))
}

fn read_source(
    name: &str,
    source: Source<'_>,
    options: &LoadOptions,
) -> Result<(Vec<SymbolBars>, Format, u64), BarError> {
    options.check()?;
    source.check(name)?;
    let failed = |error| io_error(name, error);
    let hash = hash_all(source.open().map_err(failed)?).map_err(failed)?;
    let (symbols, format) = if source.head(4).map_err(failed)? == b"PAR1" {
        let (symbols, format) = parquet_file::read(name, source, options)?;
        (symbols, Format::Parquet(format))
    } else {
        let (symbols, format) = csv_file::read(name, source, options)?;
        (symbols, Format::Csv(format))
    };
    Ok((symbols, format, hash))
}

fn assemble(
    name: &str,
    collected: Collected,
    format: Option<Format>,
    file_hash: Option<u64>,
    options: &LoadOptions,
) -> Result<Loaded, BarError> {
    let Collected { mut bars, places, rows, zero_volume, mut repaired } = collected;
    if bars.len() < 2 {
        let dropped = match repaired.dropped_rows() {
            0 => String::new(),
            n => format!(", {n} of {rows} rows were left out by the repairs asked for"),
        };
        let message = format!("{} usable bar(s){dropped}: at least 2 are needed", bars.len());
        return Err(BarError::file(name, message));
    }
    let mut calendar = Calendar::infer(name, &bars.time_ms, options.interval_ms)?;
    match options.gaps {
        Gaps::Split => {}
        Gaps::Error => {
            if let Some(gap) = calendar.gaps.first() {
                let message = format!(
                    "{} missing bar(s) after {} ({}), {} gap(s) in all, and gaps = error",
                    gap.bars,
                    crate::time::utc_text(gap.after_ms),
                    places[gap.after_bar],
                    calendar.gaps.len()
                );
                return Err(BarError::file(name, message));
            }
        }
        Gaps::Fill(most) => {
            repaired.filled = fill(name, &mut bars, &calendar, most, options.max_rows)?;
            let interval = Some(calendar.interval_ms);
            calendar = Calendar::infer(name, &bars.time_ms, interval)?;
        }
    }
    let report = Report {
        file: name.to_owned(),
        format,
        rows,
        bars: bars.len(),
        first_ms: bars.time_ms[0],
        last_ms: bars.time_ms[bars.len() - 1],
        has_volume: bars.has_volume,
        zero_volume,
        repaired,
        calendar: calendar.clone(),
        file_hash,
        content_hash: bars.content_hash(),
    };
    Ok(Loaded { bars, calendar, report })
}

/// Inserts flat bars at the previous close into short gaps: only the past is used. Returns how many.
fn fill(name: &str, bars: &mut Bars, calendar: &Calendar, most: u32, max_rows: u64) -> Result<u64, BarError> {
    let short: Vec<&Missing> = calendar.gaps.iter().filter(|gap| gap.bars <= u64::from(most)).collect();
    let added: u64 = short.iter().map(|gap| gap.bars).sum();
    if bars.len() as u64 + added > max_rows {
        let message = format!("filling {added} missing bars makes more than {max_rows} rows; raise max_rows");
        return Err(BarError::file(name, message));
    }
    let mut filled = Bars { has_volume: bars.has_volume, ..Bars::default() };
    let mut gaps = short.into_iter().peekable();
    for i in 0..bars.len() {
        let bar = bars.bar(i);
        filled.push(bar);
        if let Some(gap) = gaps.next_if(|gap| gap.after_bar == i) {
            for missing in 1..=gap.bars {
                let time_ms = bar.time_ms + missing as i64 * calendar.interval_ms;
                let price = bar.close;
                filled.push(Bar { time_ms, open: price, high: price, low: price, close: price, volume: 0.0 });
            }
        }
    }
    *bars = filled;
    Ok(added)
}
