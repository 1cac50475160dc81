//! Launch structs, declarations, and the order in which threads run.

use cuda_std::emulator::{Emulator, HostBuf};
use cuda_std::prelude::*;
use cuda_std::{Access, AccessKind, Buf, Dim3, ElementType, Kernel, Param, ParamType, ParamWords};

/// Threads per block of [`Identify`].
const BLOCK: u32 = 2 * 32;

/// Writes every index that a thread can know.
#[kernel(block = BLOCK, grid = (2, 3, blocks), requires(y.len() >= 6 * BLOCK as usize * 7))]
pub(crate) fn identify(
    /// Blocks in z.
    blocks: u32,
    y: Out<u32>,
) {
    let block = thread::block_idx() + 2 * thread::block_idx_y() + 6 * thread::block_idx_z();
    let at = (block * BLOCK + thread::thread_idx()) * 7;
    y.set(at, thread::global_index());
    y.set(at + 1, thread::lane() + 100 * thread::warp());
    y.set(at + 2, thread::block_dim());
    y.set(at + 3, thread::grid_dim());
    y.set(at + 4, thread::grid_dim_y());
    y.set(at + 5, thread::grid_dim_z());
    y.set(at + 6, block);
    let _ = blocks;
}

#[test]
fn every_thread_of_every_block_runs_once() {
    let y = HostBuf::<u32>::zeroed(6 * 64 * 7);
    let stats = Emulator::new(5).launch(&Identify { blocks: 1, y: y.buf().into() }).unwrap();
    assert_eq!((stats.blocks, stats.threads), (6, 384));
    let y = y.to_vec();
    for block in 0..6 {
        for t in 0..64 {
            let at = ((block * 64 + t) * 7) as usize;
            assert_eq!(y[at..at + 7], [block % 2 * 64 + t, t % 32 + 100 * (t / 32), 64, 2, 3, 1, block]);
        }
    }
}

#[test]
fn the_declaration_lists_the_parameters() {
    let decl = Identify::DECL;
    assert_eq!((decl.name, decl.block, decl.barriers), ("identify", 64, 0));
    assert!(decl.file.ends_with("launches.rs") && decl.line > 1);
    assert_eq!(
        decl.params,
        [
            Param { name: "blocks", ty: ParamType::Scalar(ElementType::U32) },
            Param { name: "y", ty: ParamType::Buffer(AccessKind::Write, ElementType::U32) },
        ]
    );
    let kernels: &[&cuda_std::KernelDecl] = cuda_std::kernel_list![Identify, Scalars];
    assert_eq!(kernels.iter().map(|k| k.name).collect::<Vec<_>>(), ["identify", "scalars"]);
}

/// Every scalar type and every kind of buffer.
#[kernel(block = 32, grid = 1)]
#[allow(unused_variables)]
fn scalars(mut a: u32, b: i32, c: u64, d: i64, e: f32, f: f64, x: In<f32>, y: Out<u8>, z: InOut<f64>) {
    a += 1;
    assert_eq!((a, b, c, d, e, f), (6, -6, 7, -8, 9.5, 10.5));
}

#[test]
fn parameters_are_little_endian_words_in_order() {
    let launch = Scalars {
        a: 5,
        b: -6,
        c: 7,
        d: -8,
        e: 9.5,
        f: 10.5,
        x: Buf::from_raw(0x1000, 3).into(),
        y: Buf::from_raw(0x2000, 5).into(),
        z: Buf::from_raw(0x3000, 2).into(),
    };
    assert_eq!(launch.grid(), Dim3 { x: 1, y: 1, z: 1 });
    let mut words = ParamWords::new();
    words.push(1u32);
    launch.params(&mut words);
    let expected = [
        5,
        0xffff_fffa,
        7,
        (-8i64) as u64,
        u64::from(9.5f32.to_bits()),
        10.5f64.to_bits(),
        0x1000,
        0x2000,
        0x3000,
    ];
    assert_eq!(words.words(), expected);
    let mut pointers = words.pointers();
    for (i, word) in expected.iter().enumerate() {
        // SAFETY: the first nine pointers point to the nine words, which are alive.
        assert_eq!(unsafe { *(*pointers.as_mut_ptr().add(i)).cast::<u64>() }, *word);
    }
    assert_eq!(
        launch.accesses(),
        [
            Access { name: "x", addr: 0x1000, bytes: 12, kind: AccessKind::Read },
            Access { name: "y", addr: 0x2000, bytes: 5, kind: AccessKind::Write },
            Access { name: "z", addr: 0x3000, bytes: 16, kind: AccessKind::ReadWrite },
        ]
    );
    Emulator::new(0).launch(&launch).unwrap();
}

/// Appends the thread's number to a list, once before and once after a barrier and a shuffle.
#[kernel(block = 96, grid = blocks, barriers = 1, shuffles = 1)]
fn order(blocks: u32, count: InOut<u32>, list: Out<u32>) {
    let i = thread::global_index();
    list.set(count.atomic_add(0, 1), i);
    warp::shfl_xor(i, 1);
    list.set(count.atomic_add(0, 1), i);
    thread::sync();
    list.set(count.atomic_add(0, 1), i);
    let _ = blocks;
}

fn interleaving(seed: u64) -> (Vec<u32>, u64) {
    let (count, list) = (HostBuf::<u32>::zeroed(1), HostBuf::<u32>::zeroed(3 * 96 * 4));
    let launch = Order { blocks: 4, count: count.buf().into(), list: list.buf().into() };
    let stats = Emulator::new(seed).launch(&launch).unwrap();
    assert_eq!((stats.barriers, stats.warp_operations), (4, 12));
    (list.to_vec(), stats.trace)
}

#[test]
fn the_seed_determines_the_interleaving() {
    let mut seen = std::collections::HashSet::new();
    for seed in 0..32 {
        let (list, trace) = interleaving(seed);
        assert_eq!((list.clone(), trace), interleaving(seed), "seed {seed}");
        seen.insert((list, trace));
    }
    assert_eq!(seen.len(), 32, "different seeds give different interleavings");
}

/// The same without barriers, which runs as a plain loop.
#[kernel(block = 96, grid = 4)]
fn plain_order(count: InOut<u32>, list: Out<u32>) {
    list.set(count.atomic_add(0, 1), thread::global_index());
}

#[test]
fn plain_loops_are_seeded_too() {
    let run = |emulator: &mut Emulator| {
        let (count, list) = (HostBuf::<u32>::zeroed(1), HostBuf::<u32>::zeroed(96 * 4));
        let launch = PlainOrder { count: count.buf().into(), list: list.buf().into() };
        (emulator.launch(&launch).unwrap().trace, list.to_vec())
    };
    let (mut first, mut second) = (Emulator::new(9), Emulator::new(9));
    let launches = [run(&mut first), run(&mut first)];
    assert_eq!(launches, [run(&mut second), run(&mut second)]);
    assert_ne!(launches[0], launches[1], "an emulator's launches differ");
    let mut sorted = launches[0].1.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..384).collect::<Vec<u32>>());
}

#[test]
fn a_fault_leaves_the_emulator_usable_and_panics_elsewhere_print_as_before() {
    let y = HostBuf::<u32>::zeroed(3);
    let mut emulator = Emulator::new(0);
    emulator.launch(&Identify { blocks: 1, y: y.buf().into() }).unwrap_err();
    let enough = HostBuf::<u32>::zeroed(6 * 64 * 7);
    emulator.launch(&Identify { blocks: 1, y: enough.buf().into() }).unwrap();
    // A kernel's call outside of a launch is an ordinary panic.
    let panic = std::panic::catch_unwind(thread::thread_idx).unwrap_err();
    assert!(panic.downcast_ref::<&str>().is_some_and(|text| text.contains("inside of a launch")));
}

#[test]
fn launches_on_several_os_threads_do_not_meet() {
    std::thread::scope(|scope| {
        for seed in 0..4 {
            scope.spawn(move || {
                for _ in 0..8 {
                    assert_eq!(interleaving(seed).1, interleaving(seed).1);
                }
            });
        }
    });
}

#[test]
fn slices_stay_inside() {
    let buf = Buf::<f64>::from_raw(800, 10);
    assert_eq!(buf.slice(2, 3), Buf::from_raw(816, 3));
    assert_eq!(buf.try_slice(10, 0).map(Buf::len), Some(0));
    assert_eq!(buf.try_slice(9, 2), None);
    assert_eq!(buf.try_slice(usize::MAX, 2), None);
    assert!(std::panic::catch_unwind(|| buf.slice(9, 2)).is_err());
}
