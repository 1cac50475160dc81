//! Kernels of the control tasks: a step of 4,096 and of 65,536 environments of each, goals in hindsight for a batch.

mod device;

use std::process::ExitCode;

use cuda_std::Buf;
use device::Bench;
use gpu::clock;
use gpu::kernels::her_relabel::HerRelabel;
use gpu::kernels::sample_gather::ring;
use gpu::kernels::task_step::TaskStep;
use gpu::task::{COUNTERS, NAMES, Task, WORDS};
use host::error::ExecError;
use host::exec::Memory;

const CAPACITY: usize = 1 << 18;

fn main() -> ExitCode {
    device::run(|bench| {
        for name in NAMES {
            for environments in [4096, 65_536] {
                steps(bench, name, environments)?;
            }
        }
        hindsight(bench)
    })
}

fn task(name: &str) -> Task {
    Task::named(name, 0, 0).expect("a task of that name")
}

fn steps(bench: &mut Bench, name: &str, environments: usize) -> Result<(), ExecError> {
    let task = task(name);
    let stride = (task.spec().observation as usize).next_multiple_of(4);
    let seed_words = bench.put("seed", &[1u64])?;
    let actions = bench.put("actions", &(0..environments as u64).map(|e| e % 2).collect::<Vec<_>>())?;
    let words: Buf<u64> = bench.exec.alloc("words", WORDS as usize * environments)?;
    let counters: Buf<u32> = bench.exec.alloc("counters", COUNTERS as usize * environments)?;
    let ring_words: Buf<u64> = bench.exec.alloc("ring", ring::WORDS as usize)?;
    let states: Buf<f32> = bench.exec.alloc("states", environments * stride)?;
    let ring_states: Buf<f32> = bench.exec.alloc("ring states", CAPACITY * stride)?;
    let ring_next_states: Buf<f32> = bench.exec.alloc("ring next states", CAPACITY * stride)?;
    let ring_actions: Buf<u64> = bench.exec.alloc("ring actions", CAPACITY)?;
    let ring_rewards: Buf<f32> = bench.exec.alloc("ring rewards", CAPACITY)?;
    let ring_discounts: Buf<f32> = bench.exec.alloc("ring discounts", CAPACITY)?;
    let ring_ends: Buf<u32> = bench.exec.alloc("ring ends", CAPACITY)?;
    let flags: Buf<u32> = bench.exec.alloc("flags", environments)?;
    let log: Buf<f64> = bench.exec.alloc("log", 0)?;
    let step = TaskStep {
        environments: environments as u32,
        stride: stride as u32,
        kind: task.kind,
        size: task.size,
        limit: task.limit,
        capacity: CAPACITY as u32,
        log_rows: 0,
        insert: 1,
        gamma: 0.99,
        seed_words: seed_words.into(),
        actions: actions.into(),
        words: words.into(),
        counters: counters.into(),
        ring_words: ring_words.into(),
        states: states.into(),
        ring_states: ring_states.into(),
        ring_next_states: ring_next_states.into(),
        ring_actions: ring_actions.into(),
        ring_rewards: ring_rewards.into(),
        ring_discounts: ring_discounts.into(),
        ring_ends: ring_ends.into(),
        flags: flags.into(),
        log: log.into(),
    };
    let moved = words.bytes() + counters.bytes() + 4 * states.bytes();
    bench.kernel(&format!("{name}, {environments} environments"), moved, step)
}

/// Every sample gets another goal, of episodes of 30 steps; 30 bits, 1,024 samples.
fn hindsight(bench: &mut Bench) -> Result<(), ExecError> {
    const BATCH: usize = 1024;
    const ENVIRONMENTS: usize = 64;
    let task = task("bit_flip");
    let stride = task.spec().observation as usize;
    let clock_words = bench.put("clock", &[0u64; clock::WORDS as usize])?;
    let ring_words = bench.put("ring", &[CAPACITY as u64, 0])?;
    let indices: Vec<u32> = (0..BATCH as u32).map(|i| i * 251 % CAPACITY as u32).collect();
    let indices = bench.put("indices", &indices)?;
    let next_states: Buf<f32> = bench.exec.alloc("next states", CAPACITY * stride)?;
    let ends: Vec<u32> = (0..CAPACITY).map(|slot| u32::from(slot / ENVIRONMENTS % 30 == 29)).collect();
    let ends = bench.put("ends", &ends)?;
    let x: Buf<f32> = bench.exec.alloc("x", 2 * BATCH * stride)?;
    let rewards: Buf<f32> = bench.exec.alloc("rewards", BATCH)?;
    let discounts: Buf<f32> = bench.exec.alloc("discounts", BATCH)?;
    let relabel = HerRelabel {
        batch: BATCH as u32,
        stride: stride as u32,
        environments: ENVIRONMENTS as u32,
        capacity: CAPACITY as u32,
        kind: task.kind,
        size: task.size,
        share: 1.0,
        gamma: 0.98,
        seed: 1,
        clock_words: clock_words.into(),
        ring_words: ring_words.into(),
        indices: indices.into(),
        ring_next_states: next_states.into(),
        ring_ends: ends.into(),
        x: x.into(),
        rewards: rewards.into(),
        discounts: discounts.into(),
    };
    bench.kernel("1024 samples, 30 bits", 2 * x.bytes(), relabel)
}
