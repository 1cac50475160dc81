//! Test inputs: reproducible, and nothing a kernel's own generator makes.

/// SplitMix64 (Steele, Lea and Flood, 2014).
pub struct Random(u64);

impl Random {
    /// A generator for one test.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Integer below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// Roughly normal with mean 0 and standard deviation `spread`: the sum of twelve uniform numbers.
    pub fn normal(&mut self, spread: f64) -> f32 {
        let sum: f64 = (0..12).map(|_| self.uniform()).sum();
        ((sum - 6.0) * spread) as f32
    }

    /// `len` roughly normal numbers.
    pub fn normals(&mut self, len: usize, spread: f64) -> Vec<f32> {
        (0..len).map(|_| self.normal(spread)).collect()
    }
}
