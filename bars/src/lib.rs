//! From a bar file to what an environment trades on: checked bars, a calendar, features from past bars only,
//! a normaliser fitted on the training part, and a split by time.
//!
//! [`load`] reads CSV or Parquet and checks every row; nothing is repaired unless asked for
//! ([`LoadOptions::repair`]) and every repair is counted in the [`Report`]. [`prepare`] splits, computes
//! features and fits what is to be fitted; [`apply`] does the same with what an earlier run fitted.
//! docs/BARS.md is the user's side of it, docs/FEATURES.md has the formulas.

pub mod calendar;
pub mod checks;
mod collectors;
mod csv_file;
pub mod error;
pub mod features;
mod hash;
mod load;
pub mod market;
pub mod normaliser;
mod numbers;
pub mod options;
mod parquet_file;
mod report;
mod series;
mod source;
pub mod split;
pub mod symbols;
pub mod synthetic;
mod time;
mod write;

pub use calendar::{Calendar, Closure, ClosureKind, Missing, Segment};
pub use checks::Repaired;
pub use error::{BarError, Place, Problem, RowError};
pub use features::{FEATURES, FeatureMaker, NAMES as FEATURE_NAMES};
pub use hash::Fnv64;
pub use load::{Loaded, from_bars, load, load_bytes, load_symbols, load_symbols_bytes, read};
pub use market::{
    Fitted, MarketData, PrepareOptions, Prepared, apply, prepare, prepare_fold, prepare_symbols,
};
pub use normaliser::Normaliser;
pub use numbers::NumberFormat;
pub use options::{Gaps, LoadOptions, Price, Repair, ZeroVolume};
pub use report::Report;
pub use series::{Bar, Bars};
pub use split::{FEWEST_DECISIONS, Fold, Reach, SplitOptions};
pub use symbols::{FoldOptions, Symbol, split_symbols, walk_forward};
pub use synthetic::Synthetic;
pub use time::{DateOrder, EpochUnit, TimeFormat, utc_text};
pub use write::{write_csv, write_parquet};
