//! Actions and branch sizes as the device stores them: one byte per branch, packed into a `u64`.
//!
//! Byte d (bits 8d to 8d + 7) belongs to branch d. Up to 8 branches of up to 64 actions fit without the
//! divisions that the mixed-radix composite action of SPEC section 1 would need in every kernel, and without
//! its overflow (64^8 does not fit 32 bits). Files and users see one index per branch or the composite action.

/// Most branches of a model.
pub const MAX_BRANCHES: u32 = 8;

/// The byte of branch `d`: its action, or its number of actions.
#[inline(always)]
pub fn branch(packed: u64, d: u32) -> u32 {
    ((packed >> (8 * d)) & 0xff) as u32
}

/// `packed` with the byte of branch `d`, which must be zero before, set to `value`.
#[inline(always)]
pub fn with_branch(packed: u64, d: u32, value: u32) -> u64 {
    packed | ((value as u64) << (8 * d))
}

/// Whether each of the first `branches` bytes, taken as numbers of actions, is at least one: kernels divide by them.
#[cfg(not(target_arch = "nvptx64"))]
pub fn none_empty(sizes: u64, branches: u32) -> bool {
    (0..branches.min(MAX_BRANCHES)).all(|d| branch(sizes, d) > 0)
}

/// Whether each of the first `branches` bytes is at most `most`.
#[cfg(not(target_arch = "nvptx64"))]
pub fn none_above(sizes: u64, branches: u32, most: u32) -> bool {
    (0..branches.min(MAX_BRANCHES)).all(|d| branch(sizes, d) <= most)
}

/// Packs one value per branch. Values beyond the eighth are an error of the caller and would be lost, so the
/// lengths are checked in debug builds and by every host-side caller.
#[cfg(not(target_arch = "nvptx64"))]
pub fn pack(values: &[usize]) -> u64 {
    debug_assert!(values.len() <= MAX_BRANCHES as usize);
    values.iter().enumerate().fold(0, |packed, (d, &v)| with_branch(packed, d as u32, v as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_branch_is_seen() {
        assert!(none_empty(pack(&[9, 3, 1]), 3));
        assert!(!none_empty(pack(&[9, 0, 3]), 3));
        assert!(!none_empty(pack(&[9, 3]), 3));
    }

    #[test]
    fn packing_keeps_every_branch() {
        let values = [9, 3, 64, 2, 1, 0, 63, 5];
        let packed = pack(&values);
        for (d, &v) in values.iter().enumerate() {
            assert_eq!(branch(packed, d as u32), v as u32);
        }
    }
}
