//! A step with prioritized replay under the rules of a capture: every lane forked and joined, nothing allocated.

use host::emulated::EmulatedExec;
use host::profile::random_replay;
use host::step::{Matmul, Section, StepBuffers, StepShape, record, record_section};
use settings::Config;

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
