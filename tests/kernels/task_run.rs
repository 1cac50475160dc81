//! Collection and training steps of control tasks beside the CPU agent's: the same episodes, the same ring, the same draws,
//! the same goals, and the same losses.
//!
//! What is stored and drawn is equal bit for bit; losses agree as in `replay_step`.

use cpu_path::{CpuLearner, init_parameters};
use gpu::kernels::c51_loss::stat;
use gpu::market::Transitions;
use gpu::task::VecTask;
use host::step::{Collector, CollectorInput, Matmul, Replay, StepBuffers, StepShape, record};
use host::train::replay::{Draw, HostReplay};
use host::train::task::TaskRun;
use settings::{Config, Precision};

use super::check::same_bits;
use super::{Backend, Outcome};

const ENVIRONMENTS: usize = 6;
/// No multiple of the environments: steps wrap around the end.
const CAPACITY: usize = 70;

fn config(task: &str, size: usize) -> Config {
    let mut config = Config::default();
    (config.task.name, config.task.size, config.task.limit) = (task.into(), size, 5);
    let model = &mut config.model;
    (model.trunk1, model.trunk2, model.value_hidden, model.branch_hidden) = (16, 16, 8, 8);
    model.atoms = 11;
    config.train.batch = 40;
    config.train.precision = Precision::Fp32;
    config.collect.environments = ENVIRONMENTS;
    config.collect.capacity = CAPACITY;
    config
}

/// Random actions with two exploration rates, then a training step, several times.
fn run<B: Backend>(b: &mut B, mut config: Config) -> Outcome {
    let task = TaskRun::prepare(&mut config).expect("a configuration that can work");
    let shape = StepShape::new(&config, Matmul::Rust);
    let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
    let pending = config.replay.pending(ENVIRONMENTS);
    let ring = Replay::alloc(b, &shape, CAPACITY)?.with_pending(pending).for_task(b, task.hindsight)?;
    let input = CollectorInput {
        environment: task.environment(),
        environments: ENVIRONMENTS,
        log_rows: 0,
        clock: Some(buffers.clock),
        support: None,
        epsilon: None,
        explores: false,
    };
    let collector = Collector::alloc(b, &shape, input, ring, "collect")?;
    let initial = init_parameters(&shape.flat, config.train.seed);
    b.upload(buffers.parameters.online, &initial)?;
    b.upload(buffers.parameters.target, &initial[..shape.flat.target_len()])?;
    collector.record_first(b, &shape)?;
    let mut learner = CpuLearner::from_config(&config).expect("a learner");
    let mut environments = VecTask::new(task.task, ENVIRONMENTS, task.gamma, config.train.seed);
    let state = config.model.state;
    let mut host = HostReplay::new(&config.replay, CAPACITY, state, ENVIRONMENTS, task.gamma)
        .with_hindsight(task.hindsight);
    let (mut out, mut solved) = (Transitions::new(ENVIRONMENTS, state), 0);
    for round in 0..4 {
        b.upload(collector.epsilon, &[if round % 2 == 0 { 1.0f32 } else { 0.3 }])?;
        for _ in 0..6 {
            let states = environments.states().to_vec();
            collector.record(b, &shape, buffers.parameters.online)?;
            let actions = b.download(collector.actions)?;
            environments.step(&actions, &mut out, |_, _| ()).expect("actions of the task");
            host.insert(&states, &actions, &out);
        }
        same_bits("r", &b.download(ring.rewards)?, &host.rewards);
        same_bits("discount", &b.download(ring.discounts)?, &host.discounts);
        for _ in 0..2 {
            let (seed, step) = (config.train.seed, b.download(buffers.clock)?[gpu::clock::STEP as usize]);
            let Draw { batch, slots } = host.sample(config.train.batch, 1, seed, step);
            record(b, &shape, &buffers, Some(&ring))?;
            let indices: Vec<usize> =
                b.download(buffers.batch.indices)?.iter().map(|&i| i as usize).collect();
            assert_eq!(indices, slots, "slots of step {step}");
            let x = b.download(buffers.batch.x)?;
            let rows = batch.states.chunks_exact(state).chain(batch.next_states.chunks_exact(state));
            for (got, want) in x.chunks_exact(shape.stride).zip(rows) {
                same_bits("a row of the batch", &got[..state], want);
            }
            same_bits("rewards of the batch", &b.download(buffers.batch.rewards)?, &batch.rewards);
            same_bits("discounts of the batch", &b.download(buffers.batch.discounts)?, &batch.discounts);
            if task.hindsight.is_some() {
                solved += batch.discounts.iter().filter(|&&discount| discount == 0.0).count();
                let changed = (0..slots.len())
                    .filter(|&i| {
                        let row = |rows: &[f32], at: usize| rows[at * state..][..state].to_vec();
                        row(&batch.next_states, i) != row(&host.next_states, slots[i])
                    })
                    .count();
                assert!(changed > slots.len() / 4, "{changed} goals changed");
            }
            let metrics = learner.train_step(&batch).expect("a batch that fits");
            host.update(&slots, &metrics.td, &metrics.iqn_loss);
            let stats = b.download(buffers.stats)?;
            for (row, &td) in stats.chunks_exact(stat::COLUMNS as usize).zip(&metrics.td) {
                let got = row[stat::TD as usize];
                assert!((got - td).abs() <= 1e-4 * td.abs() + 1e-4, "td {got}, on the CPU {td}");
            }
        }
    }
    assert!(task.hindsight.is_none() || solved > 40, "{solved} samples reach their goal");
    Ok(())
}

/// Goals in hindsight.
pub fn bit_flip_with_hindsight<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config("bit_flip", 7);
    config.her.enabled = true;
    run(b, config)
}

/// Windows of three steps, cut by the step limit.
pub fn cart_pole_n_step<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config("cartpole", 0);
    config.replay.n_step = 3;
    run(b, config)
}

/// Priorities.
pub fn acrobot_prioritized<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config("acrobot", 0);
    config.replay.prioritized = true;
    run(b, config)
}
