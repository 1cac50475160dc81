//! Test bodies for every machine: the gated linear units against f64.

use gpu::kernels::glu::{GluBackward, GluBackwardHalves, GluForward, hidden_width, reference};
use gpu::kernels::halve::reference::bf16;

use super::machine::Machine;

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

fn check<M: Machine>(machine: &mut M, rows: usize, heads: Heads) -> Result<(), M::Error> {
    let width = heads.width();
    let (mut pre, d) = (numbers(rows * 2 * width, 1), numbers(rows * width, 2));
    for (i, x) in pre.iter_mut().enumerate() {
        // The linear half small enough for products to stay finite.
        if heads.columns().iter().any(|c| c.0 == i % (2 * width)) {
            *x = x.clamp(-3.0, 3.0);
        }
    }
    let d: Vec<f32> = d.into_iter().map(|x| x.clamp(-3.0, 3.0)).collect();
    let (device_pre, device_d) = (machine.put(&pre)?, machine.put(&d)?);
    let (hidden, d_pre) = (machine.output(rows * width)?, machine.output(2 * rows * width)?);
    let (rows32, value_width) = (rows as u32, heads.value as u32);
    let (branch_width, branches) = (heads.branch as u32, heads.branches as u32);
    machine.launch(GluForward {
        rows: rows32,
        value_width,
        branch_width,
        branches,
        pre: device_pre.into(),
        hidden: hidden.into(),
    })?;
    machine.launch(GluBackward {
        rows: rows32,
        value_width,
        branch_width,
        branches,
        d_hidden: device_d.into(),
        pre: device_pre.into(),
        d_pre: d_pre.into(),
    })?;
    let halves = machine.output(rows * width)?;
    machine.launch(GluBackwardHalves {
        rows: rows32,
        value_width,
        branch_width,
        branches,
        d_hidden: device_d.into(),
        pre: device_pre.into(),
        d_pre: halves.into(),
    })?;
    let (hidden, d_pre) = (machine.written(hidden)?, machine.written(d_pre)?);
    // Rounded, bit by bit.
    for (i, word) in machine.written(halves)?.into_iter().map(f32::to_bits).enumerate() {
        let rounded = [2 * i, 2 * i + 1].map(|at| bf16(d_pre[at]));
        assert_eq!([Some(word as u16), Some((word >> 16) as u16)], rounded, "{heads:?}: word {i} in bf16");
    }
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
    Ok(())
}

/// One branch, many; a single row; rows that fill no block.
pub fn forward_and_backward<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    check(machine, 3, Heads { value: 8, branch: 4, branches: 1 })?;
    check(machine, 37, Heads { value: 4, branch: 12, branches: 3 })?;
    check(machine, 5, Heads { value: 64, branch: 32, branches: 8 })?;
    check(machine, 1, Heads { value: 32, branch: 32, branches: 4 })
}

/// A NaN in either half shows in its element alone.
pub fn nan_shows<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    let mut pre = [1.0; 16];
    pre[2] = f32::NAN; // linear half of element 2
    pre[5] = f32::NAN; // gate of element 1
    let (pre, hidden) = (machine.put(&pre)?, machine.output(8)?);
    machine.launch(GluForward {
        rows: 1,
        value_width: 4,
        branch_width: 4,
        branches: 1,
        pre: pre.into(),
        hidden: hidden.into(),
    })?;
    let nan: Vec<bool> = machine.written(hidden)?.iter().map(|x| x.is_nan()).collect();
    assert_eq!(nan, [false, true, true, false, false, false, false, false]);
    Ok(())
}
