//! The number types the learner runs in.

use candle_core::FloatDType;

/// f32 (training without a GPU) or f64 (the oracle of the tests).
///
/// candle's own trait covers the four operations and the conversions; the optimizer and the softmax also need these.
pub trait Real: FloatDType + Default {
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// e to this power.
    fn exp(self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

impl Real for f32 {
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    fn exp(self) -> Self {
        f32::exp(self)
    }

    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Real for f64 {
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    fn exp(self) -> Self {
        f64::exp(self)
    }

    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
}
