//! A block's plane of device memory, in which the parameters' gradients are summed over its tiles.
//!
//! It stays in the L2 cache where all of them fit. Numbers are in the order in which lanes hold them: four floats of one lane
//! side by side, lanes next to each other. Each is read and written by one thread, so the order of the sum is the order of
//! the tiles. `reduce` adds the planes.

use cuda_std::prelude::*;

use super::group::group;
use super::product::{Arithmetic, RowSums, Summing, ZERO};
use super::size::{OUTPUTS, Part, Size};
use super::tile::{AlongRows, Tile, opaque};

/// Where the parts of a plane begin, in floats.
#[derive(Clone, Copy)]
pub struct Plane {
    /// dWh, one chunk after the other.
    pub hid_weight: u32,
    /// dWc, one chunk after the other.
    pub cos_weight: u32,
    /// dWo, one group of outputs after the other.
    pub out_weight: u32,
    /// dbh.
    pub hid_bias: u32,
    /// dbc.
    pub cos_bias: u32,
    /// dbo.
    pub out_bias: u32,
    /// Floats of a plane.
    pub len: u32,
}

impl Plane {
    /// For a head's sizes.
    #[inline(always)]
    pub fn new<S: Size>(trunk: u32, outputs: u32) -> Plane {
        let (chunks, groups) = (trunk.div_ceil(S::CHUNK), outputs.div_ceil(OUTPUTS));
        let hid_weight = 0;
        let cos_weight = hid_weight + chunks * S::HIDDEN * S::CHUNK;
        let out_weight = cos_weight + chunks * S::CHUNK * S::COSINES;
        let hid_bias = out_weight + groups * OUTPUTS * S::HIDDEN;
        let cos_bias = hid_bias + S::HIDDEN;
        let out_bias = cos_bias + chunks * S::CHUNK;
        Plane {
            hid_weight,
            cos_weight,
            out_weight,
            hid_bias,
            cos_bias,
            out_bias,
            len: out_bias + groups * OUTPUTS,
        }
    }
}

/// The block's plane.
#[derive(Clone, Copy)]
pub struct Sums {
    /// The blocks' planes.
    pub planes: InOut<f32>,
    /// First float of this one.
    pub start: u32,
    /// Nothing is there yet.
    pub first: bool,
    /// What operands of a [`Arithmetic::SCALED`] product are multiples by the inverse of.
    pub unit: f32,
}

impl Sums {
    /// Adds A B, of [k, rows of C] and [k, columns of C], to the part of the plane that begins at `weight`, and if `U` says
    /// so the sums of A over k to the one that begins at `bias`. What was in the plane is read before the product and added
    /// after it, where there are registers for it; else it is read after the product.
    #[inline(always)]
    pub fn add<E: Arithmetic, P: Part, U: Summing>(&self, a: Tile, b: Tile, weight: u32, bias: u32) {
        // A thread of 512 has half the registers.
        let early = P::THREADS == 256 || P::TM * P::TN <= 8;
        let at = self.start + weight + 4 * opaque(thread::thread_idx());
        let mut before = ZERO;
        if early && !self.first {
            unroll_fragments!(P, n => {
                before[n] = self.planes.get4(at + 4 * P::THREADS * n as u32);
            });
        }
        let mut c = ZERO;
        let mut sums: RowSums = [0.0; 8];
        let sum = P::corner().1 == 0;
        E::multiply::<P, AlongRows, AlongRows, U>(a, b, a.rows, &mut c, sum, &mut sums);
        unroll_fragments!(P, n => {
            let at = at + 4 * P::THREADS * n as u32;
            let before = if early || self.first { before[n] } else { self.planes.get4(at) };
            let c = c[n];
            let add = |e: usize| self.sum::<E>(c[e], before[e]);
            self.planes.set4(at, [add(0), add(1), add(2), add(3)]);
        });
        if U::ON && sum {
            let row = P::corner().0 + thread::lane() / 4;
            unroll8!(i < 2 * P::TM => {
                let sum = E::whole_sum(sums[i]);
                if thread::lane().is_multiple_of(4) {
                    self.add_one::<E>(bias + row + 8 * i as u32, sum);
                }
            });
        }
    }

    /// Adds the sums over k of A, of [k, rows of C], to the part of the plane that begins at `bias`, for `rows` of 64 rows.
    /// The first warpgroup does it.
    #[inline(always)]
    pub fn add_rows<E: Arithmetic, P: Part>(&self, a: Tile, rows: u32, bias: u32) {
        if group::<P>() == 0 {
            let mut sums: RowSums = [0.0; 8];
            E::sum_rows::<P, AlongRows>(a, 0, a.rows, &mut sums);
            let row = 16 * (opaque(thread::warp()) % 4) + thread::lane() / 4;
            unroll4!(i < 2 => {
                let row = row + 8 * i as u32;
                if row < rows && thread::lane().is_multiple_of(4) {
                    self.add_one::<E>(bias + row, sums[i]);
                }
            });
        }
    }

    /// A product's sum and what was there before.
    #[inline(always)]
    fn sum<E: Arithmetic>(&self, value: f32, before: f32) -> f32 {
        if E::SCALED { math::fma(value, self.unit, before) } else { value + before }
    }

    /// Adds a number to the one at `at`.
    #[inline(always)]
    fn add_one<E: Arithmetic>(&self, at: u32, value: f32) {
        let at = self.start + at;
        self.planes.set(at, self.sum::<E>(value, if self.first { 0.0 } else { self.planes.get(at) }));
    }
}

/// Index of a float of a lane's part of C in a plane's part, from its row and column in C: the inverse of what
/// [`Sums::add`] does.
#[inline(always)]
pub fn fragment_place<P: Part>(offset: u32) -> (u32, u32) {
    let (e, fragment) = (offset % 4, offset / 4);
    let (thread, n) = (fragment % P::THREADS, fragment / P::THREADS);
    let (warp, lane) = (thread / 32, thread % 32);
    let (i, j) = (n / P::TN as u32, n % P::TN as u32);
    let (row, column) = P::place(warp);
    (row + 16 * i + lane / 4 + 8 * (e / 2), column + 8 * j + 2 * (lane % 4) + e % 2)
}
