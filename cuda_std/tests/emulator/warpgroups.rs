//! Products of warpgroups: what they compute for each way to store an operand, and what must come before them.

use cuda_std::Kernel;
use cuda_std::emulator::{Emulator, Fault, HostBuf, Operation};
use cuda_std::prelude::*;

use crate::{assert_place, assert_site, faults, passes};

const FILE: &str = "warpgroups.rs";
const SOURCE: &str = include_str!("warpgroups.rs");
// Rows of A, summed indices, columns of B.
const M: usize = 64;
const K: usize = 64;
const N: usize = 128;
/// Bytes of A's tile; B's is behind it.
const A_BYTES: u32 = 64 * 128;

/// Copies blocks of rows of 32 words to shared memory as products want them: octet q of row r to octet q ^ (r % 8).
fn store(from: &In<u32>, start: u32, words: u32) {
    let to = shared::array::<u32>(start, words);
    let mut word = thread::thread_idx();
    while word < words {
        let (row, at) = (word / 32, word % 32);
        to.set(32 * row + 4 * ((at / 4) ^ (row % 8)) + at % 4, from.get(word));
        word += thread::block_dim();
    }
}

/// Writes a lane's elements of C [64, 128].
fn write(c: &[[f32; 4]; 16], to: &Out<f32>) {
    let (warp, lane) = (thread::warp(), thread::lane());
    for (j, four) in c.iter().enumerate() {
        for (i, value) in four.iter().enumerate() {
            let row = 16 * warp + lane / 4 + 8 * (i as u32 / 2);
            to.set(128 * row + 8 * j as u32 + 2 * (lane % 4) + i as u32 % 2, *value);
        }
    }
}

macro_rules! products {
    ($($name:ident $product:ident $across_a:literal $across_b:literal $halves:ident;)*) => { $(
        struct $product;

        impl warpgroup::Product for $product {
            const OCTETS: usize = 16;
            const ACROSS_A: bool = $across_a;
            const ACROSS_B: bool = $across_b;
            const HALVES: warpgroup::Halves = warpgroup::Halves::$halves;
        }

        #[kernel(block = 128, grid = 1, shared = 3 * A_BYTES, barriers = 1, mmas = 4, only = "sm_90a")]
        fn $name(a: In<u32>, b: In<u32>, c: Out<f32>) {
            store(&a, 0, 64 * 32);
            store(&b, A_BYTES, 128 * 32);
            warpgroup::publish();
            thread::sync();
            let mut sums = [[1.0; 4]; 16];
            let (a, b) = (warpgroup::operand(0, 0), warpgroup::operand(A_BYTES, 64 * 128));
            warpgroup::multiply::<$product, 4>(a, b, &mut sums);
            write(&sums, &c);
        }
    )* };
}

products! {
    product_along AlongAlong false false Bf16;
    product_across AcrossAcross true true Bf16;
    product_along_across AlongAcross false true Bf16;
    product_across_along AcrossAlong true false Bf16;
    product_fp16 AlongFp16 false false Fp16;
    product_across_fp16 AcrossFp16 true true Fp16;
}

#[kernel(block = 128, grid = 1, shared = 3 * A_BYTES, barriers = 1, mmas = 4, only = "sm_90a")]
fn product_of_rows(a: In<u32>, b: In<u32>, c: Out<f32>) {
    store(&b, A_BYTES, 128 * 32);
    warpgroup::publish();
    thread::sync();
    let (row, t) = (16 * thread::warp() + thread::lane() / 4, thread::lane() % 4);
    let mut rows = [[0; 4]; 4];
    for (step, words) in rows.iter_mut().enumerate() {
        for (i, word) in words.iter_mut().enumerate() {
            *word = a.get(32 * (row + 8 * (i as u32 % 2)) + 8 * step as u32 + t + 4 * (i as u32 / 2));
        }
    }
    let mut sums = [[1.0; 4]; 16];
    warpgroup::multiply_rows::<AlongAlong>(&rows, warpgroup::operand(A_BYTES, 0), &mut sums);
    write(&sums, &c);
}

/// Small whole numbers: products and sums are exact in bf16 and f32.
fn a(row: usize, k: usize) -> f32 {
    ((7 * row + 3 * k) % 11) as f32 - 5.0
}

fn b(k: usize, column: usize) -> f32 {
    ((5 * k + 13 * column) % 9) as f32 - 4.0
}

/// A matrix as rows of 64 bf16, two a word, blocks of 64 columns behind each other.
fn words(rows: usize, columns: usize, at: impl Fn(usize, usize) -> f32) -> HostBuf<u32> {
    words_of(rows, columns, |row, column| at(row, column).to_bits() >> 16)
}

/// The same of fp16.
fn fp16_words(rows: usize, columns: usize, at: impl Fn(usize, usize) -> f32) -> HostBuf<u32> {
    words_of(rows, columns, |row, column| half::f16::from_f32(at(row, column)).to_bits().into())
}

fn words_of(rows: usize, columns: usize, bits: impl Fn(usize, usize) -> u32) -> HostBuf<u32> {
    let mut out = Vec::new();
    for block in 0..columns / 64 {
        for row in 0..rows {
            for pair in 0..32 {
                let half = |e: usize| bits(row, 64 * block + 2 * pair + e);
                out.push(half(0) | half(1) << 16);
            }
        }
    }
    HostBuf::from(out)
}

fn check(c: &HostBuf<f32>) {
    for (i, got) in c.to_vec().into_iter().enumerate() {
        let (row, column) = (i / N, i % N);
        let want = (0..K).fold(1.0, |sum, k| sum + a(row, k) * b(k, column));
        assert_eq!(got, want, "C[{row}, {column}]");
    }
}

#[test]
fn operands_are_stored_along_or_across_the_summed_index() {
    let along = (words(M, K, a), words(N, K, |column, k| b(k, column)));
    let across = (words(K, M, |k, row| a(row, k)), words(K, N, b));
    let c = || HostBuf::from(vec![f32::NAN; M * N]);
    let out = c();
    passes(&ProductAlong { a: along.0.buf().into(), b: along.1.buf().into(), c: out.buf().into() });
    check(&out);
    let out = c();
    passes(&ProductAcross { a: across.0.buf().into(), b: across.1.buf().into(), c: out.buf().into() });
    check(&out);
    let out = c();
    passes(&ProductAlongAcross { a: along.0.buf().into(), b: across.1.buf().into(), c: out.buf().into() });
    check(&out);
    let out = c();
    passes(&ProductAcrossAlong { a: across.0.buf().into(), b: along.1.buf().into(), c: out.buf().into() });
    check(&out);
    let out = c();
    let (a16, b16) = (fp16_words(M, K, a), fp16_words(N, K, |column, k| b(k, column)));
    passes(&ProductFp16 { a: a16.buf().into(), b: b16.buf().into(), c: out.buf().into() });
    check(&out);
    let out = c();
    let (a16, b16) = (fp16_words(K, M, |k, row| a(row, k)), fp16_words(K, N, b));
    passes(&ProductAcrossFp16 { a: a16.buf().into(), b: b16.buf().into(), c: out.buf().into() });
    check(&out);
    let out = c();
    passes(&ProductOfRows { a: along.0.buf().into(), b: along.1.buf().into(), c: out.buf().into() });
    check(&out);
}

/// `publish`: 0 not at all, 1 before the write, 2 after it. `missing`: a warp that does not multiply.
#[kernel(block = 128, grid = 1, shared = 3 * A_BYTES, barriers = 1, mmas = 4, only = "sm_90a")]
fn careless(publish: u32, missing: u32, start: u32) {
    if publish == 1 {
        warpgroup::publish();
    }
    let all = shared::array::<u32>(0, 3 * 64 * 32);
    let mut word = thread::thread_idx();
    while word < 3 * 64 * 32 {
        all.set(word, 0); // <write>
        word += 128;
    }
    if publish == 2 {
        warpgroup::publish();
    }
    thread::sync();
    if thread::warp() != missing {
        let b = warpgroup::operand(start, 0);
        let mut sums = [[0.0; 4]; 16];
        warpgroup::multiply::<AlongAlong, 4>(warpgroup::operand(0, 0), b, &mut sums); // <multiply>
    }
}

#[test]
fn what_was_not_published_since_it_was_written_is_a_fault() {
    passes(&Careless { publish: 2, missing: 4, start: A_BYTES });
    for publish in [0, 1] {
        for fault in faults(&Careless { publish, missing: 4, start: A_BYTES }) {
            let Fault::NotPublished { at, write, .. } = fault else { panic!("{fault}") };
            assert_site(&at, "careless", FILE, SOURCE, "multiply");
            assert_place(write, FILE, SOURCE, "write");
        }
    }
}

#[test]
fn all_four_warps_multiply_together() {
    for fault in faults(&Careless { publish: 2, missing: 2, start: A_BYTES }) {
        let Fault::WarpNotConverged { at, operation, missing, .. } = fault else { panic!("{fault}") };
        assert_site(&at, "careless", FILE, SOURCE, "multiply");
        assert_eq!((operation, missing / 32), (Operation::GroupProduct, 2));
    }
}

#[test]
fn an_operand_lies_inside_of_shared_memory() {
    let fault = Emulator::new(1).launch(&Careless { publish: 2, missing: 4, start: 2 * A_BYTES });
    assert!(matches!(fault, Err(Fault::OutOfBounds { .. })), "{fault:?}");
    assert_eq!(Careless::DECL.only, Some("sm_90a"));
}
