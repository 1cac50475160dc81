//! One block's work: a tile of C, summed over a range of k, and what is applied before it is stored.
//!
//! Panels of `DEPTH` summed indices stream through a ring of [`STAGES`] stages of shared memory by asynchronous copies;
//! while the warps multiply one stage, the next ones are on their way. At the end the warps' parts of C meet in shared
//! memory (the ring is free by then), where the groups of warps that summed different parts of k are added in order and
//! from where rows are stored with neighbouring lanes at neighbouring addresses.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::engine::{Engine, Form, Panels, Tile, WarpEngine, Warps};
use super::panel::{DEPTH, Operand, Panel};

/// Stages of the ring.
pub const STAGES: u32 = 3;

/// A [`Tile`] as a type.
pub trait Size {
    /// The tile.
    const TILE: Tile;
}

/// [`Tile::Huge`].
pub struct Huge;
/// [`Tile::Large`].
pub struct Large;
/// [`Tile::Medium`].
pub struct Medium;
/// [`Tile::Small`].
pub struct Small;

impl Size for Huge {
    const TILE: Tile = Tile::Huge;
}

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
    /// Threads of a block.
    pub const THREADS: u32 = 32 * Self::WARPS.m * Self::WARPS.n * Self::WARPS.k;
    /// Bytes of a stage: a panel of A, a panel of B.
    const STAGE: u32 = 4 * DEPTH * (Self::ROWS + Self::COLUMNS);
    /// Floats of one group's tile of C.
    pub(super) const PART: u32 = Self::ROWS * Self::COLUMNS;
    /// Pieces of four neighbours of the tile for each thread, at most 16.
    pub const PIECES: u32 = Self::PART / 4 / Self::THREADS;
    /// Floats of shared memory.
    pub(super) const FLOATS: u32 = {
        let (ring, parts) = (STAGES * Self::STAGE / 4, Self::WARPS.k * (Self::PART + Self::ROWS));
        if ring > parts { ring } else { parts }
    };

    /// Sums the tile; afterwards [`Plan::four`] and [`Plan::row_sum`] read it. The whole block calls. `meanwhile` runs
    /// when the first copies are on their way: it starts the reads that the epilogue will need.
    #[inline(always)]
    pub fn multiply<T>(work: &Work, meanwhile: impl FnOnce() -> T) -> T {
        E::tile::<F, S, T>(work, meanwhile)
    }

    /// Where an element of C is; columns 4 c .. 4 c + 4 are side by side. The exclusive or spreads over the banks what is
    /// written at once: four rows next to each other or two apart by two quads (tensor cores), or four rows four apart
    /// by two quads (fp32).
    #[inline(always)]
    pub(super) fn place(row: u32, column: u32) -> u32 {
        row * Self::COLUMNS + 4 * ((column / 4) ^ (2 * ((row ^ (row / 4)) % 4))) + column % 4
    }
    /// First row and column of tile number `tile` of a product with n columns.
    #[inline(always)]
    pub fn corner(tile: u32, n: u32) -> (u32, u32) {
        let across = n.div_ceil(Self::COLUMNS);
        // Never zero, as the product has a tile; said so, because a division by zero would be a panic in the PTX.
        let across = if across > 0 { across } else { 1 };
        (tile / across * Self::ROWS, tile % across * Self::COLUMNS)
    }

    /// Row and column in the tile of the thread's i-th four neighbours, i < PIECES: neighbouring threads have
    /// neighbouring pieces, and all pieces of a thread are in the same columns.
    #[inline(always)]
    pub fn piece(i: u32) -> (u32, u32) {
        let (index, across) = (i * Self::THREADS + thread::thread_idx(), Self::COLUMNS / 4);
        (index / across, 4 * (index % across))
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

    /// Calls `store(row, column, c)` for the elements of C that exist, each by one thread: the slow way, for matrices
    /// whose rows cannot be stored in pieces of 16 bytes.
    #[inline(always)]
    pub fn each_element(
        first_row: u32,
        first_column: u32,
        m: u32,
        n: u32,
        mut store: impl FnMut(u32, u32, f32),
    ) {
        let shared = shared::array::<f32>(0, Self::FLOATS);
        let mut index = thread::thread_idx();
        while index < Self::PART {
            let (row, column) = (index / Self::COLUMNS, index % Self::COLUMNS);
            if first_row + row < m && first_column + column < n {
                let at = Self::place(row, column);
                let mut c = shared.get(at);
                let mut group = 1;
                while group < Self::WARPS.k {
                    c += shared.get(group * Self::PART + at);
                    group += 1;
                }
                store(first_row + row, first_column + column, c);
            }
            index += Self::THREADS;
        }
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

impl<E: WarpEngine, F: Form, S: Size> Plan<E, F, S> {
    /// [`Plan::multiply`] where every warp reads its part of the panels.
    #[inline(always)]
    pub fn by_warps<T>(work: &Work, meanwhile: impl FnOnce() -> T) -> T {
        let shared = shared::array::<f32>(0, Self::FLOATS);
        let steps = (work.k_end - work.k).div_ceil(DEPTH);
        let mut ahead = 0;
        while ahead < STAGES - 1 {
            if ahead < steps {
                Self::copy(work, ahead * Self::STAGE, work.k + ahead * DEPTH);
            }
            // A group is closed in every turn, empty or not: the wait below counts groups.
            shared::copy_commit();
            ahead += 1;
        }
        let result = meanwhile();

        let warp = thread::warp();
        let (place, group) = (warp % (Self::WARPS.m * Self::WARPS.n), warp / (Self::WARPS.m * Self::WARPS.n));
        let (warp_m, warp_n) = (place / Self::WARPS.n, place % Self::WARPS.n);
        let sum = work.row_sums && warp_n == 0;
        let depth = DEPTH / Self::WARPS.k;
        let (mut accumulator, mut sums) = (E::zero(), [0.0; 8]);
        let (mut step, mut current, mut next) = (0, 0, (STAGES - 1) * Self::STAGE);
        while step < steps {
            shared::copy_wait::<{ STAGES as usize - 2 }>();
            // Every thread's copies of this stage have landed, and no thread still reads the stage that is
            // overwritten next.
            thread::sync();
            if step + STAGES - 1 < steps {
                Self::copy(work, next, work.k + (step + STAGES - 1) * DEPTH);
            }
            shared::copy_commit();
            let panels = Panels {
                a: Self::panel_a(current),
                b: Self::panel_b(current),
                row: warp_m * E::ROWS,
                column: warp_n * E::COLUMNS,
            };
            E::multiply::<F>(&panels, group * depth, depth, &mut accumulator, sum, &mut sums);
            next = current;
            current = if current == (STAGES - 1) * Self::STAGE { 0 } else { current + Self::STAGE };
            step += 1;
        }

        shared::copy_wait::<0>();
        thread::sync(); // the last stage has been read: the ring becomes the place of C
        E::put::<F>(&accumulator, shared, |row, column| {
            group * Self::PART + Self::place(warp_m * E::ROWS + row, warp_n * E::COLUMNS + column)
        });
        if F::ROW_SUMS && sum {
            E::each_sum::<F>(&sums, |row, value| {
                shared.set(Self::WARPS.k * Self::PART + group * Self::ROWS + warp_m * E::ROWS + row, value);
            });
        }
        thread::sync(); // C and the row sums are complete
        result
    }

    /// The panel of A of the stage that starts at byte `stage`.
    #[inline(always)]
    fn panel_a(stage: u32) -> Panel {
        Panel { start: stage, width: Self::ROWS }
    }

    /// The panel of B.
    #[inline(always)]
    fn panel_b(stage: u32) -> Panel {
        Panel { start: stage + 4 * DEPTH * Self::ROWS, width: Self::COLUMNS }
    }

    /// Starts copying one stage.
    #[inline(always)]
    fn copy(work: &Work, stage: u32, k: u32) {
        work.a.copy::<F::A>(Self::panel_a(stage), Self::THREADS, k, work.k_end);
        work.b.copy::<F::B>(Self::panel_b(stage), Self::THREADS, k, work.k_end);
    }
}
