//! A data set larger than device memory: what a training step takes where all of it is resident, where two halves change
//! places, and what the copy of a half takes alone. P1-core (SPEC section 9) on a million transitions of 80 features.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use host::cuda::{CudaExec, CudaOptions, Products};
use host::embedded;
use host::error::ExecError;
use host::exec::{Lane, Memory};
use host::gemm;
use host::step::Matmul;
use host::train::Stop;
use host::train::agent::Agent;
use host::train::gpu::GpuAgent;
use host::train::offline::Offline;
use host::train::world::World;
use settings::Config;
use transitions::{Format, TransitionSet};

const ROWS: usize = 1_000_000;
const STATE: usize = 80;
/// Timed steps; before them as many as a tenth that are not.
const STEPS: usize = 4000;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn open() -> Result<CudaExec, ExecError> {
    let options = CudaOptions { products: Products::Rust, ..CudaOptions::default() };
    let mut exec = CudaExec::open(embedded::images(), options)?;
    exec.set_rust_product(gemm::product);
    Ok(exec)
}

fn measure() -> anyhow::Result<()> {
    match open() {
        Ok(exec) => println!("{}", exec.gpu().properties().name),
        Err(ExecError::NoDevice(reason)) => {
            println!("nothing is measured: {reason}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    let set = set();
    let resident = steps(&set, 0, 1)?;
    println!("all {ROWS} resident: {resident:.1} us a step");
    for half in [50_000, 200_000] {
        let copy = copy(half)?;
        println!("halves of {half}: the copy of one alone takes {copy:.0} us");
        for shard_steps in [100, 300, 1000, 2000] {
            let staged = steps(&set, 2 * half, shard_steps)?;
            let more = 100.0 * (staged / resident - 1.0);
            let copied = copy / shard_steps as f64;
            println!(
                "  changed every {shard_steps} steps: {staged:.1} us a step, {more:+.1}% (the copy's share would be \
                 {copied:.1} us)"
            );
        }
    }
    Ok(())
}

/// Microseconds of a step, host and device together.
fn steps(set: &TransitionSet, resident: usize, shard_steps: usize) -> anyhow::Result<f64> {
    let mut config = settings::presets::find("p1-core")?.config()?;
    (config.model.window, config.model.bar_features) = (0, 0);
    config.task.name = settings::Task::TRANSITIONS.into();
    config.transitions.files = vec![set.file.clone()];
    (config.transitions.resident, config.transitions.shard_steps) = (resident, shard_steps);
    let data = Offline::of_sets(&mut config, [Ok(set.clone())])?;
    let config: &Config = &config;
    let mut agent = GpuAgent::new(config, World::Transitions(&data), open()?, Matmul::Rust, false)?;
    let mut train =
        |steps: usize| agent.train(steps, &Stop::default(), &mut |_| ControlFlow::Continue(())).map(drop);
    train(STEPS / 10)?;
    let begun = Instant::now();
    train(STEPS)?;
    Ok(1e6 * begun.elapsed().as_secs_f64() / STEPS as f64)
}

/// Microseconds of the copy of a half's states, both of them.
fn copy(half: usize) -> Result<f64, ExecError> {
    const COPIES: usize = 10;
    let mut exec = open()?;
    let host = exec.alloc_pinned::<f32>("host", 2 * half * STATE)?;
    let device = exec.alloc("device", 2 * half * STATE)?;
    exec.copy_in(Lane::COPY, device, host)?;
    exec.synchronize()?;
    let begun = Instant::now();
    for _ in 0..COPIES {
        exec.copy_in(Lane::COPY, device, host)?;
    }
    exec.synchronize()?;
    Ok(1e6 * begun.elapsed().as_secs_f64() / COPIES as f64)
}

/// Episodes of 200 steps with reproducible numbers in (-1, 1).
fn set() -> TransitionSet {
    let number = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let numbers = |from: u64, count: usize| (from..from + count as u64).map(number).collect::<Vec<f32>>();
    TransitionSet {
        file: "made".into(),
        format: Format::Npz,
        state: STATE,
        action_columns: 3,
        states: numbers(0, ROWS * STATE),
        actions: (0..ROWS as u32).flat_map(|i| [i % 9, i % 3, (i / 3) % 3]).collect(),
        rewards: numbers(7, ROWS),
        next_states: numbers(STATE as u64, ROWS * STATE),
        terminated: vec![false; ROWS],
        truncated: (0..ROWS).map(|i| i % 200 == 199).collect(),
        hash: 0,
    }
}
