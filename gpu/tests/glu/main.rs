//! The gated linear units in the emulator.

mod bodies;
#[path = "../machine/emulated.rs"]
mod emulated;
#[path = "../machine/mod.rs"]
mod machine;

use cuda_std::Kernel;
use cuda_std::emulator::HostBuf;
use gpu::kernels::glu::GluForward;

#[test]
fn forward_and_backward() {
    emulated::under_every_interleaving(bodies::forward_and_backward);
}

#[test]
fn nan_shows() {
    emulated::under_every_interleaving(bodies::nan_shows);
}

#[test]
fn contract() {
    let buffer = HostBuf::<f32>::zeroed(64);
    let refused = |rows, value_width, branch_width, branches, pre: usize| {
        GluForward {
            rows,
            value_width,
            branch_width,
            branches,
            pre: buffer.buf().slice(0, pre).into(),
            hidden: buffer.buf().slice(32, 32).into(),
        }
        .check()
        .is_err()
    };
    assert!(!refused(2, 4, 4, 1, 32));
    assert!(refused(2, 4, 4, 1, 31), "pre is shorter");
    assert!(refused(2, 6, 4, 1, 64), "no multiple of 4");
    assert!(refused(2, 4, 2, 1, 64), "no multiple of 4");
    assert!(refused(0, 4, 4, 1, 64), "no row");
    assert!(refused(u32::MAX, 4, 4, 1, 64), "more elements than 32 bits number");
}
