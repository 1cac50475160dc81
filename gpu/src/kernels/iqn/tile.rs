//! Row-major matrices in shared memory that are read along their rows and along their columns without bank conflicts.
//!
//! Element (r, c) is at r * width + 4 * ((c / 4) ^ s(r)) + c % 4 with s(r) = 2 (r % 4) + (r / 4) % 2, width a multiple
//! of 32. What a warp reads at once are single floats of eight consecutive rows by four columns, or of four consecutive
//! rows by eight columns (tensor cores); s takes eight different values for the former, and s / 2 four for the latter.
//! The 8-byte stores of results, four rows by eight columns, are spread as well.

use cuda_std::prelude::*;

use super::size::THREADS;

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
    /// Whether what the tile holds went through [`super::product::Arithmetic::stored`].
    const STORED: bool;
}

/// `[row of C, summed index]`.
pub struct AlongK;
/// `[summed index, row of C]`.
pub struct AlongRows;

/// As [`AlongK`], a copy of a weight.
pub struct WeightAlongK;
/// As [`AlongRows`], a copy of a weight.
pub struct WeightAlongRows;

impl Order for AlongK {
    const ALONG_K: bool = true;
    const STORED: bool = true;
}

impl Order for AlongRows {
    const ALONG_K: bool = false;
    const STORED: bool = true;
}

impl Order for WeightAlongK {
    const ALONG_K: bool = true;
    const STORED: bool = false;
}

impl Order for WeightAlongRows {
    const ALONG_K: bool = false;
    const STORED: bool = false;
}

/// A matrix in shared memory.
#[derive(Clone, Copy)]
pub struct Tile {
    /// First byte.
    pub start: u32,
    /// Rows.
    pub rows: u32,
    /// Columns, a multiple of 32.
    pub width: u32,
    /// Whether elements are permuted in their row as above; else they are in order.
    pub permuted: bool,
}

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

    /// Where an element is.
    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> u32 {
        let quad = if self.permuted { (column / 4) ^ swizzle(row) } else { column / 4 };
        row * self.width + 4 * quad + column % 4
    }

    /// One element.
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

    /// Reads a lane's elements of C.
    #[inline(always)]
    pub fn get_pair(&self, lane: Lane, corner: (u32, u32), r: u32, c: u32) -> [f32; 2] {
        let (view, offset) = self.pair(lane, corner, r, c);
        view.get2(offset)
    }

    /// Writes a lane's elements of C.
    #[inline(always)]
    pub fn set_pair(&self, lane: Lane, corner: (u32, u32), r: u32, c: u32, value: [f32; 2]) {
        let (view, offset) = self.pair(lane, corner, r, c);
        view.set2(offset, value);
    }

    /// Four neighbours from column 4 `quad` on.
    #[inline(always)]
    pub fn set4(&self, row: u32, quad: u32, value: [f32; 4]) {
        self.view(0).set4(self.at(row, 4 * quad), value);
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

/// A part of a row-major matrix in device memory.
#[derive(Clone, Copy)]
pub struct Source {
    /// Elements.
    pub matrix: In<f32>,
    /// Columns, which is also the row stride.
    pub columns: u32,
    /// Rows.
    pub rows: u32,
    /// First row of the part.
    pub row: u32,
    /// First column of the part, a multiple of 4.
    pub column: u32,
    /// Whether address and columns are multiples of 16 bytes.
    pub vectors: bool,
}

impl Source {
    /// Starts copying as much as `tile` holds; what does not exist becomes zero. The whole block calls, and closes the group
    /// of copies.
    #[inline(always)]
    pub fn copy(&self, tile: Tile) {
        let quads = tile.width / 4;
        let whole = self.row + tile.rows <= self.rows && self.column + tile.width <= self.columns;
        if self.vectors && whole {
            let thread = opaque(thread::thread_idx()) % THREADS;
            let (row, quad) = (thread / quads, thread % quads);
            let from = (self.row + row) * self.columns + self.column + 4 * quad;
            let step = THREADS / quads;
            let mut more = 0;
            while more < tile.rows {
                let to = tile.at(row + more, 4 * quad);
                shared::copy_async16(tile.view(0), to, &self.matrix, from + more * self.columns, 16);
                more += step;
            }
        } else {
            self.copy_rows(tile, tile.rows);
        }
    }

    /// The same for the tile's first `rows` rows.
    #[inline(always)]
    pub fn copy_rows(&self, tile: Tile, rows: u32) {
        let quads = tile.width / 4;
        let memory = tile.view(0);
        let mut index = opaque(thread::thread_idx());
        while index < rows * quads {
            let (row, quad) = (index / quads, index % quads);
            let to = tile.at(row, 4 * quad);
            let (from_row, from_column) = (self.row + row, self.column + 4 * quad);
            let inside = from_row < self.rows && from_column < self.columns;
            // Only an existing element's index is known to fit 32 bits.
            let from = if inside { from_row * self.columns + from_column } else { 0 };
            if self.vectors {
                shared::copy_async16(memory, to, &self.matrix, from, if inside { 16 } else { 0 });
            } else {
                let mut e = 0;
                while e < 4 {
                    let exists = inside && from_column + e < self.columns;
                    let (from, bytes) = if exists { (from + e, 4) } else { (0, 0) };
                    shared::copy_async4(memory, to + e, &self.matrix, from, bytes);
                    e += 1;
                }
            }
            index += THREADS;
        }
    }
}
