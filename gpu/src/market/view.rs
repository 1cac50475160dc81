//! What the environment reads of the market: device buffers in a kernel, vectors on the CPU.

use cuda_std::In;

use super::order::Bar;

/// Mid prices.
pub trait Prices {
    /// Prices of bar t.
    fn bar(&self, t: u32) -> Bar;
    /// Close of bar t, without the loads of the other prices.
    fn close(&self, t: u32) -> f64;
}

/// Times between bars.
pub trait Times {
    /// Years from bar t - 1 to bar t (365 days a year).
    fn elapsed(&self, t: u32) -> f64;
}

/// Where episodes may be.
pub trait Runs {
    /// First bar behind the run of decision bars that contains t; 0 when no complete window ends at t.
    fn run_end(&self, t: u32) -> u32;
    /// Number of bars at which an episode may start, at least 1.
    fn starts(&self) -> u32;
    /// The i-th of them.
    fn start(&self, i: u32) -> u32;
}

/// What a state is made of, besides the account.
pub trait Features {
    /// Element i of the bar features, row-major `[T, F]`.
    fn feature(&self, i: u32) -> f32;
    /// Sine and cosine of the time of day of bar t.
    fn clock(&self, t: u32) -> [f32; 2];
}

/// Slot of the replay ring that is `offset` behind the cursor, for a cursor below the capacity and an offset of at
/// most the capacity.
#[inline(always)]
pub(crate) fn ring_slot(cursor: u64, offset: u32, capacity: u32) -> u32 {
    let slot = cursor as u32 + offset;
    if slot >= capacity { slot - capacity } else { slot }
}

/// Mid open, high, low, close in a kernel's argument, row-major `[T, 4]`.
#[derive(Clone, Copy)]
pub(crate) struct PriceBuffer(pub In<f64>);

impl Prices for PriceBuffer {
    #[inline(always)]
    fn bar(&self, t: u32) -> Bar {
        Bar {
            open: self.0.get(4 * t),
            high: self.0.get(4 * t + 1),
            low: self.0.get(4 * t + 2),
            close: self.0.get(4 * t + 3),
        }
    }

    #[inline(always)]
    fn close(&self, t: u32) -> f64 {
        self.0.get(4 * t + 3)
    }
}

/// Years since the bar before in a kernel's argument, `[T]`.
#[derive(Clone, Copy)]
pub(crate) struct TimeBuffer(pub In<f64>);

impl Times for TimeBuffer {
    #[inline(always)]
    fn elapsed(&self, t: u32) -> f64 {
        self.0.get(t)
    }
}

/// A part's runs in a kernel's arguments.
#[derive(Clone, Copy)]
pub(crate) struct RunBuffers {
    /// `[T]`.
    pub run_end: In<u32>,
    /// `[start_count]`.
    pub starts: In<u32>,
    /// At least 1.
    pub start_count: u32,
}

impl Runs for RunBuffers {
    #[inline(always)]
    fn run_end(&self, t: u32) -> u32 {
        self.run_end.get(t)
    }

    #[inline(always)]
    fn starts(&self) -> u32 {
        self.start_count
    }

    #[inline(always)]
    fn start(&self, i: u32) -> u32 {
        self.starts.get(i)
    }
}

/// Features in a kernel's arguments.
#[derive(Clone, Copy)]
pub(crate) struct FeatureBuffers {
    /// `[T, F]`.
    pub features: In<f32>,
    /// `[T, 2]`.
    pub clock: In<f32>,
}

impl Features for FeatureBuffers {
    #[inline(always)]
    fn feature(&self, i: u32) -> f32 {
        self.features.get(i)
    }

    #[inline(always)]
    fn clock(&self, t: u32) -> [f32; 2] {
        [self.clock.get(2 * t), self.clock.get(2 * t + 1)]
    }
}
