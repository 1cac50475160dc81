//! A warpgroup's gradients, in registers and on their way to device memory.

use cuda_std::prelude::*;

use super::layout::{Layout, ROWS, across};
use super::{Block, Share, feature};
use crate::kernels::iqn::plane::Plane;
use crate::kernels::iqn::product::{Fragments, ZERO};
use crate::kernels::iqn::size::{GradEmbed, GradHide, Part, Size};
use crate::kernels::iqn::tile::{AlongK, AlongRows, Tile};

/// Most pieces of 64 hidden units.
const PIECES: usize = 4;

/// A warpgroup's gradients, a lane's part of them.
pub struct Gradients {
    /// dWh' [features, hidden units], 128 units each.
    pub hid_weight: [Fragments; 2],
    /// dbh of two units of each 64, in the first chunk.
    pub hid_bias: [[f32; 2]; PIECES],
    /// dWc [features, cosines].
    pub cos_weight: Fragments,
    /// dbc, the same eight times.
    pub cos_bias: Fragments,
}

impl Gradients {
    /// None yet.
    #[inline(always)]
    pub fn new() -> Gradients {
        Gradients { hid_weight: [ZERO; 2], hid_bias: [[0.0; 2]; PIECES], cos_weight: ZERO, cos_bias: ZERO }
    }
}

/// Adds the sums of du1 over a tile's rows.
#[inline(always)]
pub fn sum_hidden<S: Size>(hidden: Tile, to: &mut [[f32; 2]; PIECES]) {
    let (ones, _) = Layout::<S>::ones().operand::<AlongK>(0);
    unroll4!(piece < (S::HIDDEN / 64) as usize => {
        let mut c = ZERO;
        let mut row = 0;
        while row < S::ROWS {
            let hidden = across(hidden, 8 * piece as u32, row);
            warpgroup::multiply::<Share<S, 1, AlongRows, AlongK>, 4>(hidden, ones, &mut c);
            row += ROWS;
        }
        to[piece] = [to[piece][0] + c[0][0], to[piece][1] + c[0][2]];
    });
}

impl Block<'_> {
    /// Adds the gradients to the part's plane, or writes them there if they are the `first`.
    #[inline(always)]
    pub fn store<S: Size, const HIDE: bool, const EMBED: bool>(&self, gradients: &Gradients, first: bool) {
        let plane = Plane::new::<S>(self.head.trunk, self.head.outputs);
        let (planes, start) = (self.chunks.planes, self.part * plane.len);
        let scaled = |value: f32| if S::SCALED { value * self.chunks.to.unit } else { value };
        let add4 = |at: u32, c: [f32; 4]| {
            let (c, before) = (c.map(scaled), if first { [0.0; 4] } else { planes.get4(at) });
            planes.set4(at, [c[0] + before[0], c[1] + before[1], c[2] + before[2], c[3] + before[3]]);
        };
        let add = |at: u32, value: f32| {
            planes.set(at, scaled(value) + if first { 0.0 } else { planes.get(at) });
        };
        let of_thread = 4 * (thread::thread_idx() % 128);
        if HIDE {
            let at = start + plane.hid_weight + self.chunk * S::HIDDEN * S::CHUNK + of_thread;
            unroll4!(half < (S::HIDDEN / 128) as usize => {
                unroll16!(j < 16 => {
                    let n = (16 * half + j) as u32;
                    add4(at + 4 * GradHide::<S>::THREADS * n, gradients.hid_weight[half % 2][j]);
                });
            });
        }
        if EMBED {
            let at = start + plane.cos_weight + self.chunk * S::CHUNK * S::COSINES + of_thread;
            unroll8!(j < 8 => {
                add4(at + 4 * GradEmbed::<S>::THREADS * j as u32, gradients.cos_weight[j]);
            });
            if thread::lane().is_multiple_of(4) {
                let at = start + plane.cos_bias + self.chunk * S::CHUNK + feature();
                add(at, gradients.cos_bias[0][0]);
                add(at + 8, gradients.cos_bias[0][2]);
                if self.chunk == 0 {
                    unroll4!(piece < (S::HIDDEN / 64) as usize => {
                        let at = start + plane.hid_bias + 64 * piece as u32 + feature();
                        add(at, gradients.hid_bias[piece][0]);
                        add(at + 8, gradients.hid_bias[piece][1]);
                    });
                }
            }
        }
    }
}
