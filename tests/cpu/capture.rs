//! The step under the rules of a capture: every lane forked from the main one and joined again, no allocation, and the
//! order between lanes that use the same memory.

use host::emulated::EmulatedExec;
use host::exec::{Exec, Lane};
use host::profile::random_replay;
use host::step::{Matmul, StepBuffers, StepShape, noisy, record_pruning};
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
