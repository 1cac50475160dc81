//! What a GPU refuses, and how that is said (`docs/ERRORS.md`).

use host::cuda::{CudaExec, CudaOptions};
use host::embedded;
use host::exec::Memory;

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_gpu_that_is_not_there_is_named() {
    let options = CudaOptions { gpu: 999, ..CudaOptions::default() };
    let message = CudaExec::open(embedded::images(), options).unwrap_err().to_string();
    assert!(message.starts_with("there is no GPU 999: the driver sees "), "{message}");
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn a_buffer_that_does_not_fit_is_named_with_what_to_reduce_and_the_rest_goes_on() {
    let mut exec = crate::open();
    let small = exec.alloc::<f32>("small", 4).unwrap();
    // 64 TiB: more than any GPU has.
    let message = exec.alloc::<f32>("replay.states", 1 << 44).unwrap_err().to_string();
    assert!(
        message.starts_with("buffer `replay.states`: no room for 70368744177664 bytes (64.0 TiB), "),
        "{message}"
    );
    assert!(message.contains("; reduce collect.capacity"), "{message}");
    exec.upload(small, &[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert_eq!(exec.download(small).unwrap(), [1.0, 2.0, 3.0, 4.0]);
}
