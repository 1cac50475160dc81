//! Kernels that draw: batches from the replay ring, actions of 4,096 environments, buffers of random numbers.

mod device;

use std::process::ExitCode;

use criterion::Throughput;
use cuda_std::{Buf, Kernel};
use device::Bench;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::philox_fill::{PhiloxBernoulli, PhiloxNormal, PhiloxUniform};
use gpu::kernels::priority;
use gpu::kernels::priority_sample::{ImportanceWeights, PrioritySample};
use gpu::kernels::priority_tree::PriorityUpdate;
use gpu::kernels::sample_gather::{SampleGather, ring};
use gpu::kernels::select_action::SelectAction;
use gpu::{action, clock};
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};

fn main() -> ExitCode {
    device::run(|bench| {
        let words = bench.put("clock", &[0u64; clock::WORDS as usize])?;
        batches(bench, words)?;
        actions(bench, words)?;
        numbers(bench, words)
    })
}

/// Batches of a ring of a million transitions with 80 features, 670 MB. The launches of a graph have different seeds, so
/// that together they read 66 MB of scattered rows, more than the L2 cache of an H200 holds.
fn batches(bench: &mut Bench, words: Buf<u64>) -> Result<(), ExecError> {
    const BATCH: usize = 1024;
    const STRIDE: usize = 80;
    const CAPACITY: usize = 1 << 20;
    let mut counters = [0u64; ring::WORDS as usize];
    counters[ring::SIZE as usize] = CAPACITY as u64;
    let ring_words = bench.put("ring", &counters)?;
    let states: Buf<f32> = bench.exec.alloc("states", CAPACITY * STRIDE)?;
    let next_states: Buf<f32> = bench.exec.alloc("next states", CAPACITY * STRIDE)?;
    let ring_actions: Buf<u64> = bench.exec.alloc("ring actions", CAPACITY)?;
    let ring_rewards: Buf<f32> = bench.exec.alloc("ring rewards", CAPACITY)?;
    let ring_discounts: Buf<f32> = bench.exec.alloc("ring discounts", CAPACITY)?;
    let x: Buf<f32> = bench.exec.alloc("x", 2 * BATCH * STRIDE)?;
    let actions: Buf<u64> = bench.exec.alloc("actions", BATCH)?;
    let indices: Buf<u32> = bench.exec.alloc("indices", BATCH)?;
    let rewards: Buf<f32> = bench.exec.alloc("rewards", BATCH)?;
    let discounts: Buf<f32> = bench.exec.alloc("discounts", BATCH)?;
    let weights: Buf<f32> = bench.exec.alloc("weights", BATCH)?;
    let gather = SampleGather {
        batch: BATCH as u32,
        stride: STRIDE as u32,
        capacity: CAPACITY as u32,
        pending: 0,
        seed: 0,
        clock_words: words.into(),
        ring_words: ring_words.into(),
        states: states.into(),
        next_states: next_states.into(),
        ring_actions: ring_actions.into(),
        ring_rewards: ring_rewards.into(),
        ring_discounts: ring_discounts.into(),
        x: x.into(),
        actions: actions.into(),
        rewards: rewards.into(),
        discounts: discounts.into(),
        weights: weights.into(),
        indices: indices.into(),
    };
    let moved = || Throughput::Bytes(2 * x.bytes());
    let workload = "1024 of 1048576 x 80";
    bench.sequence(SampleGather::DECL.name, workload, moved(), move |exec, launch| {
        exec.launch(Lane::MAIN, &SampleGather { seed: launch as u64, ..gather })
    })?;

    // The same with priorities: one by one, and the three launches as a step has them, one after the other.
    let (groups, width) = (priority::groups(CAPACITY as u32), priority::width(CAPACITY as u32));
    let random = bench.random("leaves", CAPACITY)?;
    let values: Vec<f32> = bench.exec.download(random)?.iter().map(|x| 0.02 + x.abs().powi(3)).collect();
    bench.exec.upload(random, &values)?;
    let sum = |group: &[f32]| group.iter().map(|&leaf| f64::from(leaf)).sum::<f64>();
    let sums = bench.put("sums", &values.chunks_exact(width as usize).map(sum).collect::<Vec<f64>>())?;
    let highest = bench.put("highest", &[2.0f32.to_bits()])?;
    let chosen: Buf<f32> = bench.exec.alloc("chosen", BATCH)?;
    let stats = bench.put("stats", &[0.7f32; BATCH * stat::COLUMNS as usize])?;
    let norms = bench.put("norms", &[1.0f32; 316])?;
    let draw = PrioritySample {
        batch: BATCH as u32,
        stride: STRIDE as u32,
        capacity: CAPACITY as u32,
        groups,
        width,
        share: 1.0 / BATCH as f64,
        seed: 0,
        clock_words: words.into(),
        sums: sums.into(),
        leaves: random.into(),
        states: states.into(),
        next_states: next_states.into(),
        ring_actions: ring_actions.into(),
        ring_rewards: ring_rewards.into(),
        ring_discounts: ring_discounts.into(),
        x: x.into(),
        actions: actions.into(),
        rewards: rewards.into(),
        discounts: discounts.into(),
        indices: indices.into(),
        chosen: chosen.into(),
    };
    let weigh = ImportanceWeights {
        batch: BATCH as u32,
        beta_steps: 1000,
        beta_start: 0.4,
        beta_end: 1.0,
        clock_words: words.into(),
        chosen: chosen.into(),
        weights: weights.into(),
    };
    let update = PriorityUpdate {
        batch: BATCH as u32,
        groups,
        width,
        column: stat::TD,
        count: norms.len() as u32,
        iqn_weight: 0.0,
        eps: 1e-6,
        alpha: 0.6,
        norms: norms.into(),
        indices: indices.into(),
        stats: stats.into(),
        iqn: Buf::NULL.into(),
        leaves: random.into(),
        sums: sums.into(),
        highest: highest.into(),
    };
    bench.sequence(PrioritySample::DECL.name, workload, moved(), move |exec, launch| {
        exec.launch(Lane::MAIN, &PrioritySample { seed: launch as u64, ..draw })
    })?;
    bench.kernel("1024", 2 * weights.bytes(), weigh)?;
    bench.kernel("1024 into 1048576", random.bytes(), update)?;
    bench.sequence("prioritized_replay", workload, moved(), move |exec, launch| {
        exec.launch(Lane::MAIN, &PrioritySample { seed: launch as u64, ..draw })?;
        exec.launch(Lane::MAIN, &weigh)?;
        exec.launch(Lane::MAIN, &update)
    })
}

fn actions(bench: &mut Bench, words: Buf<u64>) -> Result<(), ExecError> {
    const ENVIRONMENTS: usize = 4096;
    let q = bench.random("q", ENVIRONMENTS * 15)?;
    let chosen: Buf<u64> = bench.exec.alloc("actions", ENVIRONMENTS)?;
    let epsilon = bench.put("epsilon", &[0.5f32])?;
    bench.kernel(
        "4096 x (9, 3, 3)",
        q.bytes() + chosen.bytes(),
        SelectAction {
            rows: ENVIRONMENTS as u32,
            branches: 3,
            sizes: action::pack(&[9, 3, 3]),
            seed: 1,
            clock_words: words.into(),
            epsilon: epsilon.into(),
            q: q.into(),
            actions: chosen.into(),
        },
    )
}

fn numbers(bench: &mut Bench, words: Buf<u64>) -> Result<(), ExecError> {
    const LEN: u32 = 1 << 20;
    let out: Buf<f32> = bench.exec.alloc("out", LEN as usize)?;
    let (len, seed, bytes) = (LEN, 1, out.bytes());
    let shape = "1048576 numbers";
    bench.kernel(shape, bytes, PhiloxUniform { len, seed, clock_words: words.into(), out: out.into() })?;
    bench.kernel(shape, bytes, PhiloxNormal { len, seed, clock_words: words.into(), out: out.into() })?;
    bench.kernel(
        shape,
        bytes,
        PhiloxBernoulli { len, seed, p: 0.8, clock_words: words.into(), out: out.into() },
    )
}
