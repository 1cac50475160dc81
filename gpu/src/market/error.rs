//! What is wrong with a market's data, parameters or actions.

use core::fmt;

/// An error of the market environment on the host. Bars are counted from 0, in the order of the table.
#[derive(Clone, Debug, PartialEq)]
pub enum MarketError {
    /// A parameter that cannot work.
    Param {
        /// Field of [`MarketParams`](super::MarketParams).
        name: &'static str,
        /// Its value.
        value: f64,
        /// What is expected.
        expected: &'static str,
    },
    /// Two columns that must have equal length do not.
    Length {
        /// The column.
        column: &'static str,
        /// Its length.
        got: usize,
        /// The length that it must have.
        expected: usize,
    },
    /// A price that is not a positive finite number, or does not lie between low and high.
    Price {
        /// Bar.
        bar: usize,
        /// Column.
        column: &'static str,
        /// Value in the file's units.
        value: f64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A time that is not later than the bar before.
    Time {
        /// Bar.
        bar: usize,
        /// Its time, epoch ms.
        time_ms: i64,
        /// Time of the bar before.
        before_ms: i64,
    },
    /// A bar feature inside a run that is not finite.
    Feature {
        /// Bar.
        bar: usize,
        /// Feature.
        feature: usize,
        /// Value.
        value: f32,
    },
    /// A run that is empty, out of order, overlapping or outside the table.
    Run {
        /// Position in the list.
        index: usize,
        /// First bar.
        from: usize,
        /// First bar behind.
        to: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// Too many bars or environments for 32-bit indices.
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// Its number.
        got: usize,
        /// The most there may be.
        most: usize,
    },
    /// A part in which no episode of even one step fits.
    NoStart {
        /// First bar of the part.
        from: usize,
        /// First bar behind the part.
        to: usize,
        /// W.
        window: usize,
    },
    /// An action outside the layout.
    Action {
        /// Environment.
        environment: usize,
        /// Branch.
        branch: usize,
        /// Value.
        value: u64,
        /// Number of actions of the branch.
        actions: usize,
    },
}

impl fmt::Display for MarketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Param { name, value, expected } => {
                write!(f, "market.{name} = {value}: expected {expected}")
            }
            Self::Length { column, got, expected } => {
                write!(f, "column {column} has {got} values: expected {expected}")
            }
            Self::Price { bar, column, value, reason } => write!(f, "bar {bar}: {column} = {value} {reason}"),
            Self::Time { bar, time_ms, before_ms } => {
                write!(f, "bar {bar}: time {time_ms} ms is not later than {before_ms} ms of the bar before")
            }
            Self::Feature { bar, feature, value } => {
                write!(f, "bar {bar}: feature {feature} = {value}: expected a finite number")
            }
            Self::Run { index, from, to, reason } => write!(f, "run {index} (bars {from} to {to}) {reason}"),
            Self::TooLarge { what, got, most } => write!(f, "{got} {what}: at most {most}"),
            Self::NoStart { from, to, window } => write!(
                f,
                "bars {from} to {to}: no window of {window} bars without a gap is followed by another bar, so no step \
                 is possible"
            ),
            Self::Action { environment, branch, value, actions } => {
                write!(f, "environment {environment}: action {value} in branch {branch} of {actions} actions")
            }
        }
    }
}

impl std::error::Error for MarketError {}
