//! Tile sizes: how many rows (pairs of sample and quantile) a block works on at once, what widths fit, and how the warps
//! share each product.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::memory::Memory;
use super::tile::{Elements, opaque};

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
    /// Blocks that share a multiprocessor; 0 leaves it to the assembler.
    #[cfg(not(target_arch = "nvptx64"))]
    const RESIDENT: u32 = 0;
    /// What operands are in shared memory.
    const ELEMENTS: Elements;
    /// Whether they are halves.
    const HALF: bool = Self::ELEMENTS.halves();
    /// Whether warpgroups multiply, four warps together; else warps do.
    const GROUPS: bool = false;
    /// Whether a block has one chunk of x and many tiles, see `chunks`; else a tile and all that is of it up to du1, and where
    /// warps multiply the gradients too.
    const CHUNKS: bool = false;
    /// Whether dz and what follows from it are a multiple of themselves while they are operands; see
    /// `Loss::scale`.
    const SCALED: bool = matches!(Self::ELEMENTS, Elements::Fp16);
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
/// As [`HalfSmall`], for warpgroups, with half of the rows: two blocks share a multiprocessor, and one's products run while
/// the other computes.
pub struct GroupSmall;
/// As [`HalfMedium`], for warpgroups.
pub struct GroupMedium;
/// As [`GroupSmall`], in fp16.
pub struct Fp16Small;
/// As [`GroupMedium`], in fp16.
pub struct Fp16Medium;
/// The chunks of [`GroupSmall`].
pub struct ChunkSmall;
/// The chunks of [`GroupMedium`].
pub struct ChunkMedium;
/// The chunks of [`Fp16Small`].
pub struct Fp16ChunkSmall;
/// The chunks of [`Fp16Medium`].
pub struct Fp16ChunkMedium;

impl Size for Small {
    const ROWS: u32 = 128;
    const HIDDEN: u32 = 128;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 256;
    const ELEMENTS: Elements = Elements::Single;
}

impl Size for Medium {
    const ROWS: u32 = 64;
    const HIDDEN: u32 = 256;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 256;
    const ELEMENTS: Elements = Elements::Single;
}

impl Size for Large {
    const ROWS: u32 = 32;
    const HIDDEN: u32 = 512;
    const COSINES: u32 = 256;
    const CHUNK: u32 = 32;
    const THREADS: u32 = 256;
    const ELEMENTS: Elements = Elements::Single;
}

impl Size for HalfSmall {
    const ROWS: u32 = 256;
    const HIDDEN: u32 = 128;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 512;
    const ELEMENTS: Elements = Elements::Bf16;
}

impl Size for HalfMedium {
    const ROWS: u32 = 128;
    const HIDDEN: u32 = 256;
    const COSINES: u32 = 64;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 512;
    const ELEMENTS: Elements = Elements::Bf16;
}

impl Size for HalfLarge {
    const ROWS: u32 = 64;
    const HIDDEN: u32 = 512;
    const COSINES: u32 = 256;
    const CHUNK: u32 = 64;
    const THREADS: u32 = 512;
    const ELEMENTS: Elements = Elements::Bf16;
}

/// Packed weights and planes of gradients are as large as the size's for warps: the host tells them apart by nothing but the
/// kernel.
macro_rules! for_groups {
    ($($name:ident as $half:ident of $elements:ident by $threads:literal, chunks $chunks:literal;)*) => { $(
        impl Size for $name {
            const ROWS: u32 = 128;
            const HIDDEN: u32 = $half::HIDDEN;
            const COSINES: u32 = $half::COSINES;
            const CHUNK: u32 = $half::CHUNK;
            const THREADS: u32 = $threads;
            #[cfg(not(target_arch = "nvptx64"))]
            const RESIDENT: u32 = 512 / $threads;
            const ELEMENTS: Elements = Elements::$elements;
            const GROUPS: bool = true;
            const CHUNKS: bool = $chunks;
        }
    )* };
}

for_groups! {
    GroupSmall as HalfSmall of Bf16 by 256, chunks false;
    GroupMedium as HalfMedium of Bf16 by 512, chunks false;
    Fp16Small as HalfSmall of Fp16 by 256, chunks false;
    Fp16Medium as HalfMedium of Fp16 by 512, chunks false;
    ChunkSmall as HalfSmall of Bf16 by 256, chunks true;
    ChunkMedium as HalfMedium of Bf16 by 256, chunks true;
    Fp16ChunkSmall as HalfSmall of Fp16 by 256, chunks true;
    Fp16ChunkMedium as HalfMedium of Fp16 by 256, chunks true;
}

/// One product's tile of C and its share for each of the block's warps: `TM` by `TN` tensor-core tiles of 16 x 8. Warpgroups
/// have 64 rows each, a warp of them 16.
pub trait Part {
    /// Rows of C.
    const ROWS: u32;
    /// Columns of C.
    const COLUMNS: u32;
    /// Threads that multiply.
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
    ($($(#[$doc:meta])* $name:ident = $rows:expr, $columns:expr $(, $threads:expr)?;)*) => { $(
        $(#[$doc])*
        pub struct $name<S>(PhantomData<S>);

        impl<S: Size> Part for $name<S> {
            const ROWS: u32 = $rows;
            const COLUMNS: u32 = $columns;
            parts!(@threads $($threads)?);
            const GROUPS: bool = S::GROUPS;
            const ONES: u32 = 4 * Memory::<S>::ONES;
        }
    )* };
    (@threads) => {
        const THREADS: u32 = S::THREADS;
    };
    (@threads $threads:expr) => {
        const THREADS: u32 = $threads;
    };
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
    /// dWh: hidden units by trunk features; of chunks trunk features by hidden units, one warpgroup's.
    GradHide = if S::CHUNKS { S::CHUNK } else { S::HIDDEN }, if S::CHUNKS { S::HIDDEN } else { S::CHUNK },
        threads_of_gradients::<S>();
    /// dWc: trunk features by cosines; of chunks one warpgroup's.
    GradEmbed = S::CHUNK, S::COSINES, threads_of_gradients::<S>();
}

/// Threads that share a gradient of the cosine or the hidden layer.
const fn threads_of_gradients<S: Size>() -> u32 {
    if S::CHUNKS { 128 } else { S::THREADS }
}

/// Which rows of which samples a tile has: several whole samples, or a part of one that has more quantiles than a tile
/// has rows.
#[derive(Clone, Copy)]
pub struct Split {
    /// Quantiles of a sample, at least 1.
    pub quantiles: u32,
    /// Rows from a sample's first to the next one's: of warpgroups whole sixteens, with rows of no quantile behind the others.
    pub stride: u32,
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
        let stride = if S::GROUPS { quantiles.next_multiple_of(16) } else { quantiles };
        let fit = S::ROWS / stride;
        let most = Memory::<S>::SAMPLES;
        let samples = if fit > most {
            most
        } else if fit > 0 {
            fit
        } else {
            1
        };
        let rows = if quantiles < S::ROWS { quantiles } else { S::ROWS };
        Split { quantiles, stride, samples, pieces: quantiles.div_ceil(S::ROWS), rows }
    }

    /// Groups of samples that are worked on together.
    #[inline(always)]
    pub fn groups(&self, batch: u32) -> u32 {
        batch.div_ceil(if self.samples > 0 { self.samples } else { 1 })
    }

    /// The sample of a tile's row, counted from the tile's first; `samples` for a row without sample.
    #[inline(always)]
    pub fn sample(&self, row: u32) -> u32 {
        let sample = row / if self.stride > 0 { self.stride } else { 1 };
        if sample < self.samples { sample } else { self.samples }
    }
}

/// One tile's place in the batch.
#[derive(Clone, Copy)]
pub struct Place {
    /// Number of its samples' group.
    pub group: u32,
    /// First sample.
    pub first: u32,
    /// Index of the first row in [batch, quantiles].
    pub first_row: u32,
    /// First quantile of the first sample.
    pub first_quantile: u32,
    /// Rows of the samples that exist.
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
        let rest = samples * split.stride - first_quantile;
        let rows = if rest < S::ROWS { rest } else { S::ROWS };
        Place {
            group,
            first,
            first_row: first * split.quantiles + first_quantile,
            first_quantile,
            rows,
            samples,
        }
    }

    /// Whether a row is one of a sample that exists, and of a quantile; and its index in [batch, quantiles].
    #[inline(always)]
    pub fn row<S: Size>(&self, split: &Split, row: u32) -> (bool, u32) {
        if S::GROUPS {
            let sample = split.sample(row);
            let quantile = row - sample * split.stride;
            (
                row < self.rows && quantile < split.quantiles,
                self.first_row + sample * split.quantiles + quantile,
            )
        } else {
            (row < self.rows, self.first_row + row)
        }
    }
}
