//! Philox4x32-10 a second time, from section 3.3 of Salmon et al. (2011), with round keys by multiplication and wide
//! products. A test holds it against the vectors that the authors published with Random123.

use std::array::from_fn;

use crate::reference::Bounded;

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Golden ratio and sqrt(3) - 1 in 32 bits: what a key word grows by from round to round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds on a counter.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    (0..10u32).fold(counter, |c, round| {
        let key: [u32; 2] = from_fn(|i| key[i].wrapping_add(round.wrapping_mul(WEYL[i])));
        let product: [u64; 2] = from_fn(|i| MULTIPLIERS[i] * u64::from(c[2 * i]));
        let (high, low) = (product.map(|p| (p >> 32) as u32), product.map(|p| p as u32));
        [high[1] ^ c[1] ^ key[0], low[1], high[0] ^ c[3] ^ key[1], low[0]]
    })
}

/// The four words of element `index` of stream `stream` (the number in its low byte) at `step`; `block` counts further
/// groups of words of the element.
pub fn words(seed: u64, step: u64, stream: u32, index: u32, block: u32) -> [u32; 4] {
    let halves = |x: u64| [x as u32, (x >> 32) as u32];
    let [low, high] = halves(step);
    philox4x32([index, low, high, stream + 256 * block], halves(seed))
}

/// Uniform in [0, 1) from the upper 24 bits: exact in f32.
pub fn uniform(word: u32) -> f64 {
    f64::from(word / 256) / 16_777_216.0
}

/// Two standard normal values by Box and Muller's formula.
pub fn normal_pair(word0: u32, word1: u32) -> [Bounded; 2] {
    let exact = |value: f64| Bounded { value, scale: 0.0 };
    let radius = (Bounded::exact(-2.0) * exact(uniform(word0) + 1.0 / 16_777_216.0).ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * uniform(word1)).sin_cos();
    // The device's sine and cosine of turns are within 2^-23 of the true ones.
    [radius * Bounded { value: cos, scale: 2.0 }, radius * Bounded { value: sin, scale: 2.0 }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
