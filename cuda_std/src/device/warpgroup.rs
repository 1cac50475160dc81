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

/// Several products as one `asm!` with one wait: the tensor cores go from one to the next. `$sections` are their instructions.
macro_rules! chain {
    ($sections:expr, [$($c:ident from $first:literal: [$($n:literal)*]),*], $($operands:tt)*) => {
        asm!(
            "{{",
            ".reg .pred add;",
            ".reg .b64 left, right;",
            "setp.ne.b32 add, 1, 0;",
            "wgmma.fence.sync.aligned;",
            $sections,
            "wgmma.commit_group.sync.aligned;",
            "wgmma.wait_group.sync.aligned 0;",
            "}}",
            $($(inout(reg32) $c[($n - $first) / 4][($n - $first) % 4],)*)*
            $($operands)*
            options(nomem, nostack, preserves_flags)
        )
    };
}

/// 64 summed indices of a product of two operands in shared memory, whose descriptors are in `left` and `right`.
macro_rules! piece {
    ($halves:literal, $all:tt, $across_a:literal, $left:literal, [$($step:literal)*]) => {
        concat!($($step,
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.", $halves, ".", $halves, " {{", product!(@registers $all),
            "}}, left, right, add, 1, 1, ", $across_a, ", 0;",
            " add.s64 left, left, ", $left, "; add.s64 right, right, 2;"
        ),*)
    };
}

/// C += A B as [`multiply`] does it, from `{wc}` and `{cos}`.
macro_rules! first {
    ($halves:literal, $all:tt) => {
        concat!("mov.b64 left, {wc}; mov.b64 right, {cos};", piece!($halves, $all, "0", "2", ["" "" "" ""]))
    };
}

/// D += A B over several times 64 summed indices, from `{wh}`, stored across them, and `{hid}`. The next 64 are `{jump}` further
/// on in the latter, in whole 16 bytes; in the former the next rows.
macro_rules! second {
    ($halves:literal, $all:tt, [$($piece:literal)*]) => {
        concat!("mov.b64 left, {wh}; mov.b64 right, {hid};", $($piece,
            piece!($halves, $all, "1", "128", ["" "" "" ""]), " add.s64 right, right, {jump};"
        ),*)
    };
}

/// C += A B as [`multiply_rows`] does it.
macro_rules! rows {
    ($shape:literal, $halves:literal, $all:tt, $b:literal, $across:literal, $right:literal, $a:tt) => {
        concat!("mov.b64 right, ", $b, ";", rows!(@each $shape, $halves, $all, $across, $right, $a))
    };
    (@each $shape:literal, $halves:literal, $all:tt, $across:literal, $right:literal, [$($a:literal)*]) => {
        concat!($(
            "wgmma.mma_async.sync.aligned.m64n", $shape, "k16.f32.", $halves, ".", $halves, " {{", product!(@registers $all),
            "}}, {{", $a, "}}, right, add, 1, 1, ", $across, "; add.s64 right, right, ", $right, ";"
        ),*)
    };
}

/// What is known of a chain of products when the kernel is compiled.
pub trait Chain {
    /// What the operands' elements are.
    const HALVES: Halves;
    /// 64s of summed indices of the second product: 2 or 4.
    const PIECES: usize;
}

/// The two products that a chain ends with, of operands in shared memory: C += A B for A (64 x 64) and B (64 x 64), both stored
/// along the summed index, and D += A' B' for A' (64 x 64 PIECES) stored across it and B' (64 PIECES x 64) stored along it.
#[derive(Clone, Copy)]
pub struct Two {
    /// A and B.
    pub first: [Operand; 2],
    /// A' and B'.
    pub second: [Operand; 2],
    /// Bytes from 64 summed indices of B' to the next, a multiple of 16 from 128 on. Those of A' follow each other.
    pub next: u32,
}

/// The products that a chain begins with, with an operand in registers as in [`multiply_rows`]: their B, of 64 summed indices, and
/// C. The third has eight columns and B stored along the summed index, of the others it is stored across.
pub struct Rows<'a> {
    /// A.
    pub a: &'a [[u32; 4]; 4],
    /// B.
    pub b: Operand,
    /// C.
    pub c: &'a mut [[f32; 4]; 16],
}

/// The two products, with one wait for them; otherwise as [`multiply`].
#[inline(always)]
pub fn multiply_two<P: Chain>(two: &Two, c: &mut [[f32; 4]; 16], d: &mut [[f32; 4]; 16]) {
    const { assert!(matches!(P::PIECES, 2 | 4)) };
    let jump = u64::from(two.next >> 4) - 8;
    macro_rules! two {
        ($halves:literal, $pieces:tt) => {
            chain!(
                concat!(first!($halves, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]), second!($halves, [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63], $pieces)),
                [c from 0: [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31], d from 32: [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63]],
                wc = in(reg64) two.first[0].0, cos = in(reg64) two.first[1].0, wh = in(reg64) two.second[0].0, hid = in(reg64) two.second[1].0, jump = in(reg64) jump,
            )
        };
    }
    // SAFETY: as in `multiply`.
    unsafe {
        match (P::HALVES, P::PIECES) {
            (Halves::Bf16, 2) => two!("bf16", ["" ""]),
            (Halves::Bf16, _) => two!("bf16", ["" "" "" ""]),
            (Halves::Fp16, 2) => two!("f16", ["" ""]),
            (Halves::Fp16, _) => two!("f16", ["" "" "" ""]),
        }
    }
}

/// Products of rows with 128, 64 and 8 columns, then the two, with one wait for all of them; otherwise as [`multiply_rows`] and
/// [`multiply`]. The second of the two has 128 summed indices. The last two products of rows have the same ones.
#[inline(always)]
pub fn multiply_rows_and_two<P: Chain>(
    [first, second, third]: [Rows; 3],
    two: &Two,
    c: &mut [[f32; 4]; 16],
    d: &mut [[f32; 4]; 16],
) {
    let jump = u64::from(two.next >> 4) - 8;
    let (wide, narrow, sums) = (first.c, second.c, third.c);
    macro_rules! all {
        ($halves:literal) => {
            chain!(
                concat!(
                    rows!("128", $halves, [100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127 128 129 130 131 132 133 134 135 136 137 138 139 140 141 142 143 144 145 146 147 148 149 150 151 152 153 154 155 156 157 158 159 160 161 162 163], "{to_wide}", "1", "128", ["{x0}, {x1}, {x2}, {x3}" "{x4}, {x5}, {x6}, {x7}" "{x8}, {x9}, {x10}, {x11}" "{x12}, {x13}, {x14}, {x15}"]),
                    rows!("64", $halves, [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], "{to_narrow}", "1", "128", ["{y0}, {y1}, {y2}, {y3}" "{y4}, {y5}, {y6}, {y7}" "{y8}, {y9}, {y10}, {y11}" "{y12}, {y13}, {y14}, {y15}"]),
                    rows!("8", $halves, [96 97 98 99], "{to_sums}", "0", "2", ["{y0}, {y1}, {y2}, {y3}" "{y4}, {y5}, {y6}, {y7}" "{y8}, {y9}, {y10}, {y11}" "{y12}, {y13}, {y14}, {y15}"]),
                    first!($halves, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]),
                    second!($halves, [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63], ["" ""])
                ),
                [c from 0: [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31], d from 32: [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63], narrow from 64: [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], sums from 96: [96 97 98 99], wide from 100: [100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127 128 129 130 131 132 133 134 135 136 137 138 139 140 141 142 143 144 145 146 147 148 149 150 151 152 153 154 155 156 157 158 159 160 161 162 163]],
                x0 = in(reg32) first.a[0][0], x1 = in(reg32) first.a[0][1], x2 = in(reg32) first.a[0][2], x3 = in(reg32) first.a[0][3], x4 = in(reg32) first.a[1][0], x5 = in(reg32) first.a[1][1], x6 = in(reg32) first.a[1][2], x7 = in(reg32) first.a[1][3], x8 = in(reg32) first.a[2][0], x9 = in(reg32) first.a[2][1], x10 = in(reg32) first.a[2][2], x11 = in(reg32) first.a[2][3], x12 = in(reg32) first.a[3][0], x13 = in(reg32) first.a[3][1], x14 = in(reg32) first.a[3][2], x15 = in(reg32) first.a[3][3],
                y0 = in(reg32) second.a[0][0], y1 = in(reg32) second.a[0][1], y2 = in(reg32) second.a[0][2], y3 = in(reg32) second.a[0][3], y4 = in(reg32) second.a[1][0], y5 = in(reg32) second.a[1][1], y6 = in(reg32) second.a[1][2], y7 = in(reg32) second.a[1][3], y8 = in(reg32) second.a[2][0], y9 = in(reg32) second.a[2][1], y10 = in(reg32) second.a[2][2], y11 = in(reg32) second.a[2][3], y12 = in(reg32) second.a[3][0], y13 = in(reg32) second.a[3][1], y14 = in(reg32) second.a[3][2], y15 = in(reg32) second.a[3][3],
                to_wide = in(reg64) first.b.0, to_narrow = in(reg64) second.b.0, to_sums = in(reg64) third.b.0,
                wc = in(reg64) two.first[0].0, cos = in(reg64) two.first[1].0, wh = in(reg64) two.second[0].0, hid = in(reg64) two.second[1].0, jump = in(reg64) jump,
            )
        };
    }
    // SAFETY: as in `multiply`. The second and third product have the same rows.
    unsafe {
        match P::HALVES {
            Halves::Bf16 => all!("bf16"),
            Halves::Fp16 => all!("f16"),
        }
    }
}

/// The same without the first.
#[inline(always)]
pub fn multiply_narrow_rows_and_two<P: Chain>(
    [second, third]: [Rows; 2],
    two: &Two,
    c: &mut [[f32; 4]; 16],
    d: &mut [[f32; 4]; 16],
) {
    const { assert!(matches!(P::PIECES, 2 | 4)) };
    let jump = u64::from(two.next >> 4) - 8;
    let (narrow, sums) = (second.c, third.c);
    macro_rules! all {
        ($halves:literal, $pieces:tt) => {
            chain!(
                concat!(
                    rows!("64", $halves, [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], "{to_narrow}", "1", "128", ["{y0}, {y1}, {y2}, {y3}" "{y4}, {y5}, {y6}, {y7}" "{y8}, {y9}, {y10}, {y11}" "{y12}, {y13}, {y14}, {y15}"]),
                    rows!("8", $halves, [96 97 98 99], "{to_sums}", "0", "2", ["{y0}, {y1}, {y2}, {y3}" "{y4}, {y5}, {y6}, {y7}" "{y8}, {y9}, {y10}, {y11}" "{y12}, {y13}, {y14}, {y15}"]),
                    first!($halves, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]),
                    second!($halves, [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63], $pieces)
                ),
                [c from 0: [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31], d from 32: [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63], narrow from 64: [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], sums from 96: [96 97 98 99]],
                y0 = in(reg32) second.a[0][0], y1 = in(reg32) second.a[0][1], y2 = in(reg32) second.a[0][2], y3 = in(reg32) second.a[0][3], y4 = in(reg32) second.a[1][0], y5 = in(reg32) second.a[1][1], y6 = in(reg32) second.a[1][2], y7 = in(reg32) second.a[1][3], y8 = in(reg32) second.a[2][0], y9 = in(reg32) second.a[2][1], y10 = in(reg32) second.a[2][2], y11 = in(reg32) second.a[2][3], y12 = in(reg32) second.a[3][0], y13 = in(reg32) second.a[3][1], y14 = in(reg32) second.a[3][2], y15 = in(reg32) second.a[3][3],
                to_narrow = in(reg64) second.b.0, to_sums = in(reg64) third.b.0,
                wc = in(reg64) two.first[0].0, cos = in(reg64) two.first[1].0, wh = in(reg64) two.second[0].0, hid = in(reg64) two.second[1].0, jump = in(reg64) jump,
            )
        };
    }
    // SAFETY: as in `multiply`. Both products have the same rows.
    unsafe {
        match (P::HALVES, P::PIECES) {
            (Halves::Bf16, 2) => all!("bf16", ["" ""]),
            (Halves::Bf16, _) => all!("bf16", ["" "" "" ""]),
            (Halves::Fp16, 2) => all!("f16", ["" ""]),
            (Halves::Fp16, _) => all!("f16", ["" "" "" ""]),
        }
    }
}

/// Two products of rows with 128 columns each, then the first of the two, with one wait for all of them.
#[inline(always)]
pub fn multiply_wide_rows_and_one<P: Chain>([first, second]: [Rows; 2], two: &Two, c: &mut [[f32; 4]; 16]) {
    let (wide, further) = (first.c, second.c);
    macro_rules! all {
        ($halves:literal) => {
            chain!(
                concat!(
                    rows!("128", $halves, [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], "{to_wide}", "1", "128", ["{x0}, {x1}, {x2}, {x3}" "{x4}, {x5}, {x6}, {x7}" "{x8}, {x9}, {x10}, {x11}" "{x12}, {x13}, {x14}, {x15}"]),
                    rows!("128", $halves, [96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127 128 129 130 131 132 133 134 135 136 137 138 139 140 141 142 143 144 145 146 147 148 149 150 151 152 153 154 155 156 157 158 159], "{to_further}", "1", "128", ["{x0}, {x1}, {x2}, {x3}" "{x4}, {x5}, {x6}, {x7}" "{x8}, {x9}, {x10}, {x11}" "{x12}, {x13}, {x14}, {x15}"]),
                    first!($halves, [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31])
                ),
                [c from 0: [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31], wide from 32: [32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95], further from 96: [96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127 128 129 130 131 132 133 134 135 136 137 138 139 140 141 142 143 144 145 146 147 148 149 150 151 152 153 154 155 156 157 158 159]],
                x0 = in(reg32) first.a[0][0], x1 = in(reg32) first.a[0][1], x2 = in(reg32) first.a[0][2], x3 = in(reg32) first.a[0][3], x4 = in(reg32) first.a[1][0], x5 = in(reg32) first.a[1][1], x6 = in(reg32) first.a[1][2], x7 = in(reg32) first.a[1][3], x8 = in(reg32) first.a[2][0], x9 = in(reg32) first.a[2][1], x10 = in(reg32) first.a[2][2], x11 = in(reg32) first.a[2][3], x12 = in(reg32) first.a[3][0], x13 = in(reg32) first.a[3][1], x14 = in(reg32) first.a[3][2], x15 = in(reg32) first.a[3][3],
                to_wide = in(reg64) first.b.0, to_further = in(reg64) second.b.0,
                wc = in(reg64) two.first[0].0, cos = in(reg64) two.first[1].0,
            )
        };
    }
    // SAFETY: as in `multiply`. Both products have the same rows.
    unsafe {
        match P::HALVES {
            Halves::Bf16 => all!("bf16"),
            Halves::Fp16 => all!("f16"),
        }
    }
}
