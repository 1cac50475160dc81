//! Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy
//! as 1, 2, 3" (2011), section 3.4, with 10 rounds.
//!
//! No state: a draw is a function of (seed, step, stream, index, block), so it does not depend on the launch shape,
//! is different in every replay of a graph (the step is read from device memory), and is the same in a resumed run.

use cuda_std::math;

const MULTIPLIER_0: u32 = 0xD251_1F53;
const MULTIPLIER_1: u32 = 0xCD9E_8D57;
const WEYL_0: u32 = 0x9E37_79B9;
const WEYL_1: u32 = 0xBB67_AE85;

/// What a draw is for; draws of different streams are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// Indices of replay samples.
    Sample = 1,
    /// Exploration: whether to explore, and the random action.
    Explore = 2,
    /// Start of an episode.
    Reset = 3,
    /// Fill kernels (`philox_*`).
    Fill = 4,
    /// Quantile fractions of the IQN head at s.
    IqnTau = 5,
    /// Quantile fractions of the target at s', the same for the online head that selects.
    IqnTauTarget = 6,
    /// Which members of the ensemble learn from a sample.
    EnsembleMask = 7,
    /// Permutations of the causal probe.
    Probe = 8,
    /// Which samples get another goal in hindsight, and which one.
    Hindsight = 9,
    /// Seeds of evaluation episodes.
    Evaluation = 10,
    /// Noise of the online network's heads in a training step.
    NoiseOnline = 16,
    /// Noise of the target network's heads in a training step.
    NoiseTarget = 17,
    /// Noise of the online network's heads in a collection step.
    NoiseActing = 18,
}

/// One block of the generator: four words from a counter and a key.
#[inline(always)]
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    let mut round = 0;
    while round < 10 {
        let p0 = MULTIPLIER_0 as u64 * c0 as u64;
        let p1 = MULTIPLIER_1 as u64 * c2 as u64;
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(WEYL_0);
        k1 = k1.wrapping_add(WEYL_1);
        round += 1;
    }
    [c0, c1, c2, c3]
}

/// Four words for element `index` of `stream` at `step`. `block` numbers further groups of four words of the same
/// element (below 2^24).
#[inline(always)]
pub fn draw(seed: u64, step: u64, stream: Stream, index: u32, block: u32) -> [u32; 4] {
    philox4x32(
        [index, step as u32, (step >> 32) as u32, stream as u32 | (block << 8)],
        [seed as u32, (seed >> 32) as u32],
    )
}

/// Uniform in [0, 1), a multiple of 2^-24.
#[inline(always)]
pub fn uniform(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Uniform in (0, 1], a multiple of 2^-24: safe under a logarithm.
#[inline(always)]
pub fn uniform_open_zero(word: u32) -> f32 {
    ((word >> 8) + 1) as f32 * (1.0 / 16_777_216.0)
}

/// Uniform in (0, 1), an odd multiple of 2^-24: neither end, where a quantile function has no value.
#[inline(always)]
pub fn uniform_open(word: u32) -> f32 {
    ((word >> 8) | 1) as f32 * (1.0 / 16_777_216.0)
}

/// Integer in [0, n) from 64 random bits by multiplication; an integer's probability differs from 1/n by less than
/// 2^-64 * n relative to it.
#[inline(always)]
pub fn below(high: u32, low: u32, n: u64) -> u64 {
    let bits = ((high as u64) << 32) | low as u64;
    // High half of the 128-bit product, by 32-bit halves: there is no 128-bit integer on the device.
    let (a1, a0) = (bits >> 32, bits & 0xffff_ffff);
    let (b1, b0) = (n >> 32, n & 0xffff_ffff);
    let middle = a1 * b0 + ((a0 * b0) >> 32);
    let carry = a0 * b1 + (middle & 0xffff_ffff);
    a1 * b1 + (middle >> 32) + (carry >> 32)
}

/// Two independent standard normal values (Box and Muller, 1958), the same bits on every machine. The angle stays in
/// turns: reduced exactly, and without the stack that `libm` needs for large angles in radians.
#[inline(always)]
pub fn normal_pair(word0: u32, word1: u32) -> [f32; 2] {
    let radius = math::sqrt(-2.0 * math::ln(uniform_open_zero(word0)));
    let (sin, cos) = math::sin_cos_2pi(uniform(word1));
    [radius * cos, radius * sin]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors published with the authors' Random123 library (philox4x32, 10 rounds).
    #[test]
    fn published_vectors() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]
        );
        assert_eq!(
            philox4x32([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn below_is_the_high_half_of_the_product() {
        for (bits, n) in
            [(u64::MAX, 7u64), (u64::MAX, u64::MAX), (1 << 63, 1_000_003), (0x1234_5678_9abc_def0, 1 << 40)]
        {
            let expected = ((bits as u128 * n as u128) >> 64) as u64;
            assert_eq!(below((bits >> 32) as u32, bits as u32, n), expected);
        }
    }

    #[test]
    fn uniform_ends() {
        assert_eq!(uniform(0), 0.0);
        assert!(uniform(u32::MAX) < 1.0);
        assert!(uniform_open_zero(0) > 0.0);
        assert_eq!(uniform_open_zero(u32::MAX), 1.0);
        assert_eq!(uniform_open(0), 1.0 / 16_777_216.0);
        assert_eq!(uniform_open(u32::MAX), 1.0 - 1.0 / 16_777_216.0);
    }

    /// Moments of a million draws; bounds are five standard errors.
    #[test]
    fn moments() {
        let n = 250_000u32;
        let (mut u1, mut n1, mut n2, mut n4) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for i in 0..n {
            let w = draw(7, 3, Stream::Fill, i, 0);
            u1 += w.iter().map(|&x| uniform(x) as f64).sum::<f64>();
            for z in normal_pair(w[0], w[1]).into_iter().chain(normal_pair(w[2], w[3])) {
                let z = z as f64;
                (n1, n2, n4) = (n1 + z, n2 + z * z, n4 + z.powi(4));
            }
        }
        let count = 4.0 * n as f64;
        let error = |variance: f64| 5.0 * (variance / count).sqrt();
        assert!((u1 / count - 0.5).abs() < error(1.0 / 12.0));
        assert!((n1 / count).abs() < error(1.0));
        assert!((n2 / count - 1.0).abs() < error(2.0));
        assert!((n4 / count - 3.0).abs() < error(96.0));
    }
}
