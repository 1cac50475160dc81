//! Starts itself as a child process under three driver libraries (none, one that cannot be loaded, a small one
//! made for this test) and checks what calls of the driver interface return there.

use std::env;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::ptr;

use cust::error::CudaError;
use cust::sys;

unsafe extern "C" {
    safe fn libcuda_load_error() -> *const c_char;
}

const CASE: &str = "LIBCUDA_TEST_CASE";

fn main() -> ExitCode {
    match env::var(CASE).as_deref() {
        Ok("unloadable") => without_driver(),
        Ok("fake") => with_fake_driver(),
        Ok("threads") => from_many_threads(),
        Ok(other) => panic!("unknown case {other}"),
        Err(_) => return parent(),
    }
    ExitCode::SUCCESS
}

fn parent() -> ExitCode {
    // The listing that test runners ask for: one test, run as a whole.
    if env::args().any(|a| a == "--list") {
        println!("load: test");
        return ExitCode::SUCCESS;
    }
    let dir = tempfile::tempdir().expect("temporary folder");
    let fake = dir.path().join("fake");
    let unloadable = dir.path().join("unloadable");
    fs::create_dir_all(&fake).expect("folder");
    fs::create_dir_all(&unloadable).expect("folder");
    // Found before a driver that this machine may have, and refused by the dynamic loader.
    fs::write(unloadable.join("libcuda.so.1"), "no library").expect("file");
    compile_fake_driver(&fake);

    let mut failed = 0;
    for (case, folder) in [("unloadable", &unloadable), ("fake", &fake), ("threads", &fake)] {
        let status = Command::new(env::current_exe().expect("own path"))
            .env(CASE, case)
            .env("LD_LIBRARY_PATH", folder)
            .status()
            .expect("child process");
        println!("test load::{case} ... {}", if status.success() { "ok" } else { "FAILED" });
        failed += usize::from(!status.success());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn compile_fake_driver(into: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("fake_driver.c");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-o"])
        .arg(into.join("libcuda.so.1"))
        .arg(source)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", compiler.to_string_lossy()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What the program sees where the driver cannot be loaded. That it started at all shows that the binary does
/// not name libcuda among the libraries it needs.
fn without_driver() {
    let error = cust::init(cust::CudaFlags::empty()).expect_err("there is no driver");
    assert_eq!(error, CudaError::NoDevice);
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    // Again, now that the entry is resolved, and a function that was not called before.
    assert_eq!(cust::init(cust::CudaFlags::empty()), Err(CudaError::NoDevice));
    assert_eq!(cust::device::Device::num_devices().err(), Some(CudaError::NoDevice));

    let mut name: *const c_char = ptr::null();
    // SAFETY: `name` outlives the call.
    let code = unsafe { sys::cuGetErrorName(sys::cudaError_enum::CUDA_ERROR_NO_DEVICE, &mut name) };
    assert_eq!(code as u32, 0);
    assert_eq!(text(name), "CUDA_ERROR_NO_DEVICE");
    let reason = text(libcuda_load_error());
    assert!(reason.contains("libcuda.so.1"), "{reason}");
}

fn with_fake_driver() {
    assert!(libcuda_load_error().is_null());
    assert_eq!(cust::init(cust::CudaFlags::empty()), Ok(()));
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    assert_eq!(unsafe { sys::cuDriverGetVersion(&mut version) } as u32, 0);
    assert_eq!(version, 13000);

    // Twice each: through the resolver, and through the resolved entry.
    for _ in 0..2 {
        // SAFETY: the fake driver only compares the pointers.
        let code = unsafe {
            sys::cuLaunchKernel(
                at(1),
                2,
                3,
                4,
                5,
                6,
                7,
                8,
                at(9),
                at::<*mut c_void>(10),
                at::<*mut c_void>(11),
            )
        };
        assert_eq!(code as u32, 0);
        // SAFETY: as above.
        let code = unsafe { sys::cuTexRefSetMipmapLevelBias(at(1), 0.375) };
        assert_eq!(code as u32, 0);
    }
    let mut name: *const c_char = ptr::null();
    // SAFETY: `name` outlives the call.
    assert_eq!(unsafe { sys::cuGetErrorName(sys::cudaError_enum::CUDA_SUCCESS, &mut name) } as u32, 0);
    assert_eq!(text(name), "FROM_THE_DRIVER");
    // The fake driver has no such function.
    // SAFETY: not resolved to any code that reads the argument.
    assert_eq!(unsafe { sys::cuCtxSynchronize() } as u32, 500);
}

/// First calls of the same functions from many threads at once.
fn from_many_threads() {
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                assert_eq!(cust::init(cust::CudaFlags::empty()), Ok(()));
                let mut version = 0;
                // SAFETY: `version` outlives the call.
                assert_eq!(unsafe { sys::cuDriverGetVersion(&mut version) } as u32, 0);
                assert_eq!(version, 13000);
            });
        }
    });
}

/// A pointer that is only compared, never followed.
fn at<T>(address: usize) -> *mut T {
    ptr::without_provenance_mut(address)
}

fn text(from: *const c_char) -> String {
    assert!(!from.is_null());
    // SAFETY: checked for null; the library's texts are static and end with a zero byte.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}
