/// Formats of two bytes that the tensor cores multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// bfloat16: 8 significant bits, f32's range.
    Bf16,
    /// IEEE binary16: 11 significant bits, as tf32 has them; from 2^-24 (2^-14 with all bits) to 65504.
    Fp16,
}
