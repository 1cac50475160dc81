//! What a checkpoint says about the data.

use std::path::Path;

use bars::{Fitted, Fold};
use serde::{Deserialize, Serialize};

/// What a checkpoint keeps of the data: enough to run the policy as it was trained, and to know the same bars again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "AnyRecord")]
pub struct MarketRecord {
    /// Fitted on the training parts of all symbols.
    pub fitted: Fitted,
    /// The symbols, in the order of their bars in the table.
    pub symbols: Vec<SymbolRecord>,
    /// Which fold of a walk-forward it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub walk: Option<Walk>,
}

/// What a checkpoint keeps of one symbol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SymbolRecord {
    /// Name in reports.
    pub name: String,
    /// File, or the synthetic market's description.
    pub source: String,
    /// Hash of all bars, hexadecimal.
    pub bars_hash: String,
    /// Number of bars.
    pub bars: usize,
    /// Decision bars of the parts.
    pub fold: Fold,
}

/// A fold's place in a walk-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walk {
    /// Its number, from 1.
    pub fold: usize,
    /// How many there are.
    pub of: usize,
}

/// A record as it is written, or of an earlier program, which knew one symbol and one split.
#[derive(Deserialize)]
#[serde(untagged)]
enum AnyRecord {
    Symbols { fitted: Fitted, symbols: Vec<SymbolRecord>, walk: Option<Walk> },
    One { source: String, bars_hash: String, bars: usize, fitted: Fitted, fold: Fold },
}

impl From<AnyRecord> for MarketRecord {
    fn from(record: AnyRecord) -> Self {
        match record {
            AnyRecord::Symbols { fitted, symbols, walk } => Self { fitted, symbols, walk },
            AnyRecord::One { source, bars_hash, bars, fitted, fold } => {
                let name = Path::new(&source).file_stem().unwrap_or_default().to_string_lossy().into_owned();
                Self {
                    fitted,
                    symbols: vec![SymbolRecord { name, source, bars_hash, bars, fold }],
                    walk: None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use settings::{Config, Data};

    use super::*;
    use crate::train::market::Market;

    #[test]
    fn a_record_of_an_earlier_program_is_one_symbol() {
        let data = Data { synthetic_bars: 1200, ..Data::default() };
        let mut config = Config { data, ..Config::default() };
        let record = Market::prepare(&mut config).unwrap().record;
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<MarketRecord>(&text).unwrap(), record);
        let only = &record.symbols[0];
        let earlier = serde_json::json!({
            "source": only.source, "bars_hash": only.bars_hash, "bars": only.bars,
            "fitted": record.fitted, "fold": only.fold,
        });
        let again: MarketRecord = serde_json::from_value(earlier).unwrap();
        assert_eq!((&again.fitted, &again.symbols[0].fold), (&record.fitted, &only.fold));
    }
}
