//! Operations that the 32 threads of a warp do together. All lanes must call (the mask is full). Of these only [`sync`]
//! orders accesses to memory.

use std::panic::Location;

use crate::emulator::sync::{self, Operation};

/// Four-byte values that a shuffle moves.
pub trait Shuffle: Copy {
    /// The value's bits.
    fn to_word(self) -> u32;
    /// The value of these bits.
    fn from_word(word: u32) -> Self;
}

impl Shuffle for u32 {
    fn to_word(self) -> u32 {
        self
    }
    fn from_word(word: u32) -> u32 {
        word
    }
}

impl Shuffle for i32 {
    fn to_word(self) -> u32 {
        self as u32
    }
    fn from_word(word: u32) -> i32 {
        word as i32
    }
}

impl Shuffle for f32 {
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    fn from_word(word: u32) -> f32 {
        f32::from_bits(word)
    }
}

#[track_caller]
fn shuffle<T: Shuffle>(operation: Operation, value: T, argument: u32) -> T {
    T::from_word(sync::collective(operation, argument, &[value.to_word()], Location::caller())[0])
}

/// The value of lane `lane ^ mask`.
#[track_caller]
pub fn shfl_xor<T: Shuffle>(value: T, mask: u32) -> T {
    shuffle(Operation::ShuffleXor, value, mask)
}

/// The value of lane `lane + delta`; the own one where that is beyond the warp.
#[track_caller]
pub fn shfl_down<T: Shuffle>(value: T, delta: u32) -> T {
    shuffle(Operation::ShuffleDown, value, delta)
}

/// The value of lane `lane - delta`; the own one where that is before the warp.
#[track_caller]
pub fn shfl_up<T: Shuffle>(value: T, delta: u32) -> T {
    shuffle(Operation::ShuffleUp, value, delta)
}

/// The value of lane `source % 32`.
#[track_caller]
pub fn shfl_idx<T: Shuffle>(value: T, source: u32) -> T {
    shuffle(Operation::ShuffleIndex, value, source)
}

/// Sum over the warp by five xor shuffles (16, 8, 4, 2, 1): every lane gets the same bits.
#[track_caller]
pub fn sum(mut value: f32) -> f32 {
    for mask in [16, 8, 4, 2, 1] {
        value += shfl_xor(value, mask);
    }
    value
}

/// Largest value of the warp by five xor shuffles; a NaN is passed over as `f32::max` does.
#[track_caller]
pub fn max(mut value: f32) -> f32 {
    for mask in [16, 8, 4, 2, 1] {
        value = value.max(shfl_xor(value, mask));
    }
    value
}

/// Bit i is lane i's `predicate`.
#[track_caller]
pub fn ballot(predicate: bool) -> u32 {
    sync::collective(Operation::Ballot, 0, &[u32::from(predicate)], Location::caller())[0]
}

/// Whether any lane's `predicate` holds.
#[track_caller]
pub fn any(predicate: bool) -> bool {
    sync::collective(Operation::Any, 0, &[u32::from(predicate)], Location::caller())[0] != 0
}

/// Whether every lane's `predicate` holds.
#[track_caller]
pub fn all(predicate: bool) -> bool {
    sync::collective(Operation::All, 0, &[u32::from(predicate)], Location::caller())[0] != 0
}

/// Waits for the other lanes; what they wrote to shared memory before is then visible. Counts as a vote.
#[track_caller]
pub fn sync() {
    sync::collective(Operation::WarpBarrier, 0, &[], Location::caller());
}

/// C + A B for A (16 x 8), B (8 x 8), C (16 x 8): `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`.
///
/// The operands are f32 bits of which tf32 uses the upper 19; fragments as in the PTX manual, with g = lane / 4
/// and t = lane % 4: a = A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]; b = B[t, g], B[t + 4, g];
/// c = C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1].
#[track_caller]
pub fn mma_tf32(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    mma(Operation::MmaTf32, a, b, c)
}

/// C + A B for A (16 x 16), B (16 x 8), C (16 x 8) in bf16: `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`.
///
/// Each operand word holds two bf16, the lower half first; with g = lane / 4, t = lane % 4 and e = 0, 1:
/// a = A[g, 2t + e], A[g + 8, 2t + e], A[g, 2t + 8 + e], A[g + 8, 2t + 8 + e]; b = B[2t + e, g],
/// B[2t + 8 + e, g]; c as in [`mma_tf32`].
#[track_caller]
pub fn mma_bf16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    mma(Operation::MmaBf16, a, b, c)
}

#[track_caller]
fn mma(operation: Operation, a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let [c0, c1, c2, c3] = c.map(f32::to_bits);
    let words = [a[0], a[1], a[2], a[3], b[0], b[1], c0, c1, c2, c3];
    sync::collective(operation, 0, &words, Location::caller()).map(f32::from_bits)
}
