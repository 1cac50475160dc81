//! The rows of a file, sorted by symbol: one [`Collector`] for each.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::checks::{Collected, Collector, Row, check_rows, row_error};
use crate::error::{BarError, Place, Problem, RowError, excerpt};
use crate::options::{LoadOptions, Repair};

/// Most symbols of a file; with more of them the column is not one of symbols.
const MOST_SYMBOLS: usize = 4096;
/// Most bad rows before the first that names a symbol; they have to be kept until then.
const MOST_EARLY: usize = 1000;
/// Longest name of a symbol, in bytes.
const LONGEST_NAME: usize = 64;

/// Whether a symbol may be called so: pages and terminals show its name.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control)
}

/// What was read of one symbol.
pub(crate) struct SymbolBars {
    /// Its name in the file; none where the file has no column of symbols.
    pub(crate) name: Option<String>,
    /// Its bars.
    pub(crate) collected: Collected,
}

/// Takes rows in file order and hands each to its symbol.
pub(crate) struct Collectors<'a> {
    file: &'a str,
    options: &'a LoadOptions,
    place: fn(u64) -> Place,
    has_volume: bool,
    by_symbol: BTreeMap<Option<String>, Collector<'a>>,
    /// Symbol of the row before.
    last: Option<String>,
    /// Bad rows before the first row with a symbol.
    early: Vec<(u64, Box<RowError>)>,
    rows: u64,
}

impl<'a> Collectors<'a> {
    /// `place` makes a line or a row of a number.
    pub(crate) fn new(
        file: &'a str,
        options: &'a LoadOptions,
        place: fn(u64) -> Place,
        has_volume: bool,
    ) -> Self {
        let (by_symbol, early) = (BTreeMap::new(), Vec::new());
        Self { file, options, place, has_volume, by_symbol, last: None, early, rows: 0 }
    }

    /// An error about a row of this file.
    pub(crate) fn error(
        &self,
        number: u64,
        column: &str,
        value: impl Into<String>,
        problem: Problem,
        detail: impl Into<String>,
    ) -> Box<RowError> {
        row_error(self.file, (self.place)(number), column, value, problem, detail)
    }

    /// Takes the next row, or what was wrong with it. `symbol` is its name in the file's column of symbols. A row whose
    /// name cannot be read is wrong; where such rows are left out they count with the symbol of the row before.
    pub(crate) fn push(
        &mut self,
        number: u64,
        symbol: Option<&str>,
        row: Result<Row, Box<RowError>>,
    ) -> Result<(), BarError> {
        self.rows += 1;
        check_rows(self.file, self.options, self.rows)?;
        let Some(column) = &self.options.symbol_column else {
            return self.collector(None)?.push(number, row);
        };
        let symbol = match (symbol, row.as_ref()) {
            (Some(name), _) if is_name(name) => name.to_owned(),
            (None, Err(error)) => return self.nameless(number, error.clone()),
            (name, _) => {
                let name = name.unwrap_or_default();
                let (problem, detail) = match name.is_empty() {
                    true => (Problem::Missing, String::new()),
                    false => (
                        Problem::OutOfRange,
                        format!("a symbol's name has at most {LONGEST_NAME} bytes and no control character"),
                    ),
                };
                let error = self.error(number, column, excerpt(name.as_bytes()), problem, detail);
                return self.nameless(number, error);
            }
        };
        if self.last.as_ref() != Some(&symbol) {
            self.last = Some(symbol.clone());
        }
        let early = std::mem::take(&mut self.early);
        let collector = self.collector(Some(symbol))?;
        for (number, error) in early {
            collector.push(number, Err(error))?;
        }
        collector.push(number, row)
    }

    /// A row without a readable symbol.
    fn nameless(&mut self, number: u64, error: Box<RowError>) -> Result<(), BarError> {
        match self.last.clone() {
            Some(symbol) => self.collector(Some(symbol))?.push(number, Err(error)),
            None if self.options.repairs(Repair::DropBadRows) && self.early.len() < MOST_EARLY => {
                self.early.push((number, error));
                Ok(())
            }
            None => Err(error.into()),
        }
    }

    fn collector(&mut self, symbol: Option<String>) -> Result<&mut Collector<'a>, BarError> {
        if self.by_symbol.len() >= MOST_SYMBOLS && !self.by_symbol.contains_key(&symbol) {
            let column = self.options.symbol_column.as_deref().unwrap_or_default();
            let message = format!("more than {MOST_SYMBOLS} symbols in column {column:?}");
            return Err(BarError::file(self.file, message));
        }
        let (file, options) = (self.file, self.options);
        Ok(self.by_symbol.entry(symbol).or_insert_with_key(|symbol| {
            Collector::new(full_name(file, symbol.as_deref()), options, self.place, self.has_volume)
        }))
    }

    /// The bars of every symbol, in the order of their names.
    pub(crate) fn finish(mut self) -> Result<Vec<SymbolBars>, BarError> {
        if self.by_symbol.is_empty() {
            // Only rows that are left out.
            for (number, error) in std::mem::take(&mut self.early) {
                self.collector(None)?.push(number, Err(error))?;
            }
            self.collector(None)?;
        }
        let symbols = self.by_symbol.into_iter();
        symbols.map(|(name, collector)| Ok(SymbolBars { name, collected: collector.finish()? })).collect()
    }
}

/// What stands for a symbol's bars in texts.
pub(crate) fn full_name<'a>(file: &'a str, symbol: Option<&str>) -> Cow<'a, str> {
    match symbol {
        None => file.into(),
        Some(symbol) => format!("{file}, symbol {symbol}").into(),
    }
}
