//! Bars in memory: one vector per column, times in UTC milliseconds.

use crate::hash::Fnv64;

/// One bar. `time_ms` is the timestamp of the file, taken as the bar's *opening* time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// UTC, milliseconds since 1970.
    pub time_ms: i64,
    /// First price.
    pub open: f64,
    /// Highest price.
    pub high: f64,
    /// Lowest price.
    pub low: f64,
    /// Last price.
    pub close: f64,
    /// Traded volume, 0 when the file has none.
    pub volume: f64,
}

/// Bars in time order, strictly increasing timestamps, each with 0 < low <= open, close <= high, volume >= 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// UTC milliseconds since 1970, `[bars]`.
    pub time_ms: Vec<i64>,
    /// `[bars]`.
    pub open: Vec<f64>,
    /// `[bars]`.
    pub high: Vec<f64>,
    /// `[bars]`.
    pub low: Vec<f64>,
    /// `[bars]`.
    pub close: Vec<f64>,
    /// `[bars]`, all zero without a volume column.
    pub volume: Vec<f64>,
    /// Whether the file has a volume column.
    pub has_volume: bool,
}

impl Bars {
    /// Number of bars.
    pub fn len(&self) -> usize {
        self.time_ms.len()
    }

    /// Whether there is no bar.
    pub fn is_empty(&self) -> bool {
        self.time_ms.is_empty()
    }

    /// Bar number i.
    ///
    /// # Panics
    /// If there is no such bar.
    pub fn bar(&self, i: usize) -> Bar {
        Bar {
            time_ms: self.time_ms[i],
            open: self.open[i],
            high: self.high[i],
            low: self.low[i],
            close: self.close[i],
            volume: self.volume[i],
        }
    }

    /// Appends a bar, unchecked.
    pub fn push(&mut self, bar: Bar) {
        self.time_ms.push(bar.time_ms);
        self.open.push(bar.open);
        self.high.push(bar.high);
        self.low.push(bar.low);
        self.close.push(bar.close);
        self.volume.push(bar.volume);
    }

    /// Replaces bar number i.
    pub(crate) fn set(&mut self, i: usize, bar: Bar) {
        self.time_ms[i] = bar.time_ms;
        self.open[i] = bar.open;
        self.high[i] = bar.high;
        self.low[i] = bar.low;
        self.close[i] = bar.close;
        self.volume[i] = bar.volume;
    }

    /// Fingerprint of all bars bit by bit (64-bit FNV-1a): equal for equal data, whatever file it came from.
    /// It tells runs apart; it does not protect against somebody who wants two files to collide.
    pub fn content_hash(&self) -> u64 {
        let mut hash = Fnv64::default();
        for i in 0..self.len() {
            hash.update(&self.time_ms[i].to_le_bytes());
            for price in [self.open[i], self.high[i], self.low[i], self.close[i], self.volume[i]] {
                hash.update(&price.to_bits().to_le_bytes());
            }
        }
        hash.finish()
    }
}
