//! A tile's image in device memory, and a block's shared memory.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use crate::kernels::iqn::memory::Memory;
use crate::kernels::iqn::size::Size;
use crate::kernels::iqn::tile::{AlongRows, Elements, Tile};

/// Rows of a tile that a warpgroup works on at once.
pub const ROWS: u32 = 64;

/// A tile's image in device memory, in words of four bytes.
pub struct Image<S>(PhantomData<S>);

impl<S: Size> Image<S> {
    const HIDDEN: u32 = Memory::<S>::words(S::ROWS * S::HIDDEN);
    /// Words of an image.
    pub const WORDS: u32 = Self::HIDDEN + Memory::<S>::words(S::ROWS * S::COSINES);

    /// Where du1 of tile number `tile` begins.
    #[inline(always)]
    pub fn hidden(tile: u32) -> u32 {
        tile * Self::WORDS
    }

    /// Where its cosines begin.
    #[inline(always)]
    pub fn cosines(tile: u32) -> u32 {
        tile * Self::WORDS + Self::HIDDEN
    }
}

/// Where everything lies in a block's shared memory.
pub struct Layout<S>(PhantomData<S>);

/// Chunks of a block: of the small size each warpgroup has one, of the larger both have the same.
pub const fn chunks_of_block<S: Size>() -> u32 {
    if both::<S>() { S::THREADS / 128 } else { 1 }
}

/// Whether a warpgroup makes both gradients of its chunk: as registers allow.
pub const fn both<S: Size>() -> bool {
    S::HIDDEN <= 128
}

impl<S: Size> Layout<S> {
    // In words of four bytes.
    const COSINES: u32 = 2 * Memory::<S>::words(S::ROWS * S::HIDDEN);
    const COS_WEIGHT: u32 = Self::COSINES + 2 * Memory::<S>::words(S::ROWS * S::COSINES);
    const HID_WEIGHT: u32 =
        Self::COS_WEIGHT + chunks_of_block::<S>() * Memory::<S>::words(S::CHUNK * S::COSINES);
    /// First word of [`Layout::ones`].
    pub const ONES: u32 =
        Self::HID_WEIGHT + chunks_of_block::<S>() * Memory::<S>::words(S::HIDDEN * S::CHUNK);
    const TRUNK_ROWS: u32 = Memory::<S>::SAMPLES + 1;
    const TRUNK: u32 = Self::ONES + Memory::<S>::words(8 * 64);
    const BELOW: u32 = Self::TRUNK + 2 * chunks_of_block::<S>() * Self::TRUNK_ROWS * S::CHUNK;
    /// Bytes of it.
    #[cfg(not(target_arch = "nvptx64"))]
    const BYTES: u32 = 4 * (Self::BELOW + 2 * chunks_of_block::<S>() * Memory::<S>::SAMPLES * S::CHUNK);

    const fn tile(first: u32, rows: u32, width: u32) -> Tile {
        Tile { start: 4 * first, rows, width, permuted: true, elements: S::ELEMENTS }
    }

    /// du1 of the block's tile number `n`.
    pub fn hidden(n: u32) -> Tile {
        Self::tile(n % 2 * Memory::<S>::words(S::ROWS * S::HIDDEN), S::ROWS, S::HIDDEN)
    }

    /// Its cosines.
    pub fn cosines(n: u32) -> Tile {
        Self::tile(Self::COSINES + n % 2 * Memory::<S>::words(S::ROWS * S::COSINES), S::ROWS, S::COSINES)
    }

    /// The cosine layer's weight of the block's chunk number `local` [chunk, cosines].
    pub fn cos_weight(local: u32) -> Tile {
        let words = Memory::<S>::words(S::CHUNK * S::COSINES);
        Self::tile(Self::COS_WEIGHT + local * words, S::CHUNK, S::COSINES)
    }

    /// The hidden layer's [hidden, chunk].
    pub fn hid_weight(local: u32) -> Tile {
        let words = Memory::<S>::words(S::HIDDEN * S::CHUNK);
        Self::tile(Self::HID_WEIGHT + local * words, S::HIDDEN, S::CHUNK)
    }

    /// Eight columns of ones [8, 64], by which rows are summed.
    pub fn ones() -> Tile {
        Self::tile(Self::ONES, 8, 64)
    }

    /// h of tile number `n` [samples + 1, chunk]. The row behind the tile's samples is zero: of rows without sample.
    pub fn trunk(local: u32, n: u32) -> Tile {
        Self::features(Self::TRUNK, local, n, Self::TRUNK_ROWS)
    }

    /// What the activation below h gave [samples, chunk].
    pub fn below(local: u32, n: u32) -> Tile {
        Self::features(Self::BELOW, local, n, Memory::<S>::SAMPLES)
    }

    fn features(first: u32, local: u32, n: u32, rows: u32) -> Tile {
        let number = n % 2 * chunks_of_block::<S>() + local;
        let start = 4 * (first + number * rows * S::CHUNK);
        Tile { start, rows, width: S::CHUNK, permuted: false, elements: Elements::Single }
    }
}

/// Bytes of a block's shared memory.
#[cfg(not(target_arch = "nvptx64"))]
pub const fn bytes<S: Size>() -> u32 {
    Layout::<S>::BYTES
}

/// B stored across the summed index, which are rows of the tile from `row` on, from octet `first` of its columns on.
#[inline(always)]
pub fn across(tile: Tile, first: u32, row: u32) -> warpgroup::Operand {
    let (operand, step) = tile.operand::<AlongRows>(first);
    operand.advance(row / ROWS * step)
}
