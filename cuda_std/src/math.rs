//! f32 mathematics for kernels. f64 and more functions: the `libm` crate, which gives the same bits on both sides.

#[cfg(not(target_arch = "nvptx64"))]
mod float {
    pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    pub fn sqrt(x: f32) -> f32 {
        x.sqrt()
    }
    pub fn floor(x: f32) -> f32 {
        x.floor()
    }
    pub fn exp(x: f32) -> f32 {
        x.exp()
    }
    pub fn ln(x: f32) -> f32 {
        x.ln()
    }
    pub fn cos_2pi(x: f32) -> f32 {
        (f64::from(x) * std::f64::consts::TAU).cos() as f32
    }
    pub fn sin_2pi(x: f32) -> f32 {
        (f64::from(x) * std::f64::consts::TAU).sin() as f32
    }
    pub fn tf32_round(x: f32) -> u32 {
        let bits = x.to_bits();
        if x.is_finite() { (bits + 0x1000) & !0x1fff } else { bits }
    }
}

#[cfg(target_arch = "nvptx64")]
mod float {
    use core::arch::asm;
    use core::f32::math;

    macro_rules! approximate {
        ($name:ident, $instruction:literal) => {
            #[inline(always)]
            pub fn $name(x: f32) -> f32 {
                let y: f32;
                // SAFETY: computes from its operand alone.
                unsafe {
                    asm!(concat!($instruction, " {}, {};"), out(reg32) y, in(reg32) x,
                        options(pure, nomem, nostack, preserves_flags));
                }
                y
            }
        };
    }

    approximate!(ex2, "ex2.approx.f32");
    approximate!(lg2, "lg2.approx.f32");
    approximate!(cos, "cos.approx.f32");
    approximate!(sin, "sin.approx.f32");

    #[inline(always)]
    pub fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        math::mul_add(a, b, c)
    }
    #[inline(always)]
    pub fn sqrt(x: f32) -> f32 {
        math::sqrt(x)
    }
    #[inline(always)]
    pub fn floor(x: f32) -> f32 {
        math::floor(x)
    }
    #[inline(always)]
    pub fn exp(x: f32) -> f32 {
        ex2(x * core::f32::consts::LOG2_E)
    }
    #[inline(always)]
    pub fn ln(x: f32) -> f32 {
        lg2(x) * core::f32::consts::LN_2
    }
    #[inline(always)]
    pub fn cos_2pi(x: f32) -> f32 {
        cos(x * core::f32::consts::TAU)
    }
    #[inline(always)]
    pub fn sin_2pi(x: f32) -> f32 {
        sin(x * core::f32::consts::TAU)
    }
    #[inline(always)]
    pub fn tf32_round(x: f32) -> u32 {
        let y: u32;
        // SAFETY: computes from its operand alone.
        unsafe {
            asm!("cvt.rna.tf32.f32 {}, {};", out(reg32) y, in(reg32) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        y
    }
}

/// a * b + c with one rounding.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    float::mul_add(a, b, c)
}

/// Square root, correctly rounded.
#[inline(always)]
pub fn sqrt(x: f32) -> f32 {
    float::sqrt(x)
}

/// 1 / sqrt(x).
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / float::sqrt(x)
}

/// e to the x.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    float::exp(x)
}

/// Natural logarithm.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    float::ln(x)
}

/// cos(2 pi x).
#[inline(always)]
pub fn cos_2pi(x: f32) -> f32 {
    float::cos_2pi(x)
}

/// sin(2 pi x).
#[inline(always)]
pub fn sin_2pi(x: f32) -> f32 {
    float::sin_2pi(x)
}

/// Nearest tf32 value, ties away from zero, as f32 bits.
#[inline(always)]
pub fn tf32_round(x: f32) -> u32 {
    float::tf32_round(x)
}

/// |x|.
#[inline(always)]
pub fn abs(x: f32) -> f32 {
    x.abs()
}

/// Largest integer not above x.
#[inline(always)]
pub fn floor(x: f32) -> f32 {
    float::floor(x)
}

/// The smaller of both; the other one where one is NaN.
#[inline(always)]
pub fn min(a: f32, b: f32) -> f32 {
    a.min(b)
}

/// The larger of both; the other one where one is NaN.
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    a.max(b)
}

/// x to the n by repeated squaring.
#[inline(always)]
pub fn powi(mut x: f32, mut n: u32) -> f32 {
    let mut power = 1.0;
    while n > 0 {
        if n & 1 == 1 {
            power *= x;
        }
        x *= x;
        n >>= 1;
    }
    power
}
