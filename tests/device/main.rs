//! Tests that need a GPU, one program. All are ignored where tests usually run, and none passes without a GPU:
//! `scripts/gpu-check.sh` runs them.

mod cublaslt;
mod graph;
#[path = "../kernels/mod.rs"]
mod kernels;
mod offline;
mod orders;
mod refused;
#[path = "../resumable/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of the commands, which use all of it")]
mod resumable;
mod resumed;
mod same_bits;
mod step;

use host::cuda::{CudaExec, CudaOptions, Products};
use host::embedded;
use kernels::{Backend, Outcome};

impl Backend for CudaExec {
    const FULL_SIZE: bool = true;
}

/// The first GPU with the kernels of this program.
///
/// # Panics
/// Without GPU or kernels, with the reason: a device test that does not run must not pass.
#[track_caller]
pub fn open() -> CudaExec {
    // Where cuBLASLt is missing, the one body that needs it fails with the reason.
    let options = CudaOptions { products: Products::Auto, ..CudaOptions::default() };
    CudaExec::open(embedded::images(), options).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn on_the_gpu(body: impl Fn(&mut CudaExec) -> Outcome) {
    if let Err(error) = body(&mut open()) {
        panic!("{error}");
    }
}

mod gpu_kernels {
    macro_rules! tests {
        ($($stem:ident { $($body:ident),* $(,)? })*) => {$(
            mod $stem {
                $(
                    #[test]
                    #[ignore = "needs a GPU: run scripts/gpu-check.sh"]
                    fn $body() {
                        crate::on_the_gpu(crate::kernels::$stem::$body);
                    }
                )*
            }
        )*};
    }

    crate::for_each_body!(tests);
}
