//! tau, read or drawn, and its cosines: what a tile begins with.

use cuda_std::prelude::*;

use super::forward::Head;
use super::memory::Memory;
use super::product::Arithmetic;
use super::size::{Place, Size, Split};
use crate::philox;

/// Where tau comes from.
#[derive(Clone, Copy)]
pub struct Taus {
    /// tau [B, N].
    pub taus: InOut<f32>,
    /// Draw it and write it there; else it is read.
    pub draw: bool,
    /// Key of the draws.
    pub seed: u64,
    /// Number of the step.
    pub step: u64,
    /// What the draws are for.
    pub stream: philox::Stream,
}

impl Taus {
    #[inline(always)]
    fn get(&self, index: u32) -> f32 {
        if self.draw {
            philox::uniform_open(philox::draw(self.seed, self.step, self.stream, index, 0)[0])
        } else {
            self.taus.get(index)
        }
    }
}

/// sin and cos of pi j tau, j up to 256, each within 2^-23. The product j tau is as exact as two floats are: with one float
/// the angle would be off by up to j 2^-25 half turns.
#[inline(always)]
fn sin_cos_pi(j: u32, tau: f32) -> (f32, f32) {
    let j = j as f32;
    let product = j * tau;
    let rest = math::fma(j, tau, -product);
    let half = 0.5 * product;
    math::sin_cos_2pi(math::fma(0.5, rest, half - math::round(half)))
}

impl Head {
    /// Gets or draws the tile's taus and writes their cosines; rows that do not exist get zeros.
    #[inline(always)]
    pub fn write_cosines<E: Arithmetic, S: Size>(&self, place: &Place, split: &Split, taus: &Taus) {
        let row = thread::thread_idx() % S::ROWS;
        let part = thread::thread_idx() / S::ROWS;
        let (exists, index) = place.row::<S>(split, row);
        let tau = if exists { taus.get(index) } else { 0.0 };
        if part == 0 {
            Memory::<S>::taus().set(row, tau);
            if exists && taus.draw {
                taus.taus.set(index, tau);
            }
        }
        if S::HALF {
            return self.write_octets::<E, S>(row, part, exists, tau);
        }
        // The first of four neighbours by itself, or by turning another first one, and the others by turning it, which leaves
        // all of them within 2^-20.
        let apart = S::THREADS / S::ROWS;
        const { assert!((S::COSINES / 4).is_multiple_of(2 * (S::THREADS / S::ROWS))) };
        let turns = [sin_cos_pi(0, tau), sin_cos_pi(1, tau), sin_cos_pi(2, tau), sin_cos_pi(3, tau)];
        let (apart_sin, apart_cos) = sin_cos_pi(4 * apart, tau);
        let write = |quad: u32, sin: f32, cos: f32| {
            let mut cosines = [0.0; 4];
            unroll4!(e < 4 => {
                if exists && 4 * quad + (e as u32) < self.cosines {
                    let (turn_sin, turn_cos) = turns[e];
                    cosines[e] = E::stored(math::fma(cos, turn_cos, -(sin * turn_sin)));
                }
            });
            Memory::<S>::cosines().set4(row, quad, cosines);
        };
        let mut quad = part;
        while quad < S::COSINES / 4 {
            let (sin, cos) = sin_cos_pi(4 * quad + 1, tau);
            write(quad, sin, cos);
            let further_sin = math::fma(sin, apart_cos, cos * apart_sin);
            let further_cos = math::fma(cos, apart_cos, -(sin * apart_sin));
            write(quad + apart, further_sin, further_cos);
            quad += 2 * apart;
        }
    }

    /// A row's cosines in halves. The first of eight neighbours by turning the first one before, the second by turning that, the
    /// others from the two before them: cos((j + 1) a) = 2 cos(a) cos(j a) - cos((j - 1) a), which adds up to 2^-19.
    #[inline(always)]
    fn write_octets<E: Arithmetic, S: Size>(&self, row: u32, part: u32, exists: bool, tau: f32) {
        let apart = S::THREADS / S::ROWS;
        let count = if exists { self.cosines } else { 0 };
        let (turn_sin, turn_cos) = sin_cos_pi(1, tau);
        let (far_sin, far_cos) = sin_cos_pi(8 * apart, tau);
        let (mut sin, mut cos) = sin_cos_pi(8 * part + 1, tau);
        let twice = 2.0 * turn_cos;
        let mut octet = part;
        while octet < S::COSINES / 8 {
            let mut c = [cos, math::fma(cos, turn_cos, -(sin * turn_sin)), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            let next = |now: f32, before: f32| math::fma(twice, now, -before);
            c[2] = next(c[1], c[0]);
            c[3] = next(c[2], c[1]);
            c[4] = next(c[3], c[2]);
            c[5] = next(c[4], c[3]);
            c[6] = next(c[5], c[4]);
            c[7] = next(c[6], c[5]);
            if 8 * octet + 8 > count {
                unroll8!(e < 8 => {
                    if 8 * octet + e as u32 >= count {
                        c[e] = 0.0;
                    }
                });
            }
            Memory::<S>::cosines().set8(row, octet, c.map(E::stored));
            let before = sin;
            sin = math::fma(sin, far_cos, cos * far_sin);
            cos = math::fma(cos, far_cos, -(before * far_sin));
            octet += apart;
        }
    }
}
