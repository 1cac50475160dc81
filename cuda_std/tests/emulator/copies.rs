//! Asynchronous copies: they land at the wait, and an access before it is reported.

use cuda_std::emulator::{Fault, HostBuf};
use cuda_std::prelude::*;

use crate::{assert_place, assert_site, faults, passes};

const SOURCE: &str = include_str!("copies.rs");
const FILE: &str = "copies.rs";

/// y = x, 128 floats through shared memory in four-float copies by 32 threads; lane t reads lane 31 - t's.
#[kernel(block = 32, grid = 1, shared = 512, barriers = 1)]
fn staged(wait: u32, barrier: u32, x: In<f32>, y: Out<f32>) {
    let (s, t) = (shared::array::<f32>(0, 128), thread::thread_idx());
    shared::copy_async16(s, 4 * t, &x, 4 * t, 16); // <copy>
    shared::copy_commit();
    if wait == 1 {
        shared::copy_wait::<0>();
    }
    if barrier == 1 {
        thread::sync();
    }
    y.set4(124 - 4 * t, s.get4(124 - 4 * t)); // <use>
}

#[test]
fn copy_wait_barrier() {
    let x = HostBuf::from((0..128).map(|i| i as f32).collect::<Vec<_>>());
    let y = HostBuf::<f32>::zeroed(128);
    let launch = Staged { wait: 1, barrier: 1, x: x.buf().into(), y: y.buf().into() };
    passes(&launch);
    assert_eq!(y.to_vec(), x.to_vec());

    // Without wait the copy is still under way, barrier or not.
    for fault in faults(&Staged { wait: 0, ..launch }) {
        let Fault::CopyNotAwaited { at, copy_thread, copy, .. } = fault else { panic!("{fault}") };
        assert_site(&at, "staged", FILE, SOURCE, "use");
        assert_place(copy, FILE, SOURCE, "copy");
        assert_eq!(copy_thread, 31 - at.thread);
    }
    // Without barrier only the thread that copied may read.
    for fault in faults(&Staged { barrier: 0, ..launch }) {
        match fault {
            Fault::SharedRace { at, other, .. } => {
                assert_site(&at, "staged", FILE, SOURCE, "use");
                assert_place(other, FILE, SOURCE, "copy");
            }
            Fault::SharedUninitialised { at, .. } => assert_site(&at, "staged", FILE, SOURCE, "use"),
            other => panic!("{other}"),
        }
    }
}

/// Two groups under way; the wait leaves `N` of them, and group `read` is read.
#[kernel(block = 1, grid = 1, shared = 8)]
fn groups(leave: u32, read: u32, x: In<f32>, y: Out<f32>) {
    let s = shared::array::<f32>(0, 2);
    for group in 0..2 {
        shared::copy_async4(s, group, &x, group, 4); // <group>
        shared::copy_commit();
    }
    if leave == 1 {
        shared::copy_wait::<1>();
    } else {
        shared::copy_wait::<0>();
    }
    y.set(0, s.get(read)); // <read group>
}

#[test]
fn wait_leaves_the_newest_groups() {
    let x = HostBuf::from(vec![5.0f32, 6.0]);
    let y = HostBuf::<f32>::zeroed(1);
    let launch = Groups { leave: 1, read: 0, x: x.buf().into(), y: y.buf().into() };
    passes(&launch);
    assert_eq!(y.to_vec(), [5.0]);
    passes(&Groups { leave: 0, read: 1, ..launch });
    assert_eq!(y.to_vec(), [6.0]);
    for fault in faults(&Groups { read: 1, ..launch }) {
        let Fault::CopyNotAwaited { at, copy, byte: 4, .. } = fault else { panic!("{fault}") };
        assert_site(&at, "groups", FILE, SOURCE, "read group");
        assert_place(copy, FILE, SOURCE, "group");
    }
}

/// A copy that was never committed is not waited for.
#[kernel(block = 1, grid = 1, shared = 4)]
fn uncommitted(x: In<f32>, y: Out<f32>) {
    let s = shared::array::<f32>(0, 1);
    shared::copy_async4(s, 0, &x, 0, 4);
    shared::copy_wait::<0>();
    y.set(0, s.get(0));
}

#[test]
fn wait_without_commit() {
    let (x, y) = (HostBuf::from(vec![1.0f32]), HostBuf::<f32>::zeroed(1));
    for fault in faults(&Uncommitted { x: x.buf().into(), y: y.buf().into() }) {
        assert!(matches!(fault, Fault::CopyNotAwaited { .. }), "{fault}");
    }
}

/// One copy of `bytes` bytes from x[start].
#[kernel(block = 1, grid = 1, shared = 16)]
fn partial(bytes: u32, start: u32, x: In<f32>, y: Out<f32>) {
    let s = shared::array::<f32>(0, 4);
    shared::copy_async16(s, 0, &x, start, bytes); // <partial>
    shared::copy_commit();
    shared::copy_wait::<0>();
    y.set4(0, s.get4(0));
}

#[test]
fn the_rest_of_a_partial_copy_is_zero() {
    let x = HostBuf::from(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y = HostBuf::<f32>::zeroed(4);
    let launch = Partial { bytes: 8, start: 4, x: x.buf().into(), y: y.buf().into() };
    passes(&launch);
    assert_eq!(y.to_vec(), [5.0, 6.0, 0.0, 0.0]);
    // Nothing is read with 0 bytes, not even out of bounds.
    passes(&Partial { bytes: 0, start: 6, ..launch });
    assert_eq!(y.to_vec(), [0.0; 4]);

    let fault = faults(&Partial { bytes: 12, ..launch }).remove(0);
    let Fault::OutOfBounds { at, buffer: "x", index: 6, .. } = fault else { panic!("{fault}") };
    assert_site(&at, "partial", FILE, SOURCE, "partial");
    let fault = faults(&Partial { start: 2, ..launch }).remove(0);
    assert!(matches!(fault, Fault::Misaligned { buffer: "x", index: 2, bytes: 16, .. }), "{fault}");
    let fault = faults(&Partial { bytes: 20, ..launch }).remove(0);
    assert!(matches!(fault, Fault::CopySize { bytes: 20, most: 16, .. }), "{fault}");
}

/// Overwrites a buffer that a copy of the next round fills, with the barrier before it left out on request.
#[kernel(block = 64, grid = 1, shared = 256, barriers = 4)]
fn pipeline(with_barrier: u32, x: In<f32>, y: InOut<f32>) {
    let (s, t) = (shared::array::<f32>(0, 64), thread::thread_idx());
    for round in 0..2 {
        shared::copy_async4(s, t, &x, t + 64 * round, 4); // <refill>
        shared::copy_commit();
        shared::copy_wait::<0>();
        thread::sync();
        y.set(t, y.get(t) + s.get(63 - t)); // <drain>
        if with_barrier == 1 {
            thread::sync();
        }
    }
}

#[test]
fn refilling_before_all_have_read_races() {
    let x = HostBuf::from((0..128).map(|i| i as f32).collect::<Vec<_>>());
    let y = HostBuf::<f32>::zeroed(64);
    let launch = Pipeline { with_barrier: 1, x: x.buf().into(), y: y.buf().into() };
    passes(&launch);
    for fault in faults(&Pipeline { with_barrier: 0, ..launch }) {
        match fault {
            Fault::SharedRace { .. } | Fault::CopyNotAwaited { .. } => {}
            other => panic!("{other}"),
        }
    }
}
