//! Bodies for `priority_update` and `priority_insert`.

use cuda_std::Buf;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::priority_tree::{PriorityInsert, PriorityUpdate, reference};
use gpu::kernels::sample_gather::ring;
use host::error::ExecError;

use super::case::{f32s, numbers};
use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};
use crate::case;

/// A tree of `slots` slots in groups of `width`.
struct Tree {
    slots: usize,
    width: usize,
    groups: usize,
    leaves: Buf<f32>,
    sums: Buf<f64>,
    highest: Buf<u32>,
}

/// What the update takes besides the tree.
struct Update<'a> {
    indices: &'a [u32],
    stats: &'a [f32],
    iqn: Option<&'a [f32]>,
    norms: &'a [f32],
    column: u32,
    iqn_weight: f32,
    eps: f32,
    alpha: f32,
}

impl Tree {
    /// Sums start as NaN: every one must be written.
    fn new<B: Backend>(b: &mut B, leaves: &[f32], width: usize, highest: f32) -> Result<Self, ExecError> {
        let groups = leaves.len().div_ceil(width);
        let mut padded = leaves.to_vec();
        padded.resize(groups * width, 0.0);
        Ok(Self {
            slots: leaves.len(),
            width,
            groups,
            leaves: put(b, "leaves", &padded)?,
            sums: filled(b, "sums", groups, f64::NAN)?,
            highest: put(b, "highest", &[highest.to_bits()])?,
        })
    }

    fn update<B: Backend>(&self, b: &mut B, u: &Update) -> Outcome {
        let indices = put(b, "indices", u.indices)?;
        let (stats, norms) = (put(b, "stats", u.stats)?, put(b, "norms", u.norms)?);
        let iqn = match u.iqn {
            Some(iqn) => put(b, "iqn", iqn)?,
            None => Buf::NULL,
        };
        launch(
            b,
            PriorityUpdate {
                batch: u.indices.len() as u32,
                groups: self.groups as u32,
                width: self.width as u32,
                column: u.column,
                count: u.norms.len() as u32,
                iqn_weight: u.iqn_weight,
                eps: u.eps,
                alpha: u.alpha,
                norms: norms.into(),
                indices: indices.into(),
                stats: stats.into(),
                iqn: iqn.into(),
                leaves: self.leaves.into(),
                sums: self.sums.into(),
                highest: self.highest.into(),
            },
        )
    }

    fn insert<B: Backend>(
        &self,
        b: &mut B,
        (cursor, size): (usize, usize),
        (inserted, pending): (usize, usize),
    ) -> Outcome {
        let mut words = vec![0u64; ring::WORDS as usize];
        (words[ring::SIZE as usize], words[ring::CURSOR as usize]) = (size as u64, cursor as u64);
        let words = put(b, "ring", &words)?;
        launch(
            b,
            PriorityInsert {
                inserted: inserted as u32,
                pending: pending as u32,
                capacity: self.slots as u32,
                groups: self.groups as u32,
                width: self.width as u32,
                ring_words: words.into(),
                highest: self.highest.into(),
                leaves: self.leaves.into(),
                sums: self.sums.into(),
            },
        )
    }

    fn highest<B: Backend>(&self, b: &mut B) -> Result<f32, ExecError> {
        Ok(f32::from_bits(b.download(self.highest)?[0]))
    }

    /// The leaves, after a check that every sum is its group's and that the padding is zero. Both sides add at most 2^12
    /// positive f64 terms: 2^12 roundings of 2^-53 each.
    #[track_caller]
    fn checked<B: Backend>(&self, b: &mut B) -> Result<Vec<f32>, ExecError> {
        let (mut leaves, sums) = (b.download(self.leaves)?, b.download(self.sums)?);
        for (g, (group, &sum)) in leaves.chunks_exact(self.width).zip(&sums).enumerate() {
            let expected = reference::sum(group);
            assert!(
                (sum - expected).abs() <= 2f64.powi(-41) * expected,
                "group {g}: {sum}, expected {expected}"
            );
        }
        same_bits("padding", &leaves[self.slots..], &vec![0.0; leaves.len() - self.slots]);
        leaves.truncate(self.slots);
        Ok(leaves)
    }
}

fn random_leaves(random: &mut Random, slots: usize) -> Vec<f32> {
    (0..slots).map(|_| if random.uniform() < 0.2 { 0.0 } else { random.uniform() as f32 + 0.01 }).collect()
}

/// Sorted slots with repetitions.
fn random_slots(random: &mut Random, batch: usize, slots: usize) -> Vec<u32> {
    let mut indices: Vec<u32> = (0..batch).map(|_| random.below(slots) as u32).collect();
    indices.sort_unstable();
    indices
}

/// Leaves of the formula, the last of equal slots, all sums, the largest leaf; everything else keeps its bits. One group
/// and many, batches that fill no vector, both columns, with and without the IQN head's loss.
pub fn updates<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(51);
    for (slots, width, batch, column, iqn_weight, alpha) in [
        (1, 128, 1, stat::TD, 0.0, 0.6f32),
        (100, 128, 7, stat::LOSS, 0.0, 0.6),
        (1000, 128, 130, stat::TD, 0.25, 0.6),
        (2500, 1152, 1026, stat::TD, 1.0, 1.0),
        (1300, 256, 64, stat::LOSS, 0.5, 0.0),
        (3000, 128, 2051, stat::TD, 0.0, 0.5),
    ] {
        let before = random_leaves(&mut random, slots);
        let tree = Tree::new(b, &before, width, 1.0)?;
        let mut highest = 1.0f32;
        let mut now = before;
        for round in 0..2 {
            let indices = random_slots(&mut random, batch, slots);
            let stats: Vec<f32> = (0..8 * batch).map(|_| 9.0 * random.uniform().powi(4) as f32).collect();
            let iqn: Vec<f32> = (0..batch).map(|_| 5.0 * random.uniform() as f32).collect();
            let update = Update {
                indices: &indices,
                stats: &stats,
                iqn: (iqn_weight > 0.0).then_some(&iqn),
                norms: &[0.5, 3.0, 0.0],
                column,
                iqn_weight,
                eps: 1e-6,
                alpha,
            };
            tree.update(b, &update)?;
            let leaves = tree.checked(b)?;
            for (slot, owner) in reference::owners(&indices, slots).into_iter().enumerate() {
                match owner {
                    Some(i) => {
                        let c = stats[8 * i + column as usize];
                        let expected = reference::leaf(c, iqn[i], iqn_weight, 1e-6, alpha);
                        close(&format!("round {round}, slot {slot}, leaf"), &[leaves[slot]], &[expected]);
                        highest = highest.max(leaves[slot]);
                    }
                    None => same_bits("a leaf that was not drawn", &[leaves[slot]], &[now[slot]]),
                }
            }
            if alpha == 0.0 {
                let ones = indices.iter().all(|&slot| leaves[slot as usize] == 1.0);
                assert!(ones, "alpha = 0 gives every leaf the same share, exactly");
            }
            same_bits("largest leaf", &[tree.highest(b)?], &[highest]);
            now = leaves;
        }
    }
    Ok(())
}

/// A norm that is not finite, wherever it is, leaves leaves, sums and the largest leaf as they are; so does a sum of
/// squares that overflows. The largest finite one does not.
pub fn skipped_steps<B: Backend>(b: &mut B) -> Outcome {
    let before = [0.5f32; 300];
    let indices: Vec<u32> = (0..40).map(|i| 7 * i).collect();
    let stats = [4.0; 8 * 40];
    let mut long = vec![1.0f32; 700];
    long[650] = f32::NAN;
    let (nan, infinite) = ([1.0, f32::NAN, 2.0], [f32::INFINITY]);
    for (norms, changes) in [
        (&nan[..], false),
        (&infinite, false),
        (&long, false),
        (&[3e38, 3e38], false),
        (&[3e38, 1.0], true),
        (&[0.0], true),
    ] {
        let tree = Tree::new(b, &before, 128, 1.0)?;
        let update = Update {
            indices: &indices,
            stats: &stats,
            iqn: None,
            norms,
            column: stat::TD,
            iqn_weight: 0.0,
            eps: 1e-6,
            alpha: 0.6,
        };
        tree.update(b, &update)?;
        let (leaves, sums) = (b.download(tree.leaves)?, b.download(tree.sums)?);
        assert_eq!(leaves[..300] != before, changes, "norms {:?}", &norms[..norms.len().min(3)]);
        assert!(sums.iter().all(|sum| sum.is_nan() != changes), "{sums:?}");
        assert_eq!(tree.highest(b)? > 1.0, changes);
    }
    Ok(())
}

/// Turns of rings: new transitions get the largest leaf when their windows are complete, their slots are empty until then.
pub fn insertion<B: Backend>(b: &mut B) -> Outcome {
    for (slots, width, inserted, pending) in
        [(5, 128, 5, 0), (40, 128, 7, 0), (300, 128, 37, 74), (700, 256, 100, 500), (1, 128, 1, 0)]
    {
        let tree = Tree::new(b, &vec![0.0; slots], width, 2.5)?;
        let mut expected = vec![0.0; slots];
        let (mut cursor, mut size) = (0, 0);
        for step in 0..3 * slots.div_ceil(inserted).min(6) {
            tree.insert(b, (cursor, size), (inserted, pending))?;
            reference::insert(&mut expected, (cursor, size), (inserted, pending), 2.5);
            let leaves = tree.checked(b)?;
            same_bits(
                &format!("{inserted} into {slots}, {pending} pending, step {step}"),
                &leaves,
                &expected,
            );
            cursor = (cursor + inserted) % slots;
            size = (size + inserted).min(slots);
        }
        let drawn = expected.iter().filter(|&&leaf| leaf > 0.0).count();
        assert_eq!(drawn, slots - pending, "all slots but the pending ones");
    }
    Ok(())
}

/// Repeated slots, and eps inside the power. The case leaves the choice between the last and the largest; ours is the
/// last one. The kernel takes equal slots side by side.
pub fn c24_duplicates_and_eps<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C24");
    let before = f32s(&case.numbers("/input/leaves_before_stored_p_alpha"));
    let (slots, td) = (case.numbers("/input/indices"), case.numbers("/input/td"));
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&i| slots[i] as u32); // stable: the last one stays the last
    let indices: Vec<u32> = order.iter().map(|&i| slots[i] as u32).collect();
    let stats: Vec<f32> = order.iter().flat_map(|&i| [td[i].abs() as f32; 8]).collect();
    let mut first = Vec::new();
    for run in 0..100 {
        let tree = Tree::new(b, &before, 128, 1.0)?;
        let update = Update {
            indices: &indices,
            stats: &stats,
            iqn: None,
            norms: &[1.0],
            column: stat::TD,
            iqn_weight: 0.0,
            eps: case.number("/input/eps") as f32,
            alpha: case.number("/input/alpha") as f32,
        };
        tree.update(b, &update)?;
        let leaves = tree.checked(b)?;
        if run == 0 {
            let expected = numbers(case.at("/expected/leaves_if_last_write_wins"));
            let got: Vec<f64> = leaves.iter().map(|&leaf| leaf.into()).collect();
            case.matches("leaves", &got, &expected);
            let outside = case.numbers("/known_wrong/eps_outside_power");
            case.tells_apart("eps outside the power", &[outside[1]], &[expected[1]]);
            first = leaves;
        } else {
            same_bits("a repeated run", &leaves, &first);
        }
    }
    Ok(())
}
