//! Host's build script: the kernels of `gpu` as PTX for sm_80, sm_90 and sm_90a, checked against their declarations, and the
//! Rust text that embeds them (see the documentation of `cuda_builder`).

use std::env;
use std::process::ExitCode;

use cuda_builder::CudaBuilder;

fn main() -> ExitCode {
    let Some(out) = env::var_os("OUT_DIR") else {
        eprintln!("OUT_DIR is not set: this is a build script, cargo runs it");
        return ExitCode::FAILURE;
    };
    // sm_90a is for GPUs of compute capability 9.0 alone and has kernels of its own; newer ones take sm_90. One target
    // shortens a build that only one GPU will see: STEPGRAPH_ARCHS=sm_90a.
    let archs = env::var("STEPGRAPH_ARCHS").unwrap_or_else(|_| "sm_80,sm_90,sm_90a".into());
    // The working directory is host/.
    let builder =
        archs.split(',').fold(CudaBuilder::new("../gpu"), |builder, arch| builder.arch(arch.trim()));
    println!("cargo:rerun-if-env-changed=STEPGRAPH_ARCHS");
    let built = builder.kernels(gpu::KERNELS).copy_to(out).build();
    match built {
        Ok(built) => {
            println!("cargo:rerun-if-changed=../build.rs");
            built.tell_cargo();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
