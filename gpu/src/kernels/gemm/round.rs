//! Rounding of f32 operands for the tensor cores: to nearest, ties to even, NaN stays NaN, the same bits everywhere.
//!
//! `cvt.rna.tf32.f32` (ties away from zero), the only conversion of sm_80, is two instructions in machine code on every
//! architecture; `cvt.rn.tf32.f32` of sm_90 is one, and writes where the product wants its operand.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// The nearest number with ten mantissa bits, as f32 bits.
#[inline(always)]
pub fn tf32(value: f32) -> u32 {
    #[cfg(all(target_arch = "nvptx64", target_feature = "sm_90"))]
    {
        let bits: u32;
        // SAFETY: computes from its operand alone.
        unsafe {
            asm!("cvt.rn.tf32.f32 {}, {};", out(reg32) bits, in(reg32) value,
                options(pure, nomem, nostack, preserves_flags));
        }
        bits
    }
    #[cfg(not(all(target_arch = "nvptx64", target_feature = "sm_90")))]
    {
        nearest::<13>(value)
    }
}

/// The nearest bf16 of two numbers, the first in the lower half.
#[inline(always)]
pub fn bf16_pair(low: f32, high: f32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let pair: u32;
        // SAFETY: computes from its operands alone.
        unsafe {
            asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) pair, in(reg32) high, in(reg32) low,
                options(pure, nomem, nostack, preserves_flags));
        }
        pair
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        nearest::<16>(low) >> 16 | nearest::<16>(high)
    }
}

/// The nearest bf16 of four numbers, two a float, as matrices in bf16 lie in memory.
#[inline(always)]
pub fn bf16_floats(values: [f32; 4]) -> [f32; 2] {
    let [a, b, c, d] = values;
    [bf16_pair(a, b), bf16_pair(c, d)].map(f32::from_bits)
}

/// The nearest fp16 of two numbers, the first in the lower half. What is larger than 65504 becomes infinite.
#[inline(always)]
pub fn fp16_pair(low: f32, high: f32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let pair: u32;
        // SAFETY: computes from its operands alone.
        unsafe {
            asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) pair, in(reg32) high, in(reg32) low,
                options(pure, nomem, nostack, preserves_flags));
        }
        pair
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let bits = |value: f32| u32::from(half::f16::from_f32(value).to_bits());
        bits(low) | bits(high) << 16
    }
}

/// The two numbers of [`fp16_pair`].
#[inline(always)]
pub fn of_fp16_pair(pair: u32) -> [f32; 2] {
    #[cfg(target_arch = "nvptx64")]
    {
        let (low, high): (f32, f32);
        // SAFETY: computes from its operand alone.
        unsafe {
            asm!(
                "{{",
                ".reg .b16 low, high;",
                "mov.b32 {{low, high}}, {pair};",
                "cvt.f32.f16 {low}, low;",
                "cvt.f32.f16 {high}, high;",
                "}}",
                pair = in(reg32) pair, low = out(reg32) low, high = out(reg32) high,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        [low, high]
    }
    #[cfg(not(target_arch = "nvptx64"))]
    [pair as u16, (pair >> 16) as u16].map(|bits| half::f16::from_bits(bits).to_f32())
}

/// Rounds the lowest `BITS` bits of the mantissa away. A number that rounds up beyond the largest becomes infinite.
#[cfg(not(all(target_arch = "nvptx64", target_feature = "sm_90")))]
#[inline(always)]
fn nearest<const BITS: u32>(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded =
        if value.is_nan() { bits | 0x0040_0000 } else { bits + ((1 << (BITS - 1)) - 1) + (bits >> BITS & 1) };
    rounded >> BITS << BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::gemm::reference::Rounding;

    #[test]
    fn rounding_agrees_with_the_reference() {
        let mut bits = 0x1234_5678u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(bits);
            if !value.is_normal() || value.abs() > 1e38 {
                continue;
            }
            assert_eq!(f64::from(f32::from_bits(tf32(value))), Rounding::Tf32.apply(value), "{value:e}");
            let pair = bf16_pair(value, 1.0);
            assert_eq!(f64::from(f32::from_bits(pair << 16)), Rounding::Bf16.apply(value), "{value:e}");
            assert_eq!(pair >> 16, 0x3f80);
            if (2f32.powi(-14)..65504.0).contains(&value.abs()) {
                // With all its bits, a half is what tf32 is.
                let pair = fp16_pair(value, 1.0);
                assert_eq!(f64::from(of_fp16_pair(pair)[0]), Rounding::Tf32.apply(value), "{value:e}");
                assert_eq!(pair >> 16, 0x3c00);
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_what_is_not_finite_stays() {
        let steps = |value: f32| (f32::from_bits(tf32(value)) - 1.0) * 1024.0;
        assert_eq!([0.5, 1.5, 2.5, 0.501, 0.499].map(|s| steps(1.0 + s / 1024.0)), [0.0, 2.0, 2.0, 1.0, 0.0]);
        assert_eq!(tf32(f32::INFINITY), 0x7f80_0000);
        assert_eq!(tf32(f32::MAX), 0x7f80_0000);
        assert_eq!(of_fp16_pair(fp16_pair(65519.0, 65520.0)), [65504.0, f32::INFINITY]);
        assert_eq!(of_fp16_pair(fp16_pair(-1e9, 1.4 * 2f32.powi(-24))), [f32::NEG_INFINITY, 2f32.powi(-24)]);
        for nan in [0x7fff_ffff, 0x7f80_0001, 0xffff_ffff] {
            assert!(f32::from_bits(tf32(f32::from_bits(nan))).is_nan());
            assert!(f32::from_bits(bf16_pair(f32::from_bits(nan), 0.0) << 16).is_nan());
            assert!(of_fp16_pair(fp16_pair(f32::from_bits(nan), 0.0))[0].is_nan());
        }
    }
}
