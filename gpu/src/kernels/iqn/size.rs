//! Tile sizes: how many rows (pairs of sample and quantile) a block works on at once, what widths fit, how the warps
//! share each product, and where everything lies in shared memory.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::group::x_in_registers;
use super::tile::{Tile, opaque};

/// Outputs that are computed at once.
pub const OUTPUTS: u32 = 32;
/// Most quantiles of a sample, online or target.
pub const MAX_QUANTILES: u32 = 64;
/// Most outputs: branches times their actions.
pub const MAX_OUTPUTS: u32 = 512;
/// Most branches.
pub const MAX_BRANCHES: u32 = 8;

/// A tile size.
pub trait Size {
    /// Rows of a tile.
    const ROWS: u32;
    /// Most hidden units.
    const HIDDEN: u32;
    /// Most cosines.
    const COSINES: u32;
    /// Columns of x (trunk features) that are worked on at once.
    const CHUNK: u32;
    /// Threads of a block.
    const THREADS: u32;
    /// Whether operands are bf16 in shared memory; else they are f32.
    const HALF: bool;
    /// Whether warpgroups multiply, four warps together; else warps do.
    const GROUPS: bool = false;
}

/// For up to 128 hidden units and 64 cosines: the defaults.
pub struct Small;
/// For up to 256 hidden units and 64 cosines.
pub struct Medium;
/// For up to 512 hidden units and 256 cosines.
pub struct Large;
/// As [`Small`], in bf16.
pub struct HalfSmall;
/// As [`Medium`], in bf16.
pub struct HalfMedium;
/// As [`Large`], in bf16.
pub struct HalfLarge;
/// As [`HalfSmall`], for warpgroups.
pub struct GroupSmall;
/// As [`HalfMedium`], for warpgroups.
pub struct GroupMedium;

impl Size for Small {
    const ROWS: u32 = 128;
    const HIDDEN: u32 = 128;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 256;
    const HALF: bool = false;
}

impl Size for Medium {
    const ROWS: u32 = 64;
    const HIDDEN: u32 = 256;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 256;
    const HALF: bool = false;
}

impl Size for Large {
    const ROWS: u32 = 32;
    const HIDDEN: u32 = 512;
    const COSINES: u32 = 256;
    const CHUNK: u32 = 32;
    const THREADS: u32 = 256;
    const HALF: bool = false;
}

impl Size for HalfSmall {
    const ROWS: u32 = 256;
    const HIDDEN: u32 = 128;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 512;
    const HALF: bool = true;
}

impl Size for HalfMedium {
    const ROWS: u32 = 128;
    const HIDDEN: u32 = 256;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 512;
    const HALF: bool = true;
}

impl Size for HalfLarge {
    const ROWS: u32 = 64;
    const HIDDEN: u32 = 512;
    const COSINES: u32 = 256;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 512;
    const HALF: bool = true;
}

/// Tiles, packed weights and planes of gradients are as large as the other size's: the host tells them apart by nothing but
/// the kernel.
macro_rules! for_groups {
    ($name:ident as $half:ident) => {
        impl Size for $name {
            const ROWS: u32 = $half::ROWS;
            const HIDDEN: u32 = $half::HIDDEN;
            const COSINES: u32 = $half::COSINES;
            const CHUNK: u32 = $half::CHUNK;
            const THREADS: u32 = $half::THREADS;
            const HALF: bool = true;
            const GROUPS: bool = true;
        }
    };
}

for_groups!(GroupSmall as HalfSmall);
for_groups!(GroupMedium as HalfMedium);

/// One product's tile of C and its share for each of the block's warps: `TM` by `TN` tensor-core tiles of 16 x 8. Warpgroups
/// have 64 rows each, a warp of them 16.
pub trait Part {
    /// Rows of C.
    const ROWS: u32;
    /// Columns of C.
    const COLUMNS: u32;
    /// Threads of the block.
    const THREADS: u32;
    /// Whether warpgroups multiply.
    const GROUPS: bool;
    /// First byte of [`Memory::ones`].
    const ONES: u32;
    /// Warps along the columns; of groups, these.
    const ACROSS: u32 = if Self::GROUPS {
        groups_across(Self::ROWS, Self::THREADS / 128)
    } else {
        Self::THREADS / 32 / warps_along_rows(Self::ROWS, Self::COLUMNS, Self::THREADS / 32)
    };
    /// Tensor-core tiles of a warp along the rows, at most 4; of a group's, 1.
    const TM: usize =
        if Self::GROUPS { 1 } else { (Self::ROWS / 16 * Self::ACROSS / (Self::THREADS / 32)) as usize };
    /// Tensor-core tiles of a warp along the columns, at most 8; of a group's, 16.
    const TN: usize = (Self::COLUMNS / 8 / Self::ACROSS) as usize;

    /// A warp's first row and column of C.
    #[inline(always)]
    fn place(warp: u32) -> (u32, u32) {
        if Self::GROUPS {
            let (row, column) = Self::group_place(warp / 4);
            (row + 16 * (warp % 4), column)
        } else {
            (warp / Self::ACROSS * 16 * Self::TM as u32, warp % Self::ACROSS * 8 * Self::TN as u32)
        }
    }

    /// A warpgroup's first row and column of C.
    #[inline(always)]
    fn group_place(group: u32) -> (u32, u32) {
        (group / Self::ACROSS * 64, group % Self::ACROSS * 8 * Self::TN as u32)
    }

    /// The calling warp's first row and column of C.
    #[inline(always)]
    fn corner() -> (u32, u32) {
        Self::place(opaque(thread::warp()) % (Self::THREADS / 32))
    }

    /// The same in octets.
    #[inline(always)]
    fn octets() -> (u32, u32) {
        let (row, column) = Self::corner();
        (row / 8, column / 8)
    }
}

/// The division of the warps that reads least from shared memory: a warp reads its rows of A and its columns of B.
const fn warps_along_rows(rows: u32, columns: u32, warps: u32) -> u32 {
    let (mut best, mut best_reads) = (0, u32::MAX);
    let mut along = 1;
    while along <= warps {
        let across = warps / along;
        if rows.is_multiple_of(16 * along) && columns.is_multiple_of(8 * across) {
            let (tm, tn) = (rows / (16 * along), columns / (8 * across));
            let reads = 2 * tm + tn;
            // Beyond these a lane's part of C does not fit its registers.
            if tm <= 4 && tn <= 8 && tm * tn <= 16 && reads < best_reads {
                (best, best_reads) = (along, reads);
            }
        }
        along *= 2;
    }
    assert!(best > 0);
    best
}

/// Warpgroups along the columns: along the rows there is one for every 64.
const fn groups_across(rows: u32, groups: u32) -> u32 {
    assert!(rows.is_multiple_of(64) && groups.is_multiple_of(rows / 64));
    groups / (rows / 64)
}

macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident = $rows:expr, $columns:expr;)*) => { $(
        $(#[$doc])*
        pub struct $name<S>(PhantomData<S>);

        impl<S: Size> Part for $name<S> {
            const ROWS: u32 = $rows;
            const COLUMNS: u32 = $columns;
            const THREADS: u32 = S::THREADS;
            const GROUPS: bool = S::GROUPS;
            const ONES: u32 = 4 * Memory::<S>::ONES;
        }
    )* };
}

parts! {
    /// phi, and dx: rows by trunk features.
    Embed = S::ROWS, S::CHUNK;
    /// u1, and du1: rows by hidden units.
    Hide = S::ROWS, S::HIDDEN;
    /// z: rows by outputs.
    Quantiles = S::ROWS, OUTPUTS;
    /// dWo: outputs by hidden units; of groups, which have no less than 64 rows, hidden units by outputs.
    GradOut = if S::GROUPS { S::HIDDEN } else { OUTPUTS }, if S::GROUPS { OUTPUTS } else { S::HIDDEN };
    /// dWh: hidden units by trunk features.
    GradHide = S::HIDDEN, S::CHUNK;
    /// dWc: trunk features by cosines.
    GradEmbed = S::CHUNK, S::COSINES;
}

/// A block's shared memory.
pub struct Memory<S>(PhantomData<S>);

/// Columns of the tile of dz: a row of a bf16 tile has whole 128 bytes.
const fn gradient_columns(half: bool) -> u32 {
    if half { 64 } else { OUTPUTS }
}

impl<S: Size> Memory<S> {
    /// Most samples of a tile: as many as the targets of [`Memory::targets`] and the means of [`Memory::sums`] allow.
    pub const SAMPLES: u32 = Self::X_WORDS / (MAX_BRANCHES * MAX_QUANTILES);

    // In words of four bytes.
    const X_WORDS: u32 = Self::words(S::ROWS * S::CHUNK);
    const HIDDEN: u32 = 0;
    const COSINES: u32 = Self::HIDDEN + Self::words(S::ROWS * S::HIDDEN);
    const X: u32 = Self::COSINES + Self::words(S::ROWS * S::COSINES);
    const D: u32 = Self::X + Self::X_WORDS;
    const COS_WEIGHT: u32 = Self::D + Self::words(S::ROWS * S::CHUNK);
    const HID_WEIGHT: u32 = Self::COS_WEIGHT + Self::words(S::CHUNK * S::COSINES);
    const ONES: u32 = Self::HID_WEIGHT + Self::words(S::HIDDEN * S::CHUNK);
    const TRUNK: u32 = Self::ONES + if S::GROUPS { Self::words(8 * 64) } else { 0 };
    const ITEMS: u32 = Self::TRUNK + 2 * (Self::SAMPLES + 1) * S::CHUNK;
    const TAUS: u32 = Self::ITEMS + 2 * S::ROWS * MAX_BRANCHES;
    const CHOSEN: u32 = Self::TAUS + S::ROWS;
    /// Bytes of it.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const BYTES: u32 = 4 * (Self::CHOSEN + Self::SAMPLES * MAX_BRANCHES);

    /// Words of some operands.
    pub const fn words(operands: u32) -> u32 {
        if S::HALF { operands / 2 } else { operands }
    }

    const fn tile(first: u32, rows: u32, width: u32) -> Tile {
        Tile { start: 4 * first, rows, width, permuted: true, half: S::HALF }
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
        Tile { start: 4 * Self::D, rows: S::ROWS, width: OUTPUTS, permuted: true, half: false }
    }

    /// dz [rows, outputs], in z's place.
    pub const fn d_outputs() -> Tile {
        Self::tile(Self::D, S::ROWS, gradient_columns(S::HALF))
    }

    /// dx * phi [rows, chunk] in f32, where x has been; in bf16 x and d phi.
    pub const fn products() -> Tile {
        Tile { start: 4 * Self::X, rows: S::ROWS, width: S::CHUNK, permuted: true, half: false }
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
        Self::tile(Self::HID_WEIGHT, OUTPUTS, S::HIDDEN)
    }

    /// Eight columns of ones [8, 64], by which warpgroups sum rows.
    #[inline(always)]
    pub fn ones() -> Shared<u32> {
        shared::array(4 * Self::ONES, if S::GROUPS { Self::words(8 * 64) } else { 0 })
    }

    /// Sums of dx * phi over the 16 rows of a warp [rows / 16, chunk], where the items are at other times.
    #[inline(always)]
    pub fn warp_sums() -> Shared<f32> {
        shared::array(4 * Self::ITEMS, S::ROWS / 16 * S::CHUNK)
    }

    /// A chunk of the trunk's features [samples + 1, chunk], for even and odd chunks. The last row is zero: the features
    /// of rows that belong to no sample.
    #[inline(always)]
    pub fn trunk(odd: u32) -> Tile {
        let rows = Self::SAMPLES + 1;
        let start = 4 * (Self::TRUNK + odd * rows * S::CHUNK);
        // In order: what lanes read at once is mostly one row, or few.
        Tile { start, rows, width: S::CHUNK, permuted: false, half: false }
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
    // d phi's place holds a chunk of both weights, where they alternate.
    assert!(!x_in_registers::<S>() || S::ROWS >= S::COSINES + S::HIDDEN);
    // The items' place holds the warps' sums, and warpgroups' tiles begin at whole 1,024 bytes.
    assert!(2 * S::ROWS * MAX_BRANCHES >= S::ROWS / 16 * S::CHUNK);
    assert!(!S::GROUPS || (S::ROWS.is_multiple_of(64) && (4 * Memory::<S>::ONES).is_multiple_of(1024)));
    // Rows of a bf16 tile are whole 128 bytes.
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
};

/// Which rows of which samples a tile has: several whole samples, or a part of one that has more quantiles than a tile
/// has rows.
#[derive(Clone, Copy)]
pub struct Split {
    /// Quantiles of a sample, at least 1.
    pub quantiles: u32,
    /// Samples of a tile.
    pub samples: u32,
    /// Tiles of a sample.
    pub pieces: u32,
    /// Rows of a sample in one tile.
    pub rows: u32,
}

impl Split {
    /// For a number of quantiles.
    #[inline(always)]
    pub fn new<S: Size>(quantiles: u32) -> Split {
        // Not zero by contract; said so, because a division by zero would be a panic in the PTX.
        let quantiles = if quantiles > 0 { quantiles } else { 1 };
        let fit = S::ROWS / quantiles;
        let most = Memory::<S>::SAMPLES;
        let samples = if fit > most {
            most
        } else if fit > 0 {
            fit
        } else {
            1
        };
        let rows = if quantiles < S::ROWS { quantiles } else { S::ROWS };
        Split { quantiles, samples, pieces: quantiles.div_ceil(S::ROWS), rows }
    }

    /// Groups of samples that are worked on together.
    #[inline(always)]
    pub fn groups(&self, batch: u32) -> u32 {
        batch.div_ceil(if self.samples > 0 { self.samples } else { 1 })
    }

    /// The sample of a tile's row, counted from the tile's first; `samples` for a row without sample.
    #[inline(always)]
    pub fn sample(&self, row: u32) -> u32 {
        let sample = row / if self.quantiles > 0 { self.quantiles } else { 1 };
        if sample < self.samples { sample } else { self.samples }
    }
}

/// One tile's place in the batch.
#[derive(Clone, Copy)]
pub struct Place {
    /// First sample.
    pub first: u32,
    /// Index of the first row in [batch, quantiles].
    pub first_row: u32,
    /// First quantile of the first sample.
    pub first_quantile: u32,
    /// Rows that exist.
    pub rows: u32,
    /// Samples that exist.
    pub samples: u32,
}

impl Place {
    /// Piece number `piece` of the samples of group number `group`.
    #[inline(always)]
    pub fn new<S: Size>(split: &Split, batch: u32, group: u32, piece: u32) -> Place {
        let first = group * split.samples;
        let left = batch - first;
        let samples = if split.samples < left { split.samples } else { left };
        let first_quantile = piece * S::ROWS;
        let rest = samples * split.quantiles - first_quantile;
        let rows = if rest < S::ROWS { rest } else { S::ROWS };
        Place { first, first_row: first * split.quantiles + first_quantile, first_quantile, rows, samples }
    }
}
