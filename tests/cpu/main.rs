//! Tests that need no GPU, one program: the kernels in the SIMT emulator, and what holds of the sources.

mod capture;
mod coverage;
mod host_replay;
#[path = "../kernels/mod.rs"]
mod kernels;
mod mutated;
mod no_leak;
mod recorded;
mod resumed;
mod shuffled;

use host::emulated::EmulatedExec;
use kernels::{Backend, Outcome};

impl Backend for EmulatedExec {
    const FULL_SIZE: bool = false;
}

/// Each body runs under these interleavings of a block's threads.
const SEEDS: [u64; 3] = [1, 20, 300];

#[track_caller]
fn under_every_interleaving(body: impl Fn(&mut EmulatedExec) -> Outcome) {
    for seed in SEEDS {
        println!("interleaving seed {seed}");
        if let Err(error) = body(&mut EmulatedExec::new(seed)) {
            panic!("interleaving seed {seed}: {error}");
        }
    }
}

mod emulated_kernels {
    macro_rules! tests {
        ($($stem:ident { $($body:ident),* $(,)? })*) => {$(
            mod $stem {
                $(
                    #[test]
                    fn $body() {
                        crate::under_every_interleaving(crate::kernels::$stem::$body);
                    }
                )*
            }
        )*};
    }

    crate::for_each_body!(tests);
}
