//! Builds small kernel crates for the device. Needs the compiler that `setup.sh` installs, and fails without it: a
//! kernel build that nobody tried is not one that works.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cuda_builder::{BuildError, Built, CudaBuilder, Kernels};
use cuda_std::{AccessKind, ElementType, KernelDecl, Param, ParamType};

/// One build at a time: they share the folder in which `core` is compiled once.
static ONE: Mutex<()> = Mutex::new(());

const HEAD: &str = r#"
#![no_std]
#![feature(abi_ptx, abi_unadjusted, link_llvm_intrinsics, stdarch_nvptx)]
#![allow(internal_features)]

use core::arch::nvptx::{_syncthreads, _thread_idx_x};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
"#;

/// A barrier and a shuffle between two uses of one condition, which JumpThreading would copy into both arms.
const REPEATED_CONDITION: &str = r#"
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32"]
    fn exchange(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn barrier(c: u32, x: *mut f32, y: f32) {
    unsafe {
        let t = _thread_idx_x() as usize;
        if c > 3 {
            *x.add(t) = y;
        }
        _syncthreads();
        if c > 3 {
            *x.add(t + 1) = y * 2.0;
        } else {
            *x.add(t + 2) = y;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn shuffle(c: u32, x: *mut u32) {
    unsafe {
        let t = _thread_idx_x() as usize;
        let mut v = *x.add(t);
        if c > 3 {
            v += 7;
            *x.add(40) = v;
        }
        let w = exchange(!0, v, 1, 31);
        if c > 3 {
            *x.add(t + 1) = w * 2;
        } else {
            *x.add(t + 2) = w;
        }
    }
}
"#;

static BARRIER: KernelDecl = KernelDecl {
    name: "barrier",
    block: 96,
    barriers: 1,
    shuffles: 0,
    votes: 0,
    mmas: 0,
    resident: 0,
    only: None,
    params: &[
        Param { name: "c", ty: ParamType::Scalar(ElementType::U32) },
        Param { name: "x", ty: ParamType::Buffer(AccessKind::ReadWrite, ElementType::F32) },
        Param { name: "y", ty: ParamType::Scalar(ElementType::F32) },
    ],
    file: "src/lib.rs",
    line: 20,
};

static SHUFFLE: KernelDecl = KernelDecl {
    name: "shuffle",
    block: 32,
    barriers: 0,
    shuffles: 1,
    params: &[
        Param { name: "c", ty: ParamType::Scalar(ElementType::U32) },
        Param { name: "x", ty: ParamType::Buffer(AccessKind::ReadWrite, ElementType::U32) },
    ],
    line: 36,
    ..BARRIER
};

/// Kept between runs of the tests, with the compiled `core` in it.
fn root() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("device_build")
}

fn build(source: &str, kernels: &[&'static KernelDecl]) -> Result<Kernels, BuildError> {
    let folder = root().join("kernels");
    fs::create_dir_all(folder.join("src")).unwrap();
    let manifest = "[package]\nname = \"kernels\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    write_if_changed(&folder.join("Cargo.toml"), manifest);
    write_if_changed(&folder.join("src/lib.rs"), &format!("{HEAD}{source}"));
    let built = CudaBuilder::new(folder)
        .arch("sm_80")
        .kernels(kernels)
        .copy_to(root().join("out"))
        .work_in(root().join("work"))
        .build()?;
    match built {
        Built::Kernels(kernels) => Ok(kernels),
        Built::Missing(missing) => panic!("{missing}"),
    }
}

/// Cargo goes by the time of change.
fn write_if_changed(path: &Path, text: &str) {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::write(path, text).unwrap();
    }
}

fn lock() -> std::sync::MutexGuard<'static, ()> {
    // A failed test has left nothing half done that the next one would not overwrite.
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[test]
fn barriers_and_shuffles_between_repeated_conditions_stay_single() {
    let _one = lock();
    let built = build(REPEATED_CONDITION, &[&BARRIER, &SHUFFLE]).unwrap_or_else(|e| panic!("{e}"));
    let (arch, ptx) = &built.modules[0];
    assert_eq!(arch, "sm_80");
    assert!(ptx.contains(".target sm_80"));
    assert_eq!(ptx.matches("bar.sync").count(), 1, "{ptx}");
    assert_eq!(ptx.matches("shfl.sync").count(), 1, "{ptx}");
    assert_eq!(ptx.matches("\n.reqntid 96, 1, 1").count(), 1);
    assert_eq!(ptx.matches("\n.reqntid 32, 1, 1").count(), 1);

    let out = root().join("out");
    assert_eq!(&fs::read_to_string(out.join("kernels_sm_80.ptx")).unwrap(), ptx);
    let rust = fs::read_to_string(out.join("kernels.rs")).unwrap();
    assert!(rust.contains("include_str!(\"kernels_sm_80.ptx\")"), "{rust}");
    assert!(rust.contains("pub const MISSING: Option<&str> = None;"), "{rust}");
    assert!(rust.contains(&format!("pub const HASH: u64 = 0x{:016x};", built.hash)), "{rust}");
    assert!(
        rust.contains(&format!("pub const COMPILER: Option<&str> = Some({:?});", built.compiler)),
        "{rust}"
    );
    if built.assembler.is_some() {
        let names: Vec<_> = built.resources.iter().map(|r| r.kernel.as_str()).collect();
        assert_eq!(names, ["barrier", "shuffle"]);
        assert!(built.resources.iter().all(|r| r.registers > 0 && r.spill_store_bytes == 0));
        assert!(fs::read(out.join("kernels_sm_80.cubin")).unwrap().starts_with(b"\x7fELF"));
    }

    // Again with nothing changed, and after the PTX was lost: the same files and the same hash.
    assert_eq!(build(REPEATED_CONDITION, &[&BARRIER, &SHUFFLE]).unwrap().hash, built.hash);
    fs::remove_file(root().join("work/kernels/sm_80/kernels.ptx")).unwrap();
    assert_eq!(build(REPEATED_CONDITION, &[&BARRIER, &SHUFFLE]).unwrap().hash, built.hash);
    // Moved down by a comment: other source lines, the same instructions.
    assert_eq!(
        build(&format!("// comment\n{REPEATED_CONDITION}"), &[&BARRIER, &SHUFFLE]).unwrap().hash,
        built.hash
    );
    let other = REPEATED_CONDITION.replace("v += 7", "v += 8");
    assert_ne!(build(&other, &[&BARRIER, &SHUFFLE]).unwrap().hash, built.hash);
}

#[test]
fn a_kernel_that_does_not_compile_is_the_compilers_message() {
    let _one = lock();
    let wrong = REPEATED_CONDITION.replace("y * 2.0", "y * \"two\"");
    let error = build(&wrong, &[&BARRIER, &SHUFFLE]).expect_err("it does not compile");
    assert!(matches!(error, BuildError::Compile { .. }));
    let text = error.to_string();
    assert!(text.contains("error[E0277]: cannot multiply `f32` by `&str`"), "{text}");
    assert!(text.contains("src/lib.rs:") && text.contains("*x.add(t + 1) = y * \"two\";"), "{text}");
    assert!(text.contains("sm_80"), "{text}");
    assert!(!text.contains('\u{1b}'), "colours: {text:?}");
}

#[test]
fn ptx_that_differs_from_the_declarations_is_refused() {
    let _one = lock();
    let error = build(REPEATED_CONDITION, &[&SHUFFLE]).expect_err("`barrier` is not declared");
    assert!(error.to_string().contains("PTX entry `barrier`"), "{error}");

    // One parameter less, and a barrier that is copied as the miscompile would copy it.
    let other = REPEATED_CONDITION
        .replace("y: f32", "")
        .replace("= y", "= 1.0")
        .replace("        _syncthreads();\n        if c > 3 {", "        if c > 3 { _syncthreads();")
        .replace(
            "} else {\n            *x.add(t + 2) = 1.0;",
            "} else { _syncthreads();\n            *x.add(t + 2) = 1.0;",
        );
    let error = build(&other, &[&BARRIER, &SHUFFLE]).expect_err("neither fits");
    let BuildError::Mismatch { problems, .. } = &error else { panic!("{error}") };
    assert_eq!(problems.len(), 2, "{error}");
    assert!(problems[0].contains("3 parameters are declared (c, x, y), the PTX entry has 2"), "{error}");
    assert!(problems[1].contains("`barriers = 1` is declared, the PTX entry has 2"), "{error}");
}
