//! The step under the rules of a capture: every lane forked from the main one and joined again, no allocation, and the
//! order between lanes that use the same memory.

use host::emulated::EmulatedExec;
use host::exec::{Exec, Lane, Memory};
use host::profile::random_replay;
use host::step::{Matmul, Section, StepBuffers, StepShape, noisy, record, record_pruning, record_section};
use settings::Config;

use crate::kernels::oracle_step::{everything, odd};

fn with_all(mut config: Config) -> Config {
    config.model.noisy = true;
    (config.pruning.enabled, config.pruning.begin, config.pruning.end) = (true, 0, 1);
    config
}

#[test]
fn noise_and_pruning_keep_the_rules_of_a_capture() {
    for config in [with_all(odd()), with_all(everything())] {
        let mut exec = EmulatedExec::new(3);
        let shape = StepShape::new(&config, Matmul::Rust);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
        let replay = random_replay(&mut exec, &shape, 16).unwrap();
        for _ in 0..2 {
            exec.step(|exec| record_pruning(exec, &shape, &buffers, Some(&replay))).unwrap();
        }
    }
}

/// Without the join before the heads the order check speaks: that it is there is what the test above shows.
#[test]
fn noise_on_a_lane_of_its_own_is_left_unjoined_without_the_heads() {
    let config = with_all(odd());
    let mut exec = EmulatedExec::new(3);
    let shape = StepShape::new(&config, Matmul::Rust);
    let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
    assert!(exec.step(|exec| noisy::step(exec, &shape, &buffers, true)).is_err());
    exec.synchronize();
    exec.step(|exec| {
        noisy::step(exec, &shape, &buffers, true)?;
        exec.after(Lane::MAIN, noisy::LANE)
    })
    .unwrap();
}

/// Prioritized replay, each section by itself too.
#[test]
fn every_section_with_priorities_can_be_captured() {
    for parts in [false, true] {
        let mut config = Config::default();
        config.model.state = 10;
        (config.model.trunk1, config.model.trunk2) = (8, 8);
        (config.model.value_hidden, config.model.branch_hidden) = (4, 4);
        config.model.atoms = 5;
        config.model.branches = vec![3, 2];
        config.train.batch = 12;
        config.cql.enabled = parts;
        config.iqn.enabled = parts;
        (config.iqn.cosines, config.iqn.hidden) = (4, 8);
        (config.iqn.samples, config.iqn.target_samples) = (2, 2);
        config.replay.prioritized = true;
        let mut exec = EmulatedExec::new(3);
        let shape = StepShape::new(&config, Matmul::CublasLt);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
        let replay = random_replay(&mut exec, &shape, 300).unwrap();
        for _ in 0..2 {
            exec.step(|exec| record(exec, &shape, &buffers, Some(&replay))).unwrap();
        }
        for section in Section::ALL.into_iter().filter(|section| section.is_in(&shape, true)) {
            exec.synchronize();
            exec.step(|exec| record_section(exec, &shape, &buffers, Some(&replay), section))
                .unwrap_or_else(|error| panic!("{}: {error}", section.name()));
        }
    }
}

/// `train --profile` runs steps section by section: they are the same steps.
#[test]
fn sections_in_order_are_the_step() {
    let mut config = with_all(everything());
    config.replay.prioritized = true;
    let run = |by_section: bool| {
        let mut exec = EmulatedExec::new(3);
        let shape = StepShape::new(&config, Matmul::Rust);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
        let replay = random_replay(&mut exec, &shape, 40).unwrap();
        let initial = cpu_path::init_parameters(&shape.flat, 5);
        exec.upload(buffers.parameters.online, &initial).unwrap();
        exec.upload(buffers.parameters.target, &initial[..shape.flat.target_len()]).unwrap();
        buffers.start_spectral(&mut exec, &shape).unwrap();
        buffers.start_factors(&mut exec).unwrap();
        for _ in 0..2 {
            if by_section {
                for section in Section::ALL.into_iter().filter(|section| section.is_in(&shape, true)) {
                    exec.step(|exec| record_section(exec, &shape, &buffers, Some(&replay), section)).unwrap();
                }
            } else {
                exec.step(|exec| record(exec, &shape, &buffers, Some(&replay))).unwrap();
            }
        }
        let p = buffers.parameters;
        [p.online, p.target, p.m, p.v, buffers.history].map(|buffer| {
            let values = exec.download(buffer).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let (whole, sections) = (run(false), run(true));
    for (name, (a, b)) in ["online", "target", "m", "v", "history"].iter().zip(whole.iter().zip(&sections)) {
        assert!(a == b, "{name} differs");
    }
    assert!(whole[2].iter().any(|&m| m != 0), "nothing was trained");
}
