//! Tiles of 128 x 128 by two warpgroups whose operands lie in device memory as bf16, two a float, the lower half first.
//!
//! A product of [`super::warpgroups`] reads four bytes an element and rounds them; where a matrix is read by many blocks that is
//! what bounds it (docs/BENCHMARKS.md). Here whoever makes a matrix has rounded it once ([`super::super::halve`], or the epilogue of
//! the product before), so that half as much is read, and no register holds it on its way: stages of 64 summed indices come by
//! asynchronous copies into a ring of three, in tiles as `wgmma` wants them, see [`super::warpgroups`]. The numbers that are
//! multiplied are the same as there; the row sums are of rounded numbers.
//!
//! Pieces of 16 bytes are eight elements: strides, the columns of what is stored (k, or rows of C where the summed index comes
//! first) and addresses are multiples of that.

use cuda_std::prelude::*;

use super::block::{Plan, Size, Work};
use super::data::{Arguments, Output};
use super::engine::{Engine, Form, Tile, Warps};
use super::group::Sizes;
use super::panel::{AlongRows, Operand, Order, min};
use super::round;
use super::warpgroups::{STAGE, SUMS, THREADS, WIDTH, WORDS, add_parts, multiply_stage, octet, put};

/// Warpgroups on operands in bf16.
pub struct Stored;

/// Stages of the ring.
const STAGES: u32 = 3;
/// Words of a stage: A, then B.
const STAGE_WORDS: u32 = 2 * WORDS;
/// Elements of a piece.
const OCTET: u32 = 8;
/// Pieces of an operand's stage for a thread.
const PIECES: u32 = WIDTH * STAGE / OCTET / THREADS;
/// Parts of a stage's summed indices whose rows of A different threads sum.
const SUM_PARTS: u32 = THREADS / (WIDTH / OCTET);

/// Results in f32, in bf16, or in both, and activations in either.
pub struct Halves {
    /// Where results are stored in bf16.
    pub copy: Out<f32>,
}

impl Output for Halves {
    #[inline(always)]
    fn activations(&self, of: &Arguments, sizes: &Sizes, at: u32) -> [f32; 4] {
        if !sizes.halved_extra {
            return of.extra.get4(at);
        }
        let words = of.extra.get2(at / 2).map(f32::to_bits);
        let [low, high] = words.map(|word| [word << 16, word & 0xffff_0000].map(f32::from_bits));
        [low[0], low[1], high[0], high[1]]
    }

    #[inline(always)]
    fn store(&self, of: &Arguments, sizes: &Sizes, at: u32, product: [f32; 4], result: [f32; 4]) {
        if !sizes.copied_only {
            of.c.set4(at, if sizes.bare { product } else { result });
        }
        if sizes.copied {
            self.copy.set2(at / 2, round::bf16_floats(result));
        }
    }
}

impl Engine for Stored {
    const ROWS: u32 = 64;
    const COLUMNS: u32 = 32;
    /// All tiles are of this size: there is no other kernel.
    const WARPS: [Warps; Tile::COUNT] = [Warps { m: 2, n: 4, k: 1 }; Tile::COUNT];
    const EARLY_READS: bool = false;
    #[cfg(not(target_arch = "nvptx64"))]
    const HALVES: bool = true;
    #[cfg(not(target_arch = "nvptx64"))]
    const RESIDENT: u32 = 2;
    #[cfg(not(target_arch = "nvptx64"))]
    const MMAS: u32 = 4 + 3; // four times a product, a fence, and two instructions to wait
    #[cfg(not(target_arch = "nvptx64"))]
    const SUM_SHUFFLES: u32 = 0;
    #[cfg(not(target_arch = "nvptx64"))]
    const BARRIERS: u32 = 4;

    #[inline(always)]
    fn tile<F: Form, S: Size, T>(work: &Work, meanwhile: impl FnOnce() -> T) -> T {
        const { assert!(Plan::<Stored, F, S>::ROWS == WIDTH && Plan::<Stored, F, S>::COLUMNS == WIDTH) };
        const { assert!(Plan::<Stored, F, S>::THREADS == THREADS) };
        const { assert!(Plan::<Stored, F, S>::FLOATS >= STAGES * STAGE_WORDS) };
        const { assert!(Plan::<Stored, F, S>::FLOATS >= SUMS + SUM_PARTS * WIDTH) };
        let steps = (work.k_end - work.k).div_ceil(STAGE);
        let mut ahead = 0;
        while ahead < STAGES - 1 {
            if ahead < steps {
                copy::<F>(work, ahead * STAGE_WORDS, ahead);
            }
            // A group is closed in every turn, empty or not: the wait below counts groups.
            shared::copy_commit();
            ahead += 1;
        }
        let result = meanwhile();
        let group = thread::warp() / 4;
        let mut c = [[0.0f32; 4]; 16];
        let mut sums = [0.0f32; OCTET as usize];
        let (mut step, mut current, mut next) = (0, 0, (STAGES - 1) * STAGE_WORDS);
        while step < steps {
            shared::copy_wait::<{ STAGES as usize - 2 }>();
            warpgroup::publish();
            // Every thread's copies of this stage have landed, and the stage that is overwritten next has been read.
            thread::sync();
            if step + STAGES - 1 < steps {
                copy::<F>(work, next, step + STAGES - 1);
            }
            shared::copy_commit();
            if F::ROW_SUMS && work.row_sums {
                add_rows(current, &mut sums);
            }
            multiply_stage::<F>(current, group, &mut c);
            next = current;
            current = if current == (STAGES - 1) * STAGE_WORDS { 0 } else { current + STAGE_WORDS };
            step += 1;
        }
        shared::copy_wait::<0>();
        thread::sync(); // the last stage has been read: the ring becomes the place of C
        put::<Stored, F, S>(group, &c);
        if F::ROW_SUMS && work.row_sums {
            let shared = shared::array::<f32>(0, Plan::<Stored, F, S>::FLOATS);
            let (rows, part) = row_part();
            let at = SUMS + part * WIDTH + OCTET * rows;
            shared.set4(at, [sums[0], sums[1], sums[2], sums[3]]);
            shared.set4(at + 4, [sums[4], sums[5], sums[6], sums[7]]);
            add_parts(shared, SUM_PARTS);
        }
        thread::sync(); // C and the row sums are complete
        result
    }
}

/// Starts copying stage number `step` to word `start`.
#[inline(always)]
fn copy<F: Form>(work: &Work, start: u32, step: u32) {
    let k = work.k + step * STAGE;
    copy_operand::<F::A>(&work.a, start, k, work.k_end);
    copy_operand::<F::B>(&work.b, start + WORDS, k, work.k_end);
}

/// Starts copying 64 summed indices of an operand's 128 rows, zeros from `k_end` on. Instead of rows that do not exist (their
/// part of C is not stored) the last ones are copied again.
#[inline(always)]
fn copy_operand<O: Order>(operand: &Operand, start: u32, k: u32, k_end: u32) {
    let stage = shared::array::<f32>(4 * start, WORDS);
    let mut i = 0;
    while i < PIECES {
        let index = i * THREADS + thread::thread_idx();
        let (row, depth) = if O::ALONG_K {
            (index / (STAGE / OCTET), OCTET * (index % (STAGE / OCTET)))
        } else {
            (OCTET * (index % (WIDTH / OCTET)), index / (WIDTH / OCTET))
        };
        let k = k + depth;
        let from = if O::ALONG_K {
            min(operand.first + row, operand.rows - 1) * operand.stride + k
        } else {
            k * operand.stride + min(operand.first + row, operand.rows - OCTET)
        };
        // Only an existing element's index is known to fit 32 bits.
        let (from, bytes) = if k < k_end { (from / 2, 16) } else { (0, 0) };
        shared::copy_async16(stage, octet::<O>(row, depth), &operand.matrix, from, bytes);
        i += 1;
    }
}

/// Which octet of A's rows a thread sums up, and which part of a stage's summed indices.
#[inline(always)]
fn row_part() -> (u32, u32) {
    (thread::thread_idx() % (WIDTH / OCTET), thread::thread_idx() / (WIDTH / OCTET))
}

/// Adds what a thread sums of the rows of A, which lie across the summed index, of the stage at word `start`.
#[inline(always)]
fn add_rows(start: u32, sums: &mut [f32; OCTET as usize]) {
    let stage = shared::array::<u32>(4 * start, WORDS);
    let (rows, part) = row_part();
    unroll4!(i => {
        let depth = part * (STAGE / SUM_PARTS) + i as u32;
        let words = stage.get4(octet::<AlongRows>(OCTET * rows, depth));
        unroll4!(e => {
            sums[2 * e] += f32::from_bits(words[e] << 16);
            sums[2 * e + 1] += f32::from_bits(words[e] & 0xffff_0000);
        });
    });
}
