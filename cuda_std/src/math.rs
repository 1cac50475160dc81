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

/// a * b + c with one rounding.
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    float::mul_add(a, b, c)
}

/// Square root, correctly rounded.
pub fn sqrt(x: f32) -> f32 {
    float::sqrt(x)
}

/// 1 / sqrt(x).
pub fn rsqrt(x: f32) -> f32 {
    1.0 / float::sqrt(x)
}

/// e to the x.
pub fn exp(x: f32) -> f32 {
    float::exp(x)
}

/// Natural logarithm.
pub fn ln(x: f32) -> f32 {
    float::ln(x)
}

/// cos(2 pi x).
pub fn cos_2pi(x: f32) -> f32 {
    float::cos_2pi(x)
}

/// sin(2 pi x).
pub fn sin_2pi(x: f32) -> f32 {
    float::sin_2pi(x)
}

/// Nearest tf32 value, ties away from zero, as f32 bits.
pub fn tf32_round(x: f32) -> u32 {
    float::tf32_round(x)
}

/// |x|.
pub fn abs(x: f32) -> f32 {
    x.abs()
}

/// Largest integer not above x.
pub fn floor(x: f32) -> f32 {
    float::floor(x)
}

/// The smaller of both; the other one where one is NaN.
pub fn min(a: f32, b: f32) -> f32 {
    a.min(b)
}

/// The larger of both; the other one where one is NaN.
pub fn max(a: f32, b: f32) -> f32 {
    a.max(b)
}

/// x to the n by repeated squaring.
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
