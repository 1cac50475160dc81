//! The head's three weights as the kernels want them in shared memory: rounded, with zeros where a tile has no element, in
//! the tiles' own order, one chunk behind the other. A kernel copies a chunk as it is, and rounds nothing.

use cuda_std::prelude::*;

use super::memory::Memory;
use super::size::{OUTPUTS, Size};
use super::tile::Tile;
use crate::kernels::gemm::round;

/// Threads of a block.
#[cfg(not(target_arch = "nvptx64"))]
pub const THREADS: u32 = 256;

/// How operands are rounded: not at all.
#[cfg(not(target_arch = "nvptx64"))]
pub const FP32: u32 = 0;
/// To ten mantissa bits.
pub const TF32: u32 = 1;
/// To seven, two a word.
#[cfg(not(target_arch = "nvptx64"))]
pub const BF16: u32 = 2;
/// To fp16's ten, two a word.
#[cfg(not(target_arch = "nvptx64"))]
pub const FP16: u32 = 3;

/// Where the parts begin, in words of four bytes. Wc, in chunks of its rows, is the first.
#[derive(Clone, Copy)]
pub struct Packed {
    /// Wh, in chunks of its columns.
    pub hid_weight: u32,
    /// Wo, in groups of its rows.
    pub out_weight: u32,
    /// Words of it all.
    pub len: u32,
}

impl Packed {
    /// For a head's sizes.
    #[inline(always)]
    pub fn new<S: Size>(trunk: u32, outputs: u32) -> Packed {
        let (chunks, groups) = (trunk.div_ceil(S::CHUNK), outputs.div_ceil(OUTPUTS));
        let hid_weight = chunks * Memory::<S>::words(S::CHUNK * S::COSINES);
        let out_weight = hid_weight + chunks * Memory::<S>::words(S::HIDDEN * S::CHUNK);
        Packed { hid_weight, out_weight, len: out_weight + groups * Memory::<S>::words(OUTPUTS * S::HIDDEN) }
    }
}

/// The three weights.
#[derive(Clone, Copy)]
pub struct Weights {
    /// H2.
    pub trunk: u32,
    /// E.
    pub cosines: u32,
    /// Hq.
    pub hidden: u32,
    /// A.
    pub outputs: u32,
    /// Wc [H2, E].
    pub cos_weight: In<f32>,
    /// Wh [Hq, H2].
    pub hid_weight: In<f32>,
    /// Wo [A, Hq].
    pub out_weight: In<f32>,
}

impl Weights {
    /// One thread's word.
    #[inline(always)]
    pub fn pack<S: Size>(&self, rounding: u32, to: Out<f32>) {
        let packed = Packed::new::<S>(self.trunk, self.outputs);
        let word = thread::global_index();
        if word < packed.hid_weight {
            let (tile, at) = (Memory::<S>::cos_weight(), word);
            let (chunk, row, column) = element(tile, at);
            let read = matrix(self.cos_weight, self.trunk, self.cosines);
            to.set(word, value::<S>(rounding, read, chunk * S::CHUNK + row, column));
        } else if word < packed.out_weight {
            let (tile, at) = (Memory::<S>::hid_weight(), word - packed.hid_weight);
            let (chunk, row, column) = element(tile, at);
            let read = matrix(self.hid_weight, self.hidden, self.trunk);
            to.set(word, value::<S>(rounding, read, row, chunk * S::CHUNK + column));
        } else if word < packed.len {
            let (tile, at) = (Memory::<S>::out_weight(), word - packed.out_weight);
            let (group, row, column) = element(tile, at);
            let read = matrix(self.out_weight, self.outputs, self.hidden);
            to.set(word, value::<S>(rounding, read, group * OUTPUTS + row, column));
        }
    }
}

/// Number of the tile, row and column in it of the first element in a word of tiles one behind the other.
#[inline(always)]
fn element(tile: Tile, at: u32) -> (u32, u32, u32) {
    let (row, column) = tile.element(at % tile.words());
    (at / tile.words(), row, column)
}

/// Elements of a row-major matrix, zero where there is none.
#[inline(always)]
fn matrix(values: In<f32>, rows: u32, columns: u32) -> impl Fn(u32, u32) -> f32 {
    move |row, column| {
        if row < rows && column < columns { values.get(row * columns + column) } else { 0.0 }
    }
}

/// The word that holds an element, and of halves the next one too.
#[inline(always)]
fn value<S: Size>(rounding: u32, read: impl Fn(u32, u32) -> f32, row: u32, column: u32) -> f32 {
    let first = read(row, column);
    if S::HALF {
        f32::from_bits(S::ELEMENTS.pair(first, read(row, column + 1)))
    } else if rounding == TF32 {
        f32::from_bits(round::tf32(first))
    } else {
        first
    }
}
