//! Numbers for the kernels' own tests; the `gpu` crate's test programs and the bodies for every back end include it.

/// A deterministic stream of numbers with full mantissas.
pub struct Random(u64);

// Not every program draws vectors.
#[allow(dead_code)]
impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Uniform in (-1, 1): SplitMix64 (Steele, Lea, Flood 2014).
    pub fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `len` of them times `scale`.
    pub fn vector(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| scale * self.uniform()).collect()
    }
}
