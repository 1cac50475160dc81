//! Bodies for training and collection steps with noisy heads.

use gpu::clock;
use gpu::kernels::noisy::factors;
use gpu::market::{Part, VecMarket};
use gpu::philox::Stream;
use host::error::ExecError;
use host::step::{
    Collector, CollectorInput, EnvironmentInput, Matmul, Replay, StepShape, TableBuffers, record,
};
use settings::{Config, NoisyLayout, Schedule};

use super::check::same_bits;
use super::golden::f64s;
use super::market::support;
use super::oracle_step::{Beside, everything, odd, two_terms};
use super::{Backend, Outcome};

fn noisy(mut config: Config) -> Config {
    config.model.noisy = true;
    config
}

/// Three steps from a ring: every gradient against autograd in f64 with the noise that the host draws for the step, then
/// the state.
fn three_steps<B: Backend>(b: &mut B, config: &Config, matmul: Matmul) -> Outcome {
    let mut beside = Beside::new(b, config, matmul)?;
    for _ in 0..3 {
        record(b, &beside.shape, &beside.buffers, Some(&beside.replay))?;
        let batch = beside.batch(b)?;
        beside.check_gradients(b, &batch)?;
        let metrics = beside.oracle.train_step(&batch).expect("a batch that fits");
        assert!(!metrics.skipped);
    }
    beside.check_state(b, 3)
}

/// Odd sizes and C51 alone (the short chain of the update); two terms with budgets and a clip; every part, gated heads.
pub fn rust_products<B: Backend>(b: &mut B) -> Outcome {
    for config in [odd(), two_terms(), everything()] {
        three_steps(b, &noisy(config), Matmul::Rust)?;
    }
    Ok(())
}

/// With one product a launch (cuBLASLt on a GPU), which writes whole gradients.
pub fn library_products<B: Backend>(b: &mut B) -> Outcome {
    let mut alone = two_terms();
    alone.cql.enabled = false;
    three_steps(b, &noisy(alone), Matmul::CublasLt)?;
    three_steps(b, &noisy(two_terms()), Matmul::CublasLt)
}

/// Without noise the same comparison holds, and a schedule of the learning rate on top, with both chains of the update.
pub fn schedules<B: Backend>(b: &mut B) -> Outcome {
    for (mut config, schedule) in [(odd(), Schedule::Cosine), (two_terms(), Schedule::Linear)] {
        let o = &mut config.optimizer;
        (o.schedule, o.warmup_steps, o.total_steps) = (schedule, 2, 5);
        (o.lr, o.lr_end) = (4e-3, 1e-3);
        let mut beside = Beside::new(b, &config, Matmul::Rust)?;
        for step in 1..=7 {
            record(b, &beside.shape, &beside.buffers, Some(&beside.replay))?;
            let batch = beside.batch(b)?;
            beside.oracle.train_step(&batch).expect("a batch that fits");
            if [1, 4, 7].contains(&step) {
                beside.check_state(b, step)?;
            }
        }
    }
    Ok(())
}

/// With sigma = 0 a step is the plain step, bit for bit, whatever the noise.
pub fn without_sigma<B: Backend>(b: &mut B) -> Outcome {
    for config in [odd(), two_terms()] {
        let plain = Beside::new(b, &config, Matmul::Rust)?;
        let with = Beside::new(b, &noisy(config), Matmul::Rust)?;
        let (len, flat) = (plain.shape.layout.len, &with.shape.flat);
        assert_eq!(with.shape.layout.sigma, len);
        let mut zero = vec![0.0; flat.len];
        zero[..len].copy_from_slice(&b.download(plain.buffers.parameters.online)?[..len]);
        b.upload(with.buffers.parameters.online, &zero)?;
        zero[..len].copy_from_slice(&b.download(plain.buffers.parameters.target)?[..len]);
        b.upload(with.buffers.parameters.target, &zero[..flat.target_len()])?;
        record(b, &plain.shape, &plain.buffers, Some(&plain.replay))?;
        record(b, &with.shape, &with.buffers, Some(&with.replay))?;
        for (what, plain, with) in [
            ("logits", plain.buffers.online.logits, with.buffers.online.logits),
            ("target logits", plain.buffers.target.logits, with.buffers.target.logits),
            ("d h1", plain.buffers.c51.d_h1, with.buffers.c51.d_h1),
        ] {
            same_bits(what, &b.download(with)?, &b.download(plain)?);
        }
    }
    Ok(())
}

/// What a run of a few steps leaves, and the noise of each step.
fn run<B: Backend>(b: &mut B, config: &Config) -> Result<(Vec<Vec<f32>>, Vec<f32>), ExecError> {
    let beside = Beside::new(b, config, Matmul::Rust)?;
    let mut noises = Vec::new();
    for _ in 0..3 {
        record(b, &beside.shape, &beside.buffers, Some(&beside.replay))?;
        noises.push(b.download(beside.buffers.noise.expect("the heads are noisy").factors)?);
    }
    let p = beside.buffers.parameters;
    Ok((noises, [b.download(p.online)?, b.download(p.target)?, b.download(p.m)?, b.download(p.v)?].concat()))
}

/// Every step has new noise in both networks; two runs with one seed are the same bits, another seed's are not.
pub fn reproducible<B: Backend>(b: &mut B) -> Outcome {
    let config = noisy(everything());
    let (noises, state) = run(b, &config)?;
    let (noises_again, state_again) = run(b, &config)?;
    same_bits("the second run's state", &state_again, &state);
    for (again, first) in noises_again.iter().zip(&noises) {
        same_bits("the second run's noise", again, first);
    }
    let mut other = config;
    other.train.seed += 1;
    let halves: Vec<&[f32]> = noises.iter().flat_map(|both| both.chunks_exact(both.len() / 2)).collect();
    let (others, _) = run(b, &other)?;
    let others: Vec<&[f32]> = others.iter().flat_map(|both| both.chunks_exact(both.len() / 2)).collect();
    let all: Vec<&[f32]> = halves.into_iter().chain(others).collect();
    for i in 0..all.len() {
        for j in 0..i {
            let equal = all[i].iter().zip(all[j]).filter(|(a, b)| a == b).count();
            assert!(equal < 3, "noises {j} and {i}: {equal} of {} numbers are equal", all[i].len());
        }
    }
    Ok(())
}

/// Acting has new noise in every collection step, the host's draws; a backtest has none.
pub fn acting<B: Backend>(b: &mut B) -> Outcome {
    let mut config = noisy(odd());
    let model = &mut config.model;
    model.state = support::SHAPE.len() as usize;
    (model.window, model.bar_features) = (support::SHAPE.window as usize, support::SHAPE.features as usize);
    model.branches = vec![9, 3, 3];
    let beside = Beside::new(b, &config, Matmul::Rust)?;
    let shape: &StepShape = &beside.shape;
    let online = beside.buffers.parameters.online;
    let bars = support::Columns::random(9, 60, 0.01);
    let table = bars.table();
    let part = Part::new(&table, 0..table.bars()).expect("a part with starts");
    let on_device = TableBuffers::upload(b, &table)?;
    let environments = 5;
    let params = support::params();
    // The environment takes these costs: the test would otherwise be of nothing.
    VecMarket::new(params, &table, &part, environments, 1).expect("parameters that work");
    let count = NoisyLayout::new(&shape.model).factors;
    let reach = f64::from(shape.model.v_max.abs().max(shape.model.v_min.abs()));
    let mut greedy_q = Vec::new();
    for backtest in [false, true] {
        let params = if backtest { params.backtest(&part) } else { params };
        let environments = if backtest { 1 } else { environments };
        let clock = if backtest { None } else { Some(beside.buffers.clock) };
        let input = CollectorInput {
            environment: EnvironmentInput::Market { params: &params, part: &part, table: on_device },
            environments,
            log_rows: 0,
            clock,
            support: None,
            epsilon: None,
            explores: false,
        };
        let replay = Replay::alloc(b, shape, environments)?;
        let collector = Collector::alloc(b, shape, input, replay, "collect")?;
        collector.record_first(b, shape)?;
        for _ in 0..3 {
            let step = b.download(collector.clock)?[clock::COLLECT as usize];
            let rows = b.download(collector.states)?;
            let states: Vec<f64> =
                rows.chunks_exact(shape.stride).flat_map(|row| f64s(&row[..shape.model.state])).collect();
            collector.record(b, shape, online)?;
            let noise = f64s(&factors(shape.seed, step, Stream::NoiseActing, count));
            let decision = match backtest {
                true => beside.oracle.act(&states),
                false => beside.oracle.act_with_noise(&states, &noise),
            };
            let want = decision.expect("finite values").q;
            for (i, (&got, &want)) in b.download(collector.q)?.iter().zip(&want).enumerate() {
                let error = (f64::from(got) - want).abs();
                assert!(error <= 1e-5 * reach, "Q {i} of step {step}: {got}, expected {want}");
            }
            if !backtest {
                let plain = beside.oracle.act(&states).expect("finite values").q;
                let moved = want.iter().zip(&plain).filter(|(a, b)| (*a - *b).abs() > 1e-3).count();
                assert!(moved > want.len() / 2, "noise moves Q");
                greedy_q.push(want);
            }
        }
    }
    assert_ne!(greedy_q[0], greedy_q[1]);
    Ok(())
}
