//! Launch contracts: relations, grids and shared memory that cannot be, and overflow in any of them.

use cuda_std::contract::Breach;
use cuda_std::emulator::{Emulator, Fault, HostBuf};
use cuda_std::prelude::*;
use cuda_std::{Buf, Dim3, Kernel};

/// Doubles x (rows x cols).
#[kernel(
    block = 64,
    grid = (rows * cols).div_ceil(64),
    shared = rows * 8,
    requires(
        x.len() >= (rows as usize) * (cols as usize),
        cols.is_multiple_of(step) && step > 0,
        scale != 0.0,
    )
)]
fn double(
    rows: u32,
    cols: u32,
    /// Cols is a multiple of it.
    step: u32,
    scale: f32,
    x: InOut<f64>,
) {
    let i = thread::global_index();
    if i < rows * cols {
        x.set(i, x.get(i) * f64::from(scale));
    }
    let _ = step;
}

fn launch(x: Buf<f64>) -> Double {
    Double { rows: 3, cols: 4, step: 2, scale: 2.0, x: x.into() }
}

#[test]
fn a_broken_relation_names_itself_and_the_arguments() {
    let x = HostBuf::<f64>::zeroed(12);
    launch(x.buf()).check().unwrap();

    let error = Double { rows: 4, ..launch(x.buf()) }.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "kernel double: `x.len() >= (rows as usize) * (cols as usize)` does not hold with rows = 4, cols = 4, \
         step = 2, scale = 2, x: 12 elements"
    );
    let error = Double { step: 3, ..launch(x.buf()) }.check().unwrap_err();
    assert_eq!(error.breach, Breach::Relation("cols.is_multiple_of(step) && step > 0"));
    let error = Double { scale: 0.0, ..launch(x.buf()) }.check().unwrap_err();
    assert_eq!(error.breach, Breach::Relation("scale != 0.0"));

    // The emulator checks before it runs anything.
    let fault = Emulator::new(0).launch(&Double { rows: 4, ..launch(x.buf()) }).unwrap_err();
    assert!(matches!(fault, Fault::Contract(_)), "{fault}");
}

#[test]
fn overflow_is_an_error_and_not_a_small_grid() {
    // rows * cols = 2^32 would wrap to a grid of no blocks. The relation is safe: it counts in usize.
    let x = Buf::from_raw(4096, 1 << 32);
    let large = Double { rows: 1 << 16, cols: 1 << 16, ..launch(x) };
    assert_eq!(large.grid(), Dim3::OVERFLOW);
    let error = large.check().unwrap_err();
    assert_eq!(error.breach, Breach::Grid(Dim3::OVERFLOW));
    assert!(error.to_string().contains("number of blocks overflows"), "{error}");

    let error = Double { rows: 1 << 30, cols: 2, ..launch(x) }.check().unwrap_err();
    assert_eq!(error.breach, Breach::Shared(u32::MAX));
}

#[test]
fn a_grid_without_blocks_is_an_error() {
    let x = HostBuf::<f64>::zeroed(12);
    let error = Double { rows: 0, ..launch(x.buf()) }.check().unwrap_err();
    assert_eq!(error.breach, Breach::Grid(Dim3 { x: 0, y: 1, z: 1 }));
}

/// A three-dimensional grid, 64-bit scalars and relations with every checked operation.
#[kernel(
    block = 32,
    grid = (x, y + 0, z),
    shared = bytes as usize,
    requires(
        x - 1 < 1000,
        (n as i32) - 5 < 100,
        n / d < 10 && n % d < 10,
        -m <= 0,
        bytes.div_ceil(d as u64) < 1_000_000,
        2 * x < u32::MAX && x as f64 * 0.5 >= 0.0,
        buffer.is_empty() || buffer.len() > 1,
    )
)]
fn operations(x: u32, y: u32, z: u32, n: u64, d: u64, m: i64, bytes: u64, buffer: In<u8>) {
    let _ = (x, y, z, n, d, m, bytes, buffer);
}

#[test]
fn every_operation_is_checked() {
    let good = Operations { x: 1, y: 1, z: 1, n: 1, d: 1, m: 1, bytes: 16, buffer: Buf::NULL.into() };
    good.check().unwrap();
    let breach = |launch: Operations| launch.check().unwrap_err().breach;
    assert_eq!(breach(Operations { x: 0, ..good }), Breach::Overflow("x - 1 < 1000"));
    assert_eq!(breach(Operations { n: 1 << 31, ..good }), Breach::Overflow("(n as i32) - 5 < 100"));
    assert_eq!(breach(Operations { d: 0, ..good }), Breach::Overflow("n / d < 10 && n % d < 10"));
    assert_eq!(breach(Operations { m: i64::MIN, ..good }), Breach::Overflow("- m <= 0"));
    assert_eq!(breach(Operations { y: 65_536, ..good }), Breach::Grid(Dim3 { x: 1, y: 65_536, z: 1 }));
    assert_eq!(breach(Operations { z: 0, ..good }), Breach::Grid(Dim3 { x: 1, y: 1, z: 0 }));
    assert_eq!(breach(Operations { bytes: 227 * 1024 + 1, ..good }), Breach::Shared(227 * 1024 + 1));
    let one = Buf::from_raw(64, 1).into();
    assert_eq!(
        breach(Operations { buffer: one, ..good }),
        Breach::Relation("buffer.is_empty() || buffer.len() > 1")
    );
}

#[test]
fn a_buffer_that_is_not_aligned_to_its_element_is_an_error() {
    let error = Double { x: Buf::from_raw(4100, 12).into(), ..launch(Buf::NULL) }.check().unwrap_err();
    assert_eq!(error.breach, Breach::Alignment("x"));
    assert!(error.to_string().contains("`x` is not aligned"), "{error}");
}
