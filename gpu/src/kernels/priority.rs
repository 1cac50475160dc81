//! The tree of prioritized replay: how it lies in memory, and the walk down that finds a leaf (SPEC section 6).
//!
//! Two levels under the total. Leaf i, f32, is the (p + eps)^alpha of slot i of the ring, and 0 where the slot must not
//! be drawn. Leaves lie in groups of `width`; a group's sum, f64, is always added up from all of its leaves in one fixed
//! order, never changed by a difference, and so is the total from the groups: there is nothing in which an error could
//! collect. With at most 1024 groups one block adds up the whole upper level and one warp the lower one: a draw waits for
//! memory three times (groups, leaves, the row).
//!
//! A walk visits items in order and takes the first one with r < sum, r being what is left of the draw; an item of sum 0
//! is never taken, and a draw that rounding has pushed beyond the end takes the last positive one. A later draw never
//! takes an earlier leaf, so the slots of a stratified batch do not decrease.

use cuda_std::prelude::*;

/// Items that a warp looks at together: four a lane.
pub const TILE: u32 = 128;
/// Most groups.
pub const MAX_GROUPS: u32 = 1024;
/// Groups that a block adds up, one warp each.
pub const GROUPS_PER_BLOCK: u32 = 8;

/// Leaves in a group, for a ring of `capacity` slots (at least 1).
pub const fn width(capacity: u32) -> u32 {
    capacity.div_ceil(MAX_GROUPS).next_multiple_of(TILE)
}

/// Groups of a ring of `capacity` slots. The leaves' buffer is `[groups, width]`, those beyond the capacity stay 0.
pub const fn groups(capacity: u32) -> u32 {
    capacity.div_ceil(width(capacity))
}

/// f64 through a shuffle of its halves.
#[inline(always)]
fn halves(value: f64, shuffle: impl Fn(u32) -> u32) -> f64 {
    let bits = value.to_bits();
    f64::from_bits(shuffle(bits as u32) as u64 | (shuffle((bits >> 32) as u32) as u64) << 32)
}

/// Sums over the warp, the same bits in every lane.
#[inline(always)]
pub fn warp_sums64<const N: usize>(mut values: [f64; N]) -> [f64; N] {
    let mut mask = 16;
    while mask > 0 {
        let mut n = 0;
        while n < N {
            values[n] += halves(values[n], |half| warp::shfl_xor(half, mask));
            n += 1;
        }
        mask /= 2;
    }
    values
}

/// Sums over the lanes up to the own one.
#[inline(always)]
fn scan64(mut value: f64) -> f64 {
    let lane = thread::lane();
    let mut distance = 1;
    while distance < 32 {
        let other = halves(value, |half| warp::shfl_up(half, distance));
        if lane >= distance {
            value += other;
        }
        distance *= 2;
    }
    value
}

/// a + b + c + d from the left, in f64.
#[inline(always)]
pub fn sum4(v: [f64; 4]) -> f64 {
    v[0] + v[1] + v[2] + v[3]
}

/// Four leaves in f64.
#[inline(always)]
pub fn widen(v: [f32; 4]) -> [f64; 4] {
    [v[0] as f64, v[1] as f64, v[2] as f64, v[3] as f64]
}

/// One walk over items, in order.
#[derive(Clone, Copy)]
pub struct Walk {
    left: f64,
    found: bool,
    /// The item that is taken; 0 while none was positive.
    pub at: u32,
    /// What is left of the draw at that item.
    pub residual: f64,
}

impl Walk {
    /// A walk to the place `r`.
    #[inline(always)]
    pub fn new(r: f64) -> Self {
        Self { left: r, found: false, at: 0, residual: r }
    }

    /// The next item.
    #[inline(always)]
    pub fn pass(&mut self, at: u32, sum: f64) {
        // False for a NaN too, which is nowhere taken; the total then is one, and says so.
        if !self.found && sum > 0.0 {
            self.at = at;
            self.residual = self.left;
            self.found = self.left < sum;
        }
        self.left -= sum;
    }
}

/// The walk over a tile, four items a lane, by the warp together: the item's number in the tile and what is left of the
/// draw there, in every lane.
#[inline(always)]
pub fn walk_tile(items: [f64; 4], r: f64) -> (u32, f64) {
    let own = sum4(items);
    let upto = scan64(own);
    let before = halves(upto, |half| warp::shfl_up(half, 1));
    let positive = warp::ballot(own > 0.0);
    let ahead = warp::ballot(own > 0.0 && r < upto);
    let lane = if ahead != 0 {
        ahead.trailing_zeros()
    } else if positive != 0 {
        31 - positive.leading_zeros()
    } else {
        0
    };
    let mut walk = Walk::new(if thread::lane() == 0 { r } else { r - before });
    let mut e = 0;
    while e < 4 {
        walk.pass(4 * thread::lane() + e as u32, items[e]);
        e += 1;
    }
    // A lane without a positive item says its first one; only without any positive lane it is asked (lane 0: item 0).
    (warp::shfl_idx(walk.at, lane), halves(walk.residual, |half| warp::shfl_idx(half, lane)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_of_any_size_has_at_most_1024_groups_of_whole_tiles() {
        for capacity in
            [1, 127, 128, 129, 4096, 1 << 17, (1 << 17) + 1, 1 << 20, (1 << 20) + 1, 1 << 24, 1 << 30]
        {
            let (width, groups) = (width(capacity), groups(capacity));
            assert!(width % TILE == 0 && groups <= MAX_GROUPS, "{capacity}: {groups} groups of {width}");
            assert!(u64::from(groups) * u64::from(width) >= u64::from(capacity), "{capacity}");
            assert!(
                u64::from(groups - 1) * u64::from(width) < u64::from(capacity),
                "{capacity}: an empty group"
            );
        }
        assert_eq!((width(1 << 20), groups(1 << 20)), (1024, 1024));
        assert_eq!((width(1 << 18), groups(1 << 18)), (256, 1024));
    }

    /// As leaf i owns [sum before i, sum up to i).
    #[test]
    fn a_walk_takes_the_owner_never_an_empty_item_and_the_last_one_beyond_the_end() {
        let sums = [0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0];
        for (r, at) in
            [(-1e-9, 1), (0.0, 1), (0.999, 1), (1.0, 4), (2.999, 4), (3.0, 7), (5.999, 7), (6.0, 7), (9.0, 7)]
        {
            let mut walk = Walk::new(r);
            for (i, &sum) in sums.iter().enumerate() {
                walk.pass(i as u32, sum);
            }
            assert_eq!(walk.at, at, "r = {r}");
        }
    }
}
