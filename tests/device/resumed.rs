//! Exact resume on the GPU: a saved and restored agent in this process, and processes that are killed.

use std::process::Command;

use clap::Parser;
use host::cli::{Cli, Command as Subcommand};
use host::commands;
use host::step::Matmul;
use host::tensors::Tensors;
use host::train::Stop;
use host::train::agent::{Agent, StepRow};
use host::train::gpu::GpuAgent;
use host::train::tensor_file;
use host::train::world::{Loaded, World};
use host::{gemm, train};
use settings::Config;

use crate::resumable::{EVERYTHING, killed_and_resumed, walk};

/// The arguments of a child's `host`, one a line.
const ARGUMENTS: &str = "STEPGRAPH_TEST_ARGUMENTS";

fn agent(config: &Config, world: World<'_>) -> GpuAgent {
    let mut exec = crate::open();
    exec.set_rust_product(gemm::product);
    GpuAgent::new(config, world, exec, Matmul::Rust, false).unwrap()
}

/// Collection, training with vaccine, pruning and probe, and what they leave.
fn go_on(agent: &mut GpuAgent, pieces: &[usize]) -> (Vec<StepRow>, Tensors) {
    let stop = Stop::default();
    let mut rows = Vec::new();
    for &steps in pieces {
        assert_eq!(agent.collect(7, 0.3, &stop).unwrap(), 7);
        rows.extend(agent.train(steps, &stop, &mut |_| std::ops::ControlFlow::Continue(())).unwrap());
    }
    (rows, agent.save_state().unwrap())
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_restored_agent_goes_on_bit_for_bit() {
    goes_on(EVERYTHING);
}

/// With goals in hindsight, in episodes that end in the midst.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_restored_agent_of_a_task_goes_on_bit_for_bit() {
    let small = "task.name=bit_flip task.size=5 her.enabled=true model.trunk1=16 model.trunk2=16 model.value_hidden=8 \
         model.branch_hidden=8 model.atoms=11 train.batch=8 collect.environments=6 collect.capacity=200 spectral.enabled=true";
    goes_on(small);
}

/// Steps, a saved state, steps; and the second steps again from the state.
fn goes_on(sets: &str) {
    let sets: Vec<String> = sets.split_whitespace().map(String::from).collect();
    let mut config = Config::layered(&Config::gpu_preset(), None, &sets).unwrap();
    let loaded = Loaded::prepare(&mut config, None).unwrap();
    let mut whole = agent(&config, loaded.world());
    let (_, saved) = go_on(&mut whole, &[11, 12]);
    let (rows, end) = go_on(&mut whole, &[13, 9]);
    assert!(rows.iter().all(|row| !row.skipped));
    drop(whole);

    // Through a file, into an agent that has done something else.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    tensor_file::write(&path, Default::default(), &saved).unwrap();
    let (_, mut read) = tensor_file::read(&path).unwrap();
    // By their bits: a slot of the ring that was never written may hold anything.
    assert_eq!(read.by_name.len(), saved.by_name.len());
    for (name, values) in &saved.by_name {
        assert!(values.bytes() == read.by_name[name].bytes(), "`{name}` differs after the file");
    }
    let mut resumed = agent(&config, loaded.world());
    go_on(&mut resumed, &[5]);
    resumed.load_state(&mut read).unwrap();
    read.finish().unwrap();
    let (resumed_rows, resumed_end) = go_on(&mut resumed, &[13, 9]);
    assert_eq!(rows, resumed_rows);
    for (name, values) in &end.by_name {
        assert!(values.bytes() == resumed_end.by_name[name].bytes(), "`{name}` differs");
    }
    assert!(saved.by_name["online"].bytes() != end.by_name["online"].bytes(), "nothing was trained");
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn killed_at_twenty_moments_it_leaves_what_it_would_have_left() {
    let folder = tempfile::tempdir().unwrap();
    killed_and_resumed(folder.path(), "gpu", 20, program);
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_walk_forward_killed_in_any_fold_leaves_what_it_would_have_left() {
    let folder = tempfile::tempdir().unwrap();
    walk::killed_and_resumed(folder.path(), "gpu", program);
}

/// This very program, so that nothing else has to be carried to the machine with the GPU.
fn program(arguments: &[String]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "resumed::a_child_of_the_test_before", "--nocapture"]);
    command.env(ARGUMENTS, arguments.join("\n"));
    command
}

/// `host` with the arguments of the environment; started by the tests before and by nobody else.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_child_of_the_test_before() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        println!("{ARGUMENTS} is not set: nothing to do outside of killed_at_twenty_moments");
        return;
    };
    let cli = Cli::try_parse_from(std::iter::once("host").chain(arguments.lines())).unwrap();
    let Subcommand::Train(arguments) = cli.command else { panic!("only `train` is started here") };
    match commands::train(&arguments) {
        Ok(commands::Ending::Done) => std::process::exit(0),
        Ok(commands::Ending::Stopped(signal)) => std::process::exit(train::exit_code(signal)),
        Err(error) => {
            eprintln!("error: {}", host::error::chain(&error));
            std::process::exit(1);
        }
    }
}
