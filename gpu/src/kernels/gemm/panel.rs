//! Operand panels in shared memory: how a stage of the pipeline gets there, and how threads read it.
//!
//! A panel is `DEPTH` summed indices of `width` rows of one operand ("row" is an index of C along that operand).
//! It keeps the order of device memory, so that a copy moves 16 bytes of neighbours:
//! - along k (operand stored `[row, k]`): element (r, k) at r * DEPTH + 4 * ((k / 4) ^ (r / 4 % 8)) + k % 4;
//! - along rows (operand stored `[k, row]`): element (r, k) at k * width + 4 * ((r / 4) ^ (k / 4 % 4)) + r % 4.
//!
//! The exclusive or spreads what eight neighbouring lanes read with one 16-byte instruction over all 32 banks:
//! four quads of rows at one k (SIMT: eight), or two quads of rows at four k chunks (tensor cores).

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

impl Operand {
    /// Starts copying summed indices k .. k + DEPTH (zero from `k_end` on) of `width` rows into the panel at `to`.
    #[inline(always)]
    pub fn copy<O: Order>(&self, shared: Shared<f32>, to: u32, width: u32, threads: u32, k: u32, k_end: u32) {
        let thread = thread::thread_idx();
        let mut i = 0;
        while i < width * (DEPTH / 4) / threads {
            let index = i * threads + thread;
            // at: where four neighbours go in the panel; row, k: the first of them; valid: how many exist.
            let (at, row, first_k, valid) = if O::ALONG_K {
                let (chunk, row) = (index % (DEPTH / 4), index / (DEPTH / 4));
                let (at, first_k, row) =
                    (row * DEPTH + 4 * (chunk ^ (row / 4 % 8)), k + 4 * chunk, self.first + row);
                let inside = row < self.rows && first_k < k_end;
                (at, row, first_k, if inside { min(k_end - first_k, 4) } else { 0 })
            } else {
                let (quad, depth) = (index % (width / 4), index / (width / 4));
                let (at, row, k) =
                    (depth * width + 4 * (quad ^ (depth / 4 % 4)), self.first + 4 * quad, k + depth);
                let inside = k < k_end && row < self.rows;
                (at, row, k, if inside { min(self.rows - row, 4) } else { 0 })
            };
            // Only an existing element's index is known to fit 32 bits.
            let from = match (valid, O::ALONG_K) {
                (0, _) => 0,
                (_, true) => row * self.stride + first_k,
                (_, false) => first_k * self.stride + row,
            };
            if self.vectors {
                shared::copy_async16(shared, to + at, &self.matrix, from, 4 * valid);
            } else {
                let mut e = 0;
                while e < 4 {
                    let (from, bytes) = if e < valid { (from + e, 4) } else { (0, 0) };
                    shared::copy_async4(shared, to + at + e, &self.matrix, from, bytes);
                    e += 1;
                }
            }
            i += 1;
        }
    }
}

#[inline(always)]
fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

/// Reads rows 4q .. 4q + 4 of the panel at `from` for summed indices 4c .. 4c + 4: `result[row][k]`.
#[inline(always)]
pub fn quad<O: Order>(shared: Shared<f32>, from: u32, width: u32, q: u32, c: u32) -> [[f32; 4]; 4] {
    if O::ALONG_K {
        let at = from + 4 * q * DEPTH + 4 * (c ^ (q % 8));
        [shared.get4(at), shared.get4(at + DEPTH), shared.get4(at + 2 * DEPTH), shared.get4(at + 3 * DEPTH)]
    } else {
        let at = from + 4 * c * width + 4 * (q ^ (c % 4));
        let k = [
            shared.get4(at),
            shared.get4(at + width),
            shared.get4(at + 2 * width),
            shared.get4(at + 3 * width),
        ];
        [
            [k[0][0], k[1][0], k[2][0], k[3][0]],
            [k[0][1], k[1][1], k[2][1], k[3][1]],
            [k[0][2], k[1][2], k[2][2], k[3][2]],
            [k[0][3], k[1][3], k[2][3], k[3][3]],
        ]
    }
}
