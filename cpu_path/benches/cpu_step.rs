//! Time of one training step and of acting on the CPU path, batch 256, 80 state features.

use std::hint::black_box;

use cpu_path::{C51Batch, CpuLearner};
use criterion::{Criterion, criterion_group, criterion_main};
use settings::{ModelShape, Optimizer};

const BATCH: usize = 256;

fn batch(shape: &ModelShape) -> C51Batch<f32> {
    let wave =
        |len: usize, phase: f32| (0..len).map(|i| (phase + 0.37 * i as f32).sin()).collect::<Vec<f32>>();
    let branches = shape.branches.len();
    C51Batch {
        states: wave(BATCH * shape.state, 0.0),
        next_states: wave(BATCH * shape.state, 1.0),
        actions: (0..BATCH * branches)
            .map(|i| (i / branches % shape.branches[i % branches]) as u32)
            .collect(),
        rewards: wave(BATCH, 2.0),
        discounts: vec![0.99; BATCH],
        weights: vec![1.0; BATCH],
        ..C51Batch::default()
    }
}

fn benches(c: &mut Criterion) {
    let default = ModelShape { state: 80, ..Default::default() };
    let small = ModelShape { trunk1: 64, trunk2: 64, value_hidden: 32, branch_hidden: 32, ..default.clone() };
    for (name, shape) in [("default", default), ("small", small)] {
        let mut learner = CpuLearner::new(&shape, &Optimizer::default(), 1).expect("a valid shape");
        let batch = batch(&shape);
        c.bench_function(&format!("cpu_step/train/{name}"), |b| {
            b.iter(|| learner.train_step(black_box(&batch)).expect("a valid batch"));
        });
        c.bench_function(&format!("cpu_step/act/{name}"), |b| {
            b.iter(|| learner.act(black_box(&batch.states)).expect("finite values"));
        });
    }
}

criterion_group!(cpu_step, benches);
criterion_main!(cpu_step);
