//! The plain Rust tree of prioritized replay: the collected pitfalls, its total after many updates, its draws.

use cpu_path::replay::PriorityTree;
use proptest::prelude::*;
use settings::Replay;

use crate::support::{Case, number, numbers};

/// A tree with these leaves.
fn tree(leaves: &[f32]) -> PriorityTree {
    let mut tree = PriorityTree::new(leaves.len());
    leaves.iter().enumerate().for_each(|(slot, &leaf)| tree.set(slot, leaf));
    tree
}

/// SplitMix64, uniform in [0, 1).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[test]
fn c20_an_empty_leaf_is_never_found() {
    let case = Case::read("C20");
    let leaves: Vec<f32> = numbers(case.input("leaves")).iter().map(|&x| x as f32).collect();
    let tree = tree(&leaves);
    assert_eq!(tree.total(), number(case.expected("total")));
    let places = numbers(case.input("u_values"));
    let found: Vec<f64> = places.iter().map(|&u| tree.find(u).unwrap() as f64).collect();
    assert_eq!(found, numbers(case.expected("index")));
    assert_ne!(found[0], number(case.known_wrong("strict_gt_descent_u0")));
}

#[test]
fn c22_the_root_does_not_drift() {
    let case = Case::read("C22");
    let capacity = number(case.input("capacity")) as usize;
    let mut tree = PriorityTree::new(capacity);
    let mut x = 12345u32;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        x
    };
    for _ in 0..number(case.input("updates")) as usize {
        let slot = (next() >> 8) as usize % capacity;
        let priority = f64::from((next() >> 8) & 0xFFFF) / 65536.0 * 5.0 + 1e-3;
        tree.set(slot, priority as f32);
    }
    // rtol 1e-5 of the case is for f32 nodes; what known defects give is 3e-5 away.
    let root = number(case.expected("root_after_updates"));
    assert!((tree.total() - root).abs() <= 1e-9 * root, "{} of {root}", tree.total());
    for slot in 0..capacity {
        tree.set(slot, 0.0);
    }
    assert_eq!(tree.total(), 0.0);
    assert_eq!(tree.find(0.0), None, "nothing is left to draw");
    tree.set(17, 1e-3);
    tree.set(4000, 2e-3);
    let root = number(case.expected("root_after_zeroing"));
    // Two leaves that were rounded to f32.
    assert!((tree.total() - root).abs() <= 1e-7 * root);
    let mut random = Random(3);
    let mut second = 0;
    for _ in 0..10_000 {
        let slot = tree.find(tree.place(0, 1, random.uniform())).unwrap();
        assert!(slot == 17 || slot == 4000, "{slot}");
        second += usize::from(slot == 4000);
    }
    let expected = number(case.expected("frequency_of_4000_in_10000_draws"));
    assert!((second as f64 / 10_000.0 - expected).abs() < 0.02, "{second}");
}

#[test]
fn c24_the_last_of_equal_slots_stays_and_eps_is_inside() {
    let case = Case::read("C24");
    let before: Vec<f32> =
        numbers(case.input("leaves_before_stored_p_alpha")).iter().map(|&x| x as f32).collect();
    let settings =
        Replay { eps: number(case.input("eps")), alpha: number(case.input("alpha")), ..Replay::default() };
    let slots: Vec<usize> = numbers(case.input("indices")).iter().map(|&x| x as usize).collect();
    let td: Vec<f64> = numbers(case.input("td")).iter().map(|x| x.abs()).collect();
    let mut tree = tree(&before);
    tree.update(&slots, &td, &settings);
    case.assert_values("leaves", tree.leaves(), case.expected("leaves_if_last_write_wins"), &[]);
    let outside = numbers(case.known_wrong("eps_outside_power"));
    assert!(!case.close(&[tree.leaves()[1].into()], &outside[1..2]));
    let sum: f64 = tree.leaves().iter().map(|&leaf| f64::from(leaf)).sum();
    assert!((tree.total() - sum).abs() <= 1e-15 * sum);
    let highest = numbers(case.expected("candidate_new_values")).into_iter().fold(1.0, f64::max);
    assert!((f64::from(tree.highest()) - highest).abs() <= 1e-6 * highest, "of all that were ever set");
}

/// Ten million updates of a ring of a million: leaves over ten orders of magnitude, some zero. A node is the sum of its
/// children now, so the error is that of one sum: 20 levels of 2^-53 each.
#[test]
fn the_total_is_exact_after_ten_million_updates() {
    const SLOTS: usize = 1 << 20;
    let mut tree = PriorityTree::new(SLOTS);
    let mut random = Random(1);
    for _ in 0..10_000_000 {
        let bits = random.bits();
        let exponent = (bits >> 20) & 31;
        let leaf =
            if exponent == 31 { 0.0 } else { (1 + (bits & 0xFFFF)) as f32 / (1u64 << exponent) as f32 };
        tree.set((bits >> 40) as usize & (SLOTS - 1), leaf);
    }
    let sum: f64 = tree.leaves().iter().map(|&leaf| f64::from(leaf)).sum();
    assert!((tree.total() - sum).abs() <= 1e-12 * sum, "{} and {sum}", tree.total());
}

/// Independent draws, no strata: Pearson's statistic over 1,000 leaves of unequal size stays below its quantile at
/// 1 - 1e-6 (Wilson and Hilferty), and every draw is the slot of a walk over the running sums.
#[test]
fn a_million_draws_are_in_proportion() {
    const SLOTS: usize = 1000;
    const DRAWS: usize = 1_000_000;
    let mut random = Random(2);
    let leaves: Vec<f32> = (0..SLOTS).map(|_| (0.05 + random.uniform().powi(2)) as f32).collect();
    let tree = tree(&leaves);
    let mut sum = 0.0;
    let upto: Vec<f64> = leaves
        .iter()
        .map(|&leaf| {
            sum += f64::from(leaf);
            sum
        })
        .collect();
    let mut counts = vec![0usize; SLOTS];
    for _ in 0..DRAWS {
        let place = tree.place(0, 1, random.uniform());
        let slot = tree.find(place).unwrap();
        assert_eq!(slot, upto.partition_point(|&upto| upto <= place), "place {place}");
        counts[slot] += 1;
    }
    let statistic: f64 = counts
        .iter()
        .enumerate()
        .map(|(slot, &count)| {
            let expected = DRAWS as f64 * tree.probability(slot);
            assert!(expected > 50.0, "enough draws for the statistic");
            (count as f64 - expected).powi(2) / expected
        })
        .sum();
    let freedom = (SLOTS - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    let limit = freedom * (1.0 - spread + 4.753 * spread.sqrt()).powi(3);
    assert!(statistic < limit, "chi squared {statistic} above {limit}");
    // Not suspiciously even either: the same quantile from below.
    let floor = freedom * (1.0 - spread - 4.753 * spread.sqrt()).powi(3);
    assert!(statistic > floor, "chi squared {statistic} below {floor}");
}

/// Of B strata with a draw each, a leaf that owns k whole strata is drawn k times at least.
#[test]
fn strata_draw_what_they_lie_in() {
    let tree = tree(&[3.0, 0.0, 5.0, 2.0]);
    let mut random = Random(4);
    for _ in 0..100 {
        let mut counts = [0; 4];
        for i in 0..10 {
            counts[tree.find(tree.place(i, 10, random.uniform())).unwrap()] += 1;
        }
        assert_eq!(counts, [3, 0, 5, 2]);
    }
}

/// As in the paper, with N and the total: (N P)^-beta over the largest of the batch.
#[test]
fn weights_are_the_papers() {
    let mut random = Random(5);
    let leaves: Vec<f32> =
        (0..200).map(|i| if i % 7 == 0 { 0.0 } else { random.uniform() as f32 + 1e-3 }).collect();
    let tree = tree(&leaves);
    let written = leaves.iter().filter(|&&leaf| leaf > 0.0).count() as f64;
    let slots: Vec<usize> =
        (0..64).map(|i| tree.find(tree.place(i, 64, random.uniform())).unwrap()).collect();
    for beta in [0.0, 0.4, 0.7, 1.0] {
        let raw: Vec<f64> =
            slots.iter().map(|&slot| (written * tree.probability(slot)).powf(-beta)).collect();
        let largest = raw.iter().copied().fold(0.0, f64::max);
        for (got, raw) in tree.weights(&slots, beta).iter().zip(&raw) {
            assert!((got - raw / largest).abs() <= 1e-13, "beta {beta}: {got} and {}", raw / largest);
        }
    }
}

#[test]
fn alpha_zero_is_uniform() {
    let settings = Replay { alpha: 0.0, ..Replay::default() };
    let mut tree = PriorityTree::new(50);
    (0..50).for_each(|slot| tree.insert(slot));
    tree.update(&[3, 17, 40], &[9.0, 0.0, 1e-9], &settings);
    assert_eq!(tree.leaves(), [1.0; 50]);
    assert_eq!(tree.weights(&[3, 4, 40], 0.9), [1.0; 3]);
}

#[test]
fn a_priority_that_is_no_number_leaves_nothing_to_draw() {
    let mut tree = tree(&[1.0; 8]);
    tree.update(&[2], &[f64::NAN], &Replay::default());
    assert_eq!(tree.find(0.5), None);
    assert!(tree.highest().is_nan(), "new transitions show it too");
}

/// Leaves of any size, many of them zero.
fn any_leaves() -> impl Strategy<Value = Vec<f32>> {
    let leaf = prop_oneof![
        3 => Just(0.0f32),
        3 => 1e-6f32..10.0,
        1 => (-30i32..30).prop_map(|e| 10f32.powi(e)),
        1 => Just(f32::from_bits(1)),
    ];
    prop::collection::vec(leaf, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// At every edge of every leaf, an ulp beside it, beyond both ends, and anywhere: never an empty slot.
    #[test]
    fn an_unwritten_or_empty_slot_is_never_returned(leaves in any_leaves(), fractions in prop::collection::vec(0.0..1.0, 32)) {
        let tree = tree(&leaves);
        let total = tree.total();
        let mut places = vec![-1.0, 0.0, total, total.next_up(), total.next_down(), 2.0 * total, f64::MAX];
        let mut sum = 0.0;
        for &leaf in &leaves {
            sum += f64::from(leaf);
            places.extend([sum, sum.next_up(), sum.next_down()]);
        }
        places.extend(fractions.iter().enumerate().map(|(i, &f)| tree.place(i, fractions.len(), f)));
        let some = leaves.iter().any(|&leaf| leaf > 0.0);
        for place in places {
            match tree.find(place) {
                Some(slot) => prop_assert!(leaves[slot] > 0.0, "slot {slot} at {place}"),
                None => prop_assert!(!some, "nothing found at {place}"),
            }
        }
    }

    /// The root is the sum of the leaves whatever was set before, also to zero.
    #[test]
    fn the_root_is_the_sum_of_the_leaves(leaves in any_leaves(), sets in prop::collection::vec((0usize..200, 0.0f32..5.0), 0..100)) {
        let mut tree = tree(&leaves);
        for (slot, leaf) in sets {
            tree.set(slot % leaves.len(), leaf);
        }
        let sum: f64 = tree.leaves().iter().map(|&leaf| f64::from(leaf)).sum();
        prop_assert!((tree.total() - sum).abs() <= 1e-14 * sum);
        (0..leaves.len()).for_each(|slot| tree.set(slot, 0.0));
        prop_assert_eq!(tree.total(), 0.0);
    }
}
