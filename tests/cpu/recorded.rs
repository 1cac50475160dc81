//! The step under the rules of a capture: no lane without a fork or a join, nothing allocated, and the same bits as the
//! eager step. `tests/device/step.rs` has the same of real graphs.

use cpu_path::init_parameters;
use host::emulated::EmulatedExec;
use host::exec::Memory;
use host::profile::random_replay;
use host::step::{Matmul, Section, StepBuffers, StepShape, record, record_section};
use settings::{Config, Precision};

/// The Mamba-2 block alone beside C51.
fn alone() -> Config {
    let mut config = Config::default();
    (config.model.state, config.model.window, config.model.bar_features) = (18, 4, 3);
    (config.model.trunk1, config.model.trunk2) = (24, 20);
    (config.model.value_hidden, config.model.branch_hidden) = (12, 8);
    config.model.branches = vec![3, 2];
    config.model.atoms = 11;
    config.train.batch = 13;
    config.train.precision = Precision::Fp32;
    config.mamba.enabled = true;
    config
}

/// With every other part.
fn everything() -> Config {
    let mut config = alone();
    config.cql.enabled = true;
    config.iqn.enabled = true;
    (config.iqn.cosines, config.iqn.hidden) = (8, 16);
    (config.iqn.samples, config.iqn.target_samples) = (6, 5);
    config.iql.enabled = true;
    config.iql.hidden = 8;
    config.attention.enabled = true;
    config.model.noisy = true;
    config.spectral.enabled = true;
    config
}

/// What three steps leave: parameters, moments, target, gradient, history.
fn three_steps(config: &Config, matmul: Matmul, recorded: bool) -> Vec<u32> {
    let mut exec = EmulatedExec::new(5);
    let shape = StepShape::new(config, matmul);
    let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
    let replay = random_replay(&mut exec, &shape, 64).unwrap();
    let mut initial = init_parameters(&shape.flat, 7);
    initial[shape.flat.offset("mamba.gate")] = 0.5;
    let p = buffers.parameters;
    exec.upload(p.online, &initial).unwrap();
    exec.upload(p.target, &initial[..p.target.len()]).unwrap();
    buffers.start_spectral(&mut exec, &shape).unwrap();
    for _ in 0..3 {
        if recorded {
            exec.step(|exec| record(exec, &shape, &buffers, Some(&replay))).unwrap();
        } else {
            record(&mut exec, &shape, &buffers, Some(&replay)).unwrap();
        }
    }
    let all = [p.online, p.target, p.m, p.v, p.grad, buffers.history];
    let bits: Vec<u32> =
        all.into_iter().flat_map(|buffer| exec.download(buffer).unwrap()).map(f32::to_bits).collect();
    for section in Section::ALL.into_iter().filter(|section| section.is_in(&shape, true)) {
        exec.step(|exec| record_section(exec, &shape, &buffers, Some(&replay), section)).unwrap();
    }
    bits
}

#[test]
fn the_recorded_step_is_the_eager_one() {
    for (config, matmul) in
        [(alone(), Matmul::Rust), (everything(), Matmul::Rust), (everything(), Matmul::CublasLt)]
    {
        let eager = three_steps(&config, matmul, false);
        assert!(eager == three_steps(&config, matmul, true), "{matmul:?}: {:?}", config.parts().enabled());
        assert!(eager.iter().all(|&bits| f32::from_bits(bits).is_finite()));
    }
}
