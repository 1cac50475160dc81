//! Where everything lies in a block's shared memory.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::group::x_in_registers;
use super::size::{
    Fp16Medium, Fp16Small, GroupMedium, GroupSmall, HalfLarge, HalfMedium, HalfSmall, Large, MAX_BRANCHES,
    MAX_OUTPUTS, MAX_QUANTILES, Medium, OUTPUTS, Size, Small,
};
use super::tile::{Elements, Tile};

/// A block's shared memory.
pub struct Memory<S>(PhantomData<S>);

const fn max(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

/// Columns of the tile of dz: a row of a tile of halves has whole 128 bytes.
const fn gradient_columns(half: bool) -> u32 {
    if half { 64 } else { OUTPUTS }
}

impl<S: Size> Memory<S> {
    /// Most samples of a tile: as many as the targets of [`Memory::targets`] and the means of [`Memory::sums`] allow.
    pub const SAMPLES: u32 = Self::X_WORDS / (MAX_BRANCHES * MAX_QUANTILES);

    // In words of four bytes.
    /// Rows of a chunk of the trunk's features: samples, zeros, and for groups the cosine layer's bias.
    const TRUNK_ROWS: u32 = Self::SAMPLES + 1 + if S::GROUPS { 1 } else { 0 };
    /// The bias's row.
    pub const BIAS_ROW: u32 = Self::SAMPLES + 1;
    const X_WORDS: u32 = Self::words(S::ROWS * S::CHUNK);
    /// Where x is never in memory, what else has its place lies where the weights are at other times.
    const X_BESIDE: bool = !x_in_registers::<S>();
    const D_WORDS: u32 = if Self::X_BESIDE {
        Self::words(S::ROWS * S::CHUNK)
    } else {
        max(Self::words(S::ROWS * S::CHUNK), Self::words(S::CHUNK * S::COSINES + S::HIDDEN * S::CHUNK))
    };
    const HIDDEN: u32 = 0;
    const COSINES: u32 = Self::HIDDEN + Self::words(S::ROWS * S::HIDDEN);
    const BEHIND_COSINES: u32 = Self::COSINES + Self::words(S::ROWS * S::COSINES);
    const D: u32 = Self::BEHIND_COSINES + if Self::X_BESIDE { Self::X_WORDS } else { 0 };
    const COS_WEIGHT: u32 = Self::D + Self::D_WORDS;
    const X: u32 = if Self::X_BESIDE { Self::BEHIND_COSINES } else { Self::COS_WEIGHT };
    const HID_WEIGHT: u32 = Self::COS_WEIGHT + Self::words(S::CHUNK * S::COSINES);
    /// First word of [`Memory::ones`].
    pub const ONES: u32 = Self::HID_WEIGHT + Self::words(S::HIDDEN * S::CHUNK);
    const OUT_WEIGHT: u32 =
        if Self::X_BESIDE { Self::HID_WEIGHT } else { Self::ONES - Self::words(OUTPUTS * S::HIDDEN) };
    const TRUNK: u32 = Self::ONES + if S::GROUPS { Self::words(8 * 64) } else { 0 };
    const ITEMS: u32 = Self::TRUNK + 2 * Self::TRUNK_ROWS * S::CHUNK;
    const ITEM_WORDS: u32 = 2 * S::ROWS * MAX_BRANCHES;
    const TAUS: u32 = Self::ITEMS + Self::ITEM_WORDS;
    const CHOSEN: u32 = Self::TAUS + S::ROWS;
    const HID_BIAS: u32 = Self::CHOSEN + Self::SAMPLES * MAX_BRANCHES;
    const OUT_BIAS: u32 = Self::HID_BIAS + if S::GROUPS { S::HIDDEN } else { 0 };
    /// Bytes of it.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const BYTES: u32 = 4 * (Self::OUT_BIAS + if S::GROUPS { OUTPUTS } else { 0 });

    /// Words of some operands.
    pub const fn words(operands: u32) -> u32 {
        if S::HALF { operands / 2 } else { operands }
    }

    const fn tile(first: u32, rows: u32, width: u32) -> Tile {
        Tile { start: 4 * first, rows, width, permuted: true, elements: S::ELEMENTS }
    }

    /// u1, later du1 [rows, hidden].
    pub const fn hidden() -> Tile {
        Self::tile(Self::HIDDEN, S::ROWS, S::HIDDEN)
    }

    /// cos(pi j tau) [rows, cosines].
    pub const fn cosines() -> Tile {
        Self::tile(Self::COSINES, S::ROWS, S::COSINES)
    }

    /// x [rows, chunk].
    pub const fn x() -> Tile {
        Self::tile(Self::X, S::ROWS, S::CHUNK)
    }

    /// d phi [rows, chunk].
    pub const fn d_phi() -> Tile {
        Self::tile(Self::D, S::ROWS, S::CHUNK)
    }

    /// z [rows, outputs] in f32, of up to [`OUTPUTS`] outputs, where d phi will be.
    pub const fn outputs() -> Tile {
        Tile { start: 4 * Self::D, rows: S::ROWS, width: OUTPUTS, permuted: true, elements: Elements::Single }
    }

    /// dz [rows, outputs], in z's place.
    pub const fn d_outputs() -> Tile {
        Self::tile(Self::D, S::ROWS, gradient_columns(S::HALF))
    }

    /// dx * phi [rows, chunk] in f32, where x has been; of halves x and d phi.
    pub const fn products() -> Tile {
        Tile {
            start: 4 * Self::X,
            rows: S::ROWS,
            width: S::CHUNK,
            permuted: true,
            elements: Elements::Single,
        }
    }

    /// A chunk of the cosine layer's weight [chunk, cosines].
    pub const fn cos_weight() -> Tile {
        Self::tile(Self::COS_WEIGHT, S::CHUNK, S::COSINES)
    }

    /// A chunk of the hidden layer's weight [hidden, chunk].
    pub const fn hid_weight() -> Tile {
        Self::tile(Self::HID_WEIGHT, S::HIDDEN, S::CHUNK)
    }

    /// The cosine layer's weight of even chunks, and where d phi is at other times of odd ones.
    #[inline(always)]
    pub fn alternate_cos_weight(chunk: u32) -> Tile {
        let start = if chunk.is_multiple_of(2) { Self::COS_WEIGHT } else { Self::D };
        Self::tile(start, S::CHUNK, S::COSINES)
    }

    /// The hidden layer's weight in the same way.
    #[inline(always)]
    pub fn alternate_hid_weight(chunk: u32) -> Tile {
        let behind = Self::D + Self::words(S::CHUNK * S::COSINES);
        Self::tile(if chunk.is_multiple_of(2) { Self::HID_WEIGHT } else { behind }, S::HIDDEN, S::CHUNK)
    }

    /// Rows of the output layer's weight [outputs, hidden], where the hidden layer's is at other times.
    pub const fn out_weight() -> Tile {
        Self::tile(Self::OUT_WEIGHT, OUTPUTS, S::HIDDEN)
    }

    /// Eight columns of ones [8, 64], by which warpgroups sum rows.
    #[inline(always)]
    pub fn ones() -> Shared<u32> {
        shared::array(4 * Self::ONES, if S::GROUPS { Self::words(8 * 64) } else { 0 })
    }

    /// A chunk of the trunk's features [samples + 1, chunk], for even and odd chunks. The row behind the tile's samples is
    /// zero: the features of rows that belong to no sample. Of groups there is one more, [`Memory::BIAS_ROW`].
    #[inline(always)]
    pub fn trunk(odd: u32) -> Tile {
        let rows = Self::TRUNK_ROWS;
        let start = 4 * (Self::TRUNK + odd * rows * S::CHUNK);
        // In order: what lanes read at once is mostly one row, or few.
        Tile { start, rows, width: S::CHUNK, permuted: false, elements: Elements::Single }
    }

    /// The hidden layer's bias [hidden], of warpgroups.
    #[inline(always)]
    pub fn hid_bias() -> Shared<f32> {
        shared::array(4 * Self::HID_BIAS, S::HIDDEN)
    }

    /// The output layer's, of a group of outputs.
    #[inline(always)]
    pub fn out_bias() -> Shared<f32> {
        shared::array(4 * Self::OUT_BIAS, OUTPUTS)
    }

    /// Targets [samples, branches, target quantiles], where x is at other times.
    #[inline(always)]
    pub fn targets() -> Shared<f32> {
        shared::array(4 * Self::X, Self::X_WORDS)
    }

    /// Two floats for each row and branch: dL/dz of the action taken [branch, row], then the row's loss.
    #[inline(always)]
    pub fn items() -> Shared<f32> {
        shared::array(4 * Self::ITEMS, 2 * S::ROWS * MAX_BRANCHES)
    }

    /// Sums of the outputs over a sample's quantiles [samples, MAX_OUTPUTS]. They outlive one forward pass where a sample
    /// has several tiles, and only there x is in their way.
    #[inline(always)]
    pub fn sums(several_tiles: bool) -> Shared<f32> {
        // One sample then.
        let at = if several_tiles { Self::ITEMS } else { Self::X };
        shared::array(4 * at, if several_tiles { MAX_OUTPUTS } else { Self::X_WORDS })
    }

    /// tau [rows].
    #[inline(always)]
    pub fn taus() -> Shared<f32> {
        shared::array(4 * Self::TAUS, S::ROWS)
    }

    /// Greedy actions [samples, MAX_BRANCHES].
    #[inline(always)]
    pub fn chosen() -> Shared<u32> {
        shared::array(4 * Self::CHOSEN, Self::SAMPLES * MAX_BRANCHES)
    }
}

/// What the layout of [`Memory`] takes for granted.
const fn fits<S: Size>() {
    // A tile has one sample's rows at least, or (in f32 alone) room for one row's sums between a sample's tiles.
    assert!(S::ROWS >= MAX_QUANTILES || 2 * S::ROWS * MAX_BRANCHES >= MAX_OUTPUTS);
    assert!(Memory::<S>::SAMPLES >= 1 && Memory::<S>::SAMPLES * MAX_OUTPUTS <= Memory::<S>::X_WORDS);
    // d phi's place holds a tile of outputs and of their gradients, and the hidden weight's chunk rows of the output weight.
    assert!(Memory::<S>::words(S::ROWS * S::CHUNK) >= S::ROWS * OUTPUTS);
    assert!(S::CHUNK >= OUTPUTS);
    // The place of x, if it is the weights', ends before the output layer's weight.
    assert!(Memory::<S>::X_BESIDE || Memory::<S>::X + Memory::<S>::X_WORDS <= Memory::<S>::OUT_WEIGHT);
    // Of groups a sample's rows are in one tile.
    assert!(!S::GROUPS || S::ROWS >= MAX_QUANTILES);
    // Warpgroups' tiles begin at whole 1,024 bytes.
    assert!(!S::GROUPS || (S::ROWS.is_multiple_of(64) && (4 * Memory::<S>::ONES).is_multiple_of(1024)));
    // Rows of a tile of halves are whole 128 bytes.
    assert!(
        !S::HALF
            || (S::CHUNK.is_multiple_of(64) && S::COSINES.is_multiple_of(64) && S::HIDDEN.is_multiple_of(64))
    );
}

const _: () = {
    fits::<Small>();
    fits::<Medium>();
    fits::<Large>();
    fits::<HalfSmall>();
    fits::<HalfMedium>();
    fits::<HalfLarge>();
    fits::<GroupSmall>();
    fits::<GroupMedium>();
    fits::<Fp16Small>();
    fits::<Fp16Medium>();
};
