//! Matrix products by the tensor cores of four warps at once, operands in shared memory: `wgmma`. Only the target sm_90a
//! has it: kernels that call these are declared with `only = "sm_90a"`.

use core::arch::asm;

pub use crate::halves::Halves;

/// An operand of [`multiply`] in shared memory, in tiles whose rows are 128 bytes, the octet q of row r at octet q ^ (r % 8).
/// A plain handle.
#[derive(Clone, Copy)]
pub struct Operand(u64);

/// The 128-byte swizzle, and 1,024 bytes from eight rows to the next eight, in the upper half of a descriptor.
const UPPER: u64 = (1 << 62) | ((1024 >> 4) << 32);

/// The operand whose first element is `start` bytes into the block's dynamic shared memory, a multiple of 16 in rows that
/// are aligned as the tiles, to 1,024 bytes for eight. Where the operand is stored `[summed index, row]` and has more than
/// 64 rows (of B: columns), 64 further ones are `next` bytes away, a multiple of 16.
#[inline(always)]
pub fn operand(start: u32, next: u32) -> Operand {
    let address = super::shared::base().wrapping_add(start);
    Operand(UPPER | u64::from((address >> 4) & 0x3fff) | (u64::from((next >> 4) & 0x3fff) << 16))
}

impl Operand {
    /// The operand `bytes` bytes further on, a multiple of 16.
    #[inline(always)]
    pub fn advance(self, bytes: u32) -> Operand {
        Operand(self.0 + u64::from(bytes >> 4))
    }
}

/// What is known of a product when the kernel is compiled.
pub trait Product {
    /// Octets of columns of B and C: 1, 2, 4, 8 or 16.
    const OCTETS: usize;
    /// Whether A is stored across the summed index, `[summed index, row]`, rather than along it, `[row, summed index]`.
    const ACROSS_A: bool;
    /// Whether B is stored across the summed index, `[summed index, column]`, rather than `[column, summed index]`.
    const ACROSS_B: bool;
    /// What A's and B's elements are.
    const HALVES: Halves;
}

/// What this thread has written to shared memory, and the copies that it has waited for, become visible to products after
/// the next block barrier.
#[inline(always)]
pub fn publish() {
    // SAFETY: needs nothing.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nomem, nostack, preserves_flags)) }
}

/// One `asm!` for the whole product: between its instructions nothing may touch the accumulators, which neither LLVM nor
/// ptxas would know otherwise. There is a `$step`, empty, for each 16 summed indices.
macro_rules! product {
    ($shape:literal, $halves:literal, $c:ident, $a:ident, $b:ident, $all:tt, [$($n:literal)*], [$($step:literal)*]) => {
        asm!(
            "{{",
            ".reg .pred add;",
            ".reg .b64 left, right;",
            "setp.ne.b32 add, 1, 0;",
            "mov.b64 left, {a};",
            "mov.b64 right, {b};",
            "wgmma.fence.sync.aligned;",
            $(concat!(
                "wgmma.mma_async.sync.aligned.m64n", $shape, "k16.f32.", $halves, ".", $halves, " {{",
                product!(@registers $all),
                "}}, left, right, add, 1, 1, {across_a}, {across_b};",
                " add.s64 left, left, {step_a}; add.s64 right, right, {step_b};", $step
            ),)*
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
            "}}",
            $(inout(reg32) $c[$n / 4][$n % 4],)*
            a = in(reg64) $a.0,
            b = in(reg64) $b.0,
            across_a = const P::ACROSS_A as i32,
            across_b = const P::ACROSS_B as i32,
            step_a = const step(P::ACROSS_A),
            step_b = const step(P::ACROSS_B),
            options(nomem, nostack, preserves_flags)
        )
    };
    (@registers [$first:literal $($n:literal)*]) => {
        concat!("{", $first, "}" $(, ", {", $n, "}")*)
    };
}

/// What 16 summed indices are in a descriptor: 32 bytes of each row, or 16 rows of 128 bytes.
const fn step(across: bool) -> i32 {
    if across { 16 * 128 / 16 } else { 32 / 16 }
}

macro_rules! by_steps {
    ($shape:literal, $c:ident, $a:ident, $b:ident, $n:tt) => {
        match (P::HALVES, STEPS) {
            (Halves::Bf16, 1) => product!($shape, "bf16", $c, $a, $b, $n, $n, [""]),
            (Halves::Fp16, 1) => product!($shape, "f16", $c, $a, $b, $n, $n, [""]),
            (Halves::Bf16, 2) => product!($shape, "bf16", $c, $a, $b, $n, $n, ["" ""]),
            (Halves::Bf16, _) => product!($shape, "bf16", $c, $a, $b, $n, $n, ["" "" "" ""]),
            (Halves::Fp16, 2) => product!($shape, "f16", $c, $a, $b, $n, $n, ["" ""]),
            (Halves::Fp16, _) => product!($shape, "f16", $c, $a, $b, $n, $n, ["" "" "" ""]),
        }
    };
}

/// C += A B for A (64 x 16 STEPS), B (16 STEPS x 8 OCTETS), C (64 x 8 OCTETS) in f32: STEPS (1, 2 or 4) times
/// `wgmma.mma_async.sync.aligned.m64nNk16` of the product's halves, and the wait for them.
///
/// Warp w of the four, whose first thread is a multiple of 128, gets rows 16 w to 16 w + 15:
/// with g = lane / 4 and t = lane % 4 c[j] are C[g, 8j + 2t], C[g, 8j + 2t + 1], C[g + 8, 8j + 2t], C[g + 8, 8j + 2t + 1] of
/// these. What is read has been made visible by [`publish`] and a block barrier. All 128 threads call, with the same
/// operands, in control flow that is the same for all of them: `asm!` has no convergent marker.
#[inline(always)]
pub fn multiply<P: Product, const STEPS: usize>(a: Operand, b: Operand, c: &mut [[f32; 4]; 16]) {
    const { assert!(matches!(P::OCTETS, 1 | 2 | 4 | 8 | 16) && matches!(STEPS, 1 | 2 | 4)) };
    // SAFETY: the emulator checks bounds, order and that all threads call.
    unsafe {
        match P::OCTETS {
            1 => by_steps!("8", c, a, b, [0 1 2 3]),
            2 => by_steps!("16", c, a, b, [0 1 2 3 4 5 6 7]),
            4 => by_steps!("32", c, a, b, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
            8 => by_steps!("64", c, a, b, [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            ]),
            16 => by_steps!("128", c, a, b, [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
                32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
            ]),
            _ => {}
        }
    }
}

/// As `product`, A in registers.
macro_rules! product_of_rows {
    ($shape:literal, $halves:literal, $c:ident, $a:ident, $b:ident, $all:tt, [$($n:literal)*]) => {
        asm!(
            "{{",
            ".reg .pred add;",
            ".reg .b64 right;",
            "setp.ne.b32 add, 1, 0;",
            "mov.b64 right, {b};",
            "wgmma.fence.sync.aligned;",
            product_of_rows!(@step $shape, $halves, $all, "{a0}, {a1}, {a2}, {a3}"),
            product_of_rows!(@step $shape, $halves, $all, "{a4}, {a5}, {a6}, {a7}"),
            product_of_rows!(@step $shape, $halves, $all, "{a8}, {a9}, {a10}, {a11}"),
            product_of_rows!(@step $shape, $halves, $all, "{a12}, {a13}, {a14}, {a15}"),
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
            "}}",
            $(inout(reg32) $c[$n / 4][$n % 4],)*
            a0 = in(reg32) $a[0][0], a1 = in(reg32) $a[0][1], a2 = in(reg32) $a[0][2], a3 = in(reg32) $a[0][3],
            a4 = in(reg32) $a[1][0], a5 = in(reg32) $a[1][1], a6 = in(reg32) $a[1][2], a7 = in(reg32) $a[1][3],
            a8 = in(reg32) $a[2][0], a9 = in(reg32) $a[2][1], a10 = in(reg32) $a[2][2], a11 = in(reg32) $a[2][3],
            a12 = in(reg32) $a[3][0], a13 = in(reg32) $a[3][1], a14 = in(reg32) $a[3][2], a15 = in(reg32) $a[3][3],
            b = in(reg64) $b.0,
            across_b = const P::ACROSS_B as i32,
            step_b = const step(P::ACROSS_B),
            options(nomem, nostack, preserves_flags)
        )
    };
    (@step $shape:literal, $halves:literal, $all:tt, $a:literal) => {
        concat!(
            "wgmma.mma_async.sync.aligned.m64n", $shape, "k16.f32.", $halves, ".", $halves, " {{",
            product!(@registers $all),
            "}}, {{", $a, "}}, right, add, 1, 1, {across_b}; add.s64 right, right, {step_b};"
        )
    };
}

macro_rules! rows_by_halves {
    ($shape:literal, $c:ident, $a:ident, $b:ident, $n:tt) => {
        match P::HALVES {
            Halves::Bf16 => product_of_rows!($shape, "bf16", $c, $a, $b, $n, $n),
            Halves::Fp16 => product_of_rows!($shape, "f16", $c, $a, $b, $n, $n),
        }
    };
}

/// As [`multiply`] for 64 summed indices, A in registers: of 16 step to 16 step + 15 of them a[step] are, two a word, the lower
/// half first, A[g, 2t + e], A[g + 8, 2t + e], A[g, 2t + 8 + e], A[g + 8, 2t + 8 + e] of the warp's rows, e = 0, 1. As C's
/// elements lie in the lanes, with two octets of columns a step. For 1, 4, 8 or 16 octets; `ACROSS_A` does not matter.
#[inline(always)]
pub fn multiply_rows<P: Product>(a: &[[u32; 4]; 4], b: Operand, c: &mut [[f32; 4]; 16]) {
    const { assert!(matches!(P::OCTETS, 1 | 4 | 8 | 16)) };
    // SAFETY: as in `multiply`.
    unsafe {
        match P::OCTETS {
            1 => rows_by_halves!("8", c, a, b, [0 1 2 3]),
            4 => rows_by_halves!("32", c, a, b, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]),
            8 => rows_by_halves!("64", c, a, b, [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            ]),
            16 => rows_by_halves!("128", c, a, b, [
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
                32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
            ]),
            _ => {}
        }
    }
}
