//! Rounding to bf16 by the steps of its format.

/// Bits of the nearest number with eight significant bits, ties to the even one; above the largest, infinity. None for NaN, of
/// which only that it stays one matters.
pub fn bf16(value: f32) -> Option<u16> {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = f64::from(value.abs());
    if value.is_nan() {
        return None;
    }
    if value.is_infinite() {
        return Some(sign | 0x7f80);
    }
    // The distance of neighbours: 2^-7 of the power of two below, and at most that of the smallest normal numbers.
    let exponent = if magnitude == 0.0 { -126 } else { (magnitude.log2().floor() as i32).max(-126) };
    let steps = (magnitude / f64::from(exponent - 7).exp2()).round_ties_even();
    // Numbers are numbered through by their bits: 128 steps lead to the next power of two.
    let number = f64::from((exponent + 126) * 128) + steps;
    Some(sign | number.min(f64::from(0x7f80)) as u16)
}

#[cfg(test)]
mod tests {
    #[test]
    fn bits_of_known_numbers() {
        let bits = |x: f32| super::bf16(x).unwrap();
        assert_eq!([bits(1.0), bits(-2.0), bits(0.0), bits(-0.0)], [0x3f80, 0xc000, 0, 0x8000]);
        assert_eq!([bits(f32::MAX), bits(f32::NEG_INFINITY)], [0x7f80, 0xff80]);
        // Halfway between two: to the even one.
        assert_eq!([bits(1.0 + 1.0 / 256.0), bits(1.0 + 3.0 / 256.0)], [0x3f80, 0x3f82]);
        // Subnormal: 2^-133 is the smallest number, half of it becomes zero.
        assert_eq!([bits(f32::from_bits(0x1_0000)), bits(f32::from_bits(0x8000))], [1, 0]);
        assert_eq!(super::bf16(f32::NAN), None);
        for i in 0..0x7f80u16 {
            assert_eq!(bits(f32::from_bits(u32::from(i) << 16)), i);
        }
    }
}
