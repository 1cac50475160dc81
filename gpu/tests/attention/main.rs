//! The temporal attention's kernels in the emulator, against the definition in f64 and an independent program's values.

mod bodies;
mod check;
mod contract;
#[path = "../machine/emulated.rs"]
mod emulated;
mod golden;
#[path = "../machine/mod.rs"]
mod machine;
mod pipeline;
mod problem;
#[path = "../common/random.rs"]
mod random;
mod reference;

use emulated::{Emulated, under_every_interleaving};

macro_rules! tests {
    ($($module:ident { $($body:ident),* })*) => { $($(
        #[test]
        fn $body() {
            under_every_interleaving($module::$body);
        }
    )*)* };
}

tests! {
    bodies {
        default_window, one_bar, long_window, odd_sizes, wide_trunk, tensor_cores, closed_gate, large_scores, nan_shows, reproducible
    }
    golden { golden_steps }
}

#[test]
fn interleavings_give_the_same_bits() {
    let run = |seed| bodies::bits(&mut Emulated::new(seed)).unwrap_or_else(|fault| panic!("{fault}"));
    let first = run(1);
    assert!((2..5).all(|seed| run(seed) == first));
}

#[test]
fn many_rows() {
    // One interleaving: a thousand blocks take long, and differ from one in nothing but their number.
    bodies::many_rows(&mut Emulated::new(1)).unwrap_or_else(|fault| panic!("{fault}"));
}
