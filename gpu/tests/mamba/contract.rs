//! What the launches refuse.

use cuda_std::Kernel;
use cuda_std::emulator::HostBuf;
use gpu::kernels::mamba::{MambaForward, Shape};

#[test]
fn sizes_that_the_kernels_do_not_take() {
    let usual = Shape { features: 9, bars: 8, width: 32, state: 16, heads: 4 };
    assert!(usual.fits());
    // The longest window of the market's features, at the default sizes.
    assert!(Shape { bars: 64, ..usual }.fits());
    for shape in [
        Shape { bars: 0, ..usual },
        Shape { features: 0, ..usual },
        Shape { width: 30, heads: 2, ..usual },
        Shape { heads: 3, ..usual },
        Shape { bars: 200, ..usual },
        Shape { width: 128, state: 128, bars: 64, ..usual },
    ] {
        assert!(!shape.fits(), "{shape:?}");
    }
}

#[test]
fn buffers_that_are_too_short() {
    let buffer = HostBuf::<f32>::zeroed(1 << 14);
    let shape = Shape { features: 2, bars: 3, width: 8, state: 2, heads: 2 };
    let refused = |rows, second, second_from, stride, states: usize, joined: usize| {
        MambaForward {
            rows,
            second,
            second_from,
            stride,
            features: shape.features,
            bars: shape.bars,
            width: shape.width,
            state: shape.state,
            heads: shape.heads,
            folded: buffer.buf().slice(0, 2 * shape.folded().len as usize).into(),
            states: buffer.buf().slice(0, states).into(),
            joined: buffer.buf().slice(0, joined).into(),
        }
        .check()
        .is_err()
    };
    assert!(!refused(4, 2, 2, 8, 32, 96));
    assert!(refused(4, 2, 2, 8, 31, 96), "states are shorter");
    assert!(refused(4, 2, 3, 8, 32, 96), "the second network's rows are beyond the end");
    assert!(refused(4, 2, 2, 8, 32, 95), "the result is shorter");
    assert!(refused(4, 2, 2, 4, 32, 96), "a state is shorter than its window");
    assert!(refused(0, 2, 2, 8, 32, 96), "no row");
}
