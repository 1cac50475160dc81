//! Test inputs: reproducible, and nothing a kernel's own generator makes.

use settings::Config;

/// Switches every loss and part on that a step may have beside C51, small; the value networks feed back into all that they can.
pub fn every_part(config: &mut Config) {
    config.cql.enabled = true;
    config.iqn.enabled = true;
    (config.iqn.cosines, config.iqn.hidden) = (16, 32);
    (config.iqn.samples, config.iqn.target_samples) = (8, 6);
    config.iqn.double = true;
    config.iql.enabled = true;
    config.iql.hidden = 32;
    config.iql.advantage_weighting = true;
    config.iql.branch_scaling = true;
    config.iql.adaptive_support = true;
    config.iql.adaptive_epsilon = true;
    config.ensemble.enabled = true;
    config.confidence.enabled = true;
    config.attention.enabled = true;
    config.mamba.enabled = true;
    config.spectral.enabled = true;
}

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
