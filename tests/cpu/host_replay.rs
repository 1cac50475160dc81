//! The CPU agent's replay against the slow reference of n-step transitions, on random episodes.

use std::num::NonZeroUsize;

use cpu_path::nstep::{End, NStep, Step, n_step};
use gpu::market::{TERMINATED, TRUNCATED, Transitions};
use host::train::replay::HostReplay;
use settings::Replay;

use crate::kernels::data::Random;

const STATE: usize = 2;

/// Every slot that may be drawn holds the transition of the reference: return, discount, and s' by number.
#[test]
fn windows_are_the_references() {
    let mut random = Random::new(9);
    for (environments, n, capacity, prioritized) in
        [(1, 1, 4, false), (3, 3, 9, true), (4, 5, 47, false), (7, 2, 100, true), (5, 9, 64, true)]
    {
        let gamma = 0.95;
        let settings = Replay { n_step: n, prioritized, ..Replay::default() };
        let mut replay = HostReplay::new(&settings, capacity, STATE, environments, gamma);
        let steps = 60;
        let mut recorded: Vec<Vec<Step>> = vec![vec![]; environments];
        let mut drawn = 0;
        for t in 0..steps {
            let mut out = Transitions::new(environments, STATE);
            let mut states = vec![0.0; environments * STATE];
            for e in 0..environments {
                let end = match random.below(12) {
                    0 => End::Terminated,
                    1 => End::Truncated,
                    _ => End::Running,
                };
                recorded[e].push(Step { reward: random.normal(1.0), end });
                out.rewards[e] = recorded[e][t].reward;
                out.discounts[e] = if end == End::Terminated { 0.0 } else { gamma as f32 };
                out.flags[e] = match end {
                    // Both flags: termination wins.
                    End::Terminated => TERMINATED | if random.below(2) == 0 { TRUNCATED } else { 0 },
                    End::Truncated => TRUNCATED,
                    End::Running => 0,
                };
                states[e * STATE] = t as f32;
                (out.next_states[e * STATE], out.next_states[e * STATE + 1]) = (e as f32, t as f32);
            }
            replay.insert(&states, &vec![0; environments], &out);
            if replay.complete() == 0 {
                continue;
            }
            let batch = replay.sample(40, 1, 3, t as u64);
            for (i, &slot) in batch.slots.iter().enumerate() {
                let start = batch.batch.states[i * STATE] as usize;
                let next = &batch.batch.next_states[i * STATE..][..STATE];
                let (e, last) = (next[0] as usize, next[1] as usize);
                assert_eq!(slot, (start * environments + e) % capacity, "the slot of step {start}");
                let expected = n_step(&recorded[e], start, NonZeroUsize::new(n).unwrap(), gamma);
                let NStep { reward, discount, last: end, steps: m } = expected.expect("a complete window");
                assert_eq!(last, end, "s' of the window of {m} from {start}");
                let (got, scale) = (f64::from(batch.batch.rewards[i]), 8.0 * m as f64);
                // m additions, each rounded to f32; rewards are below 8.
                assert!((got - reward).abs() <= scale * f64::from(f32::EPSILON), "{got}, expected {reward}");
                let error = (f64::from(batch.batch.discounts[i]) - discount).abs();
                assert!(error <= f64::from(f32::EPSILON), "discount {error:e} off");
                assert_eq!(batch.batch.weights[i], 1.0, "all leaves are those of new transitions");
                drawn += 1;
            }
        }
        assert_eq!(drawn, 40 * (steps - (n - 1)), "drawn in every step from the first complete window on");
    }
}
