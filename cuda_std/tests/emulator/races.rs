//! Unordered accesses to shared memory, and reads of what nothing has written.

use cuda_std::AccessKind;
use cuda_std::emulator::{Emulator, Fault, HostBuf};
use cuda_std::prelude::*;

use crate::{SEEDS, assert_place, assert_site, faults, passes};

const SOURCE: &str = include_str!("races.rs");
const FILE: &str = "races.rs";

/// Reverses a block of 64 through shared memory; the barrier between store and load is optional.
#[kernel(block = 64, grid = 3, shared = 64 * 4, barriers = 2)]
fn reverse(with_barrier: u32, y: Out<u32>) {
    let (s, t) = (shared::array::<u32>(0, 64), thread::thread_idx());
    s.set(t, 1000);
    thread::sync();
    s.set(t, t); // <store>
    if with_barrier == 1 {
        thread::sync();
    }
    y.set(thread::global_index(), s.get(63 - t)); // <load>
}

#[test]
fn a_barrier_orders() {
    let y = HostBuf::<u32>::zeroed(192);
    passes(&Reverse { with_barrier: 1, y: y.buf().into() });
    assert_eq!(y.to_vec(), (0..192).map(|i| 63 - i % 64).collect::<Vec<u32>>());
}

#[test]
fn a_missing_barrier_is_a_race() {
    let y = HostBuf::<u32>::zeroed(192);
    let (mut reads, mut writes) = (0, 0);
    for fault in faults(&Reverse { with_barrier: 0, y: y.buf().into() }) {
        let Fault::SharedRace { at, access, other_access, other_thread, other, byte } = fault else {
            panic!("{fault}")
        };
        assert_eq!(other_thread, 63 - at.thread);
        // Found at whichever of the two comes second.
        if access == AccessKind::Read {
            assert_eq!((other_access, byte), (AccessKind::Write, 4 * other_thread));
            assert_site(&at, "reverse", FILE, SOURCE, "load");
            assert_place(other, FILE, SOURCE, "store");
            reads += 1;
        } else {
            assert_eq!((access, other_access, byte), (AccessKind::Write, AccessKind::Read, 4 * at.thread));
            assert_site(&at, "reverse", FILE, SOURCE, "store");
            assert_place(other, FILE, SOURCE, "load");
            writes += 1;
        }
    }
    // Every thread stores and loads in one go here, so a partner's store always comes second.
    assert_eq!((reads, writes), (0, 64));
}

/// All threads of two warps write one word.
#[kernel(block = 64, grid = 1, shared = 4, barriers = 1)]
fn all_write(writers: u32) {
    let (s, t) = (shared::array::<u32>(0, 1), thread::thread_idx());
    if t % 32 == 0 && t / 32 < writers {
        s.set(0, 7); // <same word>
    }
    thread::sync();
    assert_eq!(s.get(0), 7);
}

#[test]
fn two_writes_of_one_word_race() {
    passes(&AllWrite { writers: 1 });
    for fault in faults(&AllWrite { writers: 2 }) {
        let Fault::SharedRace { at, access, other_access, other_thread, other, byte } = fault else {
            panic!("{fault}")
        };
        assert_eq!((access, other_access, byte), (AccessKind::Write, AccessKind::Write, 0));
        assert_site(&at, "all_write", FILE, SOURCE, "same word");
        assert_place(other, FILE, SOURCE, "same word");
        assert_eq!(at.thread + other_thread, 32);
    }
}

/// A word is read by all and then overwritten, as when a loop lacks the barrier at its end.
#[kernel(block = 64, grid = 1, shared = 4, barriers = 2)]
fn read_then_overwrite(with_barrier: u32, y: Out<u32>) {
    let (s, t) = (shared::array::<u32>(0, 1), thread::thread_idx());
    if t == 0 {
        s.set(0, 1);
    }
    thread::sync();
    y.set(t, s.get(0)); // <early read>
    if with_barrier == 1 {
        thread::sync();
    }
    if t == 63 {
        s.set(0, 2); // <late write>
    }
}

#[test]
fn a_write_after_a_read_races() {
    let y = HostBuf::<u32>::zeroed(64);
    passes(&ReadThenOverwrite { with_barrier: 1, y: y.buf().into() });
    for fault in faults(&ReadThenOverwrite { with_barrier: 0, y: y.buf().into() }) {
        let Fault::SharedRace { at, access, other_access, other, .. } = fault else { panic!("{fault}") };
        let (first, second) = match (access, other_access) {
            (AccessKind::Read, AccessKind::Write) => ("early read", "late write"),
            (AccessKind::Write, AccessKind::Read) => ("late write", "early read"),
            other => panic!("{other:?}"),
        };
        assert_site(&at, "read_then_overwrite", FILE, SOURCE, first);
        assert_place(other, FILE, SOURCE, second);
    }
}

/// Neighbours exchange through shared memory with only a warp operation between: right for a warp barrier within a
/// warp, wrong across warps, and wrong for a shuffle, which orders no memory.
#[kernel(block = 64, grid = 1, shared = 64 * 4, votes = 1, shuffles = 1)]
fn exchange(distance: u32, by_shuffle: u32, y: Out<u32>) {
    let (s, t) = (shared::array::<u32>(0, 64), thread::thread_idx());
    s.set(t, t); // <exchange store>
    if by_shuffle == 1 {
        warp::shfl_xor(t, 1);
    } else {
        warp::sync();
    }
    y.set(t, s.get(t ^ distance)); // <exchange load>
}

#[test]
fn a_warp_barrier_orders_within_the_warp_only() {
    let y = HostBuf::<u32>::zeroed(64);
    let launch = Exchange { distance: 31, by_shuffle: 0, y: y.buf().into() };
    passes(&launch);
    assert_eq!(y.to_vec(), (0..64).map(|t| t ^ 31).collect::<Vec<u32>>());

    let mut races = 0;
    for fault in faults(&Exchange { distance: 32, ..launch }) {
        match fault {
            Fault::SharedRace { at, access: AccessKind::Read, other, other_thread, .. } => {
                assert_site(&at, "exchange", FILE, SOURCE, "exchange load");
                assert_place(other, FILE, SOURCE, "exchange store");
                assert_eq!(other_thread, at.thread ^ 32);
                races += 1;
            }
            // The other warp has not even begun.
            Fault::SharedUninitialised { .. } => {}
            other => panic!("{other}"),
        }
    }
    assert!(races > 0);
    for fault in faults(&Exchange { by_shuffle: 1, ..launch }) {
        assert!(matches!(fault, Fault::SharedRace { .. }), "{fault}");
    }
}

/// Reads a word that nothing has written: in the first block, or what an earlier block left.
#[kernel(block = 32, grid = 2, shared = 128, barriers = 1)]
fn leftover(writing_block: u32) {
    let (s, t) = (shared::array::<f32>(0, 32), thread::thread_idx());
    if thread::block_idx() == writing_block || writing_block == 2 {
        s.set(t, 1.0);
    }
    thread::sync();
    let v = s.get(31 - t); // <leftover>
    assert_eq!(v, 1.0);
}

#[test]
fn shared_memory_starts_unwritten_in_every_block() {
    passes(&Leftover { writing_block: 2 });
    for writing_block in [0, 1] {
        for fault in faults(&Leftover { writing_block }) {
            let Fault::SharedUninitialised { at, .. } = fault else { panic!("{fault}") };
            assert_site(&at, "leftover", FILE, SOURCE, "leftover");
            assert_eq!(at.block.x, 1 - writing_block);
        }
    }
}

/// The upper half of an f64 is written as a word of another view by another thread.
#[kernel(block = 64, grid = 1, shared = 8)]
fn overlapping_views() {
    if thread::thread_idx() == 0 {
        shared::array::<f64>(0, 1).set(0, 1.0);
    } else if thread::thread_idx() == 40 {
        shared::array::<u32>(4, 1).set(0, 1);
    }
}

#[test]
fn views_that_overlap_race() {
    for fault in faults(&OverlappingViews {}) {
        assert!(matches!(fault, Fault::SharedRace { byte: 4, .. }), "{fault}");
    }
}

/// Thread i of the grid writes y[i / sharing] and, on request, reads what thread i ^ 1 wrote.
#[kernel(block = 64, grid = 2, barriers = 1, votes = 1)]
fn scatter(sharing: u32, neighbour: u32, sync: u32, y: InOut<f32>) {
    let i = thread::global_index();
    y.set(i / sharing, 1.0); // <scatter>
    if sync == 1 {
        thread::sync();
    } else if sync == 2 {
        warp::sync();
    }
    if neighbour > 0 {
        y.get(i ^ neighbour); // <gather>
    }
}

#[test]
fn races_on_global_memory_are_found_where_they_are_watched() {
    let y = HostBuf::<f32>::zeroed(128);
    let watched = |launch: &Scatter, seed: u64| Emulator::new(seed).watch_global().launch(launch);
    let good = Scatter { sharing: 1, neighbour: 0, sync: 0, y: y.buf().into() };
    let by_block = Scatter { neighbour: 33, sync: 1, ..good };
    let by_warp = Scatter { neighbour: 1, sync: 2, ..good };
    for seed in SEEDS {
        for launch in [good, by_block, by_warp] {
            watched(&launch, seed).unwrap();
        }
        // Two threads write one element; a neighbour's write without barrier, with too small a one, and beyond
        // the block, where none helps.
        for (wrong, other_access) in [
            (Scatter { sharing: 2, ..good }, AccessKind::Write),
            (Scatter { neighbour: 1, ..good }, AccessKind::Read),
            (Scatter { neighbour: 33, sync: 2, ..good }, AccessKind::Read),
            (Scatter { neighbour: 64, sync: 1, ..good }, AccessKind::Read),
        ] {
            let fault = watched(&wrong, seed).unwrap_err();
            let Fault::GlobalRace { at, access, buffer, index, other_access: found, other } = fault else {
                panic!("{fault}")
            };
            assert_eq!((at.kernel, buffer), ("scatter", "y"));
            let i = |block: cuda_std::Dim3, thread: u32| 64 * block.x + thread;
            let (this, that) = (i(at.block, at.thread), i(other.block, other.thread));
            if other_access == AccessKind::Write {
                assert_eq!((access, found), (AccessKind::Write, AccessKind::Write));
                assert_eq!((this / 2, that), (index, this ^ 1));
                assert_place(other.place, FILE, SOURCE, "scatter");
            } else {
                assert_eq!(that, this ^ wrong.neighbour);
                let (kind, mark) = match access {
                    AccessKind::Write => (AccessKind::Read, "gather"),
                    _ => (AccessKind::Write, "scatter"),
                };
                assert_eq!(found, kind);
                assert_place(other.place, FILE, SOURCE, mark);
            }
            // Whoever does not watch runs it through: the order of the threads decides what it reads.
            Emulator::new(seed).launch(&wrong).unwrap();
        }
    }
}

/// Counts by an atomic operation and, on request, also reads or writes the counter plainly.
#[kernel(block = 64, grid = 2)]
fn count(plain: u32, counter: InOut<u32>, bytes: Out<u8>) {
    let i = thread::global_index();
    counter.atomic_add(0, 1); // <atomic>
    bytes.set(i, 1);
    if i == plain {
        counter.get(0); // <plain>
    }
}

#[test]
fn atomic_operations_do_not_race_with_each_other() {
    let (counter, bytes) = (HostBuf::<u32>::zeroed(1), HostBuf::<u8>::zeroed(128));
    let launch = Count { plain: 128, counter: counter.buf().into(), bytes: bytes.buf().into() };
    for seed in SEEDS {
        Emulator::new(seed).watch_global().launch(&launch).unwrap();
        let fault = Emulator::new(seed).watch_global().launch(&Count { plain: 77, ..launch }).unwrap_err();
        let text = fault.to_string();
        let Fault::GlobalRace { at, access, other_access, .. } = fault else { panic!("{fault}") };
        match (access, other_access) {
            (AccessKind::ReadWrite, AccessKind::Read) => assert_site(&at, "count", FILE, SOURCE, "atomic"),
            (AccessKind::Read, AccessKind::ReadWrite) => assert_site(&at, "count", FILE, SOURCE, "plain"),
            other => panic!("{other:?}"),
        }
        assert!(text.contains("atomic operation") && text.contains("races with"), "{text}");
    }
}
