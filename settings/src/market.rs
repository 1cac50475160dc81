//! `[split]`, `[market]` and `[data]`: what is learned from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[split]`: one split by time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Split {
    /// Fraction of the bars for training.
    #[schemars(extend("unit" = "fraction of the bars"))]
    pub train: f64,
    /// Fraction of the bars for validation; the rest is the test part.
    #[schemars(extend("unit" = "fraction of the bars"))]
    pub validation: f64,
    /// Extra bars dropped between the parts, on top of the purge of L + W - 1 + n bars.
    #[schemars(extend("unit" = "bars"))]
    pub embargo: usize,
}

impl Default for Split {
    fn default() -> Self {
        Self { train: 0.7, validation: 0.15, embargo: 0 }
    }
}

/// Which side of the book the file's prices are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BarSide {
    /// Mid prices: half the spread is paid on each trade.
    #[default]
    Mid,
    /// Bid prices.
    Bid,
    /// Ask prices.
    Ask,
}

/// How the market's factored action is divided into branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MarketLayout {
    /// Exposure (9) x order (3) x urgency (3).
    Exposure,
    /// Direction (3) x magnitude (3) x order (3) x urgency (3).
    Direction,
}

impl MarketLayout {
    /// Branch sizes.
    pub const fn branches(self) -> &'static [usize] {
        match self {
            Self::Exposure => &[9, 3, 3],
            Self::Direction => &[3, 3, 3, 3],
        }
    }
}

/// `[market]`: costs and limits of the market environment (SPEC section 6). Fractions, not percent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Market {
    /// W: bars in the state's window.
    #[schemars(extend("unit" = "bars"))]
    pub window: usize,
    /// Branches of the action, `exposure` or `direction`; when absent, what `model.branches` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layout: Option<MarketLayout>,
    /// Half the bid-ask spread, fraction of price.
    #[schemars(extend("unit" = "fraction of price"))]
    pub half_spread: f64,
    /// Slippage of a market order, fraction of price.
    #[schemars(extend("unit" = "fraction of price"))]
    pub slippage: f64,
    /// Price impact per unit of traded equity fraction.
    #[schemars(extend("unit" = "fraction of price per unit of equity"))]
    pub impact: f64,
    /// Fee of a market order, fraction of notional.
    #[schemars(extend("unit" = "fraction of notional"))]
    pub taker_fee: f64,
    /// Fee of a limit or passive order, fraction of notional.
    #[schemars(extend("unit" = "fraction of notional"))]
    pub maker_fee: f64,
    /// Yearly financing rate on leveraged (borrowed) cash.
    #[schemars(extend("unit" = "per year"))]
    pub financing: f64,
    /// Yearly borrow rate on the notional of a short position.
    #[schemars(extend("unit" = "per year"))]
    pub borrow: f64,
    /// Side of the file's prices.
    pub bar_side: BarSide,
    /// lambda: weight of the growth of the drawdown in the reward.
    #[schemars(extend("unit" = "reward per unit of drawdown"))]
    pub drawdown_penalty: f64,
    /// Equity fraction of the start at which the episode terminates.
    #[schemars(extend("unit" = "fraction of the starting equity"))]
    pub ruin: f64,
    /// Reward of a ruinous step, fixed.
    #[schemars(extend("unit" = "reward"))]
    pub ruin_reward: f64,
}

impl Default for Market {
    fn default() -> Self {
        Self {
            window: 8,
            layout: None,
            half_spread: 5e-5,
            slippage: 2e-5,
            impact: 1e-5,
            taker_fee: 2e-5,
            maker_fee: 0.0,
            financing: 0.05,
            borrow: 0.02,
            bar_side: BarSide::Mid,
            drawdown_penalty: 0.0,
            ruin: 0.1,
            ruin_reward: -10.0,
        }
    }
}

/// `[data]`: where the bars come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    /// Bar file, CSV or Parquet; the built-in synthetic market when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Several bar files that are traded together, in place of `file`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Column that says which symbol a row belongs to, by its name in the header; a file is one symbol without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_column: Option<String>,
    /// How timestamps are written (strptime notation, or `epoch-ms` and the like); found in the file when absent. Also
    /// called `time_format`, as in `docs/BARS.md`.
    #[schemars(extend("aliases" = ["time_format"]))]
    #[serde(alias = "time_format", skip_serializing_if = "Option::is_none")]
    pub date_format: Option<String>,
    /// Field delimiter of a CSV file, one ASCII character; found when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<char>,
    /// Whether a CSV file has a header line; found when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// Lines of a CSV file before the header or the first row.
    #[schemars(extend("unit" = "lines"))]
    pub skip_lines: usize,
    /// Names of the columns in file order, `-` for one to ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// How numbers are written, for example `1.234,5`; found when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<String>,
    /// Bar interval in milliseconds; the most frequent step when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "ms"))]
    pub interval_ms: Option<i64>,
    /// Bars of zero volume: `report` (keep and count), `error` or `drop`.
    pub zero_volume: String,
    /// Missing bars that are not part of the calendar: `split`, `error`, or `fill:N` for gaps of at most N bars.
    pub gaps: String,
    /// `raw` or `adjusted` (open, high, low and close scaled by adjusted close / close).
    pub price: String,
    /// Repairs to apply, by name (`sort`, `drop-duplicates`, ...), one or a list. None by default: a bad row is an error.
    #[schemars(extend("form" = "a text or a list of texts"))]
    #[serde(deserialize_with = "one_or_many")]
    pub repair: Vec<String>,
    /// Synthetic market: `regimes` (a small predictable part) or `martingale` (none).
    pub synthetic: String,
    /// Bars of the synthetic market.
    #[schemars(extend("unit" = "bars"))]
    pub synthetic_bars: usize,
    /// Seed of the synthetic market.
    pub synthetic_seed: u64,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            file: None,
            files: Vec::new(),
            symbol_column: None,
            date_format: None,
            delimiter: None,
            header: None,
            skip_lines: 0,
            columns: None,
            numbers: None,
            interval_ms: None,
            zero_volume: "report".into(),
            gaps: "split".into(),
            price: "raw".into(),
            repair: Vec::new(),
            synthetic: "regimes".into(),
            synthetic_bars: 20_000,
            synthetic_seed: 1,
        }
    }
}

/// A text, or a list of texts.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a name or a list of names")]
    enum Names {
        One(String),
        Many(Vec<String>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::Many(names) => names,
    })
}
