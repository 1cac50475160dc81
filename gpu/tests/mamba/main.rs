//! The Mamba-2 block's kernels in the emulator, against the definition in f64.

mod bodies;
mod contract;
#[path = "../machine/emulated.rs"]
mod emulated;
#[path = "../machine/mod.rs"]
mod machine;
mod pipeline;
mod problem;
#[path = "../common/random.rs"]
mod random;
mod reference;

use emulated::{Emulated, under_every_interleaving};

macro_rules! tests {
    ($($body:ident),*) => {$(
        #[test]
        fn $body() {
            under_every_interleaving(bodies::$body);
        }
    )*};
}

tests!(
    default_sizes,
    one_bar,
    long_window,
    odd_sizes,
    wide_block,
    fewer_taps,
    closed_gate,
    fast_and_slow,
    nan_shows,
    reproducible
);

#[test]
fn interleavings_give_the_same_bits() {
    let run = |seed| bodies::bits(&mut Emulated::new(seed)).unwrap_or_else(|fault| panic!("{fault}"));
    let first = run(1);
    assert!((2..5).all(|seed| run(seed) == first));
}

#[test]
fn many_rows() {
    // One interleaving: thousands of blocks take long, and differ from one in nothing but their number.
    bodies::many_rows(&mut Emulated::new(1)).unwrap_or_else(|fault| panic!("{fault}"));
}
