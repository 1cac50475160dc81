//! The spectral norm's three launches in the emulator.

mod bodies;
#[path = "../machine/emulated.rs"]
mod emulated;
#[path = "../machine/mod.rs"]
mod machine;

use cuda_std::Kernel;
use cuda_std::emulator::HostBuf;
use gpu::kernels::spectral_norm::{SpectralColumns, matrix};

macro_rules! tests {
    ($($body:ident)*) => { $(
        #[test]
        fn $body() {
            emulated::under_every_interleaving(bodies::$body);
        }
    )* };
}

tests! {
    random_matrices
    a_matrix_within_the_bound_keeps_its_bits
    zero_gives_sigma_zero_and_keeps_u
    what_is_not_finite_shows_and_changes_nothing
    c42_power_iteration
    golden_steps
}

#[test]
fn contract() {
    let (params, vectors) = (HostBuf::<f32>::zeroed(100), HostBuf::<f32>::zeroed(40));
    let refused = |words: [Option<u64>; 2], stride: u32| {
        SpectralColumns {
            matrix0: words[0].expect("a small matrix"),
            matrix1: words[1].expect("a small matrix"),
            matrix2: 0,
            matrix3: 0,
            stride,
            params: params.buf().into(),
            u: vectors.buf().into(),
            y: vectors.buf().into(),
        }
        .check()
        .is_err()
    };
    let none = Some(0);
    assert!(!refused([matrix(4, 12, 8), none], 12));
    assert!(!refused([matrix(4, 12, 4), matrix(52, 6, 8)], 12));
    assert!(refused([matrix(8, 12, 8), none], 12), "it ends behind the parameters");
    assert!(refused([matrix(4, 12, 4), matrix(56, 6, 8)], 12), "the second one does");
    assert!(refused([matrix(2, 12, 8), none], 12), "not at a 16-byte boundary");
    assert!(refused([matrix(0, 12, 8), none], 11), "u is longer than the stride");
    assert!(refused([matrix(4, 0, 8), none], 12), "an empty matrix");
    assert!(refused([none, matrix(4, 12, 8)], 12), "no first matrix");
    assert!(refused([matrix(0, 1, 50), none], 50), "the vectors are shorter");
    assert_eq!(matrix(0, 1 << 16, 1), None);
}
