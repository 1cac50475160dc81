//! Small products for the folds: a block of 256 threads computes 4 or 8 rows of A B with all columns, its threads sharing
//! the summed index, or 64 x 64 of L R^T. Copies are asynchronous, so that all of a stage's are in flight together.

use core::cmp::min;

use cuda_std::prelude::*;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows of a thread's outputs, and summed indices that it takes at once.
const STRIP: u32 = 4;
/// Floats of a stage's tiles: three blocks fit into a multiprocessor's shared memory.
const STAGE_FLOATS: u32 = 18 << 10;
/// Most columns of B: a strip of each still has a thread in eight rows.
pub const MAX_COLUMNS: u32 = 128;
/// Rows and columns of an outer tile.
pub const OUTER: u32 = 64;

/// Repeats a block with the index 0, 1, 2, 3: an array index that the compiler cannot resolve would put the array into
/// local memory.
macro_rules! repeat4 {
    ($i:ident => $body:block) => {{
        {
            let $i = 0usize;
            $body
        }
        {
            let $i = 1usize;
            $body
        }
        {
            let $i = 2usize;
            $body
        }
        {
            let $i = 3usize;
            $body
        }
    }};
}

/// Repeats a block with the index 0, 1.
macro_rules! repeat2 {
    ($i:ident => $body:block) => {{
        {
            let $i = 0usize;
            $body
        }
        {
            let $i = 1usize;
            $body
        }
    }};
}

/// Summed indices of a stage: as few stages as the memory allows, all of one size, in fours.
const fn stage_depth(rows: u32, depth: u32, columns: u32) -> u32 {
    let stages = depth.div_ceil(STAGE_FLOATS / (rows + columns));
    depth.div_ceil(stages).next_multiple_of(4)
}

/// Row stride of A in shared memory: rows are 4 banks apart when the depth is a multiple of 32.
const fn a_stride(stage_depth: u32) -> u32 {
    stage_depth + 4
}

/// Floats of shared memory of [`product`].
#[cfg(not(target_arch = "nvptx64"))]
pub const fn product_floats(rows: u32, depth: u32, columns: u32) -> u32 {
    let deep = stage_depth(rows, depth, columns);
    let tiles = rows * a_stride(deep) + deep * columns;
    if tiles > STRIP * THREADS { tiles } else { STRIP * THREADS }
}

/// Floats of shared memory of [`outer`].
#[cfg(not(target_arch = "nvptx64"))]
pub const fn outer_floats(depth: u32) -> u32 {
    2 * OUTER * (depth | 1)
}

/// Calls `f(row, column)` for the elements of [rows, columns], neighbouring elements in neighbouring threads.
#[inline(always)]
pub fn walk(rows: u32, columns: u32, mut f: impl FnMut(u32, u32)) {
    let thread = thread::thread_idx();
    // One division for all of a thread's elements.
    let (down, right) = (THREADS / columns, THREADS % columns);
    let (mut row, mut column) = (thread / columns, thread % columns);
    while row < rows {
        f(row, column);
        row += down;
        column += right;
        if column >= columns {
            column -= columns;
            row += 1;
        }
    }
}

/// One stage of [`product`]: summed indices `first .. first + here` of A and B, which [`product`]'s caller copies here.
#[derive(Clone, Copy)]
pub struct Stage {
    /// B of the stage, row-major [here, columns].
    pub b: Shared<f32>,
    /// First summed index.
    pub first: u32,
    /// Summed indices.
    pub here: u32,
    /// Columns of B.
    columns: u32,
    /// A of the stage, row-major.
    a: Shared<f32>,
    /// Row stride of `a`.
    stride: u32,
    /// Rows of A: a power of two of at most 8.
    rows: u32,
}

impl Stage {
    /// Copies all of A, of which element (row, k) is element from(row) + k of `matrix`. A warp reads along a row.
    #[inline(always)]
    pub fn a_along(&self, matrix: &In<f32>, from: impl Fn(u32) -> u32) {
        let row = thread::warp() % self.rows;
        let from = from(row) + self.first;
        let mut k = thread::warp() / self.rows * 32 + thread::lane();
        while k < self.here {
            shared::copy_async4(self.a, row * self.stride + k, matrix, from + k, 4);
            k += THREADS / self.rows;
        }
    }

    /// Copies k = to .. to + count of A, from elements from(row) + step (k - to) of `matrix`. A warp reads along columns.
    #[inline(always)]
    pub fn a_across(&self, to: u32, count: u32, matrix: &In<f32>, from: impl Fn(u32) -> u32, step: u32) {
        let row = thread::thread_idx() % self.rows;
        let from = from(row);
        let mut k = thread::thread_idx() / self.rows;
        while k < count {
            shared::copy_async4(self.a, row * self.stride + to + k, matrix, from + step * k, 4);
            k += THREADS / self.rows;
        }
    }

    /// Copies the first `columns` columns of rows to .. to + count of B, from elements from + step (k - to) + column of
    /// `matrix`.
    #[inline(always)]
    pub fn b_rows(&self, to: u32, count: u32, columns: u32, matrix: &In<f32>, from: u32, step: u32) {
        walk(count, columns, |k, column| {
            shared::copy_async4(
                self.b,
                (to + k) * self.columns + column,
                matrix,
                from + step * k + column,
                4,
            );
        });
    }
}

/// sum over k < depth of a(row, k) b(k, column) for `rows` (4 or 8) rows and `columns` <= [`MAX_COLUMNS`] columns.
/// `copy(stage)` copies a stage's part of both into shared memory; rows that do not exist may be anything. `store(row,
/// column, sum)` is called for each sum, which also becomes element row columns + column of the view that is given back
/// (another thread's after the next barrier).
///
/// A thread sums four rows of a column over every n-th four of k; the n sums are added in order. Three barriers; all
/// threads of the block must call.
#[inline(always)]
pub fn product(
    rows: u32,
    depth: u32,
    columns: u32,
    copy: impl Fn(Stage),
    mut store: impl FnMut(u32, u32, f32),
) -> Shared<f32> {
    let deep = stage_depth(rows, depth, columns);
    let stride = a_stride(deep);
    let a_tile = shared::array::<f32>(0, rows * stride);
    let b_tile = shared::array::<f32>(4 * rows * stride, deep * columns);
    let thread = thread::thread_idx();
    let strips = rows / STRIP * columns;
    let splits = THREADS / strips;
    let (split, strip) = (thread / strips, thread % strips);
    let (row, column) = (strip / columns * STRIP, strip % columns);
    let mut sums = [0.0f32; 4];
    let mut first = 0;
    while first < depth {
        let here = min(depth - first, deep);
        copy(Stage { b: b_tile, first, here, columns, a: a_tile, stride, rows });
        shared::copy_commit();
        // Products are taken by fours of k.
        let rounded = here.next_multiple_of(STRIP);
        let padding = rounded - here;
        if thread < rows * padding {
            a_tile.set(thread % rows * stride + here + thread / rows, 0.0);
        }
        let mut i = thread;
        while i < padding * columns {
            b_tile.set(here * columns + i, 0.0);
            i += THREADS;
        }
        shared::copy_wait::<0>();
        thread::sync(); // both tiles are written before they are multiplied
        if split < splits {
            let mut k = STRIP * split;
            while k < rounded {
                let (mut a, mut b) = ([[0.0f32; 4]; 4], [0.0f32; 4]);
                repeat4!(i => {
                    a[i] = a_tile.get4((row + i as u32) * stride + k);
                    b[i] = b_tile.get((k + i as u32) * columns + column);
                });
                repeat4!(j => {
                    repeat4!(i => {
                        sums[i] = math::fma(a[i][j], b[j], sums[i]);
                    });
                });
                k += STRIP * splits;
            }
        }
        thread::sync(); // the tiles are read before anything overwrites them
        first += deep;
    }
    let partial = shared::array::<f32>(0, STRIP * THREADS);
    let outputs = rows * columns;
    if split < splits {
        repeat4!(i => {
            partial.set(split * outputs + (row + i as u32) * columns + column, sums[i]);
        });
    }
    thread::sync(); // the splits' sums are written before they are added
    walk(rows, columns, |row, column| {
        let at = row * columns + column;
        let mut sum = partial.get(at);
        let mut from = at + outputs;
        while from < splits * outputs {
            sum += partial.get(from);
            from += outputs;
        }
        partial.set(at, sum);
        store(row, column, sum);
    });
    partial
}

/// sum over k < depth of l(row, k) r(column, k) for 64 rows and columns; `copy(left, right, stride)` copies both into
/// shared memory, element (row, k) to row stride + k; rows that do not exist may be anything. `store(row, column, sum)` is
/// called for each sum and `row_done(row, tile, at)` for each row, whose l(row, k) is element at + k of the tile.
///
/// One barrier; all threads of the block must call.
#[inline(always)]
pub fn outer(
    depth: u32,
    copy: impl FnOnce(Shared<f32>, Shared<f32>, u32),
    mut store: impl FnMut(u32, u32, f32),
    row_done: impl FnOnce(u32, Shared<f32>, u32),
) {
    let stride = depth | 1; // odd: a warp's columns meet in no bank
    let left = shared::array::<f32>(0, OUTER * stride);
    let right = shared::array::<f32>(4 * OUTER * stride, OUTER * stride);
    let thread = thread::thread_idx();
    copy(left, right, stride);
    shared::copy_commit();
    shared::copy_wait::<0>();
    thread::sync(); // both tiles are written before they are multiplied
    let (row, column) = (thread / 16, thread % 16);
    let mut sums = [[0.0f32; 4]; 4];
    let mut k = 0;
    while k < depth {
        let (mut a, mut b) = ([0.0f32; 4], [0.0f32; 4]);
        repeat4!(i => {
            a[i] = left.get((row + 16 * i as u32) * stride + k);
            b[i] = right.get((column + 16 * i as u32) * stride + k);
        });
        repeat4!(i => {
            repeat4!(j => {
                sums[i][j] = math::fma(a[i], b[j], sums[i][j]);
            });
        });
        k += 1;
    }
    repeat4!(i => {
        repeat4!(j => {
            store(row + 16 * i as u32, column + 16 * j as u32, sums[i][j]);
        });
    });
    if thread < OUTER {
        row_done(thread, left, thread * stride);
    }
}
