//! What a checkpoint says about the data.

use std::path::Path;

use bars::{Fitted, Fold};
use serde::{Deserialize, Serialize};

/// What a checkpoint keeps of the data: enough to run the policy as it was trained, and to know the same bars again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value")]
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

/// A record as it is written.
#[derive(Deserialize)]
struct OfSymbols {
    fitted: Fitted,
    symbols: Vec<SymbolRecord>,
    walk: Option<Walk>,
}

/// A record of an earlier program, which knew one symbol and one split.
#[derive(Deserialize)]
struct OfOne {
    source: String,
    bars_hash: String,
    bars: usize,
    fitted: Fitted,
    fold: Fold,
}

impl TryFrom<serde_json::Value> for MarketRecord {
    type Error = serde_path_to_error::Error<serde_json::Error>;

    /// The error is that of the form that was meant, and names the field which is missing or wrong.
    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        if value.get("source").is_none() {
            let OfSymbols { fitted, symbols, walk } = serde_path_to_error::deserialize(value)?;
            return Ok(Self { fitted, symbols, walk });
        }
        let OfOne { source, bars_hash, bars, fitted, fold } = serde_path_to_error::deserialize(value)?;
        let name = Path::new(&source).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let symbols = vec![SymbolRecord { name, source, bars_hash, bars, fold }];
        Ok(Self { fitted, symbols, walk: None })
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

        // What is wrong is named, in either form.
        let refused = |text: &str| serde_json::from_str::<MarketRecord>(text).unwrap_err().to_string();
        assert!(refused("{}").contains("missing field `fitted`"), "{}", refused("{}"));
        let wrong = text.replace("\"bars\":1200", "\"bars\":\"many\"");
        assert!(
            refused(&wrong).contains("symbols[0].bars: invalid type: string \"many\", expected usize"),
            "{}",
            refused(&wrong)
        );
        let wrong = text.replace("\"bars_hash\"", "\"hash\"");
        assert!(refused(&wrong).contains("missing field `bars_hash`"), "{}", refused(&wrong));
    }
}
