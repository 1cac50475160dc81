//! Operand panels in shared memory: how a stage of the pipeline gets there, and how threads read it.
//!
//! A panel is `DEPTH` summed indices of `width` rows of one operand ("row" is an index of C along that operand).
//! It keeps the order of device memory, so that a copy moves 16 bytes of neighbours:
//! - along k (operand stored `[row, k]`): element (r, k) at r * DEPTH + 4 * ((k / 4) ^ (r % 8) ^ (r / 8 % 4)) + k % 4;
//! - along rows (operand stored `[k, row]`): element (r, k) at k * width + 4 * ((r / 4) ^ (2 * (k % 4))) + r % 4.
//!
//! The exclusive or spreads what is read at once over all 32 banks: single floats of eight consecutive rows by four
//! consecutive k (tensor cores), or 16 bytes of eight rows four apart (SIMT).

use cuda_std::prelude::*;

/// Summed indices per stage.
pub const DEPTH: u32 = 32;

/// How an operand lies in device memory.
pub trait Order {
    /// `[row, k]` rather than `[k, row]`.
    const ALONG_K: bool;
}

/// `[row, k]`: neighbours differ in k.
pub struct AlongK;
/// `[k, row]`: neighbours differ in the row.
pub struct AlongRows;

impl Order for AlongK {
    const ALONG_K: bool = true;
}

impl Order for AlongRows {
    const ALONG_K: bool = false;
}

/// One operand of a product and the part of it that a block reads.
#[derive(Clone, Copy)]
pub struct Operand {
    /// Elements, row-major.
    pub matrix: In<f32>,
    /// Row stride in device memory, in floats.
    pub stride: u32,
    /// First row of the panel.
    pub first: u32,
    /// Rows of the operand: those from here on count as zero.
    pub rows: u32,
    /// Whether address and stride are multiples of 16 bytes.
    pub vectors: bool,
}

/// Where a thread's i-th copy of a stage goes and comes from.
#[derive(Clone, Copy)]
struct Copy {
    /// First of four neighbours in the panel.
    at: u32,
    /// First row of the operand.
    row: u32,
    /// First summed index, counted from the stage's.
    depth: u32,
}

impl Copy {
    #[inline(always)]
    fn new<O: Order>(i: u32, width: u32, threads: u32) -> Copy {
        let index = i * threads + thread::thread_idx();
        if O::ALONG_K {
            let (chunk, row) = (index % (DEPTH / 4), index / (DEPTH / 4));
            Copy { at: chunk_along_k(row, chunk), row, depth: 4 * chunk }
        } else {
            let (quad, depth) = (index % (width / 4), index / (width / 4));
            Copy { at: quad_along_rows(width, quad, depth), row: 4 * quad, depth }
        }
    }
}

impl Operand {
    /// The panel of `matrix` that starts with row `first`.
    #[inline(always)]
    pub fn new(matrix: In<f32>, stride: u32, first: u32, rows: u32, vectors: bool) -> Operand {
        Operand { matrix, stride, first, rows, vectors }
    }

    /// Starts copying summed indices k .. k + DEPTH (zero from `k_end` on) of the panel's rows into `panel`.
    #[inline(always)]
    pub fn copy<O: Order>(&self, panel: Panel, threads: u32, k: u32, k_end: u32) {
        if self.vectors && k + DEPTH <= k_end && (O::ALONG_K || self.rows.is_multiple_of(4)) {
            self.copy_whole::<O>(panel, threads, k);
        } else {
            self.copy_part::<O>(panel, threads, k, k_end);
        }
    }

    /// All 16-byte pieces exist. Instead of rows that do not exist (their part of C is not stored) the last ones are
    /// copied again.
    #[inline(always)]
    fn copy_whole<O: Order>(&self, panel: Panel, threads: u32, k: u32) {
        let (memory, width) = (panel.all(), panel.width);
        let mut i = 0;
        while i < width * (DEPTH / 4) / threads {
            let Copy { at, row, depth } = Copy::new::<O>(i, width, threads);
            let from = if O::ALONG_K {
                min(self.first + row, self.rows - 1) * self.stride + depth + k
            } else {
                depth * self.stride + min(self.first + row, self.rows - 4) + k * self.stride
            };
            shared::copy_async16(memory, at, &self.matrix, from, 16);
            i += 1;
        }
    }

    /// Pieces may be cut off anywhere, and lie anywhere.
    #[inline(always)]
    fn copy_part<O: Order>(&self, panel: Panel, threads: u32, k: u32, k_end: u32) {
        let (memory, width) = (panel.all(), panel.width);
        let mut i = 0;
        while i < width * (DEPTH / 4) / threads {
            let Copy { at, row, depth } = Copy::new::<O>(i, width, threads);
            let (row, k) = (self.first + row, k + depth);
            let inside = row < self.rows && k < k_end;
            let valid = if inside { min(if O::ALONG_K { k_end - k } else { self.rows - row }, 4) } else { 0 };
            // Only an existing element's index is known to fit 32 bits.
            let from = match (valid, O::ALONG_K) {
                (0, _) => 0,
                (_, true) => row * self.stride + k,
                (_, false) => k * self.stride + row,
            };
            if self.vectors {
                shared::copy_async16(memory, at, &self.matrix, from, 4 * valid);
            } else {
                let mut e = 0;
                while e < 4 {
                    let (from, bytes) = if e < valid { (from + e, 4) } else { (0, 0) };
                    shared::copy_async4(memory, at + e, &self.matrix, from, bytes);
                    e += 1;
                }
            }
            i += 1;
        }
    }
}

/// What warpgroups read: four neighbours, to registers.
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
impl Operand {
    /// Whether all pieces of four neighbours exist among summed indices k .. k + depth, `k_end` being their end, and can be
    /// read as such.
    #[inline(always)]
    pub fn whole<O: Order>(&self, k: u32, depth: u32, k_end: u32) -> bool {
        self.vectors && k + depth <= k_end && (O::ALONG_K || self.rows.is_multiple_of(4))
    }

    /// Four neighbours from row `row` of the panel and summed index k on, where they are [`Operand::whole`]. Instead of rows
    /// that do not exist (their part of C is not stored) the last ones are read.
    #[inline(always)]
    pub fn whole_four<O: Order>(&self, row: u32, k: u32) -> [f32; 4] {
        self.matrix.get4(if O::ALONG_K {
            min(self.first + row, self.rows - 1) * self.stride + k
        } else {
            k * self.stride + min(self.first + row, self.rows - 4)
        })
    }

    /// The same anywhere, zero where there is nothing.
    #[inline(always)]
    pub fn four<O: Order>(&self, row: u32, k: u32, k_end: u32) -> [f32; 4] {
        let row = self.first + row;
        let get = |e: u32| {
            let (row, k) = if O::ALONG_K { (row, k + e) } else { (row + e, k) };
            if row < self.rows && k < k_end {
                self.matrix.get(if O::ALONG_K { row * self.stride + k } else { k * self.stride + row })
            } else {
                0.0
            }
        };
        [get(0), get(1), get(2), get(3)]
    }
}

/// The smaller one.
#[inline(always)]
pub(super) fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

/// Where summed indices 4 chunk .. 4 chunk + 4 of a row are.
#[inline(always)]
fn chunk_along_k(row: u32, chunk: u32) -> u32 {
    row * DEPTH + 4 * (chunk ^ (row % 8) ^ (row / 8 % 4))
}

/// Where rows 4 quad .. 4 quad + 4 of summed index `k` are.
#[inline(always)]
fn quad_along_rows(width: u32, quad: u32, k: u32) -> u32 {
    k * width + 4 * (quad ^ (2 * (k % 4)))
}

/// Rows and summed indices of one operand in shared memory.
#[derive(Clone, Copy)]
pub struct Panel {
    /// First byte in the block's shared memory.
    pub start: u32,
    /// Rows.
    pub width: u32,
}

/// Reads are written as a view that depends on the lane (and is the same in all turns of the loop) plus an offset that
/// is a constant, which then is part of the instruction: for that the exclusive ors below are split by hand.
impl Panel {
    /// All of it.
    #[inline(always)]
    fn all(&self) -> Shared<f32> {
        self.view(0)
    }

    /// From a float on.
    #[inline(always)]
    fn view(&self, offset: u32) -> Shared<f32> {
        shared::array(self.start + 4 * offset, DEPTH * self.width - offset)
    }

    /// Element (row + 8 v + g, k + 4 e + t) for g < 8, t < 4 (the lane), v < 4, e < 2 (constants), row a multiple of 32,
    /// k a multiple of 8.
    #[inline(always)]
    pub fn one<O: Order>(&self, row: u32, (g, t): (u32, u32), v: u32, k: u32, e: u32) -> f32 {
        if O::ALONG_K {
            let view = self.view((row + g) * DEPTH + 4 * (((k / 4 + e) ^ v) ^ g) + t);
            view.get(8 * v * DEPTH)
        } else {
            let view = self.view(t * self.width + row + 8 * (v ^ t) + g);
            view.get((k + 4 * e) * self.width)
        }
    }

    /// Elements (row + 16 i + 2 g, k + 4 e + t) and the next row's, of an operand that lies along rows; i < 2, the rest
    /// as in [`Panel::one`].
    #[inline(always)]
    pub fn two_rows(&self, row: u32, (g, t): (u32, u32), i: u32, k: u32, e: u32) -> [f32; 2] {
        let view = self.view(t * self.width + row + 4 * ((4 * i + g / 2) ^ (2 * t)) + 2 * (g % 2));
        view.get2((k + 4 * e) * self.width)
    }

    /// Elements (row + 4 across h + 4 y + {0..4}, 4 c + 4 e + {0..4}) as `result[row][k]`: y < `across` (the lane), h < 2
    /// and e < 4 (constants), `across` 4 or 8, row a multiple of 32, c of as much as e goes to.
    #[inline(always)]
    pub fn quad<O: Order>(&self, row: u32, across: u32, y: u32, h: u32, c: u32, e: u32) -> [[f32; 4]; 4] {
        // With across = 8 the upper half is 32 rows away, where the pattern of exclusive ors begins again.
        let (high, w) = if across == 8 { (h, 0) } else { (0, 2 * h) };
        if O::ALONG_K {
            let get = |i: u32| {
                let lane = (4 * (y % 2)) ^ (y / 2);
                let view = self.view((row + 4 * y) * DEPTH + 4 * (c ^ (e ^ i ^ w) ^ lane));
                view.get4((4 * across * h + i) * DEPTH)
            };
            [get(0), get(1), get(2), get(3)]
        } else {
            let get = |i: u32| {
                let view = self.view(4 * c * self.width + row + 4 * (y ^ (2 * (i ^ w))));
                view.get4((4 * e + i) * self.width + 32 * high)
            };
            let k = [get(0), get(1), get(2), get(3)];
            [
                [k[0][0], k[1][0], k[2][0], k[3][0]],
                [k[0][1], k[1][1], k[2][1], k[3][1]],
                [k[0][2], k[1][2], k[2][2], k[3][2]],
                [k[0][3], k[1][3], k[2][3], k[3][3]],
            ]
        }
    }
}
