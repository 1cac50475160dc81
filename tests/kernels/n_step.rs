//! Bodies for `n_step_window`.

use gpu::kernels::n_step::NStepWindow;
use gpu::kernels::n_step::reference::{Step, transition};
use gpu::kernels::sample_gather::ring;
use gpu::market::{TERMINATED, TRUNCATED};
use gpu::reference::Bounded;
use host::error::ExecError;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// Number that says which observation of which environment: the one after step `step`.
fn observation(e: usize, step: usize, column: usize) -> f32 {
    (1000 * step + 10 * e) as f32 + column as f32 / 16.0
}

/// What a collection step writes before the kernel: single-step transitions in the slots from the cursor on.
pub fn random_episodes<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(61);
    for (environments, n, capacity, stride, ends) in [
        (1, 3, 3, 4, 0.3),
        (5, 1, 5, 4, 0.3),
        (9, 3, 31, 12, 0.25),
        (33, 5, 200, 4, 0.1),
        (17, 8, 17 * 8, 200, 0.05),
    ] {
        let gamma = 0.9;
        let total = 30;
        let recorded: Vec<Vec<Step>> = (0..environments)
            .map(|_| {
                (0..total)
                    .map(|_| {
                        let end = random.uniform() < ends;
                        // Both at once on some.
                        let (terminated, truncated) =
                            (end && random.below(2) == 0, end && random.below(3) > 0);
                        Step {
                            reward: random.normal(1.0),
                            terminated,
                            truncated: truncated || (end && !terminated),
                        }
                    })
                    .collect()
            })
            .collect();
        let rewards = filled(b, "rewards", capacity, f32::NAN)?;
        let discounts = filled(b, "discounts", capacity, f32::NAN)?;
        let next_states = filled(b, "next states", capacity * stride, f32::NAN)?;
        let ages = b.alloc("ages", environments)?;
        let flags = b.alloc("flags", environments)?;
        let words = b.alloc("ring", ring::WORDS as usize)?;
        let slot = |step: usize, e: usize| (step * environments + e) % capacity;
        let mut checked = 0;
        for step in 0..total {
            let (mut r, mut d, mut s) =
                (b.download(rewards)?, b.download(discounts)?, b.download(next_states)?);
            let mut f = vec![0u32; environments];
            for e in 0..environments {
                let at = slot(step, e);
                let now = recorded[e][step];
                r[at] = now.reward;
                d[at] = if now.terminated { 0.0 } else { gamma as f32 };
                for c in 0..stride {
                    s[at * stride + c] = observation(e, step, c);
                }
                f[e] =
                    if now.terminated { TERMINATED } else { 0 } | if now.truncated { TRUNCATED } else { 0 };
            }
            b.upload(rewards, &r)?;
            b.upload(discounts, &d)?;
            b.upload(next_states, &s)?;
            b.upload(flags, &f)?;
            let mut counters = vec![0u64; ring::WORDS as usize];
            counters[ring::CURSOR as usize] = slot(step, 0) as u64;
            b.upload(words, &counters)?;
            launch(
                b,
                NStepWindow {
                    environments: environments as u32,
                    steps: n as u32,
                    capacity: capacity as u32,
                    stride: stride as u32,
                    gamma,
                    ring_words: words.into(),
                    flags: flags.into(),
                    ages: ages.into(),
                    ring_rewards: rewards.into(),
                    ring_discounts: discounts.into(),
                    ring_next_states: next_states.into(),
                },
            )?;
            // The transition that may be drawn from now on.
            let Some(start) = (step + 1).checked_sub(n) else { continue };
            let (r, d, s) = (b.download(rewards)?, b.download(discounts)?, b.download(next_states)?);
            for (e, recorded) in recorded.iter().enumerate() {
                let at = slot(start, e);
                let (reward, discount, last) =
                    transition(recorded, start, n, gamma).expect("the window is complete");
                close("r_n", &[r[at]], &[reward]);
                close("discount", &[d[at]], &[Bounded::rounded(discount)]);
                let expected: Vec<f32> = (0..stride).map(|c| observation(e, last, c)).collect();
                same_bits("s'", &s[at * stride..][..stride], &expected);
                checked += 1;
            }
        }
        assert_eq!(checked, environments * (total + 1 - n));
    }
    Ok(())
}

/// Windows that do not fit into the ring are refused: a step would write into its own.
pub fn contract<B: Backend>(b: &mut B) -> Outcome {
    let (words, flags, ages) =
        (put(b, "ring", &[0u64; 4])?, put(b, "flags", &[0u32; 4])?, put(b, "ages", &[0u32; 4])?);
    let rows = put(b, "rows", &[0.0f32; 44])?;
    let launched = launch(
        b,
        NStepWindow {
            environments: 4,
            steps: 3,
            capacity: 11,
            stride: 4,
            gamma: 0.9,
            ring_words: words.into(),
            flags: flags.into(),
            ages: ages.into(),
            ring_rewards: rows.slice(0, 11).into(),
            ring_discounts: rows.slice(11, 11).into(),
            ring_next_states: rows.into(),
        },
    );
    match launched {
        Err(ExecError::Contract(error)) => {
            assert!(error.to_string().contains("n_step_window"), "{error}");
            Ok(())
        }
        Err(other) => Err(other),
        Ok(()) => panic!("three steps of four environments were kept in eleven slots"),
    }
}
