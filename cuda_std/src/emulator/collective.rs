//! What a full warp computes at a warp operation.

use crate::emulator::context::Thread;
use crate::emulator::sync::{Exchange, Operation};

/// Lanes of a warp.
pub const LANES: usize = 32;
/// Threads of a warpgroup.
pub const GROUP_THREADS: usize = 4 * LANES;

/// Replaces the operands of all lanes by their results. All lanes are at the same operation.
pub fn complete(lanes: &mut [Thread]) {
    // A warpgroup's threads compute their own elements when they go on.
    if lanes.len() > LANES {
        return;
    }
    let exchanges: [Exchange; LANES] = std::array::from_fn(|lane| lanes[lane].exchange);
    match exchanges[0].operation {
        Operation::BlockBarrier | Operation::WarpBarrier | Operation::GroupProduct => {}
        Operation::ShuffleXor => shuffle(lanes, &exchanges, |lane, mask| lane ^ mask as usize),
        Operation::ShuffleDown => {
            shuffle(lanes, &exchanges, |lane, delta| lane.saturating_add(delta as usize))
        }
        Operation::ShuffleUp => shuffle(lanes, &exchanges, |lane, delta| lane.wrapping_sub(delta as usize)),
        Operation::ShuffleIndex => shuffle(lanes, &exchanges, |_, source| source as usize % LANES),
        Operation::Ballot => vote(lanes, &exchanges, |mask| mask),
        Operation::Any => vote(lanes, &exchanges, |mask| u32::from(mask != 0)),
        Operation::All => vote(lanes, &exchanges, |mask| u32::from(mask == u32::MAX)),
        Operation::MmaTf32 => mma(lanes, &exchanges, tf32_operands),
        Operation::MmaBf16 => mma(lanes, &exchanges, bf16_operands),
        Operation::MatrixRows => matrix_rows(lanes, &exchanges),
        Operation::QuadRows => quad_rows(lanes, &exchanges),
    }
}

/// Every lane takes the word of the lane that `source` names, or its own where there is none.
fn shuffle(lanes: &mut [Thread], exchanges: &[Exchange; LANES], source: impl Fn(usize, u32) -> usize) {
    for (lane, thread) in lanes.iter_mut().enumerate() {
        if let Some(from) = exchanges.get(source(lane, exchanges[lane].argument)) {
            thread.exchange.words[0] = from.words[0];
        }
    }
}

/// Of the rows that the lanes name, eight for each of four matrices, every lane takes one a matrix: by its argument row
/// lane / 4, 2 (lane % 4), or 2 (lane % 4) + 1.
fn matrix_rows(lanes: &mut [Thread], exchanges: &[Exchange; LANES]) {
    for (lane, thread) in lanes.iter_mut().enumerate() {
        let row = match exchanges[lane].argument {
            0 => lane / 4,
            which => 2 * (lane % 4) + which as usize - 1,
        };
        for matrix in 0..4 {
            thread.exchange.words[matrix] = exchanges[8 * matrix + row].words[0];
        }
    }
}

/// Every lane takes four words of each of the lanes with the same lane / 4.
fn quad_rows(lanes: &mut [Thread], exchanges: &[Exchange; LANES]) {
    for (lane, thread) in lanes.iter_mut().enumerate() {
        for (t, words) in thread.quad.iter_mut().enumerate() {
            words.copy_from_slice(&exchanges[lane / 4 * 4 + t].words[..4]);
        }
    }
}

fn vote(lanes: &mut [Thread], exchanges: &[Exchange; LANES], result: impl Fn(u32) -> u32) {
    let mask = exchanges.iter().enumerate().fold(0, |mask, (lane, e)| mask | e.words[0] << lane);
    for thread in lanes {
        thread.exchange.words[0] = result(mask);
    }
}

/// Rows of A and C.
const M: usize = 16;
/// Columns of B and C.
const N: usize = 8;
/// Longest summed dimension (bf16; tf32 uses the first 8).
const K: usize = 16;

/// A (row-major) and B (column-major: `b[n][k]`) of a product; unused parts are zero.
struct Operands {
    a: [[f32; K]; M],
    b: [[f32; K]; N],
}

/// One product of the warp. Each element is the exact sum rounded once: the products are exact in f64, and
/// sixteen of them with C lose at most a few of f64's last bits. A GPU's tensor core rounds between and after
/// (the order is not documented), so results agree to a few f32 ulp of the largest term.
fn mma(lanes: &mut [Thread], exchanges: &[Exchange; LANES], operands: fn(&[Exchange; LANES]) -> Operands) {
    let Operands { a, b } = operands(exchanges);
    for (lane, thread) in lanes.iter_mut().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for i in 0..4 {
            let (row, column) = (g + 8 * (i / 2), 2 * t + i % 2);
            let c = f64::from(f32::from_bits(exchanges[lane].words[6 + i]));
            let sum =
                a[row].iter().zip(&b[column]).fold(c, |sum, (a, b)| sum + f64::from(*a) * f64::from(*b));
            thread.exchange.words[i] = (sum as f32).to_bits();
        }
    }
}

/// Fragments of m16n8k8 tf32; operands are cut to tf32's ten mantissa bits.
fn tf32_operands(exchanges: &[Exchange; LANES]) -> Operands {
    let tf32 = |word: u32| f32::from_bits(word & !0x1fff);
    let mut operands = Operands { a: [[0.0; K]; M], b: [[0.0; K]; N] };
    for (lane, exchange) in exchanges.iter().enumerate() {
        let (g, t, w) = (lane / 4, lane % 4, &exchange.words);
        for (i, word) in w[..4].iter().enumerate() {
            operands.a[g + 8 * (i % 2)][t + 4 * (i / 2)] = tf32(*word);
        }
        for (i, word) in w[4..6].iter().enumerate() {
            operands.b[g][t + 4 * i] = tf32(*word);
        }
    }
    operands
}

/// Fragments of m16n8k16 bf16: two elements a word, the lower half first.
fn bf16_operands(exchanges: &[Exchange; LANES]) -> Operands {
    let bf16 = |word: u32, e: usize| f32::from_bits((word >> (16 * e)) << 16);
    let mut operands = Operands { a: [[0.0; K]; M], b: [[0.0; K]; N] };
    for (lane, exchange) in exchanges.iter().enumerate() {
        let (g, t, w) = (lane / 4, lane % 4, &exchange.words);
        for e in 0..2 {
            for (i, word) in w[..4].iter().enumerate() {
                operands.a[g + 8 * (i % 2)][2 * t + e + 8 * (i / 2)] = bf16(*word, e);
            }
            for (i, word) in w[4..6].iter().enumerate() {
                operands.b[g][2 * t + e + 8 * i] = bf16(*word, e);
            }
        }
    }
    operands
}
