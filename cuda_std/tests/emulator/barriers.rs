//! Barriers and warp operations that some thread does not reach.

use cuda_std::emulator::{Elsewhere, Fault, HostBuf, Operation};
use cuda_std::prelude::*;

use crate::{assert_place, assert_site, faults, passes};

const SOURCE: &str = include_str!("barriers.rs");
const FILE: &str = "barriers.rs";

/// Threads from `limit` on return before the barrier.
#[kernel(block = 64, grid = 2, barriers = 1)]
fn early_return(limit: u32) {
    if thread::thread_idx() >= limit {
        return;
    }
    thread::sync(); // <early return>
}

#[test]
fn barrier_that_finished_threads_never_reach() {
    passes(&EarlyReturn { limit: 64 });
    for fault in faults(&EarlyReturn { limit: 40 }) {
        let Fault::BarrierNotReached { at, missing, elsewhere } = fault else { panic!("{fault}") };
        assert_site(&at, "early_return", FILE, SOURCE, "early return");
        assert!(at.thread < 40 && (40..64).contains(&missing), "thread {} misses {missing}", at.thread);
        assert_eq!(elsewhere, Elsewhere::Finished);
    }
}

/// Both sides of a branch hold a barrier: what a compiler's jump threading makes of one barrier after the branch.
#[kernel(block = 64, grid = 1, barriers = 2)]
fn barrier_in_each_arm(limit: u32) {
    if thread::thread_idx() < limit {
        thread::sync(); // <first arm>
    } else {
        thread::sync(); // <second arm>
    }
}

#[test]
fn barriers_at_different_places() {
    passes(&BarrierInEachArm { limit: 0 });
    passes(&BarrierInEachArm { limit: 64 });
    for fault in faults(&BarrierInEachArm { limit: 32 }) {
        let Fault::BarrierNotReached { at, missing: 32, elsewhere: Elsewhere::Waits(_, place) } = fault
        else {
            panic!("{fault}")
        };
        assert_site(&at, "barrier_in_each_arm", FILE, SOURCE, "first arm");
        assert_place(place, FILE, SOURCE, "second arm");
    }
}

/// One lane of each warp leaves before the shuffle.
#[kernel(block = 64, grid = 1, shuffles = 1)]
fn lane_leaves(lane: u32, sum: Out<u32>) {
    let t = thread::thread_idx();
    if thread::lane() == lane {
        return;
    }
    sum.set(t, warp::shfl_xor(t, 1)); // <lane leaves>
}

#[test]
fn shuffle_that_a_lane_never_reaches() {
    let sum = HostBuf::<u32>::zeroed(64);
    let launch = LaneLeaves { lane: 32, sum: sum.buf().into() };
    passes(&launch);
    assert_eq!(sum.to_vec(), (0..64).map(|t| t ^ 1).collect::<Vec<u32>>());
    for fault in faults(&LaneLeaves { lane: 7, ..launch }) {
        let Fault::WarpNotConverged { at, operation, missing, elsewhere } = fault else { panic!("{fault}") };
        assert_site(&at, "lane_leaves", FILE, SOURCE, "lane leaves");
        assert_eq!((operation, missing % 32, elsewhere), (Operation::ShuffleXor, 7, Elsewhere::Finished));
        assert_eq!(at.thread / 32, missing / 32);
    }
}

/// The lanes of a warp part into two collectives.
#[kernel(block = 32, grid = 1, shuffles = 1, votes = 1)]
fn lanes_part(limit: u32) {
    if thread::lane() < limit {
        warp::shfl_down(1.0f32, 1); // <shuffle>
    } else {
        warp::ballot(true); // <ballot>
    }
}

#[test]
fn lanes_at_different_collectives() {
    passes(&LanesPart { limit: 0 });
    passes(&LanesPart { limit: 32 });
    for fault in faults(&LanesPart { limit: 20 }) {
        let Fault::WarpNotConverged { at, operation, missing, elsewhere: Elsewhere::Waits(other, place) } =
            fault
        else {
            panic!("{fault}")
        };
        assert_site(&at, "lanes_part", FILE, SOURCE, "shuffle");
        assert_place(place, FILE, SOURCE, "ballot");
        assert_eq!((operation, missing, other), (Operation::ShuffleDown, 20, Operation::Ballot));
    }
}

/// The same operation on two lines: on the device two instructions.
#[kernel(block = 32, grid = 1, votes = 2)]
fn lanes_on_two_lines(limit: u32) {
    if thread::lane() < limit {
        warp::sync(); // <upper>
    } else {
        warp::sync(); // <lower>
    }
}

#[test]
fn lanes_at_one_operation_on_two_lines() {
    for fault in faults(&LanesOnTwoLines { limit: 5 }) {
        let Fault::WarpNotConverged { at, missing: 5, elsewhere: Elsewhere::Waits(_, place), .. } = fault
        else {
            panic!("{fault}")
        };
        assert_site(&at, "lanes_on_two_lines", FILE, SOURCE, "upper");
        assert_place(place, FILE, SOURCE, "lower");
    }
}

/// One lane waits at the block barrier while its warp shuffles: no one can go on.
#[kernel(block = 64, grid = 1, barriers = 1, shuffles = 1)]
fn lane_at_barrier(lane: u32) {
    if thread::thread_idx() != lane {
        warp::shfl_xor(1u32, 16); // <waiting warp>
    }
    thread::sync(); // <lane's barrier>
}

#[test]
fn shuffle_against_barrier() {
    passes(&LaneAtBarrier { lane: 64 });
    for fault in faults(&LaneAtBarrier { lane: 35 }) {
        let Fault::WarpNotConverged { at, missing: 35, elsewhere: Elsewhere::Waits(what, place), .. } = fault
        else {
            panic!("{fault}")
        };
        assert_site(&at, "lane_at_barrier", FILE, SOURCE, "waiting warp");
        assert_place(place, FILE, SOURCE, "lane's barrier");
        assert_eq!(what, Operation::BlockBarrier);
    }
}

/// Uses a barrier and a shuffle that it does not declare.
#[kernel(block = 32, grid = 1, shared = 0)]
fn undeclared(which: u32) {
    if which == 0 {
        thread::sync(); // <undeclared barrier>
    } else if which == 1 {
        warp::sum(1.0); // <undeclared shuffle>
    }
}

#[test]
fn synchronisation_without_declaration() {
    passes(&Undeclared { which: 2 });
    for (which, expected, mark) in
        [(0, "barriers", "undeclared barrier"), (1, "shuffles", "undeclared shuffle")]
    {
        for fault in faults(&Undeclared { which }) {
            let Fault::Undeclared { at, limit, .. } = fault else { panic!("{fault}") };
            assert_site(&at, "undeclared", FILE, SOURCE, mark);
            assert_eq!(limit, expected);
        }
    }
}

/// Declares barriers, so that it runs as coroutines, but no votes.
#[kernel(block = 32, grid = 1, barriers = 1)]
fn undeclared_vote() {
    thread::sync();
    warp::any(true); // <undeclared vote>
}

#[test]
fn vote_without_declaration() {
    for fault in faults(&UndeclaredVote {}) {
        let Fault::Undeclared { at, operation: Operation::Any, limit: "votes" } = fault else {
            panic!("{fault}")
        };
        assert_site(&at, "undeclared_vote", FILE, SOURCE, "undeclared vote");
    }
}

/// Counts the drops of a value that lives across a barrier.
#[kernel(block = 64, grid = 1, barriers = 2)]
fn panics_in_one_thread(victim: u32, values: In<u32>) {
    let table = [1u32, 2, 3];
    thread::sync();
    if thread::thread_idx() == victim {
        let _ = table[values.get(0) as usize]; // <panic>
    }
    thread::sync();
}

#[test]
fn panic_in_the_body() {
    let values = HostBuf::from(vec![7u32]);
    let launch = PanicsInOneThread { victim: 64, values: values.buf().into() };
    passes(&launch);
    for fault in faults(&PanicsInOneThread { victim: 41, ..launch }) {
        let Fault::Panic { at, message } = fault else { panic!("{fault}") };
        assert_site(&at, "panics_in_one_thread", FILE, SOURCE, "panic");
        assert_eq!(at.thread, 41);
        assert_eq!(message, "index out of bounds: the len is 3 but the index is 7");
    }
}

/// Overflows in a kernel that runs as a plain loop.
#[kernel(block = 64, grid = 2)]
fn overflows(start: u32, sum: Out<u32>) {
    let t = thread::thread_idx();
    sum.set(t, start + t); // <overflow>
}

#[test]
fn overflow_in_the_body() {
    let sum = HostBuf::<u32>::zeroed(64);
    let launch = Overflows { start: 0, sum: sum.buf().into() };
    passes(&launch);
    for fault in faults(&Overflows { start: u32::MAX - 10, ..launch }) {
        let Fault::Panic { at, message } = fault else { panic!("{fault}") };
        assert_site(&at, "overflows", FILE, SOURCE, "overflow");
        assert!((11..64).contains(&at.thread));
        assert_eq!(message, "attempt to add with overflow");
    }
}
