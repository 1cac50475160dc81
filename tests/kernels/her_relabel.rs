//! Bodies for `her_relabel`.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::her_relabel::{HerRelabel, reference};
use gpu::kernels::sample_gather::ring;
use gpu::market::{TERMINATED, TRUNCATED};
use gpu::task::{MAX_STATE, Task};
use host::error::ExecError;
use host::train::hindsight::judge;

use super::case::{f32s, list};
use super::check::equally_likely;
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

const GAMMA: f64 = 0.95;

/// A ring of steps that led to known states, the goal of all of them made of `OLD`.
struct Ring {
    task: Task,
    environments: usize,
    capacity: usize,
    stride: usize,
    cursor: usize,
    next_states: Vec<f32>,
    ends: Vec<u32>,
}

/// The goal before relabelling: a number that no state achieves.
const OLD: f32 = -3.0;

/// A batch after relabelling.
struct Batch {
    x: Vec<f32>,
    rewards: Vec<f32>,
    discounts: Vec<f32>,
}

impl Ring {
    fn width(&self) -> usize {
        self.task.spec().goal.len as usize
    }

    /// What step `slot` achieved.
    fn achieved(&self, slot: usize) -> &[f32] {
        &self.next_states[slot * self.stride..][..self.width()]
    }

    /// Samples the slots `indices`, whose rewards are -9 and discounts 9 before relabelling.
    fn relabel<B: Backend>(
        &self,
        b: &mut B,
        indices: &[usize],
        share: f32,
        (seed, step): (u64, u64),
    ) -> Result<Batch, ExecError> {
        let (batch, stride) = (indices.len(), self.stride);
        let mut rows = vec![0.0; 2 * batch * stride];
        for (sample, &slot) in indices.iter().enumerate() {
            // s is made up: hindsight must not look at it.
            rows[sample * stride..][..stride].fill(OLD);
            let next = &self.next_states[slot * stride..][..stride];
            rows[(batch + sample) * stride..][..stride].copy_from_slice(next);
        }
        let mut words = vec![99u64; clock::WORDS as usize];
        words[clock::STEP as usize] = step;
        let mut counters = vec![0u64; ring::WORDS as usize];
        counters[ring::CURSOR as usize] = self.cursor as u64;
        let x = put(b, "x", &rows)?;
        let (rewards, discounts) =
            (filled(b, "rewards", batch, -9.0f32)?, filled(b, "discounts", batch, 9.0f32)?);
        let indices: Vec<u32> = indices.iter().map(|&slot| slot as u32).collect();
        let clock_words = put(b, "clock", &words)?.into();
        let ring_words = put(b, "ring", &counters)?.into();
        let indices: Buf<u32> = put(b, "indices", &indices)?;
        let next_states: Buf<f32> = put(b, "next states", &self.next_states)?;
        let ends: Buf<u32> = put(b, "ends", &self.ends)?;
        launch(
            b,
            HerRelabel {
                batch: batch as u32,
                stride: stride as u32,
                environments: self.environments as u32,
                capacity: self.capacity as u32,
                kind: self.task.kind,
                size: self.task.size,
                share,
                gamma: GAMMA,
                seed,
                clock_words,
                ring_words,
                indices: indices.into(),
                ring_next_states: next_states.into(),
                ring_ends: ends.into(),
                x: x.into(),
                rewards: rewards.into(),
                discounts: discounts.into(),
            },
        )?;
        Ok(Batch { x: b.download(x)?, rewards: b.download(rewards)?, discounts: b.download(discounts)? })
    }
}

/// Case C30: the goal of a later step is what the state *after* it achieved, the step itself may be drawn and then succeeds,
/// the reward is of the state after the relabelled step, and nothing before it is ever drawn.
pub fn c30_future_goals<B: Backend>(b: &mut B) -> Outcome {
    let case = crate::case!("C30");
    let achieved: Vec<f32> = f32s(&case.rows("/input/achieved_goal_at_obs").concat());
    let steps = case.number("/input/episode_len") as usize;
    // Two bits that are both the case's number; goals are equal where they differ by less than the case's threshold.
    let task = Task::named("bit_flip", 2, 0).expect("two bits");
    let mut next_states = vec![OLD; steps * 4];
    for t in 0..steps {
        next_states[4 * t..][..2].fill(achieved[t + 1]);
    }
    let mut ends = vec![0; steps];
    ends[steps - 1] = TRUNCATED;
    let ring = Ring { task, environments: 1, capacity: steps, stride: 4, cursor: 0, next_states, ends };
    let indices: Vec<usize> = (0..40).map(|i| i % steps).collect();
    let mut counts = vec![vec![0usize; steps]; steps];
    for step in 0..60 {
        let got = ring.relabel(b, &indices, 1.0, (3, step))?;
        for (sample, &t) in indices.iter().enumerate() {
            let [goal, again] = [0, indices.len()].map(|half| got.x[(half + sample) * 4 + 2]);
            assert_eq!(goal, again, "s and s' have one goal");
            let future = (0..steps).find(|&j| achieved[j + 1] == goal).expect("a goal that was achieved");
            assert!(future >= t, "step {t} got the goal of step {future}");
            counts[t][future] += 1;
            let expected =
                reference::relabel(&achieved[1..].iter().map(|&x| vec![x]).collect::<Vec<_>>(), t, future);
            assert_eq!((got.rewards[sample], goal), (expected.reward, expected.goal[0]));
            let discount = if expected.reached { 0.0 } else { GAMMA as f32 };
            assert_eq!(got.discounts[sample], discount, "the mask follows the goal");
        }
    }
    for row in list(case.at("/expected/relabelled")) {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("no {key}"));
        let (t, future) = (number("t") as usize, number("future_step") as usize);
        assert!(counts[t][future] > 0, "step {t} never got the goal of step {future}");
        let goal = achieved[future + 1];
        assert_eq!(f64::from(goal), number("goal"));
        let outcome = judge(task, &[achieved[t + 1]; 2], &[goal; 2]);
        assert_eq!((outcome.reward, Some(outcome.terminated)), (number("reward"), row["success"].as_bool()));
    }
    // The known mistake gives step 2 the goal that was achieved before it.
    let wrong = case.number("/known_wrong/pre_step_goal_t2_future2") as f32;
    assert_ne!(achieved[3], wrong, "the case cannot tell the mistake");
    equally_likely("goals of the first step", &counts[0]);
    Ok(())
}

/// Rings in every state of filling, episodes longer and shorter than a warp, states that repeat: every sample is the
/// reference's, or untouched where that draws no goal.
pub fn random_episodes<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(12);
    for (bits, environments, capacity, written, chance) in [
        (3u32, 1usize, 7usize, 5usize, 4usize),
        (3, 3, 20, 20, 5),
        (33, 4, 350, 700, 60),
        (5, 2, 500, 999, 400),
        (40, 5, 77, 155, 9),
    ] {
        let task = Task::named("bit_flip", bits, 0).expect("a size that is allowed");
        let stride = (2 * bits as usize).next_multiple_of(4);
        let mut ring = Ring {
            task,
            environments,
            capacity,
            stride,
            cursor: 0,
            next_states: vec![f32::NAN; capacity * stride],
            ends: vec![99; capacity],
        };
        // The number of the step and its slot, of each environment's finished and running episodes, newest last.
        let mut episodes: Vec<Vec<Vec<(usize, usize)>>> = vec![vec![vec![]]; environments];
        for step in 0..written {
            for (e, episodes) in episodes.iter_mut().enumerate() {
                let slot = (ring.cursor + e) % capacity;
                let row = &mut ring.next_states[slot * stride..][..stride];
                // Few different states, so that goals coincide.
                row[..bits as usize].fill(random.below(3) as f32);
                row[bits as usize..].fill(OLD);
                let ended = random.below(chance) == 0;
                ring.ends[slot] = if ended { [TERMINATED, TRUNCATED][random.below(2)] } else { 0 };
                episodes.last_mut().expect("an episode").push((step, slot));
                if ended {
                    episodes.push(vec![]);
                }
            }
            ring.cursor = (ring.cursor + environments) % capacity;
        }
        // What the ring still holds, by slot: the newest step in it, and the rest of its episode from there on.
        let mut rest: Vec<Option<(usize, Vec<usize>)>> = vec![None; capacity];
        for episode in episodes.iter().flatten() {
            for (t, &(step, slot)) in episode.iter().enumerate() {
                if rest[slot].as_ref().is_none_or(|(newest, _)| step > *newest) {
                    rest[slot] = Some((step, episode[t..].iter().map(|&(_, slot)| slot).collect()));
                }
            }
        }
        let held: Vec<usize> = (0..capacity).filter(|&slot| rest[slot].is_some()).collect();
        let indices: Vec<usize> = (0..70).map(|_| held[random.below(held.len())]).collect();
        let width = bits as usize;
        let mut relabelled = 0;
        for (share, step) in [(0.8f32, 0), (0.8, 1 << 40), (0.0, 2), (1.0, 3)] {
            let got = ring.relabel(b, &indices, share, (11, step))?;
            for (sample, &slot) in indices.iter().enumerate() {
                let (_, slots) = rest[slot].as_ref().expect("a slot that is held");
                let row = |half: usize| &got.x[(half * indices.len() + sample) * stride..][..2 * width];
                let draw = (11, step, sample as u32);
                let expected = reference::drawn(draw, share.into(), 0, slots.len()).map(|future| {
                    let achieved: Vec<Vec<f32>> =
                        slots.iter().map(|&slot| ring.achieved(slot).to_vec()).collect();
                    reference::relabel(&achieved, 0, future)
                });
                assert_eq!(row(0)[..width], vec![OLD; width], "what s achieves stays");
                assert_eq!(row(1)[..width], *ring.achieved(slot), "what s' achieves stays");
                let (goal, reward, discount) = match expected {
                    Some(new) => {
                        relabelled += 1;
                        let discount = if new.reached { 0.0 } else { GAMMA as f32 };
                        (new.goal, new.reward, discount)
                    }
                    None => (vec![OLD; width], -9.0, 9.0),
                };
                for half in [0, 1] {
                    assert_eq!(row(half)[width..], goal, "goal of sample {sample}, half {half}");
                }
                assert_eq!((got.rewards[sample], got.discounts[sample]), (reward, discount));
            }
        }
        assert!((150..200).contains(&relabelled), "{relabelled} of 280 samples were relabelled");
    }
    Ok(())
}

/// A task without goals is refused: there is nothing to relabel.
pub fn contract<B: Backend>(b: &mut B) -> Outcome {
    let task = Task::named("cartpole", 0, 0).expect("a task");
    let capacity = 4 * MAX_STATE as usize;
    let (next_states, ends) = (vec![0.0; capacity * 4], vec![0; capacity]);
    let ring = Ring { task, environments: 1, capacity, stride: 4, cursor: 0, next_states, ends };
    match ring.relabel(b, &[0], 1.0, (1, 1)) {
        Err(ExecError::Contract(error)) => {
            let text = error.to_string();
            assert!(text.contains("her_relabel") && text.contains("goal.len > 0"), "{text}");
            Ok(())
        }
        Err(other) => Err(other),
        Ok(_) => panic!("a task without goals was relabelled"),
    }
}
