//! Bodies for `priority_sample` and `importance_weights`.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::priority;
use gpu::kernels::priority_sample::{ImportanceWeights, PrioritySample, reference};
use host::error::ExecError;

use super::case::{f32s, numbers};
use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};
use crate::case;

/// A tree and a ring whose every number says which slot it is from. Slots without a leaf hold NaN.
struct Ring {
    stride: usize,
    groups: usize,
    width: usize,
    capacity: usize,
    leaves: Vec<f32>,
    sums_buf: Buf<f64>,
    leaves_buf: Buf<f32>,
    states: Buf<f32>,
    next_states: Buf<f32>,
    actions: Buf<u64>,
    rewards: Buf<f32>,
    discounts: Buf<f32>,
}

struct Batch {
    x: Vec<f32>,
    actions: Vec<u64>,
    rewards: Vec<f32>,
    discounts: Vec<f32>,
    indices: Vec<u32>,
    chosen: Vec<f32>,
    chosen_buf: Buf<f32>,
    clock: Buf<u64>,
}

fn state(slot: usize, column: usize) -> f32 {
    (10 * slot + column) as f32
}

impl Ring {
    /// As `gpu::kernels::priority` lays it out.
    fn new<B: Backend>(b: &mut B, stride: usize, leaves: &[f32]) -> Result<Self, ExecError> {
        let capacity = leaves.len() as u32;
        let (groups, width) = (priority::groups(capacity), priority::width(capacity));
        Self::laid_out(b, stride, leaves, groups as usize, width as usize)
    }

    /// In `groups` groups of `width`.
    fn laid_out<B: Backend>(
        b: &mut B,
        stride: usize,
        leaves: &[f32],
        groups: usize,
        width: usize,
    ) -> Result<Self, ExecError> {
        let capacity = leaves.len();
        let mut padded = leaves.to_vec();
        padded.resize(groups * width, 0.0);
        let sums: Vec<f64> = padded.chunks_exact(width).map(reference::total).collect();
        let filled = |slot: usize, value: f32| if leaves[slot] > 0.0 { value } else { f32::NAN };
        let rows = |sign: f32| -> Vec<f32> {
            let element = |i: usize| filled(i / stride, sign * state(i / stride, i % stride));
            (0..capacity * stride).map(element).collect()
        };
        let column =
            |offset: f32| -> Vec<f32> { (0..capacity).map(|s| filled(s, s as f32 + offset)).collect() };
        let actions: Vec<u64> = (0..capacity as u64).map(|slot| slot << 40 | slot).collect();
        Ok(Self {
            stride,
            groups,
            width,
            capacity,
            leaves: leaves.to_vec(),
            sums_buf: put(b, "sums", &sums)?,
            leaves_buf: put(b, "leaves", &padded)?,
            states: put(b, "states", &rows(1.0))?,
            next_states: put(b, "next states", &rows(-1.0))?,
            actions: put(b, "ring actions", &actions)?,
            rewards: put(b, "ring rewards", &column(0.25))?,
            discounts: put(b, "ring discounts", &column(0.5))?,
        })
    }

    fn sample<B: Backend>(&self, b: &mut B, batch: usize, seed: u64, step: u64) -> Result<Batch, ExecError> {
        let mut words = vec![99u64; clock::WORDS as usize];
        words[clock::STEP as usize] = step;
        let clock = put(b, "clock", &words)?;
        let x = filled(b, "x", 2 * batch * self.stride, -7.0f32)?;
        let [rewards, discounts, chosen] =
            ["rewards", "discounts", "chosen"].map(|l| filled(b, l, batch, -7.0f32));
        let (rewards, discounts, chosen) = (rewards?, discounts?, chosen?);
        let (actions, indices) = (filled(b, "actions", batch, 7u64)?, filled(b, "indices", batch, u32::MAX)?);
        launch(
            b,
            PrioritySample {
                batch: batch as u32,
                stride: self.stride as u32,
                capacity: self.capacity as u32,
                groups: self.groups as u32,
                width: self.width as u32,
                share: 1.0 / batch as f64,
                seed,
                clock_words: clock.into(),
                sums: self.sums_buf.into(),
                leaves: self.leaves_buf.into(),
                states: self.states.into(),
                next_states: self.next_states.into(),
                ring_actions: self.actions.into(),
                ring_rewards: self.rewards.into(),
                ring_discounts: self.discounts.into(),
                x: x.into(),
                actions: actions.into(),
                rewards: rewards.into(),
                discounts: discounts.into(),
                indices: indices.into(),
                chosen: chosen.into(),
            },
        )?;
        Ok(Batch {
            x: b.download(x)?,
            actions: b.download(actions)?,
            rewards: b.download(rewards)?,
            discounts: b.download(discounts)?,
            indices: b.download(indices)?,
            chosen: b.download(chosen)?,
            chosen_buf: chosen,
            clock,
        })
    }

    /// The weights of a batch's leaves.
    fn weights<B: Backend>(
        &self,
        b: &mut B,
        batch: &Batch,
        (steps, start, end): (u64, f64, f64),
    ) -> Result<Vec<f32>, ExecError> {
        let weights = filled(b, "weights", batch.chosen.len(), -7.0f32)?;
        launch(
            b,
            ImportanceWeights {
                batch: batch.chosen.len() as u32,
                beta_steps: steps,
                beta_start: start,
                beta_end: end,
                clock_words: batch.clock.into(),
                chosen: batch.chosen_buf.into(),
                weights: weights.into(),
            },
        )?;
        b.download(weights)
    }

    /// Every row of a batch is its slot's, exactly, and has a leaf; slots do not decrease.
    #[track_caller]
    fn check_rows(&self, got: &Batch) {
        let (batch, stride) = (got.indices.len(), self.stride);
        assert!(got.indices.is_sorted(), "strata come in order, so do their slots: {:?}", got.indices);
        for i in 0..batch {
            let slot = got.indices[i] as usize;
            assert!(slot < self.capacity, "slot {slot} of {}", self.capacity);
            assert!(self.leaves[slot] > 0.0, "slot {slot} has the leaf {}", self.leaves[slot]);
            let row = |half: usize| &got.x[(half * batch + i) * stride..][..stride];
            let expected: Vec<f32> = (0..stride).map(|c| state(slot, c)).collect();
            same_bits("state", row(0), &expected);
            same_bits("next state", row(1), &expected.iter().map(|x| -x).collect::<Vec<_>>());
            assert_eq!(got.actions[i], (slot as u64) << 40 | slot as u64, "actions");
            same_bits("reward", &[got.rewards[i]], &[slot as f32 + 0.25]);
            same_bits("discount", &[got.discounts[i]], &[slot as f32 + 0.5]);
            same_bits("leaf", &[got.chosen[i]], &[self.leaves[slot]]);
        }
    }

    /// The slots are those of one walk over all leaves. f64 sums of up to 2^11 positive terms differ by less than 2^-40 of
    /// the total; a draw as near to an edge as that is left out, and `true` says that none was.
    #[track_caller]
    fn check_slots(&self, got: &Batch, seed: u64, step: u64) -> bool {
        let (total, batch) = (reference::total(&self.leaves), got.indices.len() as u32);
        let mut all = true;
        for (i, &index) in got.indices.iter().enumerate() {
            let place = reference::place(seed, step, i as u32, batch, total);
            match reference::slot(&self.leaves, place, total * 2f64.powi(-40)) {
                Some(slot) => assert_eq!(index as usize, slot, "sample {i} of {batch} at {place} of {total}"),
                None => all = false,
            }
        }
        all
    }
}

/// Leaves of very different sizes, some zero, the first and the last of them among these.
fn leaves(random: &mut Random, slots: usize, zeros: f64) -> Vec<f32> {
    let mut leaves: Vec<f32> = (0..slots)
        .map(|_| if random.uniform() < zeros { 0.0 } else { 10f64.powf(4.0 * random.uniform() - 3.0) as f32 })
        .collect();
    leaves[slots / 2] = 1.5;
    leaves
}

/// Slots of the reference and their rows: one group and many, tiles and groups that are not full, several chunks of tiles.
pub fn slots_and_rows<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(41);
    let mut clear = 0;
    for (stride, slots, groups, width, batch) in [
        (4, 1, 1, 128, 1),
        (12, 100, 1, 128, 7),
        (4, 300, 3, 128, 33),
        (80, 500, 4, 128, 16),
        (4, 1400, 11, 128, 40),
        (4, 2000, 2, 1024, 40),
        (4, 1700, 1, 1792, 24),
    ] {
        let leaves = leaves(&mut random, slots, 0.3);
        let ring = Ring::laid_out(b, stride, &leaves, groups, width)?;
        for (seed, step) in [(3, 0), (0xfedc_ba98_7654_3210, (1 << 40) + 5)] {
            let got = ring.sample(b, batch, seed, step)?;
            ring.check_rows(&got);
            clear += usize::from(ring.check_slots(&got, seed, step));
        }
    }
    assert_eq!(clear, 14, "no draw is near an edge");
    let slots = if B::FULL_SIZE { 200_000 } else { 140_000 };
    let leaves = self::leaves(&mut random, slots, 0.5);
    let ring = Ring::new(b, 4, &leaves)?;
    assert!(ring.groups > 500 && ring.width == 256, "the layout of a larger ring");
    let got = ring.sample(b, 64, 9, 77)?;
    ring.check_rows(&got);
    ring.check_slots(&got, 9, 77);
    Ok(())
}

/// Whatever the leaves, also where nearly all are zero: never a slot without one, and in every draw where there is one.
pub fn no_empty_slot<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(42);
    let rings = if B::FULL_SIZE { 300 } else { 30 };
    for seed in 0..rings {
        let slots = 1 + random.below(700);
        let groups = 1 + random.below(9);
        let width = 128 * slots.div_ceil(groups).div_ceil(128);
        let zeros = [0.0, 0.5, 0.95, 1.0][random.below(4)];
        let mut leaves = leaves(&mut random, slots, zeros);
        if seed % 3 == 0 {
            // Sizes that no sum of both can hold.
            leaves.iter_mut().filter(|leaf| **leaf > 0.0).for_each(|leaf| *leaf = leaf.powi(8));
        }
        let ring = Ring::laid_out(b, 4, &leaves, groups.min(slots.div_ceil(width)), width)?;
        ring.check_rows(&ring.sample(b, 1 + random.below(40), seed, seed * 1000)?);
    }
    Ok(())
}

/// One leaf alone, in the first and the last place of the tree and on both sides of its inner edges.
pub fn edges_of_the_total<B: Backend>(b: &mut B) -> Outcome {
    for slot in [0, 3, 4, 127, 128, 255, 256, 511] {
        for leaf in [1.0, 1e-30, 1e30, f32::from_bits(1)] {
            let mut leaves = vec![0.0; 512];
            leaves[slot] = leaf;
            let ring = Ring::laid_out(b, 4, &leaves, 2, 256)?;
            let got = ring.sample(b, 5, 8, slot as u64)?;
            ring.check_rows(&got);
            assert_eq!(got.indices, [slot as u32; 5], "leaf {leaf}");
        }
    }
    Ok(())
}

/// Three f32 whose sum is `x`, a multiple of 2^-53 below 1, exactly.
fn pieces(mut x: f64) -> [f32; 3] {
    let pieces = [(); 3].map(|()| {
        let rounded = x as f32;
        let piece = if f64::from(rounded) > x { rounded.next_down() } else { rounded };
        x -= f64::from(piece);
        piece
    });
    assert_eq!(x, 0.0);
    pieces
}

/// A draw that falls exactly on the edge between two leaves takes the one that begins there, wherever in the tree the edge
/// is and however many empty leaves lie before it. The total is 1 and all sums are exact, so the draw is U itself.
pub fn a_draw_on_an_edge<B: Backend>(b: &mut B) -> Outcome {
    for (below, edge) in [
        ([0, 1, 2], 3),
        ([0, 1, 2], 4),
        ([0, 1, 2], 7),
        ([1, 2, 3], 127),
        ([1, 2, 3], 128),
        ([1, 2, 3], 203),
        ([125, 126, 127], 256),
        ([3, 130, 255], 300),
        ([0, 400, 511], 1014),
        ([600, 700, 767], 768),
    ] {
        for step in 0..3 {
            let place = reference::place(6, step, 0, 1, 1.0);
            let mut leaves = vec![0.0; 1024];
            for (slots, pieces) in [(below, pieces(place)), ([edge, 1020, 1023], pieces(1.0 - place))] {
                slots.iter().zip(pieces).for_each(|(&slot, piece)| leaves[slot] = piece);
            }
            assert_eq!(reference::total(&leaves), 1.0);
            assert_eq!(reference::slot(&leaves, place, 0.0), Some(edge));
            for (groups, width) in [(4, 256), (8, 128), (1, 1024)] {
                let ring = Ring::laid_out(b, 4, &leaves, groups, width)?;
                let got = ring.sample(b, 1, 6, step)?;
                ring.check_rows(&got);
                assert_eq!(got.indices, [edge as u32], "{groups} groups, leaves {below:?} before the edge");
            }
        }
    }
    Ok(())
}

/// (N P_i)^-beta over the largest, beta from the step's number; alpha = 0 gives ones.
pub fn weights<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(43);
    for (slots, batch) in [(50, 1), (300, 31), (900, 1025)] {
        let leaves = leaves(&mut random, slots, 0.2);
        let ring = Ring::new(b, 4, &leaves)?;
        let written = leaves.iter().filter(|&&leaf| leaf > 0.0).count();
        for (step, schedule) in
            [(0, (100, 0.4, 1.0)), (37, (100, 0.4, 1.0)), (250, (100, 0.4, 0.9)), (0, (0, 0.2, 0.7))]
        {
            let got = ring.sample(b, batch, 5, step)?;
            let weights = ring.weights(b, &got, schedule)?;
            let (steps, start, end) = schedule;
            let beta = reference::beta(step, steps, start, end);
            let expected = reference::weights(&got.chosen, written, reference::total(&leaves), beta);
            close("weights", &weights, &expected);
            assert_eq!(weights.iter().copied().fold(0.0, f32::max), 1.0, "the largest weight is exactly 1");
        }
    }
    let uniform = Ring::new(b, 4, &[1.0; 77])?;
    let got = uniform.sample(b, 40, 5, 3)?;
    same_bits("weights of equal leaves", &uniform.weights(b, &got, (10, 0.4, 1.0))?, &[1.0; 40]);
    // beta of C46: the weights before they are divided by the batch's largest, as ratios.
    let case = case!("C46");
    let betas = case.numbers("/input/per_beta_schedule");
    let np = case.numbers("/input/N_times_P");
    let ring = Ring::new(b, 4, &f32s(&np))?;
    for (step, (&beta, raw)) in
        betas.iter().zip(case.rows("/expected/is_weights_per_step_unnormalised")).enumerate()
    {
        let got = ring.sample(b, 64, 1, step as u64)?;
        let weights = ring.weights(b, &got, (5, 0.4, 1.0))?;
        let largest = raw.iter().copied().fold(0.0, f64::max);
        assert_eq!(got.indices.iter().min().zip(got.indices.iter().max()), Some((&0, &1)), "both are drawn");
        for (&index, &weight) in got.indices.iter().zip(&weights) {
            case.matches(&format!("beta {beta}"), &[weight.into()], &[raw[index as usize] / largest]);
        }
    }
    Ok(())
}

/// An empty tree, or one with a leaf that is no number: every weight is NaN, and nothing is read beyond the ring.
pub fn no_total_shows<B: Backend>(b: &mut B) -> Outcome {
    for bad in [0.0, f32::NAN, f32::INFINITY] {
        let mut leaves = vec![if bad == 0.0 { 0.0 } else { 0.5 }; 300];
        leaves[200] = bad;
        let ring = Ring::laid_out(b, 4, &leaves, 3, 128)?;
        let got = ring.sample(b, 20, 1, 1)?;
        assert!(got.indices.iter().all(|&slot| slot < 300), "leaf {bad}: {:?}", got.indices);
        let weights = ring.weights(b, &got, (10, 0.4, 1.0))?;
        assert!(weights.iter().all(|w| w.is_nan()), "leaf {bad}: {weights:?}");
    }
    Ok(())
}

/// Zero leaves are never returned; every other one is, in proportion.
pub fn c20_zero_leaves<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C20");
    let leaves = f32s(&case.numbers("/input/leaves"));
    assert_eq!(reference::total(&leaves), case.number("/expected/total"));
    for (place, slot) in case.numbers("/input/u_values").iter().zip(case.numbers("/expected/index")) {
        assert_eq!(reference::slot(&leaves, *place, 0.0), Some(slot as usize));
    }
    let ring = Ring::new(b, 4, &leaves)?;
    let mut counts = [0; 8];
    for step in 0..10 {
        let got = ring.sample(b, 60, 2, step)?;
        ring.check_rows(&got);
        assert!(ring.check_slots(&got, 2, step), "no draw is near an edge");
        got.indices.iter().for_each(|&slot| counts[slot as usize] += 1);
    }
    // 60 strata of a total of 6: ten to the unit, and edges of leaves are edges of strata.
    assert_eq!(counts, [0, 100, 0, 0, 200, 0, 0, 300]);
    Ok(())
}

/// After many updates and zeroing only two leaves are left, and are drawn in proportion. (The updates themselves:
/// `priority_tree`, and the plain Rust tree's tests.)
pub fn c22_two_leaves_left<B: Backend>(b: &mut B) -> Outcome {
    let case = case!("C22");
    let mut leaves = vec![0.0f32; case.number("/input/capacity") as usize];
    (leaves[17], leaves[4000]) = (1e-3, 2e-3);
    // Two leaves that were rounded to f32.
    let root = case.number("/expected/root_after_zeroing");
    assert!((reference::total(&leaves) - root).abs() <= 1e-7 * root);
    let ring = Ring::new(b, 4, &leaves)?;
    let only: Vec<u32> = numbers(case.at("/expected/samples_only_from")).iter().map(|&x| x as u32).collect();
    let (mut second, mut draws) = (0, 0);
    for step in 0..10 {
        let got = ring.sample(b, 100, 4, step)?;
        assert!(got.indices.iter().all(|slot| only.contains(slot)), "{:?}", got.indices);
        second += got.indices.iter().filter(|&&slot| slot == only[1]).count();
        draws += got.indices.len();
    }
    let expected = case.number("/expected/frequency_of_4000_in_10000_draws");
    let frequency = second as f64 / draws as f64;
    assert!((frequency - expected).abs() <= case.number("/tolerance/frequency_atol"), "{frequency}");
    Ok(())
}
