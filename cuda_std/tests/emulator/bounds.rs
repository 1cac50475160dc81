//! Accesses outside of buffers and shared memory, and misaligned ones.

use cuda_std::AccessKind;
use cuda_std::emulator::{Fault, HostBuf};
use cuda_std::prelude::*;

use crate::{assert_site, faults, passes};

const SOURCE: &str = include_str!("bounds.rs");
const FILE: &str = "bounds.rs";

/// y[i] = x[i] for i < n, without looking at the lengths.
#[kernel(block = 32, grid = n.div_ceil(32))]
fn copy(n: u32, x: In<f32>, y: Out<f32>) {
    let i = thread::global_index();
    if i < n {
        let v = x.get(i); // <read>
        y.set(i, v); // <write>
    }
}

#[test]
fn reads_and_writes_out_of_bounds() {
    let (x, y) = (HostBuf::<f32>::zeroed(70), HostBuf::<f32>::zeroed(70));
    let launch = Copy { n: 70, x: x.buf().into(), y: y.buf().into() };
    passes(&launch);

    for fault in faults(&Copy { x: x.buf().slice(0, 69).into(), ..launch }) {
        let Fault::OutOfBounds { at, buffer, access, index, len } = fault else { panic!("{fault}") };
        assert_site(&at, "copy", FILE, SOURCE, "read");
        assert_eq!((at.block.x, at.thread), (2, 5));
        assert_eq!((buffer, access, index, len), ("x", AccessKind::Read, 69, 69));
    }
    for fault in faults(&Copy { y: y.buf().slice(0, 69).into(), ..launch }) {
        let Fault::OutOfBounds { at, buffer, access, index, len } = fault else { panic!("{fault}") };
        assert_site(&at, "copy", FILE, SOURCE, "write");
        assert_eq!((buffer, access, index, len), ("y", AccessKind::Write, 69, 69));
    }
    let fault = faults(&Copy { y: cuda_std::Buf::NULL.into(), ..launch }).remove(0);
    assert!(matches!(fault, Fault::OutOfBounds { buffer: "y", len: 0, .. }), "{fault}");
}

/// Moves four elements from x[start] to y[start], and adds one to z[start].
#[kernel(block = 1, grid = 1)]
fn move4(start: u32, x: In<u32>, y: Out<u32>, z: InOut<u32>) {
    let v = x.get4(start); // <read 4>
    y.set4(start, v); // <write 4>
    z.atomic_add(start, 1); // <atomic>
}

#[test]
fn vector_accesses() {
    let x = HostBuf::from((0..12u32).collect::<Vec<_>>());
    let (y, z) = (HostBuf::<u32>::zeroed(12), HostBuf::<u32>::zeroed(12));
    let launch = Move4 { start: 4, x: x.buf().into(), y: y.buf().into(), z: z.buf().into() };
    passes(&launch);
    assert_eq!(y.to_vec()[4..8], [4, 5, 6, 7]);

    let fault = faults(&Move4 { start: 6, ..launch }).remove(0);
    let Fault::Misaligned { at, buffer: "x", index: 6, bytes: 16 } = fault else { panic!("{fault}") };
    assert_site(&at, "move4", FILE, SOURCE, "read 4");

    // Aligned by index but not by address.
    let fault = faults(&Move4 { start: 0, y: y.buf().slice(1, 11).into(), ..launch }).remove(0);
    let Fault::Misaligned { at, buffer: "y", index: 0, .. } = fault else { panic!("{fault}") };
    assert_site(&at, "move4", FILE, SOURCE, "write 4");

    // The last of the four is outside.
    let fault = faults(&Move4 { start: 8, x: x.buf().slice(0, 11).into(), ..launch }).remove(0);
    let Fault::OutOfBounds { buffer: "x", index: 11, len: 11, .. } = fault else { panic!("{fault}") };

    let fault = faults(&Move4 { z: z.buf().slice(0, 4).into(), ..launch }).remove(0);
    let Fault::OutOfBounds { at, buffer: "z", access: AccessKind::ReadWrite, index: 4, .. } = fault else {
        panic!("{fault}")
    };
    assert_site(&at, "move4", FILE, SOURCE, "atomic");
    let fault = faults(&Move4 { start: u32::MAX, ..launch }).remove(0);
    let Fault::OutOfBounds { buffer: "x", index: 0xffff_ffff, .. } = fault else { panic!("{fault}") };
}

/// Moves two elements from x[start] to y[start].
#[kernel(block = 1, grid = 1)]
fn move2(start: u32, x: In<u32>, y: Out<u32>) {
    let v = x.get2(start); // <read 2>
    y.set2(start, v); // <write 2>
}

#[test]
fn pairs() {
    let x = HostBuf::from((0..6u32).collect::<Vec<_>>());
    let y = HostBuf::<u32>::zeroed(6);
    let launch = Move2 { start: 2, x: x.buf().into(), y: y.buf().into() };
    passes(&launch);
    assert_eq!(y.to_vec(), [0, 0, 2, 3, 0, 0]);

    let fault = faults(&Move2 { start: 3, ..launch }).remove(0);
    let Fault::Misaligned { at, buffer: "x", index: 3, bytes: 8 } = fault else { panic!("{fault}") };
    assert_site(&at, "move2", FILE, SOURCE, "read 2");
    let fault = faults(&Move2 { y: y.buf().slice(1, 5).into(), ..launch }).remove(0);
    let Fault::Misaligned { at, buffer: "y", index: 2, bytes: 8 } = fault else { panic!("{fault}") };
    assert_site(&at, "move2", FILE, SOURCE, "write 2");
    let fault = faults(&Move2 { start: 4, y: y.buf().slice(0, 5).into(), ..launch }).remove(0);
    let Fault::OutOfBounds { buffer: "y", access: AccessKind::Write, index: 5, len: 5, .. } = fault else {
        panic!("{fault}")
    };
}

/// A view of `len` floats at `offset` of 64 bytes, of which four at `i` are written and read.
#[kernel(block = 1, grid = 1, shared = 64)]
fn shared_view(offset: u32, len: u32, i: u32) {
    let s = shared::array::<f32>(offset, len); // <view>
    s.set4(i, [1.0; 4]); // <shared write>
    let [a, b] = s.get2(i + 2);
    assert!(a + b == 2.0);
}

#[test]
fn shared_bounds() {
    let launch = SharedView { offset: 16, len: 12, i: 8 };
    passes(&launch);

    let fault = faults(&SharedView { len: 13, ..launch }).remove(0);
    let Fault::OutOfBounds { at, buffer: "shared memory", len: 64, .. } = fault else { panic!("{fault}") };
    assert_site(&at, "shared_view", FILE, SOURCE, "view");

    let fault = faults(&SharedView { offset: 18, len: 4, i: 0 }).remove(0);
    let Fault::Misaligned { at, index: 18, bytes: 4, .. } = fault else { panic!("{fault}") };
    assert_site(&at, "shared_view", FILE, SOURCE, "view");

    // Inside of the block's memory, but outside of the view.
    let fault = faults(&SharedView { len: 8, ..launch }).remove(0);
    let Fault::OutOfBounds { at, access: AccessKind::Write, index: 8, len: 8, .. } = fault else {
        panic!("{fault}")
    };
    assert_site(&at, "shared_view", FILE, SOURCE, "shared write");

    let fault = faults(&SharedView { offset: 8, ..launch }).remove(0);
    let Fault::Misaligned { at, buffer: "shared memory", index: 8, bytes: 16 } = fault else {
        panic!("{fault}")
    };
    assert_site(&at, "shared_view", FILE, SOURCE, "shared write");

    let fault = faults(&SharedView { i: u32::MAX, ..launch }).remove(0);
    assert!(matches!(fault, Fault::OutOfBounds { buffer: "shared memory", .. }), "{fault}");
}

/// Round trip of every element type.
#[kernel(block = 32, grid = 1, shared = 32 * 8)]
fn types(a: InOut<f64>, b: InOut<u16>, c: InOut<u8>, d: InOut<i32>, e: InOut<u64>) {
    let t = thread::thread_idx();
    let s = shared::array::<f64>(0, 32);
    s.set(t, a.get(t));
    a.set(t, s.get(t) * 2.0);
    b.set(t, b.get(t) + 1);
    c.set(t, c.get(t) + 2);
    let i = shared::array::<i32>(t * 8, 1);
    i.set(0, d.get(t));
    d.set(t, -i.get(0));
    e.set(t, e.get(t) << 40);
}

#[test]
fn element_types() {
    let a = HostBuf::from((0..32).map(|i| f64::from(i) / 3.0).collect::<Vec<_>>());
    let b = HostBuf::from((0..32).map(|i| i * 1000).collect::<Vec<u16>>());
    let c = HostBuf::from((0..32).collect::<Vec<u8>>());
    let d = HostBuf::from((0..32).collect::<Vec<i32>>());
    let e = HostBuf::from((0..32).collect::<Vec<u64>>());
    let launch = Types {
        a: a.buf().into(),
        b: b.buf().into(),
        c: c.buf().into(),
        d: d.buf().into(),
        e: e.buf().into(),
    };
    cuda_std::emulator::Emulator::new(0).launch(&launch).unwrap();
    assert_eq!(a.to_vec()[5], 10.0 / 3.0);
    assert_eq!((b.to_vec()[5], c.to_vec()[5], d.to_vec()[5], e.to_vec()[5]), (5001, 7, -5, 5 << 40));
}

/// y[i + shift] = x[i], for overlapping views of one buffer.
#[kernel(block = 32, grid = 1)]
fn shift(n: u32, shift: u32, x: In<f32>, y: Out<f32>) {
    let i = thread::thread_idx();
    if i < n {
        let v = x.get(i); // <aliased read>
        y.set(i + shift, v); // <aliased write>
    }
}

#[test]
fn a_buffer_read_and_written_by_one_launch() {
    let buf = HostBuf::from((0..64).map(|i| i as f32).collect::<Vec<_>>());
    // The ranges overlap, the elements do not.
    let launch = Shift { n: 16, shift: 16, x: buf.buf().into(), y: buf.buf().into() };
    passes(&launch);
    assert!(buf.to_vec().iter().take(32).enumerate().all(|(i, v)| *v == (i % 16) as f32));
    passes(&Shift { n: 32, shift: 0, y: buf.buf().slice(32, 32).into(), ..launch });

    for fault in faults(&Shift { n: 17, ..launch }) {
        let Fault::Aliased { at, access, buffer, index: 16, other } = fault else { panic!("{fault}") };
        if access == AccessKind::Read {
            assert_site(&at, "shift", FILE, SOURCE, "aliased read");
            assert_eq!((buffer, other), ("x", "y"));
        } else {
            assert_site(&at, "shift", FILE, SOURCE, "aliased write");
            assert_eq!((buffer, other), ("y", "x"));
        }
    }
}
