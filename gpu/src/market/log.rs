//! What a backtest keeps of each bar.

use super::step::StepOutcome;

/// Number of f64 fields of a [`LogRow`].
pub const LOG_FIELDS: u32 = 14;

/// One bar of a backtest: bar t + 1, in which the order decided at the close of bar t was executed.
/// Money in the quote currency, prices are mid prices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogRow {
    /// Index of bar t + 1 in the file.
    pub bar: u32,
    /// The action decided at the close of bar t, packed one byte per branch; 0 where `decided` is false.
    pub action: u64,
    /// Whether a decision was possible (a complete window without a gap).
    pub decided: bool,
    /// Exposure at the close.
    pub exposure: f64,
    /// Close of the bar.
    pub close: f64,
    /// Everything that the step did; `reward` to `closed_out`.
    pub outcome: StepOutcome,
}

impl LogRow {
    /// The row as words of the device's log. An action is below 2^32 in both layouts, so f64 holds it exactly.
    #[inline(always)]
    pub fn store(&self, mut word: impl FnMut(u32, f64)) {
        let flags = self.decided as u32
            | (self.outcome.ordered as u32) << 1
            | (self.outcome.terminated as u32) << 2
            | (self.outcome.truncated as u32) << 3;
        word(0, self.bar as f64);
        word(1, (self.action as u32) as f64);
        word(2, flags as f64);
        word(3, self.exposure);
        word(4, self.close);
        word(5, self.outcome.reward);
        word(6, self.outcome.quantity);
        word(7, self.outcome.price);
        word(8, self.outcome.fee);
        word(9, self.outcome.financing);
        word(10, self.outcome.borrow);
        word(11, self.outcome.equity);
        word(12, self.outcome.closed_out);
        // Tells a row that was written from zeroed memory, also for bar 0.
        word(13, 1.0);
    }

    /// Inverse of [`Self::store`]; `None` for a row that was never written (zeroed memory).
    pub fn load(word: impl Fn(u32) -> f64) -> Option<Self> {
        if word(13) != 1.0 {
            return None;
        }
        let flags = word(2) as u32;
        Some(Self {
            bar: word(0) as u32,
            action: word(1) as u64,
            decided: flags & 1 != 0,
            exposure: word(3),
            close: word(4),
            outcome: StepOutcome {
                reward: word(5),
                terminated: flags & 4 != 0,
                truncated: flags & 8 != 0,
                ordered: flags & 2 != 0,
                quantity: word(6),
                price: word(7),
                fee: word(8),
                financing: word(9),
                borrow: word(10),
                equity: word(11),
                closed_out: word(12),
            },
        })
    }
}
