//! Row-major matrices in shared memory that are read along their rows and along their columns without bank conflicts.
//!
//! Element (r, c) is at r * width + 4 * ((c / 4) ^ s(r)) + c % 4 with s(r) = 2 (r % 4) + (r / 4) % 2, width a multiple
//! of 32. What a warp reads at once are single floats of eight consecutive rows by four columns, or of four consecutive
//! rows by eight columns (tensor cores); s takes eight different values for the former, and s / 2 four for the latter.
//! The 8-byte stores of results, four rows by eight columns, are spread as well.
//!
//! Of halves (bf16, fp16) a word holds two neighbours and four words an octet of columns, which `ldmatrix` moves as a whole. A tile is one
//! block of 64 columns behind the other, each `[rows, 64]`, rows of 128 bytes: octet q of row r is at octet q ^ (r % 8). Eight
//! rows' octets, which are moved at once, lie in all 32 banks; and this is what `wgmma` calls a swizzle of 128 bytes, so that
//! warpgroups read the same tiles.

use cuda_std::prelude::*;

use super::size::Size;
use crate::kernels::gemm::round;

/// The same number, of which the compiler knows nothing. Addresses that depend on it are computed where they are used: it
/// would compute those of all products ahead of the loop over the tiles, more of them than there are registers.
#[inline(always)]
pub fn opaque(value: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let copy: u32;
        // SAFETY: a copy of a register. Not `pure`, or it would be moved out of loops; it needs no convergence.
        unsafe {
            core::arch::asm!("mov.u32 {}, {};", out(reg32) copy, in(reg32) value,
                options(nomem, nostack, preserves_flags));
        }
        copy
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// A lane's (lane / 4, lane % 4).
#[derive(Clone, Copy)]
pub struct Lane {
    /// Row of a tensor-core tile, and eight rows further.
    pub g: u32,
    /// Pair of columns of C, or summed index.
    pub t: u32,
}

impl Lane {
    /// The calling one, [`opaque`].
    #[inline(always)]
    pub fn new() -> Lane {
        let lane = opaque(thread::lane()) % 32; // said again, as the compiler has forgotten it
        Lane { g: lane / 4, t: lane % 4 }
    }
}

/// How an operand of a product lies in a tile.
pub trait Order {
    /// `[row of C, summed index]` rather than `[summed index, row of C]`.
    const ALONG_K: bool;
}

/// `[row of C, summed index]`.
pub struct AlongK;
/// `[summed index, row of C]`.
pub struct AlongRows;

impl Order for AlongK {
    const ALONG_K: bool = true;
}

impl Order for AlongRows {
    const ALONG_K: bool = false;
}

/// What a tile holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    /// f32.
    Single,
    /// Two bf16 a word.
    Bf16,
    /// Two fp16 a word.
    Fp16,
}

impl Elements {
    /// Whether there are two a word.
    #[inline(always)]
    pub const fn halves(self) -> bool {
        !matches!(self, Elements::Single)
    }

    /// A word of two halves, rounded, the first in its lower half.
    #[inline(always)]
    pub fn pair(self, first: f32, second: f32) -> u32 {
        match self {
            Elements::Fp16 => round::fp16_pair(first, second),
            _ => round::bf16_pair(first, second),
        }
    }

    /// The halves of a word.
    #[inline(always)]
    fn of_pair(self, pair: u32) -> [f32; 2] {
        match self {
            Elements::Fp16 => round::of_fp16_pair(pair),
            _ => [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)],
        }
    }

    /// Two ones.
    #[inline(always)]
    pub fn ones(self) -> u32 {
        if self == Elements::Fp16 { 0x3c00_3c00 } else { 0x3f80_3f80 }
    }
}

/// A matrix in shared memory.
#[derive(Clone, Copy)]
pub struct Tile {
    /// First byte.
    pub start: u32,
    /// Rows.
    pub rows: u32,
    /// Columns, a multiple of 32, of halves of 64.
    pub width: u32,
    /// Whether elements are permuted in their row as above; else they are in order.
    pub permuted: bool,
    /// What elements are; halves are permuted.
    pub elements: Elements,
}

/// Words of a row of a block of a tile of halves.
const ROW_WORDS: u32 = 32;

/// What a row's groups of four columns are exclusive-ored with.
#[inline(always)]
fn swizzle(row: u32) -> u32 {
    2 * (row % 4) + row / 4 % 2
}

/// Reads are written as a view that depends on the lane plus a constant offset, which then is part of the instruction.
/// What the swizzle changes with a constant is one exclusive or of the whole index, as rows are whole 32 floats.
/// Operands are counted in octets: eight neighbours along the rows of C (of A) or its columns (of B). The octets `first`
/// + c of a warp, c < count, have `first` a multiple of count, which is a power of two: so the sum is an exclusive or.
impl Tile {
    #[inline(always)]
    fn view(&self, offset: u32) -> Shared<f32> {
        shared::array(self.start + 4 * offset, self.rows * self.width - offset)
    }

    /// The same of the words of a tile of halves.
    #[inline(always)]
    fn pairs(&self, offset: u32) -> Shared<u32> {
        shared::array(self.start + 4 * offset, self.words() - offset)
    }

    /// Words of the tile.
    #[inline(always)]
    pub fn words(&self) -> u32 {
        self.rows * self.width / if self.elements.halves() { 2 } else { 1 }
    }

    /// Words of a block of 64 columns of a tile of halves.
    #[inline(always)]
    fn block_words(&self) -> u32 {
        self.rows * ROW_WORDS
    }

    /// Row and column of the element in a word, of the first of two halves.
    #[inline(always)]
    pub fn element(&self, word: u32) -> (u32, u32) {
        if self.elements.halves() {
            let (block, in_block) = (word / self.block_words(), word % self.block_words());
            let (row, at) = (in_block / ROW_WORDS, in_block % ROW_WORDS);
            (row, 64 * block + 8 * ((at / 4) ^ (row % 8)) + 2 * (at % 4))
        } else {
            let (row, at) = (word / self.width, word % self.width);
            (row, 4 * ((at / 4) ^ swizzle(row)) + at % 4)
        }
    }

    /// Where an element of an f32 tile is.
    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> u32 {
        let quad = if self.permuted { (column / 4) ^ swizzle(row) } else { column / 4 };
        row * self.width + 4 * quad + column % 4
    }

    /// One element of an f32 tile.
    #[inline(always)]
    pub fn get(&self, row: u32, column: u32) -> f32 {
        self.view(0).get(self.at(row, column))
    }

    /// Two neighbours from an even column on, of a tile that is in order: `octet` octets beyond `column`.
    #[inline(always)]
    pub fn get2(&self, row: u32, column: u32, octet: u32) -> [f32; 2] {
        self.view(row * self.width + column).get2(8 * octet)
    }

    /// A lane's elements of a tensor-core tile of C: row 8 (row + r) + g, columns 8 (column + c) + 2t + {0, 1}. Octets of
    /// columns as below. The view for c, and the offset for r and c.
    #[inline(always)]
    fn pair(&self, Lane { g, t }: Lane, (row, column): (u32, u32), r: u32, c: u32) -> (Shared<f32>, u32) {
        let quad = (2 * (column % 4) + t / 2) ^ swizzle(g);
        let at = (8 * row + g) * self.width + 32 * (column / 4) + 4 * quad + 2 * (t % 2);
        (self.view(at ^ (8 * (c % 4))), 8 * r * self.width + 32 * (c / 4))
    }

    /// The same for halves: one word, c < 16.
    #[inline(always)]
    fn word(&self, Lane { g, t }: Lane, (row, column): (u32, u32), r: u32, c: u32) -> (Shared<u32>, u32) {
        let at = (8 * row + g) * ROW_WORDS + column / 8 * self.block_words() + 4 * ((column % 8) ^ g) + t;
        (self.pairs(at ^ (4 * (c % 8))), 8 * r * ROW_WORDS + c / 8 * self.block_words())
    }

    /// Reads a lane's elements of C.
    #[inline(always)]
    pub fn get_pair(&self, lane: Lane, corner: (u32, u32), r: u32, c: u32) -> [f32; 2] {
        if self.elements.halves() {
            let (view, offset) = self.word(lane, corner, r, c);
            let pair = view.get(offset);
            self.elements.of_pair(pair)
        } else {
            let (view, offset) = self.pair(lane, corner, r, c);
            view.get2(offset)
        }
    }

    /// Writes a lane's elements of C.
    #[inline(always)]
    pub fn set_pair(&self, lane: Lane, corner: (u32, u32), r: u32, c: u32, value: [f32; 2]) {
        if self.elements.halves() {
            let (view, offset) = self.word(lane, corner, r, c);
            view.set(offset, self.elements.pair(value[0], value[1]));
        } else {
            let (view, offset) = self.pair(lane, corner, r, c);
            view.set2(offset, value);
        }
    }

    /// Four neighbours from column 4 `quad` on.
    #[inline(always)]
    pub fn set4(&self, row: u32, quad: u32, value: [f32; 4]) {
        if self.elements.halves() {
            let at = quad / 16 * self.block_words() + row * ROW_WORDS;
            let at = at + 4 * ((quad / 2 % 8) ^ (row % 8)) + 2 * (quad % 2);
            let pair = |first, second| self.elements.pair(first, second);
            self.pairs(0).set2(at, [pair(value[0], value[1]), pair(value[2], value[3])]);
        } else {
            self.view(0).set4(self.at(row, 4 * quad), value);
        }
    }

    /// Eight neighbours from column 8 `octet` on, of halves.
    #[inline(always)]
    pub fn set8(&self, row: u32, octet: u32, value: [f32; 8]) {
        let at = octet / 8 * self.block_words() + row * ROW_WORDS + 4 * ((octet % 8) ^ (row % 8));
        let pair = |i: usize| self.elements.pair(value[i], value[i + 1]);
        self.pairs(0).set4(at, [pair(0), pair(2), pair(4), pair(6)]);
    }

    /// For lane (g, t): row (of C) 8 (first + c) + g, summed index k + 8 step + 4 e + t; k a multiple of 32, step < 4.
    #[inline(always)]
    pub fn one<O: Order>(&self, Lane { g, t }: Lane, first: u32, c: u32, k: u32, step: u32, e: u32) -> f32 {
        if O::ALONG_K {
            let at = (8 * first + g) * self.width + 4 * swizzle(g) + t;
            self.view(at ^ (4 * (2 * step + e))).get(8 * c * self.width + k)
        } else {
            let quad = (2 * (first % 4)) ^ (2 * t) ^ (g / 4);
            let at = (k + t) * self.width + 32 * (first / 4) + 4 * quad + g % 4;
            let view = self.view(at ^ (4 * (2 * (c % 4) + e)));
            view.get((8 * step + 4 * e) * self.width + 32 * (c / 4))
        }
    }

    /// Row 8 (first + c) + `lane_row`, summed indices k + 4 e + {0..4}; k a multiple of 8, e < 2. Along k only.
    #[inline(always)]
    pub fn four(&self, first: u32, c: u32, lane_row: u32, k: u32, e: u32) -> [f32; 4] {
        let quad = (k / 4 + e) ^ swizzle(lane_row);
        self.view((8 * first + lane_row) * self.width + 4 * quad).get4(8 * c * self.width)
    }

    /// Row 8 (first + c) + `lane_row`, summed index k + i; k a multiple of 8, i < 8. Along rows only.
    #[inline(always)]
    pub fn across(&self, first: u32, c: u32, lane_row: u32, k: u32, i: u32) -> f32 {
        self.view(self.across_at(first, c, lane_row, k, i)).get(i * self.width + 32 * (c / 4))
    }

    /// The same and the next row's, `lane_row` even.
    #[inline(always)]
    pub fn across2(&self, first: u32, c: u32, lane_row: u32, k: u32, i: u32) -> [f32; 2] {
        self.view(self.across_at(first, c, lane_row, k, i)).get2(i * self.width + 32 * (c / 4))
    }

    #[inline(always)]
    fn across_at(&self, first: u32, c: u32, lane_row: u32, k: u32, i: u32) -> u32 {
        let quad = (2 * ((first % 4) ^ (c % 4)) + lane_row / 4) ^ swizzle(i);
        k * self.width + 32 * (first / 4) + 4 * quad + lane_row % 4
    }
}

/// Operands of tiles of halves, two a word as the tensor cores want them; `k` is a multiple of 32, `step` 0 or 1. Every lane gives
/// the place of one row of one of four matrices of 8 x 8.
impl Tile {
    /// A lane's (lane / 8, lane % 8): matrix and row.
    #[inline(always)]
    fn matrix() -> (u32, u32) {
        let lane = opaque(thread::lane()) % 32;
        (lane / 8, lane % 8)
    }

    /// A, octets 2i and 2i + 1 from `first` on of the rows of C, summed indices k + 16 step to k + 16 step + 15.
    #[inline(always)]
    pub fn rows16<O: Order>(&self, first: u32, i: u32, k: u32, step: u32) -> [u32; 4] {
        let ((m, r), width) = (Tile::matrix(), ROW_WORDS);
        if O::ALONG_K {
            let at = (8 * (first + m % 2) + r) * width + 4 * ((m / 2) ^ r);
            let view = self.pairs(at ^ (4 * (k / 8 % 8 + 2 * step)));
            view.get_matrices(16 * i * width + k / 64 * self.block_words())
        } else {
            let at =
                (8 * (m / 2) + r) * width + first / 8 * self.block_words() + 4 * ((first % 8 + m % 2) ^ r);
            self.pairs(at ^ (8 * i)).get_matrices_transposed((k + 16 * step) * width)
        }
    }

    /// B, the same summed indices, octets c and c + 1 (c even) from `first` on of the columns of C.
    #[inline(always)]
    pub fn columns16<O: Order>(&self, first: u32, c: u32, k: u32, step: u32) -> [[u32; 2]; 2] {
        let ((m, r), width) = (Tile::matrix(), ROW_WORDS);
        let [a, b, c, d] = if O::ALONG_K {
            let at = (8 * (first + m / 2) + r) * width + 4 * ((m % 2) ^ r);
            let view = self.pairs(at ^ (4 * (k / 8 % 8 + 2 * step)));
            view.get_matrices(8 * c * width + k / 64 * self.block_words())
        } else {
            let at =
                (8 * (m % 2) + r) * width + first / 8 * self.block_words() + 4 * ((first % 8 + m / 2) ^ r);
            self.pairs(at ^ (4 * c)).get_matrices_transposed((k + 16 * step) * width)
        };
        [[a, b], [c, d]]
    }

    /// B, octet `first` alone, for both steps.
    #[inline(always)]
    pub fn column32<O: Order>(&self, first: u32, k: u32) -> [[u32; 2]; 2] {
        let ((m, r), width) = (Tile::matrix(), ROW_WORDS);
        let [a, b, c, d] = if O::ALONG_K {
            let at = (8 * first + r) * width + 4 * (m ^ r);
            self.pairs(at ^ (4 * (k / 8 % 8))).get_matrices(k / 64 * self.block_words())
        } else {
            let at = (8 * m + r) * width + first / 8 * self.block_words() + 4 * ((first % 8) ^ r);
            self.pairs(at).get_matrices_transposed(k * width)
        };
        [[a, b], [c, d]]
    }

    /// An operand of a warpgroup: from octet `first` of the rows of C (of A; its columns, of B) on, and the bytes from 64
    /// summed indices to the next.
    #[inline(always)]
    pub fn operand<O: Order>(&self, first: u32) -> (warpgroup::Operand, u32) {
        let block = 4 * self.block_words();
        if O::ALONG_K {
            (warpgroup::operand(self.start + 8 * 4 * ROW_WORDS * first, 0), block)
        } else {
            let start = self.start + first / 8 * block + 16 * (first % 8);
            (warpgroup::operand(start, block), 64 * 4 * ROW_WORDS)
        }
    }

    /// Calls `act` with the first of each four words that are the calling thread's. How many times is a constant but for the last
    /// one: the loop is written out, and what the addresses have in common is computed once.
    #[inline(always)]
    fn each_four<S: Size>(&self, act: impl Fn(u32)) {
        let (first, step) = (4 * opaque(thread::thread_idx()), 4 * S::THREADS);
        let whole = self.words() / step;
        let mut n = 0;
        while n < whole {
            act(first + n * step);
            n += 1;
        }
        if !self.words().is_multiple_of(step) && first + whole * step < self.words() {
            act(first + whole * step);
        }
    }

    /// Starts copying the whole tile from `from` in what `pack` wrote, where it lies as it does here. The whole block calls,
    /// and closes the group of copies.
    #[inline(always)]
    pub fn copy<S: Size>(&self, packed: &In<f32>, from: u32) {
        let words = shared::array::<f32>(self.start, self.words());
        self.each_four::<S>(|at| shared::copy_async16(words, at, packed, from + at, 16));
    }
}

impl Tile {
    /// Writes the whole tile to device memory as it lies here, from `to` on, a multiple of 4. The whole block calls.
    #[inline(always)]
    pub fn save<S: Size>(&self, images: &Out<f32>, to: u32) {
        let words = shared::array::<f32>(self.start, self.words());
        self.each_four::<S>(|at| images.set4(to + at, words.get4(at)));
    }

    /// Starts copying one float, or with `bytes` = 0 a zero, to an f32 tile.
    #[inline(always)]
    pub fn copy_one(&self, row: u32, column: u32, from: &In<f32>, at: u32, bytes: u32) {
        shared::copy_async4(self.view(0), self.at(row, column), from, at, bytes);
    }
}

/// Rows of the trunk's features.
#[derive(Clone, Copy)]
pub struct Features {
    /// h [B, H2].
    pub h: In<f32>,
    /// H2.
    pub trunk: u32,
    /// B.
    pub batch: u32,
    /// First row.
    pub row: u32,
    /// First column, a multiple of 4.
    pub column: u32,
    /// Whether address and columns are multiples of 16 bytes.
    pub vectors: bool,
}

impl Features {
    /// Starts copying the first `rows` rows of a tile that is in order; what does not exist becomes zero. The whole block
    /// calls, and closes the group of copies.
    #[inline(always)]
    pub fn copy<S: Size>(&self, tile: Tile, rows: u32) {
        let quads = tile.width / 4;
        let memory = tile.view(0);
        let mut index = opaque(thread::thread_idx());
        while index < rows * quads {
            let (row, quad) = (index / quads, index % quads);
            let to = tile.at(row, 4 * quad);
            let (from_row, from_column) = (self.row + row, self.column + 4 * quad);
            let inside = from_row < self.batch && from_column < self.trunk;
            // Only an existing element's index is known to fit 32 bits.
            let from = if inside { from_row * self.trunk + from_column } else { 0 };
            if self.vectors {
                shared::copy_async16(memory, to, &self.h, from, if inside { 16 } else { 0 });
            } else {
                let mut e = 0;
                while e < 4 {
                    let exists = inside && from_column + e < self.trunk;
                    let (from, bytes) = if exists { (from + e, 4) } else { (0, 0) };
                    shared::copy_async4(memory, to + e, &self.h, from, bytes);
                    e += 1;
                }
            }
            index += S::THREADS;
        }
    }
}
