//! Which column is what.

use crate::error::{BarError, Problem, excerpt};

/// What a column may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A whole timestamp, or the date of one.
    Time,
    /// `date`, which is a whole timestamp unless there is a `time` column beside it.
    Date,
    /// `time`, which is a whole timestamp unless there is a `date` column beside it.
    Clock,
    Open,
    High,
    Low,
    Close,
    Volume,
    AdjustedClose,
}

impl Role {
    /// The role that a header name stands for; case, spaces, `_`, `-`, `.`, `<` and `>` do not matter.
    pub(crate) fn of_name(name: &str) -> Option<Role> {
        let plain: String = name
            .chars()
            .filter(|c| !c.is_whitespace() && !"_-.<>\"'\u{feff}".contains(*c))
            .flat_map(char::to_lowercase)
            .collect();
        Some(match plain.as_str() {
            "datetime" | "timestamp" | "opentime" | "gmttime" | "utctime" | "ts" | "unix" | "epoch"
            | "unixtime" | "timestampms" | "timestamputc" | "datetimeutc" | "localtime" | "indexlevel0" => {
                Role::Time
            }
            "date" => Role::Date,
            "time" => Role::Clock,
            "open" | "o" | "openprice" => Role::Open,
            "high" | "h" | "highprice" => Role::High,
            "low" | "l" | "lowprice" => Role::Low,
            "close" | "c" | "last" | "closeprice" => Role::Close,
            "volume" | "vol" | "v" | "tickvolume" | "tickvol" => Role::Volume,
            "adjclose" | "adjustedclose" | "adjcloseprice" => Role::AdjustedClose,
            _ => return None,
        })
    }
}

/// Whether columns of symbols are called so.
fn is_symbol_name(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "symbol",
        "ticker",
        "sym",
        "instrument",
        "pair",
        "asset",
        "security",
        "isin",
        "contract",
        "stock",
        "coin",
        "code",
    ];
    let plain = name.trim_matches(['\u{feff}', ' ', '\t', '"', '<', '>']).to_lowercase();
    NAMES.contains(&plain.as_str())
}

/// Where the columns are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    /// The timestamp's column.
    pub(crate) time: usize,
    /// A separate time-of-day column.
    pub(crate) clock: Option<usize>,
    /// Open, high, low, close.
    pub(crate) prices: [usize; 4],
    pub(crate) volume: Option<usize>,
    pub(crate) adjusted: Option<usize>,
    /// The symbol's column, where one was asked for.
    pub(crate) symbol: Option<usize>,
    /// All names, for errors and the report.
    pub(crate) names: Vec<String>,
}

impl Columns {
    /// Finds the columns by their names; the one that `symbol` names, if any, is nothing else.
    pub(crate) fn from_names(
        file: &str,
        names: Vec<String>,
        symbol: Option<&str>,
    ) -> Result<Columns, BarError> {
        let plain = |name: &str| name.trim_matches(['\u{feff}', ' ', '\t', '"']).to_lowercase();
        let is_symbol = |name: &str| symbol.is_some_and(|symbol| plain(name) == plain(symbol));
        let roles: Vec<_> =
            names.iter().map(|name| if is_symbol(name) { None } else { Role::of_name(name) }).collect();
        let listing = || {
            let shown: Vec<_> = names.iter().take(30).map(|name| excerpt(name.as_bytes())).collect();
            let more = if names.len() > 30 { ", …" } else { "" };
            format!("the columns are: {}{more}", shown.join(", "))
        };
        let find = |role: Role| -> Result<Option<usize>, BarError> {
            let found: Vec<_> = (0..roles.len()).filter(|&i| roles[i] == Some(role)).collect();
            match found[..] {
                [] => Ok(None),
                [one] => Ok(Some(one)),
                _ => Err(BarError::file(
                    file,
                    format!(
                        "columns {:?} and {:?} both look like the {role:?} column; name the columns to use with \
                         columns = [\"time\", \"open\", ...] (\"-\" for one to ignore)",
                        names[found[0]], names[found[1]]
                    ),
                )),
            }
        };
        let need = |role: Role| {
            find(role)?.ok_or_else(|| {
                BarError::file(
                    file,
                    format!(
                        "no {role:?} column; {}; name them with columns = [\"time\", \"open\", ...]",
                        listing()
                    ),
                )
            })
        };
        let (time, clock) = match (find(Role::Time)?, find(Role::Date)?, find(Role::Clock)?) {
            (Some(time), None, None) | (None, Some(time), None) | (None, None, Some(time)) => (time, None),
            (None, Some(date), Some(clock)) => (date, Some(clock)),
            (None, None, None) => {
                let message = format!("no timestamp column; {}; name them with columns = [...]", listing());
                return Err(BarError::file(file, message));
            }
            (Some(a), Some(b), _) | (Some(a), None, Some(b)) => {
                return Err(BarError::file(
                    file,
                    format!(
                        "columns {:?} and {:?} both look like the timestamp; name the columns to use with \
                         columns = [\"time\", \"open\", ...] (\"-\" for one to ignore)",
                        names[a], names[b]
                    ),
                ));
            }
        };
        let prices = [need(Role::Open)?, need(Role::High)?, need(Role::Low)?, need(Role::Close)?];
        let (volume, adjusted) = (find(Role::Volume)?, find(Role::AdjustedClose)?);
        let symbols: Vec<_> = (0..names.len()).filter(|&i| is_symbol(&names[i])).collect();
        let symbol = match (symbol, symbols.as_slice()) {
            (None, _) => None,
            (Some(_), [one]) => Some(*one),
            (Some(name), found) => {
                let many = if found.is_empty() { "no" } else { "more than one" };
                let message = format!("{many} column {name:?} (symbol_column); {}", listing());
                return Err(BarError::file(file, message));
            }
        };
        Ok(Columns { time, clock, prices, volume, adjusted, symbol, names })
    }

    /// Columns of a file without header: time (or date and time), open, high, low, close[, volume].
    pub(crate) fn without_header(
        file: &str,
        first: &[&[u8]],
        symbol: Option<&str>,
    ) -> Result<Columns, BarError> {
        if let Some(symbol) = symbol {
            let message = format!(
                "no header in which to look for symbol_column = {symbol:?}; name the columns with columns = [\"time\", \
                 {symbol:?}, \"open\", ...]"
            );
            return Err(BarError::file(file, message));
        }
        let is_clock = |field: &[u8]| field.contains(&b':') && field.len() <= 15;
        let two = first.len() > 1 && is_clock(first[1]) && !first[0].contains(&b':');
        let times: &[&str] = if two { &["date", "time"] } else { &["time"] };
        let rest: &[&str] = match first.len() - times.len().min(first.len()) {
            4 => &["open", "high", "low", "close"],
            5 => &["open", "high", "low", "close", "volume"],
            _ => {
                let message = format!(
                    "no header and {} columns, which does not say what they are; name them with columns = \
                     [\"time\", \"open\", \"high\", \"low\", \"close\", \"volume\"] (\"-\" for one to ignore)",
                    first.len()
                );
                return Err(BarError::file(file, message));
            }
        };
        Columns::from_names(file, times.iter().chain(rest).map(|name| (*name).to_owned()).collect(), None)
    }

    /// Columns of the file that are not used.
    pub(crate) fn ignored(&self) -> Vec<String> {
        self.unused().map(|i| self.names[i].clone()).collect()
    }

    fn unused(&self) -> impl Iterator<Item = usize> + '_ {
        let used = self.used();
        (0..self.names.len()).filter(move |i| !used.contains(i))
    }

    /// Adds to an error that rows of several symbols in one file bring about which column may tell them apart: one that
    /// is not used, and is called so or holds a text (`is_text`).
    pub(crate) fn with_hint(&self, error: BarError, is_text: impl Fn(usize) -> bool) -> BarError {
        let BarError::Row(mut row) = error else { return error };
        if self.symbol.is_some()
            || !matches!(row.problem, Problem::Duplicate | Problem::OutOfOrder | Problem::Jump)
        {
            return row.into();
        }
        let named = self.unused().find(|&i| is_symbol_name(&self.names[i]));
        if let Some(column) = named.or_else(|| self.unused().find(|&i| is_text(i))) {
            let name = excerpt(self.names[column].as_bytes());
            let before = if row.detail.is_empty() { "" } else { "; " };
            row.detail += &format!(
                "{before}if column {name} says which symbol a row belongs to: --symbol-column {name}"
            );
        }
        row.into()
    }

    /// Indices of all used columns.
    pub(crate) fn used(&self) -> Vec<usize> {
        let mut used = vec![self.time];
        used.extend(self.clock);
        used.extend(self.prices);
        used.extend(self.volume);
        used.extend(self.adjusted);
        used.extend(self.symbol);
        used
    }
}
