//! A data set's transitions on the device: what was uploaded is what the CPU agent's ring holds, and the same rows are
//! drawn.

use gpu::action;
use host::step::{Matmul, Section, StepBuffers, StepShape, record_section};
use host::train::offline::{Ring, upload};
use host::train::replay::{Draw, HostReplay};
use settings::Config;

use super::check::same_bits;
use super::data::Random;
use super::{Backend, Outcome};

/// No multiples of anything.
const ROWS: usize = 37;
const STATE: usize = 5;

fn ring(branches: &[usize]) -> Ring {
    let mut random = Random::new(77);
    let mut ring = Ring::default();
    for _ in 0..ROWS {
        ring.states.extend((0..STATE).map(|_| random.normal(1.0)));
        ring.next_states.extend((0..STATE).map(|_| random.normal(1.0)));
        ring.actions.extend(branches.iter().map(|&n| random.below(n as u32)));
        ring.rewards.push(random.normal(2.0));
        ring.discounts.push(if random.below(5) == 0 { 0.0 } else { 0.9 });
    }
    ring
}

fn drawn<B: Backend>(b: &mut B, prioritized: bool) -> Outcome {
    let mut config = Config::default();
    let model = &mut config.model;
    (model.state, model.trunk1, model.trunk2) = (STATE, 8, 8);
    (model.value_hidden, model.branch_hidden, model.branches) = (4, 4, vec![3, 2]);
    (model.atoms, config.train.batch) = (11, 16);
    (config.replay.prioritized, config.replay.n_step) = (prioritized, 3);
    config.check().expect("a configuration that can work");
    let ring = ring(&config.model.branches);
    let shape = StepShape::new(&config, Matmul::Rust);
    let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
    let replay = upload(b, &shape, &ring)?;
    let host = HostReplay::filled(&config, &ring);
    assert_eq!(host.complete(), ROWS, "every window of a data set is complete");
    same_bits("r", &b.download(replay.rewards)?, &host.rewards);
    same_bits("discount", &b.download(replay.discounts)?, &host.discounts);
    assert_eq!(b.download(replay.actions)?, host.actions);

    record_section(b, &shape, &buffers, Some(&replay), Section::Sample)?;
    let Draw { batch, slots } = host.sample(16, 2, config.train.seed, 0);
    let indices = b.download(buffers.batch.indices)?;
    assert_eq!(indices.iter().map(|&i| i as usize).collect::<Vec<_>>(), slots);
    let x = b.download(buffers.batch.x)?;
    for i in 0..16 {
        same_bits("s", &x[i * shape.stride..][..STATE], &batch.states[i * STATE..][..STATE]);
        same_bits("s'", &x[(16 + i) * shape.stride..][..STATE], &batch.next_states[i * STATE..][..STATE]);
        let padding = &x[i * shape.stride + STATE..(i + 1) * shape.stride];
        assert!(padding.iter().all(|&zero| zero == 0.0));
    }
    let packed: Vec<u64> =
        batch.actions.chunks_exact(2).map(|a| action::pack(&[a[0] as usize, a[1] as usize])).collect();
    assert_eq!(b.download(buffers.batch.actions)?, packed);
    same_bits("weights", &b.download(buffers.batch.weights)?, &batch.weights);
    Ok(())
}

pub fn uniform<B: Backend>(b: &mut B) -> Outcome {
    drawn(b, false)
}

pub fn prioritized<B: Backend>(b: &mut B) -> Outcome {
    drawn(b, true)
}
