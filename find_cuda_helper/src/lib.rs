//! Stands in for the published crate of this name, on which the build scripts of `cust` and `cust_raw` call.
//!
//! The published one panics without a CUDA installation, and a program that it links needs `libcuda.so.1` to
//! start at all. This one links a small static `libcuda.a`: every function of the driver interface is a
//! trampoline that loads `libcuda.so.1` on the first call and jumps on; without that library each call
//! returns `CUDA_ERROR_NO_DEVICE` (100), and with a driver that lacks the function `CUDA_ERROR_NOT_FOUND`
//! (500). So one program starts on every machine and can say what it found there.
//!
//! Beside the driver's functions the library has `const char *libcuda_load_error(void)`: the dynamic
//! loader's reason when the driver could not be loaded, NULL otherwise; it stays valid for good.

mod trampolines;

use std::env;
use std::fs;
use std::path::PathBuf;

use trampolines::Machine;

/// Functions of newer drivers that the bindings of `cust_raw` (CUDA 11) do not declare. A caller declares
/// them itself and, on an older driver, gets `CUDA_ERROR_NOT_FOUND`.
const NEWER: &[&str] = &[
    "cuCtxCreate_v4",
    "cuFuncGetName",
    "cuFuncGetParamInfo",
    "cuGetProcAddress_v2",
    "cuGraphAddKernelNode_v2",
    "cuGraphExecGetFlags",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecUpdate_v2",
    "cuGraphGetEdges_v2",
    "cuGraphInstantiateWithParams",
    "cuGraphKernelNodeGetParams_v2",
    "cuKernelGetFunction",
    "cuKernelGetName",
    "cuLaunchKernelEx",
    "cuOccupancyMaxActiveClusters",
    "cuStreamGetCaptureInfo_v3",
];

/// Called by the build scripts of `cust_raw` and `cust`: generates, compiles and links the static libcuda.
///
/// The functions are those that the calling package declares in `src/cuda.rs` and [`NEWER`]. A package
/// without that file (`cust`) gets them from the one that has it (`cust_raw`).
///
/// # Panics
/// When the C compiler is missing or fails; cargo shows the text as the build script's failure.
pub fn include_cuda() {
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    println!("cargo:rerun-if-changed=build.rs");
    let bindings = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("src").join("cuda.rs");
    let Ok(text) = fs::read_to_string(&bindings) else { return };
    println!("cargo:rerun-if-changed=src/cuda.rs");

    let functions = declared(&text);
    assert!(!functions.is_empty(), "{} declares no function of the CUDA driver", bindings.display());
    let out = PathBuf::from(variable("OUT_DIR"));
    let write = |name: &str, text: String| {
        let path = out.join(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
        path
    };

    let mut build = cc::Build::new();
    let machine = match (variable("CARGO_CFG_TARGET_OS").as_str(), variable("CARGO_CFG_TARGET_ARCH").as_str())
    {
        ("linux", "x86_64") => Some(Machine::X86_64),
        ("linux", "aarch64") => Some(Machine::Aarch64),
        (os, arch) => {
            println!(
                "cargo:warning=the CUDA driver is not supported on {os} {arch}: this build runs on the CPU only"
            );
            None
        }
    };
    match machine {
        Some(machine) => {
            build.file(write("libcuda_trampolines.S", trampolines::assembly(machine, &functions)));
            build.file(write("libcuda_loader.c", trampolines::loader(&functions)));
            // A part of the C library since glibc 2.34, a library of its own before.
            println!("cargo:rustc-link-lib=dylib=dl");
        }
        None => {
            build.file(write("libcuda_absent.c", trampolines::absent(&functions)));
        }
    }
    if let Err(e) = build.pic(true).std("c11").try_compile("cuda") {
        panic!(
            "cannot compile the stand-in for libcuda: {e}\nA C compiler (cc, gcc or clang) is needed to build this program."
        );
    }
}

/// A variable that cargo sets for every build script.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: include_cuda() is for build scripts"))
}

/// The driver functions that a file of bindings declares, and [`NEWER`], sorted and each once.
fn declared(bindings: &str) -> Vec<String> {
    let mut functions: Vec<String> = bindings
        .split("pub fn cu")
        .skip(1)
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            format!("cu{}", &rest[..end])
        })
        .chain(NEWER.iter().map(|name| name.to_string()))
        .collect();
    functions.sort();
    functions.dedup();
    functions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_once_and_in_order() {
        let functions = declared(
            "extern \"C\" {\n    pub fn cuInit(Flags: c_uint) -> CUresult;\n}\nextern \"C\" {\n    pub fn cuCtxGetApiVersion(\n\
             ctx: CUcontext) -> CUresult;\n    pub fn cuInit(x: u32);\n}\npub fn other() {}",
        );
        let bound: Vec<_> = functions.iter().filter(|f| !NEWER.contains(&f.as_str())).collect();
        assert_eq!(bound, ["cuCtxGetApiVersion", "cuInit"]);
        assert_eq!(functions.len(), 2 + NEWER.len());
    }

    #[test]
    fn every_function_has_a_trampoline_and_a_place_in_the_table() {
        let functions = ["cuA".to_string(), "cuB".to_string()];
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let text = trampolines::assembly(machine, &functions);
            for (i, name) in functions.iter().enumerate() {
                assert!(text.contains(&format!("\n{name}:\n")), "{machine:?} {name}");
                assert!(text.contains(&format!("libcuda_table+{}", 8 * i)), "{machine:?} {name}");
                assert!(text.contains(&format!(".quad .Lfirst{i}\n")), "{machine:?} {name}");
            }
        }
        assert!(trampolines::absent(&functions).contains("int cuB(void) { return 100; }"));
    }
}
