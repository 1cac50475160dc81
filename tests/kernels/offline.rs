//! A data set's transitions on the device: a ring that was filled with them holds what the CPU agent's holds, and the same
//! rows are drawn.

use gpu::{action, clock};
use host::step::{Matmul, Replay, Section, StepBuffers, StepShape, record_section};
use host::train::offline::{Offline, ring};
use host::train::replay::{Draw, HostReplay};
use settings::Config;
use transitions::{Format, TransitionSet};

use super::check::same_bits;
use super::data::Random;
use super::{Backend, Outcome};

/// No multiples of anything.
const ROWS: usize = 137;
const STATE: usize = 5;
const BATCH: usize = 16;

/// Episodes of any length, each row's next state the next row's state.
fn set() -> TransitionSet {
    let mut random = Random::new(77);
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| random.normal(1.0)).collect() };
    let (states, rewards, last) = (numbers(ROWS * STATE), numbers(ROWS), numbers(STATE));
    let actions = (0..ROWS).flat_map(|_| [random.below(3) as u32, random.below(2) as u32]).collect();
    let mut flags = || -> Vec<bool> { (0..ROWS).map(|_| random.below(7) == 0).collect() };
    TransitionSet {
        file: "set".into(),
        format: Format::Npz,
        state: STATE,
        action_columns: 2,
        next_states: [&states[STATE..], &last].concat(),
        states,
        actions,
        rewards,
        terminated: flags(),
        truncated: flags(),
        hash: 0,
    }
}

fn drawn<B: Backend>(b: &mut B, sets: &[&str], steps: &[u64]) -> Outcome {
    let small = "model.trunk1=8 model.trunk2=8 model.value_hidden=4 model.branch_hidden=4 model.atoms=11 replay.n_step=3 \
                 task.name=transitions";
    let sets = small.split_whitespace().chain(sets.iter().copied()).map(String::from);
    let mut config = Config::layered(&Config::default(), None, &sets.collect::<Vec<_>>()).expect("keys");
    (config.model.branches, config.train.batch) = (vec![3, 2], BATCH);
    config.transitions.files = vec!["set".into()];
    let data = Offline::of_sets(&mut config, [Ok(set())]).expect("a data set that can be learned from");
    let shape = StepShape::new(&config, Matmul::Rust);
    let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
    let replay = Replay::alloc(b, &shape, data.capacity())?;
    let mut host = HostReplay::of_data_set(&config.replay, data.capacity(), STATE, data.gamma());
    for &step in steps {
        let rows = data.drawn_in(step);
        ring::fill(b, shape.stride, &replay, &data.rows, &rows)?;
        host.fill(&data.rows, &rows);
        assert_eq!(host.complete(), rows.len(), "every window of a data set is complete");
        let n = rows.len();
        same_bits("r", &b.download(replay.rewards)?[..n], &host.rewards[..n]);
        same_bits("discount", &b.download(replay.discounts)?[..n], &host.discounts[..n]);
        assert_eq!(b.download(replay.actions)?[..n], host.actions[..n]);

        let mut words = vec![0u64; clock::WORDS as usize];
        words[clock::STEP as usize] = step;
        b.upload(buffers.clock, &words)?;
        record_section(b, &shape, &buffers, Some(&replay), Section::Sample)?;
        let Draw { batch, slots } = host.sample(BATCH, 2, config.train.seed, step);
        let indices = b.download(buffers.batch.indices)?;
        assert_eq!(indices.iter().map(|&i| i as usize).collect::<Vec<_>>(), slots, "step {step}");
        let x = b.download(buffers.batch.x)?;
        for i in 0..BATCH {
            let row = |at: usize| &x[at * shape.stride..][..STATE];
            same_bits("s", row(i), &batch.states[i * STATE..][..STATE]);
            same_bits("s'", row(BATCH + i), &batch.next_states[i * STATE..][..STATE]);
            let padding = &x[i * shape.stride + STATE..(i + 1) * shape.stride];
            assert!(padding.iter().all(|&zero| zero == 0.0));
        }
        let packed = batch.actions.chunks_exact(2).map(|a| action::pack(&[a[0] as usize, a[1] as usize]));
        assert_eq!(b.download(buffers.batch.actions)?, packed.collect::<Vec<_>>());
        same_bits("weights", &b.download(buffers.batch.weights)?, &batch.weights);
    }
    Ok(())
}

pub fn uniform<B: Backend>(b: &mut B) -> Outcome {
    drawn(b, &[], &[0, 9])
}

pub fn prioritized<B: Backend>(b: &mut B) -> Outcome {
    drawn(b, &["replay.prioritized=true"], &[0, 9])
}

/// Parts of different sizes in one ring, over more than one pass.
pub fn shards<B: Backend>(b: &mut B) -> Outcome {
    let steps: Vec<u64> = (0..12).map(|shard| 10 * shard + shard % 3).collect();
    drawn(b, &["transitions.resident=50", "transitions.shard_steps=10"], &steps)
}
