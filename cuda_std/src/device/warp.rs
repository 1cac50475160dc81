//! Operations that the 32 threads of a warp do together. All lanes must call (the mask is full). Of these only [`sync`]
//! orders accesses to memory.

/// All lanes.
const FULL: u32 = u32::MAX;
/// Last operand of a shuffle without segments: the clamp (31; 0 for `up`) in the lower bits.
const CLAMP: u32 = 31;

/// Result of a matrix product.
#[repr(C)]
struct Fragment(f32, f32, f32, f32);

#[allow(improper_ctypes)]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn shuffle_xor(mask: u32, value: u32, lane_mask: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32"]
    fn shuffle_down(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32"]
    fn shuffle_up(mask: u32, value: u32, delta: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn shuffle_index(mask: u32, value: u32, source: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn vote_ballot(mask: u32, predicate: bool) -> u32;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    fn vote_any(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.all.sync"]
    fn vote_all(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn warp_barrier(mask: u32);
    #[link_name = "llvm.nvvm.mma.m16n8k8.row.col.tf32"]
    fn mma_m16n8k8_tf32(
        a0: u32,
        a1: u32,
        a2: u32,
        a3: u32,
        b0: u32,
        b1: u32,
        c0: f32,
        c1: f32,
        c2: f32,
        c3: f32,
    ) -> Fragment;
    #[link_name = "llvm.nvvm.mma.m16n8k16.row.col.bf16"]
    fn mma_m16n8k16_bf16(
        a0: u32,
        a1: u32,
        a2: u32,
        a3: u32,
        b0: u32,
        b1: u32,
        c0: f32,
        c1: f32,
        c2: f32,
        c3: f32,
    ) -> Fragment;
}

/// Four-byte values that a shuffle moves.
pub trait Shuffle: Copy {
    /// The value's bits.
    fn to_word(self) -> u32;
    /// The value of these bits.
    fn from_word(word: u32) -> Self;
}

impl Shuffle for u32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_word(word: u32) -> u32 {
        word
    }
}

impl Shuffle for i32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn from_word(word: u32) -> i32 {
        word as i32
    }
}

impl Shuffle for f32 {
    #[inline(always)]
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    #[inline(always)]
    fn from_word(word: u32) -> f32 {
        f32::from_bits(word)
    }
}

// SAFETY of all calls below: the intrinsics need every lane of the mask to reach them, which the emulator checks.

/// The value of lane `lane ^ mask`.
#[inline(always)]
pub fn shfl_xor<T: Shuffle>(value: T, mask: u32) -> T {
    T::from_word(unsafe { shuffle_xor(FULL, value.to_word(), mask, CLAMP) })
}

/// The value of lane `lane + delta`; the own one where that is beyond the warp.
#[inline(always)]
pub fn shfl_down<T: Shuffle>(value: T, delta: u32) -> T {
    T::from_word(unsafe { shuffle_down(FULL, value.to_word(), delta, CLAMP) })
}

/// The value of lane `lane - delta`; the own one where that is before the warp.
#[inline(always)]
pub fn shfl_up<T: Shuffle>(value: T, delta: u32) -> T {
    T::from_word(unsafe { shuffle_up(FULL, value.to_word(), delta, 0) })
}

/// The value of lane `source % 32`.
#[inline(always)]
pub fn shfl_idx<T: Shuffle>(value: T, source: u32) -> T {
    T::from_word(unsafe { shuffle_index(FULL, value.to_word(), source, CLAMP) })
}

/// Sum over the warp by five xor shuffles (16, 8, 4, 2, 1): every lane gets the same bits.
#[inline(always)]
pub fn sum(mut value: f32) -> f32 {
    value += shfl_xor(value, 16);
    value += shfl_xor(value, 8);
    value += shfl_xor(value, 4);
    value += shfl_xor(value, 2);
    value + shfl_xor(value, 1)
}

/// Largest value of the warp by five xor shuffles; a NaN is passed over as `f32::max` does.
#[inline(always)]
pub fn max(mut value: f32) -> f32 {
    value = value.max(shfl_xor(value, 16));
    value = value.max(shfl_xor(value, 8));
    value = value.max(shfl_xor(value, 4));
    value = value.max(shfl_xor(value, 2));
    value.max(shfl_xor(value, 1))
}

/// Bit i is lane i's `predicate`.
#[inline(always)]
pub fn ballot(predicate: bool) -> u32 {
    unsafe { vote_ballot(FULL, predicate) }
}

/// Whether any lane's `predicate` holds.
#[inline(always)]
pub fn any(predicate: bool) -> bool {
    unsafe { vote_any(FULL, predicate) }
}

/// Whether every lane's `predicate` holds.
#[inline(always)]
pub fn all(predicate: bool) -> bool {
    unsafe { vote_all(FULL, predicate) }
}

/// Waits for the other lanes; what they wrote to shared memory before is then visible. Counts as a vote.
#[inline(always)]
pub fn sync() {
    unsafe { warp_barrier(FULL) }
}

/// C + A B for A (16 x 8), B (8 x 8), C (16 x 8): `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`.
///
/// The operands are f32 bits of which tf32 uses the upper 19; fragments as in the PTX manual, with g = lane / 4
/// and t = lane % 4: a = A[g, t], A[g + 8, t], A[g, t + 4], A[g + 8, t + 4]; b = B[t, g], B[t + 4, g];
/// c = C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1].
#[inline(always)]
pub fn mma_tf32(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let Fragment(c0, c1, c2, c3) =
        unsafe { mma_m16n8k8_tf32(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [c0, c1, c2, c3]
}

/// C + A B for A (16 x 16), B (16 x 8), C (16 x 8) in bf16: `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`.
///
/// Each operand word holds two bf16, the lower half first; with g = lane / 4, t = lane % 4 and e = 0, 1:
/// a = A[g, 2t + e], A[g + 8, 2t + e], A[g, 2t + 8 + e], A[g + 8, 2t + 8 + e]; b = B[2t + e, g],
/// B[2t + 8 + e, g]; c as in [`mma_tf32`].
#[inline(always)]
pub fn mma_bf16(a: [u32; 4], b: [u32; 2], c: [f32; 4]) -> [f32; 4] {
    let Fragment(c0, c1, c2, c3) =
        unsafe { mma_m16n8k16_bf16(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [c0, c1, c2, c3]
}
