//! The gated linear units in the emulator, against f64.

use cuda_std::Kernel;
use cuda_std::emulator::{Emulator, HostBuf};
use gpu::kernels::glu::{GluBackward, GluForward, hidden_width, reference};

/// Content of memory that a kernel must not write.
const UNTOUCHED: f32 = -77.0;

/// Heads of a network.
#[derive(Clone, Copy, Debug)]
struct Heads {
    value: usize,
    branch: usize,
    branches: usize,
}

impl Heads {
    fn width(self) -> usize {
        hidden_width(self.value as u32, self.branch as u32, self.branches as u32) as usize
    }

    /// Columns of `pre` of a column of `hidden`, written out head by head.
    fn columns(self) -> Vec<(usize, usize)> {
        let mut columns = Vec::new();
        for width in std::iter::once(self.value).chain(std::iter::repeat_n(self.branch, self.branches)) {
            let first = 2 * columns.len();
            columns.extend((0..width).map(|c| (first + c, first + width + c)));
        }
        columns
    }
}

/// Gates of every size: the sigmoid's tails, its middle, both zeros; other numbers in (-2, 2).
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    let special = [0.0, -0.0, 1e-30, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0, 1e30, -1e30];
    let other = |i: usize| ((i * 7919 + seed * 104_729) % 4001) as f32 / 1000.0 - 2.0;
    (0..len).map(|i| if i % 3 == 1 { special[(i / 3 + seed) % special.len()] } else { other(i) }).collect()
}

fn check(rows: usize, heads: Heads, seed: u64) {
    let width = heads.width();
    let (mut pre, d) = (numbers(rows * 2 * width, 1), numbers(rows * width, 2));
    for (i, x) in pre.iter_mut().enumerate() {
        // The linear half small enough for products to stay finite.
        if heads.columns().iter().any(|c| c.0 == i % (2 * width)) {
            *x = x.clamp(-3.0, 3.0);
        }
    }
    let d: Vec<f32> = d.into_iter().map(|x| x.clamp(-3.0, 3.0)).collect();
    let buffers = [&pre, &d].map(|values| HostBuf::from(values.as_slice()));
    let (hidden, d_pre) = (
        HostBuf::from(vec![UNTOUCHED; rows * width + 4]),
        HostBuf::from(vec![UNTOUCHED; 2 * rows * width + 4]),
    );
    let (rows32, value_width) = (rows as u32, heads.value as u32);
    let (branch_width, branches) = (heads.branch as u32, heads.branches as u32);
    let mut emulator = Emulator::new(seed).watch_global();
    let forward = GluForward {
        rows: rows32,
        value_width,
        branch_width,
        branches,
        pre: buffers[0].buf().into(),
        hidden: hidden.buf().into(),
    };
    let backward = GluBackward {
        rows: rows32,
        value_width,
        branch_width,
        branches,
        d_hidden: buffers[1].buf().into(),
        pre: buffers[0].buf().into(),
        d_pre: d_pre.buf().into(),
    };
    emulator.launch(&forward).unwrap_or_else(|fault| panic!("{fault}"));
    emulator.launch(&backward).unwrap_or_else(|fault| panic!("{fault}"));
    let (hidden, d_pre) = (hidden.to_vec(), d_pre.to_vec());
    assert!(hidden[rows * width..].iter().chain(&d_pre[2 * rows * width..]).all(|&x| x == UNTOUCHED));
    for r in 0..rows {
        for (c, (linear, gate)) in heads.columns().into_iter().enumerate() {
            let (a, g) = (pre[r * 2 * width + linear], pre[r * 2 * width + gate]);
            let expected = reference::forward(a, g);
            let got = hidden[r * width + c];
            assert!(expected.accepts(got), "{heads:?} [{r}, {c}] a {a} g {g}: {got}, expected {expected:?}");
            let (da, dg) = reference::backward(d[r * width + c], a, g);
            for (column, expected) in [(linear, da), (gate, dg)] {
                let got = d_pre[r * 2 * width + column];
                assert!(expected.accepts(got), "{heads:?} d [{r}, {c}] {got}, expected {expected:?}");
            }
        }
    }
}

#[test]
fn forward_and_backward() {
    check(3, Heads { value: 8, branch: 4, branches: 1 }, 1);
    check(37, Heads { value: 4, branch: 12, branches: 3 }, 2);
    check(5, Heads { value: 64, branch: 32, branches: 8 }, 3);
    check(1, Heads { value: 32, branch: 32, branches: 4 }, 4);
}

#[test]
fn nan_shows() {
    let pre = HostBuf::from(vec![
        1.0,
        1.0,
        f32::NAN,
        1.0,
        1.0,
        f32::NAN,
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]);
    let hidden = HostBuf::<f32>::zeroed(8);
    let kernel = GluForward {
        rows: 1,
        value_width: 4,
        branch_width: 4,
        branches: 1,
        pre: pre.buf().into(),
        hidden: hidden.buf().into(),
    };
    Emulator::new(1).launch(&kernel).unwrap_or_else(|fault| panic!("{fault}"));
    let nan: Vec<bool> = hidden.to_vec().iter().map(|x| x.is_nan()).collect();
    assert_eq!(nan, [false, true, true, false, false, false, false, false]);
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
