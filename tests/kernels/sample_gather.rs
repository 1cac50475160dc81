//! Bodies for `sample_gather`.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::sample_gather::{SampleGather, reference, ring};
use host::error::ExecError;

use super::check::{equally_likely, same_bits};
use super::{Backend, Outcome, filled, launch, put};

/// A replay ring whose every number says which slot and column it is from.
struct Ring {
    stride: usize,
    capacity: usize,
    pending: usize,
    counters: Buf<u64>,
    states: Buf<f32>,
    next_states: Buf<f32>,
    actions: Buf<u64>,
    rewards: Buf<f32>,
    discounts: Buf<f32>,
}

/// What a batch gathered.
struct Batch {
    x: Vec<f32>,
    actions: Vec<u64>,
    rewards: Vec<f32>,
    discounts: Vec<f32>,
    weights: Vec<f32>,
    indices: Vec<u32>,
}

fn state(slot: usize, column: usize) -> f32 {
    (1000 * slot + column) as f32
}

/// Unwritten slots hold NaN.
impl Ring {
    fn new<B: Backend>(b: &mut B, stride: usize, capacity: usize, size: usize) -> Result<Self, ExecError> {
        let written = |slot: usize, value: f32| if slot < size { value } else { f32::NAN };
        let rows = |sign: f32| -> Vec<f32> {
            (0..capacity * stride)
                .map(|i| written(i / stride, sign * state(i / stride, i % stride)))
                .collect()
        };
        let column = |offset: f32| -> Vec<f32> {
            (0..capacity).map(|slot| written(slot, slot as f32 + offset)).collect()
        };
        let mut counters = vec![0u64; ring::WORDS as usize];
        counters[ring::SIZE as usize] = size as u64;
        counters[ring::CURSOR as usize] = (size % capacity) as u64;
        let actions: Vec<u64> = (0..capacity as u64).map(|slot| slot << 40 | slot).collect();
        Ok(Self {
            stride,
            capacity,
            pending: 0,
            counters: put(b, "ring", &counters)?,
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
        let words = put(b, "clock", &words)?;
        let x = filled(b, "x", 2 * batch * self.stride, -7.0f32)?;
        let [rewards, discounts, weights] =
            ["rewards", "discounts", "weights"].map(|l| filled(b, l, batch, -7.0f32));
        let (rewards, discounts, weights) = (rewards?, discounts?, weights?);
        let (actions, indices) = (filled(b, "actions", batch, 7u64)?, filled(b, "indices", batch, u32::MAX)?);
        launch(
            b,
            SampleGather {
                batch: batch as u32,
                stride: self.stride as u32,
                capacity: self.capacity as u32,
                pending: self.pending as u32,
                seed,
                clock_words: words.into(),
                ring_words: self.counters.into(),
                states: self.states.into(),
                next_states: self.next_states.into(),
                ring_actions: self.actions.into(),
                ring_rewards: self.rewards.into(),
                ring_discounts: self.discounts.into(),
                x: x.into(),
                actions: actions.into(),
                rewards: rewards.into(),
                discounts: discounts.into(),
                weights: weights.into(),
                indices: indices.into(),
            },
        )?;
        Ok(Batch {
            x: b.download(x)?,
            actions: b.download(actions)?,
            rewards: b.download(rewards)?,
            discounts: b.download(discounts)?,
            weights: b.download(weights)?,
            indices: b.download(indices)?,
        })
    }
}

/// Indices are the reference's, and every row is its slot's, exactly: one vector per row, more vectors than lanes.
pub fn indices_and_rows<B: Backend>(b: &mut B) -> Outcome {
    for (stride, capacity, batch) in [(4, 1, 1), (12, 50, 7), (80, 64, 33), (132, 5, 8), (200, 100, 16)] {
        let ring = Ring::new(b, stride, capacity, capacity)?;
        for (seed, step) in [(3, 0), (0xfedc_ba98_7654_3210, (1 << 40) + 5)] {
            let got = ring.sample(b, batch, seed, step)?;
            for i in 0..batch {
                let slot = reference::slot(seed, step, i as u32, capacity as u64) as usize;
                assert_eq!(got.indices[i] as usize, slot, "index of sample {i}");
                let row = |half: usize| &got.x[(half * batch + i) * stride..][..stride];
                let expected: Vec<f32> = (0..stride).map(|c| state(slot, c)).collect();
                same_bits("state", row(0), &expected);
                same_bits("next state", row(1), &expected.iter().map(|x| -x).collect::<Vec<_>>());
                assert_eq!(got.actions[i], (slot as u64) << 40 | slot as u64, "actions");
                assert_eq!(got.rewards[i], slot as f32 + 0.25, "reward");
                assert_eq!(got.discounts[i], slot as f32 + 0.5, "discount");
                assert_eq!(got.weights[i], 1.0, "importance weight of uniform sampling");
            }
        }
    }
    Ok(())
}

/// Every slot is equally likely, over the samples of a batch and over steps.
pub fn uniform_frequencies<B: Backend>(b: &mut B) -> Outcome {
    let (capacity, batch, steps) = if B::FULL_SIZE { (1000, 1024, 100) } else { (37, 128, 24) };
    let ring = Ring::new(b, 4, capacity, capacity)?;
    let mut counts = vec![0; capacity];
    let mut repeats = 0;
    let mut before = vec![];
    for step in 0..steps {
        let got = ring.sample(b, batch, 11, step)?.indices;
        for &index in &got {
            counts[index as usize] += 1;
        }
        repeats += usize::from(got == before);
        before = got;
    }
    equally_likely("slots", &counts);
    assert_eq!(repeats, 0, "steps that drew the same batch as the step before");
    Ok(())
}

/// While the ring is not full, only written slots are drawn, all of them, also with one written slot.
pub fn part_of_the_ring<B: Backend>(b: &mut B) -> Outcome {
    for size in [1, 2, 13] {
        let ring = Ring::new(b, 8, 64, size)?;
        let mut seen = vec![false; size];
        for step in 0..8 {
            let got = ring.sample(b, 32, 5, step)?;
            assert!(
                got.x.iter().chain(&got.rewards).chain(&got.discounts).all(|x| x.is_finite()),
                "an unwritten slot"
            );
            for &index in &got.indices {
                assert!((index as usize) < size, "slot {index} of {size}");
                seen[index as usize] = true;
            }
        }
        assert!(seen.iter().all(|&seen| seen), "of {size} slots, some are never drawn: {seen:?}");
    }
    Ok(())
}

/// The newest slots are never drawn, all others are, in a ring that fills and in a full one with its oldest slot anywhere.
pub fn without_the_newest<B: Backend>(b: &mut B) -> Outcome {
    let (capacity, pending) = (23, 6);
    for (size, cursor) in [(7, 7), (22, 22), (23, 0), (23, 4), (23, 20)] {
        let ring = Ring { pending, ..Ring::new(b, 4, capacity, size)? };
        let mut counters = vec![0u64; ring::WORDS as usize];
        counters[ring::SIZE as usize] = size as u64;
        counters[ring::CURSOR as usize] = cursor as u64;
        b.upload(ring.counters, &counters)?;
        let mut seen = vec![false; capacity];
        for step in 0..10 {
            let got = ring.sample(b, 33, 5, step)?;
            for (i, &index) in got.indices.iter().enumerate() {
                let places = (size as u64, capacity as u64, cursor as u64);
                let expected = reference::complete_slot((5, step, i as u32), places, pending as u64);
                assert_eq!(u64::from(index), expected, "{size} written, cursor {cursor}: sample {i}");
                same_bits("reward", &[got.rewards[i]], &[index as f32 + 0.25]);
                seen[index as usize] = true;
            }
        }
        // How many steps ago a slot was written; of the ring's last turn, the newest one is just before the cursor.
        for (slot, &seen) in seen.iter().enumerate() {
            let newest = (cursor + capacity - 1 - slot) % capacity < pending;
            let written = slot < size;
            assert_eq!(seen, written && !newest, "{size} written, cursor {cursor}: slot {slot}");
        }
    }
    Ok(())
}

/// A ring whose elements have no 32-bit index, or that has no slot, is refused before the launch.
pub fn contract<B: Backend>(b: &mut B) -> Outcome {
    for (capacity, relation) in [(0usize, "capacity > 0"), (1 << 30, "0x1_0000_0000")] {
        let ring = Ring { capacity, ..Ring::new(b, 8, 4, 4)? };
        match ring.sample(b, 1, 1, 1) {
            Err(ExecError::Contract(error)) => {
                let text = error.to_string();
                assert!(text.contains(relation) && text.contains("sample_gather"), "{text}");
            }
            Err(other) => panic!("capacity {capacity}: {other}"),
            Ok(_) => panic!("capacity {capacity} was launched"),
        }
    }
    Ok(())
}
