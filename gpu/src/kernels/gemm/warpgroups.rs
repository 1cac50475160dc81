//! Tiles of 128 x 128 by two warpgroups, in bf16: `wgmma`, which reads both operands from shared memory.
//!
//! Operands have to be bf16 there, so they go through registers: while a group multiplies a part of a stage, its threads read a part
//! of the next one from device memory, round it and store it. Two stages of 64 summed indices, in tiles as `wgmma` wants them: rows of
//! 64 elements, 128 bytes, the octet q of row r at octet q ^ (r % 8). An operand `[row, k]` is one such tile, `[k, row]` one for
//! each 64 rows.
//!
//! Sums differ from those of [`super::mma`] by the order of f32's additions, and the numbers that are multiplied are the same.

use core::marker::PhantomData;

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::engine::{Engine, Form, Tile, Warps};
use super::panel::{Operand, Order};
use super::round;

/// Warpgroups in bf16.
pub struct Groups;

/// Rows of C, and columns.
pub(super) const WIDTH: u32 = 128;
/// Summed indices of a stage.
pub(super) const STAGE: u32 = 64;
/// Summed indices that are on their way at once.
const HALF: u32 = STAGE / 2;
/// Words of an operand's stage.
pub(super) const WORDS: u32 = WIDTH * STAGE / 2;
/// Words of a row of 64 elements.
const ROW_WORDS: u32 = 32;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Warps of a block.
const WARPS: u32 = THREADS / 32;
/// First float of the row sums' parts: behind C and the row sums.
pub(super) const SUMS: u32 = WIDTH * WIDTH + WIDTH;

/// The product of two panels.
struct Halves<F>(PhantomData<F>);

impl<F: Form> warpgroup::Product for Halves<F> {
    const HALVES: warpgroup::Halves = warpgroup::Halves::Bf16;
    const OCTETS: usize = 16;
    const ACROSS_A: bool = !<F::A as Order>::ALONG_K;
    const ACROSS_B: bool = !<F::B as Order>::ALONG_K;
}

impl Engine for Groups {
    const ROWS: u32 = 64;
    const COLUMNS: u32 = 32;
    /// All tiles are of this size: `choose` takes these kernels for [`Tile::Huge`] alone.
    const WARPS: [Warps; Tile::COUNT] = [Warps { m: 2, n: 4, k: 1 }; Tile::COUNT];
    const EARLY_READS: bool = false;
    #[cfg(not(target_arch = "nvptx64"))]
    const RESIDENT: u32 = 2;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMAS: u32 = 4 * (1 + 3); // four times a product, a fence, and two instructions to wait
    #[cfg(not(target_arch = "nvptx64"))]
    const SUM_SHUFFLES: u32 = 0;
    #[cfg(not(target_arch = "nvptx64"))]
    const BARRIERS: u32 = 4;

    #[inline(always)]
    fn tile<F: Form, S: Size, T>(work: &Work, meanwhile: impl FnOnce() -> T) -> T {
        const { assert!(Plan::<Groups, F, S>::ROWS == WIDTH && Plan::<Groups, F, S>::COLUMNS == WIDTH) };
        const { assert!(Plan::<Groups, F, S>::THREADS == THREADS && Plan::<Groups, F, S>::FLOATS >= 4 * WORDS) };
        const { assert!(Plan::<Groups, F, S>::FLOATS >= SUMS + WARPS * WIDTH) };
        let steps = (work.k_end - work.k).div_ceil(STAGE);
        let mut sums = [0.0f32; 4];
        // Halves of A and of B, for both of which the thread has four pieces.
        let mut half = 0;
        while half < 2 {
            let (a, b) = (load::<F::A>(&work.a, work, half), load::<F::B>(&work.b, work, half));
            store::<F::A>(0, half % 2, &a);
            store::<F::B>(WORDS, half % 2, &b);
            if F::ROW_SUMS && work.row_sums {
                add(&mut sums, &a);
            }
            half += 1;
        }
        let result = meanwhile();
        let group = thread::warp() / 4;
        let mut c = [[0.0f32; 4]; 16];
        let (mut step, mut current) = (0, 0);
        while step < steps {
            warpgroup::publish();
            thread::sync(); // the stage is there, and the other one has been read
            let more = step + 1 < steps;
            let next = 2 * WORDS - current;
            // In each half A's pieces are on their way during one product, B's during the other: both at once would take
            // registers that C has.
            unroll2!(h => {
                let half = 2 * (step + 1) + h;
                let a = if more { load::<F::A>(&work.a, work, half) } else { [[0.0; 4]; 4] };
                multiply::<F>(current, 2 * h, group, &mut c);
                if more {
                    store::<F::A>(next, h, &a);
                    if F::ROW_SUMS && work.row_sums {
                        add(&mut sums, &a);
                    }
                }
                let b = if more { load::<F::B>(&work.b, work, half) } else { [[0.0; 4]; 4] };
                multiply::<F>(current, 2 * h + 1, group, &mut c);
                if more {
                    store::<F::B>(next + WORDS, h, &b);
                }
            });
            current = next;
            step += 1;
        }
        thread::sync(); // the last stage has been read: its place becomes that of C
        put::<Groups, F, S>(group, &c);
        let shared = shared::array::<f32>(0, Plan::<Groups, F, S>::FLOATS);
        if F::ROW_SUMS && work.row_sums {
            // A thread has summed four rows over every eighth summed index, from its warp's on.
            shared.set4(SUMS + thread::warp() * WIDTH + 4 * thread::lane(), sums);
            add_parts(shared, WARPS);
        }
        thread::sync(); // C and the row sums are complete
        result
    }
}

/// Row of the operand and summed index of the half of a thread's i-th piece of four neighbours.
#[inline(always)]
fn piece<O: Order>(i: usize) -> (u32, u32) {
    let index = i as u32 * THREADS + thread::thread_idx();
    if O::ALONG_K {
        // A warp has eight quads of four rows, two and two of which are four apart: the stores of those go to other banks.
        let (quad, n) = (index % (HALF / 4), index / (HALF / 4));
        (8 * (n / 8) + n % 8 / 2 + 4 * (n % 2), 4 * quad)
    } else {
        (4 * (index % (WIDTH / 4)), index / (WIDTH / 4))
    }
}

/// The thread's pieces of half a stage: number `half` from the first one on.
#[inline(always)]
fn load<O: Order>(operand: &Operand, work: &Work, half: u32) -> [[f32; 4]; 4] {
    let k = work.k + half * HALF;
    let mut values = [[0.0f32; 4]; 4];
    if operand.whole::<O>(k, HALF, work.k_end) {
        unroll4!(i => {
            let (row, depth) = piece::<O>(i);
            values[i] = operand.whole_four::<O>(row, depth + k);
        });
    } else {
        unroll4!(i => {
            let (row, depth) = piece::<O>(i);
            values[i] = operand.four::<O>(row, depth + k, work.k_end);
        });
    }
    values
}

/// Rounds and stores them, into half number `h` of the stage whose operand begins at word `start`.
#[inline(always)]
fn store<O: Order>(start: u32, h: u32, values: &[[f32; 4]; 4]) {
    let stage = shared::array::<u32>(4 * start, WORDS);
    unroll4!(i => {
        let (row, depth) = piece::<O>(i);
        let k = HALF * h + depth;
        let at = octet::<O>(row, k) + if O::ALONG_K { k } else { row } % 8 / 2;
        let [a, b, c, d] = values[i];
        stage.set2(at, [round::bf16_pair(a, b), round::bf16_pair(c, d)]);
    });
}

/// Adds what a thread has of its rows of A, in f32.
#[inline(always)]
fn add(sums: &mut [f32; 4], pieces: &[[f32; 4]; 4]) {
    unroll4!(i => {
        unroll4!(e => {
            sums[e] += pieces[i][e];
        });
    });
}

/// Where, in an operand's stage, the octet begins that holds row `row` of the operand and summed index k.
#[inline(always)]
pub(super) fn octet<O: Order>(row: u32, k: u32) -> u32 {
    if O::ALONG_K {
        row * ROW_WORDS + 4 * ((k / 8) ^ (row % 8))
    } else {
        row / 64 * STAGE * ROW_WORDS + k * ROW_WORDS + 4 * ((row % 64 / 8) ^ (k % 8))
    }
}

/// Adds the parts of the row sums, of which there are so many from [`SUMS`] on, each of a tile's rows; the epilogue reads the
/// result behind C.
#[inline(always)]
pub(super) fn add_parts(shared: Shared<f32>, parts: u32) {
    thread::sync(); // all parts are there
    let row = thread::thread_idx();
    if row < WIDTH {
        let mut sum = 0.0;
        let mut part = 0;
        while part < parts {
            sum += shared.get(SUMS + part * WIDTH + row);
            part += 1;
        }
        shared.set(WIDTH * WIDTH + row, sum);
    }
}

/// Writes what warpgroup `group` has of C to shared memory, where the epilogue reads it.
#[inline(always)]
pub(super) fn put<E: Engine, F: Form, S: Size>(group: u32, c: &[[f32; 4]; 16]) {
    let shared = shared::array::<f32>(0, Plan::<E, F, S>::FLOATS);
    let row = 64 * group + 16 * (thread::warp() % 4) + thread::lane() / 4;
    let column = 2 * (thread::lane() % 4);
    let put = |j: usize| {
        let column = column + 8 * j as u32;
        shared.set2(Plan::<E, F, S>::place(row, column), [c[j][0], c[j][1]]);
        shared.set2(Plan::<E, F, S>::place(row + 8, column), [c[j][2], c[j][3]]);
    };
    unroll8!(j => {
        put(j);
        put(j + 8);
    });
}

/// Adds the products of a stage that begins at word `start`, A and then B.
#[inline(always)]
pub(super) fn multiply_stage<F: Form>(start: u32, group: u32, c: &mut [[f32; 4]; 16]) {
    let left = operand::<F::A>(4 * start, 0, group);
    let right = operand::<F::B>(4 * (start + WORDS), 0, 0);
    warpgroup::multiply::<Halves<F>, 4>(left, right, c);
}

/// Adds the products of 16 summed indices, number `n` of four in the stage that begins at word `start`.
#[inline(always)]
fn multiply<F: Form>(start: u32, n: u32, group: u32, c: &mut [[f32; 4]; 16]) {
    let left = operand::<F::A>(4 * start, n, group);
    let right = operand::<F::B>(4 * (start + WORDS), n, 0);
    warpgroup::multiply::<Halves<F>, 1>(left, right, c);
}

/// Sixteen summed indices of an operand whose stage begins at a byte, from its 64 rows number `group` on.
#[inline(always)]
fn operand<O: Order>(start: u32, n: u32, group: u32) -> warpgroup::Operand {
    // 64 rows of 128 bytes, or 64 summed indices of them.
    let block = 64 * 4 * ROW_WORDS;
    let first = warpgroup::operand(start + group * block, if O::ALONG_K { 0 } else { block });
    first.advance(16 * n * if O::ALONG_K { 2 } else { 4 * ROW_WORDS })
}
