//! A made-up market: hourly bars with regimes and a small predictable component, and the same without it.
//!
//! Per bar, with S the last close, s the regime and x the signal:
//!
//! 1. With probability 1/200 the regime becomes one of the other two, each equally likely.
//! 2. The bar opens at S; behind a weekend at S exp(2 sigma_s z - 2 sigma_s^2).
//! 3. mu = phi_s sigma_s tanh(x); in the martingale mu = 0. Sixteen steps of the price,
//!    p <- p exp(mu/16 - sigma_s^2/32 + sigma_s/4 z), give high, low and close.
//! 4. x <- 0.9 x + sqrt(1 - 0.81) ln(close/open) / sigma_s.
//! 5. volume = round(1000 sigma_s/sigma_trend exp(0.4 |ln(close/open)|/sigma_s + 0.3 z) (1 + sin(day angle)/2)) + 1.
//!
//! | regime | sigma | phi |
//! |---|---|---|
//! | quiet | 0.0006 | 0 |
//! | trend | 0.0010 | 0.2 |
//! | revert | 0.0020 | -0.2 |
//!
//! As E exp(sigma z - sigma^2/2) = 1, the martingale's price is a martingale exactly, and so are its simple
//! returns a martingale difference: whatever trades on it earns its costs with a minus sign, on average. It
//! is the control: a learner that finds a profit there has found a leak. In the other variant the expected
//! log return of a bar is mu - sigma^2/2, about 1.5% of the variance of a bar's return in the regimes that
//! have one; a trader can estimate x and the regime from past returns and ranges.
//!
//! Bars run from Sunday 22:00 to Friday 21:00 UTC, 120 a week. z are standard normal by Box and Muller's method
//! from the ChaCha8 stream whose key is the seed in little-endian order followed by zeros; logarithms and
//! exponentials are the `libm` crate's. So a seed gives the same bits on every machine.

use std::f64::consts::TAU;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::calendar::{DAY_MS, weekday};
use crate::error::BarError;
use crate::series::{Bar, Bars};

/// Bar interval.
const HOUR_MS: i64 = 3_600_000;
/// First bar: Sunday, 2015-01-04 22:00 UTC.
const START_MS: i64 = 1_420_408_800_000;
/// First price.
const START_PRICE: f64 = 100.0;
/// Volatility of a bar by regime.
pub const SIGMA: [f64; 3] = [0.0006, 0.0010, 0.0020];
/// Predictable part of a bar's return, in volatilities at full signal, by regime.
pub const PHI: [f64; 3] = [0.0, 0.2, -0.2];
/// Regime changes per bar.
pub const SWITCH: f64 = 1.0 / 200.0;
/// Steps within a bar.
const STEPS: usize = 16;
/// Decay of the signal.
pub const DECAY: f64 = 0.9;
/// Most bars; the price of a martingale goes to zero in the long run and would leave the allowed range.
const MOST: usize = 10_000_000;

/// Which of the two markets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// With the predictable component.
    #[default]
    Regimes,
    /// Without: nothing to learn.
    Martingale,
}

/// What nobody who only sees the bars knows: the state of the market at the close of a bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Truth {
    /// s of the bar: 0 quiet, 1 trend, 2 revert.
    pub regime: usize,
    /// x behind the bar.
    pub signal: f64,
}

/// A synthetic market.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synthetic {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of bars, 1 to ten million.
    pub bars: usize,
    /// With or without predictable component.
    pub kind: Kind,
}

impl Synthetic {
    /// Makes the bars.
    ///
    /// # Errors
    /// If the number of bars is out of range.
    pub fn generate(self) -> Result<Bars, BarError> {
        self.generate_with(|_| ())
    }

    /// The same bars with the hidden state behind each of them, for an oracle.
    ///
    /// # Errors
    /// As for [`Self::generate`].
    pub fn generate_with_truth(self) -> Result<(Bars, Vec<Truth>), BarError> {
        let mut truth = Vec::new();
        let bars = self.generate_with(|state| truth.push(state))?;
        Ok((bars, truth))
    }

    fn generate_with(self, mut tell: impl FnMut(Truth)) -> Result<Bars, BarError> {
        if !(1..=MOST).contains(&self.bars) {
            return Err(BarError::option("bars", self.bars, format!("expected 1 to {MOST}")));
        }
        let mut random = Normals::new(self.seed);
        let mut bars = Bars { has_volume: true, ..Bars::default() };
        let (mut time_ms, mut close, mut regime, mut signal) = (START_MS, START_PRICE, 0, 0.0);
        for i in 0..self.bars {
            let mut after_weekend = false;
            if i > 0 {
                time_ms += HOUR_MS;
                while !is_open(time_ms) {
                    time_ms += HOUR_MS;
                    after_weekend = true;
                }
            }
            if random.uniform() < SWITCH {
                regime = (regime + 1 + usize::from(random.uniform() < 0.5)) % 3;
            }
            let sigma = SIGMA[regime];
            let mu = match self.kind {
                Kind::Regimes => PHI[regime] * sigma * libm::tanh(signal),
                Kind::Martingale => 0.0,
            };
            let mut price = close;
            if after_weekend {
                price *= libm::exp(2.0 * sigma * random.normal() - 2.0 * sigma * sigma);
            }
            let open = price;
            let (mut high, mut low) = (open, open);
            let steps = STEPS as f64;
            let (drift, spread) = ((mu - 0.5 * sigma * sigma) / steps, sigma / steps.sqrt());
            for _ in 0..STEPS {
                price *= libm::exp(drift + spread * random.normal());
                (high, low) = (high.max(price), low.min(price));
            }
            close = price;
            let surprise = libm::log(close / open) / sigma;
            signal = DECAY * signal + (1.0 - DECAY * DECAY).sqrt() * surprise;
            let day = libm::sin(time_ms.rem_euclid(DAY_MS) as f64 / DAY_MS as f64 * TAU);
            let size = libm::exp(0.4 * surprise.abs() + 0.3 * random.normal()) * (1.0 + 0.5 * day);
            let volume = (1000.0 * sigma / SIGMA[1] * size).round() + 1.0;
            bars.push(Bar { time_ms, open, high, low, close, volume });
            tell(Truth { regime, signal });
        }
        Ok(bars)
    }
}

/// Sunday 22:00 to Friday 22:00 UTC.
fn is_open(ms: i64) -> bool {
    let hour = ms.rem_euclid(DAY_MS) / HOUR_MS;
    match weekday(ms) {
        4 => hour < 22,
        5 => false,
        6 => hour >= 22,
        _ => true,
    }
}

/// Uniform and normal numbers from ChaCha8.
struct Normals {
    generator: ChaCha8Rng,
    spare: Option<f64>,
}

impl Normals {
    fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self { generator: ChaCha8Rng::from_seed(key), spare: None }
    }

    /// In [0, 1), a multiple of 2^-53.
    fn uniform(&mut self) -> f64 {
        (self.generator.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Box and Muller (1958): two uniforms give two normals, of which one is kept for the next call.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * libm::log(1.0 - self.uniform())).sqrt();
        let angle = TAU * self.uniform();
        self.spare = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }
}
