//! Host's build script: the kernels of `gpu` as PTX for sm_80 and sm_90, checked against their declarations, and the
//! Rust text that embeds them (see the documentation of `cuda_builder`).

use std::env;
use std::process::ExitCode;

use cuda_builder::CudaBuilder;

fn main() -> ExitCode {
    let Some(out) = env::var_os("OUT_DIR") else {
        eprintln!("OUT_DIR is not set: this is a build script, cargo runs it");
        return ExitCode::FAILURE;
    };
    // The working directory is host/.
    let built =
        CudaBuilder::new("../gpu").arch("sm_80").arch("sm_90").kernels(gpu::KERNELS).copy_to(out).build();
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
