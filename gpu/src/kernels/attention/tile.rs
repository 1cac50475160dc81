//! Small products for the folds: a block of 256 threads computes 16 rows of A B with all columns, or 64 x 64 of L R^T.

use cuda_std::prelude::*;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Rows of a tile.
pub const ROWS: u32 = 16;
/// Summed indices of a stage.
const DEPTH: u32 = 256;
/// Row stride of A in shared memory: rows are 4 banks apart, so that neighbouring pairs of rows meet in no bank.
const A_STRIDE: u32 = DEPTH + 4;
/// Most columns of B: a thread has up to four pairs of outputs.
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

/// Floats of shared memory of [`product`].
#[cfg(not(target_arch = "nvptx64"))]
pub const fn product_floats(columns: u32) -> u32 {
    ROWS * A_STRIDE + DEPTH * columns
}

/// Floats of shared memory of [`outer`].
#[cfg(not(target_arch = "nvptx64"))]
pub const fn outer_floats(depth: u32) -> u32 {
    2 * OUTER * (depth | 1)
}

/// sum over k < depth of a(row, k) b(k, column) for 16 rows and `columns` <= [`MAX_COLUMNS`] columns, in two sums over even
/// and odd k; `store(row, column, sum)` is called for each. `a` must give 0 for rows that do not exist. `along_k` says
/// that neighbouring k of A are neighbours in memory (else neighbouring rows are), so that a warp reads whole lines.
///
/// Two barriers; all threads of the block must call.
#[inline(always)]
pub fn product(
    depth: u32,
    columns: u32,
    along_k: bool,
    a: impl Fn(u32, u32) -> f32,
    b: impl Fn(u32, u32) -> f32,
    mut store: impl FnMut(u32, u32, f32),
) {
    let a_tile = shared::array::<f32>(0, ROWS * A_STRIDE);
    let b_tile = shared::array::<f32>(4 * ROWS * A_STRIDE, DEPTH * columns);
    let thread = thread::thread_idx();
    // The thread's outputs are rows 2p, 2p + 1 of a column in each of its slots.
    let place = |slot: u32| {
        let i = thread + THREADS * slot;
        (2 * (i / columns), i % columns)
    };
    let active = |slot: u32| thread + THREADS * slot < ROWS / 2 * columns;
    let mut sums = [[0.0f32; 4]; 4];
    let mut first = 0;
    while first < depth {
        let here = if depth - first < DEPTH { depth - first } else { DEPTH };
        let mut i = thread;
        while i < ROWS * DEPTH {
            // Four loads before four stores: they are in flight together.
            let mut staged = [0.0f32; 4];
            repeat4!(j => {
                let (row, k) = a_place(i + THREADS * j as u32, along_k);
                if k < here {
                    staged[j] = a(row, first + k);
                }
            });
            repeat4!(j => {
                let (row, k) = a_place(i + THREADS * j as u32, along_k);
                a_tile.set(row * A_STRIDE + k, staged[j]);
            });
            i += 4 * THREADS;
        }
        // Products are taken by fours of k.
        let rounded = here.next_multiple_of(4);
        let mut i = thread;
        while i < rounded * columns {
            let mut staged = [0.0f32; 4];
            repeat4!(j => {
                let at = i + THREADS * j as u32;
                if at < here * columns {
                    staged[j] = b(first + at / columns, at % columns);
                }
            });
            repeat4!(j => {
                let at = i + THREADS * j as u32;
                if at < rounded * columns {
                    b_tile.set(at, staged[j]);
                }
            });
            i += 4 * THREADS;
        }
        thread::sync(); // both tiles are written before they are multiplied
        repeat4!(slot => {
            if active(slot as u32) {
                let (row, column) = place(slot as u32);
                let mut k = 0;
                while k < rounded {
                    let upper = a_tile.get4(row * A_STRIDE + k);
                    let lower = a_tile.get4((row + 1) * A_STRIDE + k);
                    repeat4!(j => {
                        let b = b_tile.get((k + j as u32) * columns + column);
                        sums[slot][j % 2] = math::fma(upper[j], b, sums[slot][j % 2]);
                        sums[slot][2 + j % 2] = math::fma(lower[j], b, sums[slot][2 + j % 2]);
                    });
                    k += 4;
                }
            }
        });
        thread::sync(); // the tiles are read before the next stage overwrites them
        first += DEPTH;
    }
    repeat4!(slot => {
        if active(slot as u32) {
            let (row, column) = place(slot as u32);
            store(row, column, sums[slot][0] + sums[slot][1]);
            store(row + 1, column, sums[slot][2] + sums[slot][3]);
        }
    });
}

/// Row and summed index of element i of a stage of A, so that neighbouring i are neighbours in memory.
#[inline(always)]
fn a_place(i: u32, along_k: bool) -> (u32, u32) {
    if along_k { (i / DEPTH, i % DEPTH) } else { (i % ROWS, i / ROWS) }
}

/// sum over k < depth of l(row, k) r(column, k) for 64 rows and columns; `store(row, column, sum)` is called for each, and
/// `row_done(row, tile, at)` for each row, whose l(row, k) is element at + k of the tile in shared memory. `l` and `r` must give 0 for rows and columns that do
/// not exist.
///
/// One barrier; all threads of the block must call.
#[inline(always)]
pub fn outer(
    depth: u32,
    l: impl Fn(u32, u32) -> f32,
    r: impl Fn(u32, u32) -> f32,
    mut store: impl FnMut(u32, u32, f32),
    row_done: impl FnOnce(u32, Shared<f32>, u32),
) {
    let stride = depth | 1; // odd: a warp's columns meet in no bank
    let left = shared::array::<f32>(0, OUTER * stride);
    let right = shared::array::<f32>(4 * OUTER * stride, OUTER * stride);
    let thread = thread::thread_idx();
    let mut i = thread;
    while i < OUTER * depth {
        // Eight loads before eight stores, as in `product`.
        let mut staged = [[0.0f32; 2]; 4];
        repeat4!(j => {
            let at = i + THREADS * j as u32;
            if at < OUTER * depth {
                staged[j] = [l(at / depth, at % depth), r(at / depth, at % depth)];
            }
        });
        repeat4!(j => {
            let at = i + THREADS * j as u32;
            if at < OUTER * depth {
                let to = at / depth * stride + at % depth;
                left.set(to, staged[j][0]);
                right.set(to, staged[j][1]);
            }
        });
        i += 4 * THREADS;
    }
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
