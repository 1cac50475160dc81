//! One block's work: a tile of C, summed over a range of k, and what is applied before it is stored.
//!
//! Panels of `DEPTH` summed indices stream through a ring of [`STAGES`] stages of shared memory by asynchronous copies;
//! while the warps multiply one stage, the next ones are on their way. At the end the warps' parts of C meet in shared
//! memory (the ring is free by then), where the groups of warps that summed different parts of k are added in order and
//! from where rows are stored with neighbouring lanes at neighbouring addresses.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::engine::{Engine, Form, Panels, Tile, Warps};
#[cfg(not(target_arch = "nvptx64"))]
use super::launch::TileSize;
use super::panel::{DEPTH, Operand};

/// Stages of the ring.
pub const STAGES: u32 = 3;

/// A [`Tile`] as a type.
pub trait Size {
    /// The tile.
    const TILE: Tile;
}

/// [`Tile::Large`].
pub struct Large;
/// [`Tile::Medium`].
pub struct Medium;
/// [`Tile::Small`].
pub struct Small;

impl Size for Large {
    const TILE: Tile = Tile::Large;
}

impl Size for Medium {
    const TILE: Tile = Tile::Medium;
}

impl Size for Small {
    const TILE: Tile = Tile::Small;
}

/// What a block reads: the operands of its tile and its range of the summed index.
#[derive(Clone, Copy)]
pub struct Work {
    /// A, from the tile's first row on.
    pub a: Operand,
    /// B, from the tile's first column on.
    pub b: Operand,
    /// First summed index.
    pub k: u32,
    /// End of the summed indices.
    pub k_end: u32,
    /// Whether the rows of A are summed up.
    pub row_sums: bool,
}

/// One kernel: an arithmetic, a form and a tile.
pub struct Plan<E, F, S>(PhantomData<(E, F, S)>);

impl<E: Engine, F: Form, S: Size> Plan<E, F, S> {
    const WARPS: Warps = E::WARPS[S::TILE as usize];
    /// Rows of the tile.
    pub const ROWS: u32 = E::ROWS * Self::WARPS.m;
    /// Columns of the tile.
    pub const COLUMNS: u32 = E::COLUMNS * Self::WARPS.n;
    /// Both.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const TILE: TileSize = TileSize { rows: Self::ROWS, columns: Self::COLUMNS };
    /// Threads of a block.
    pub const THREADS: u32 = 32 * Self::WARPS.m * Self::WARPS.n * Self::WARPS.k;
    /// Floats of a stage: a panel of A, a panel of B.
    const STAGE: u32 = DEPTH * (Self::ROWS + Self::COLUMNS);
    /// Floats of one group's tile of C.
    const PART: u32 = Self::ROWS * Self::COLUMNS;
    /// Floats of shared memory.
    const FLOATS: u32 = {
        let (ring, parts) = (STAGES * Self::STAGE, Self::WARPS.k * (Self::PART + Self::ROWS));
        if ring > parts { ring } else { parts }
    };
    /// Bytes of shared memory.
    pub const SHARED: u32 = 4 * Self::FLOATS;
    /// Most barriers in the kernel: one in the loop, two around the hand-over of C.
    pub const BARRIERS: u32 = 3;
    /// Most shuffles in the kernel.
    pub const SHUFFLES: u32 = if F::ROW_SUMS { E::SUM_SHUFFLES } else { 0 };
    /// Most tensor-core instructions in the kernel.
    pub const MMAS: u32 = E::MMAS;

    /// Sums the tile; afterwards [`Plan::four`] and [`Plan::row_sum`] read it. The whole block calls.
    #[inline(always)]
    pub fn multiply(work: &Work) {
        let shared = shared::array::<f32>(0, Self::FLOATS);
        let steps = (work.k_end - work.k).div_ceil(DEPTH);
        let mut ahead = 0;
        while ahead < STAGES - 1 {
            if ahead < steps {
                Self::copy(work, shared, ahead * Self::STAGE, work.k + ahead * DEPTH);
            }
            // A group is closed in every turn, empty or not: the wait below counts groups.
            shared::copy_commit();
            ahead += 1;
        }

        let warp = thread::warp();
        let (place, group) = (warp % (Self::WARPS.m * Self::WARPS.n), warp / (Self::WARPS.m * Self::WARPS.n));
        let (warp_m, warp_n) = (place / Self::WARPS.n, place % Self::WARPS.n);
        let sum = work.row_sums && warp_n == 0;
        let chunks = DEPTH / 4 / Self::WARPS.k;
        let (mut accumulator, mut sums) = (E::zero(), [0.0; 8]);
        let (mut step, mut current, mut next) = (0, 0, (STAGES - 1) * Self::STAGE);
        while step < steps {
            shared::copy_wait::<{ STAGES as usize - 2 }>();
            // Every thread's copies of this stage have landed, and no thread still reads the stage that is
            // overwritten next.
            thread::sync();
            if step + STAGES - 1 < steps {
                Self::copy(work, shared, next, work.k + (step + STAGES - 1) * DEPTH);
            }
            shared::copy_commit();
            let panels = Panels {
                shared,
                a: (current, Self::ROWS),
                b: (current + DEPTH * Self::ROWS, Self::COLUMNS),
                a_quad: warp_m * (E::ROWS / 4),
                b_quad: warp_n * (E::COLUMNS / 4),
            };
            E::multiply::<F>(&panels, group * chunks, chunks, &mut accumulator, sum, &mut sums);
            next = current;
            current = if current == (STAGES - 1) * Self::STAGE { 0 } else { current + Self::STAGE };
            step += 1;
        }

        shared::copy_wait::<0>();
        thread::sync(); // the last stage has been read: the ring becomes the place of C
        E::each(&accumulator, |row, column, values| {
            let (row, column) = (warp_m * E::ROWS + row, warp_n * E::COLUMNS + column);
            shared.set4(group * Self::PART + Self::place(row, column), values);
        });
        if F::ROW_SUMS && sum {
            E::each_sum(&sums, |row, value| {
                shared.set(Self::WARPS.k * Self::PART + group * Self::ROWS + warp_m * E::ROWS + row, value);
            });
        }
        thread::sync(); // C and the row sums are complete
    }

    /// Starts copying one stage.
    #[inline(always)]
    fn copy(work: &Work, shared: Shared<f32>, stage: u32, k: u32) {
        work.a.copy::<F::A>(shared, stage, Self::ROWS, Self::THREADS, k, work.k_end);
        work.b.copy::<F::B>(shared, stage + DEPTH * Self::ROWS, Self::COLUMNS, Self::THREADS, k, work.k_end);
    }

    /// Where four neighbours of C are. The exclusive or spreads what eight lanes write at once over the banks: with
    /// tensor cores two rows 16 apart by four quads, in fp32 four rows 4 apart by two quads.
    #[inline(always)]
    fn place(row: u32, column: u32) -> u32 {
        row * Self::COLUMNS + 4 * ((column / 4) ^ (2 * (row / 4 % 4)) ^ (4 * (row / 16 % 2)))
    }

    /// Four neighbours of the tile, summed over the groups in order.
    #[inline(always)]
    pub fn four(row: u32, column: u32) -> [f32; 4] {
        let shared = shared::array::<f32>(0, Self::FLOATS);
        let at = Self::place(row, column);
        let mut c = shared.get4(at);
        let mut group = 1;
        while group < Self::WARPS.k {
            let part = shared.get4(group * Self::PART + at);
            c = [c[0] + part[0], c[1] + part[1], c[2] + part[2], c[3] + part[3]];
            group += 1;
        }
        c
    }

    /// Sum of a row of A, over the groups in order; only after [`Plan::multiply`] with `row_sums`.
    #[inline(always)]
    pub fn row_sum(row: u32) -> f32 {
        let shared = shared::array::<f32>(0, Self::FLOATS);
        let at = Self::WARPS.k * Self::PART + row;
        let mut sum = shared.get(at);
        let mut group = 1;
        while group < Self::WARPS.k {
            sum += shared.get(at + group * Self::ROWS);
            group += 1;
        }
        sum
    }
}
