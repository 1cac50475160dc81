//! Atomic operations on global memory.

use cuda_std::emulator::HostBuf;
use cuda_std::prelude::*;

use crate::passes;

/// One of each on x[0..5], y[0..5] and z[0..2]; `old` gets the previous values of the add.
#[kernel(block = 32, grid = 2)]
fn all_atomics(x: InOut<u32>, y: InOut<i32>, z: InOut<u64>, old: Out<u32>) {
    let i = thread::global_index();
    old.set(i, x.atomic_add(0, 1));
    x.atomic_max(1, i);
    x.atomic_min(2, i);
    x.atomic_cas(3, 0, i + 1);
    x.atomic_exchange(4, i);
    y.atomic_add(0, -1);
    y.atomic_max(1, -(i as i32));
    y.atomic_min(2, -(i as i32));
    z.atomic_add(0, 1 << 33);
    z.atomic_max(1, u64::from(i) << 40);
}

#[test]
fn atomics_count_and_compare() {
    let old = HostBuf::<u32>::zeroed(64);
    for _ in 0..2 {
        let x = HostBuf::from(vec![0u32, 0, u32::MAX, 0, 99]);
        let y = HostBuf::from(vec![0i32, i32::MIN, i32::MAX]);
        let z = HostBuf::from(vec![0u64, 0]);
        let launch =
            AllAtomics { x: x.buf().into(), y: y.buf().into(), z: z.buf().into(), old: old.buf().into() };
        cuda_std::emulator::Emulator::new(3).launch(&launch).unwrap();
        let mut counts = old.to_vec();
        counts.sort_unstable();
        assert_eq!(counts, (0..64).collect::<Vec<u32>>());
        let x = x.to_vec();
        assert_eq!(x[..3], [64, 63, 0]);
        assert!((1..=64).contains(&x[3]) && x[4] < 64);
        assert_eq!(y.to_vec(), [-64, 0, -63]);
        assert_eq!(z.to_vec(), [64 << 33, 63 << 40]);
        passes(&launch);
    }
}

#[test]
fn integer_atomics_wrap() {
    let x = HostBuf::from(vec![u32::MAX, 0, 0, 0, 0]);
    let (y, z) = (HostBuf::<i32>::zeroed(3), HostBuf::<u64>::zeroed(2));
    let old = HostBuf::<u32>::zeroed(64);
    let launch =
        AllAtomics { x: x.buf().into(), y: y.buf().into(), z: z.buf().into(), old: old.buf().into() };
    cuda_std::emulator::Emulator::new(0).launch(&launch).unwrap();
    assert_eq!(x.to_vec()[0], 63);
}
