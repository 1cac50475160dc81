//! What the warp operations compute.

use cuda_std::emulator::HostBuf;
use cuda_std::prelude::*;

use crate::passes;

/// Every shuffle of the lane number, one result row of 64 each.
#[kernel(block = 64, grid = 1, shuffles = 5)]
fn shuffles(y: Out<i32>) {
    let t = thread::thread_idx();
    let v = t as i32 - 100;
    y.set(t, warp::shfl_xor(v, 5));
    y.set(64 + t, warp::shfl_down(v, 3));
    y.set(128 + t, warp::shfl_up(v, 3));
    y.set(192 + t, warp::shfl_idx(v, 33 + t));
    y.set(256 + t, warp::shfl_idx(v as f32, 31 - t % 32) as i32);
}

#[test]
fn shuffles_move_lanes() {
    let y = HostBuf::<i32>::zeroed(320);
    let stats = passes(&Shuffles { y: y.buf().into() });
    assert_eq!((stats.warp_operations, stats.barriers), (10, 0));
    let y = y.to_vec();
    for t in 0..64i32 {
        let (warp, lane) = (t / 32 * 32, t % 32);
        let expect = |row: i32, source: i32| {
            assert_eq!(y[(row * 64 + t) as usize], warp + source - 100, "row {row}, thread {t}");
        };
        expect(0, lane ^ 5);
        expect(1, if lane + 3 < 32 { lane + 3 } else { lane });
        expect(2, if lane >= 3 { lane - 3 } else { lane });
        expect(3, (33 + t) % 32);
        expect(4, 31 - lane);
    }
}

/// Sum, maximum and votes over x[t].
#[kernel(block = 64, grid = 1, shuffles = 10, votes = 3)]
fn reductions(x: In<f32>, y: Out<f32>, votes: Out<u32>) {
    let t = thread::thread_idx();
    let v = x.get(t);
    y.set(t, warp::sum(v));
    y.set(64 + t, warp::max(v));
    votes.set(t, warp::ballot(v > 0.0));
    votes.set(64 + t, u32::from(warp::any(v > 30.0)));
    votes.set(128 + t, u32::from(warp::all(v < 40.0)));
}

#[test]
fn every_lane_gets_the_same_bits() {
    // Values whose sum depends on the order of the additions.
    let values: Vec<f32> = (0..64).map(|t| (t as f32 * 1.37).sin() * 10f32.powi(t % 7) + 1e-3).collect();
    let x = HostBuf::from(values.clone());
    let (y, votes) = (HostBuf::<f32>::zeroed(128), HostBuf::<u32>::zeroed(192));
    passes(&Reductions { x: x.buf().into(), y: y.buf().into(), votes: votes.buf().into() });
    let (y, votes) = (y.to_vec(), votes.to_vec());
    for warp in 0..2 {
        let lanes = &values[32 * warp..32 * warp + 32];
        let mut tree = lanes.to_vec();
        for half in [16, 8, 4, 2, 1] {
            tree = (0..half).map(|i| tree[i] + tree[i + half]).collect();
        }
        let largest = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let ballot = lanes.iter().enumerate().fold(0, |mask, (i, v)| mask | u32::from(*v > 0.0) << i);
        for t in 32 * warp..32 * warp + 32 {
            assert_eq!(y[t].to_bits(), tree[0].to_bits(), "thread {t}");
            assert_eq!(y[64 + t], largest);
            assert_eq!(votes[t], ballot);
            assert_eq!(votes[64 + t], u32::from(largest > 30.0));
            assert_eq!(votes[128 + t], u32::from(largest < 40.0));
        }
    }
}

/// C = C0 + A B for one warp; A (16 x 8) row-major, B (8 x 8) row-major, C (16 x 8) row-major.
#[kernel(block = 32, grid = 1, mmas = 1)]
fn product_tf32(a: In<f32>, b: In<f32>, c: InOut<f32>) {
    let (g, t) = (thread::lane() / 4, thread::lane() % 4);
    let at = |row: u32, col: u32| a.get(row * 8 + col).to_bits();
    let a = [at(g, t), at(g + 8, t), at(g, t + 4), at(g + 8, t + 4)];
    let b = [b.get(t * 8 + g).to_bits(), b.get((t + 4) * 8 + g).to_bits()];
    let i = [g * 8 + 2 * t, g * 8 + 2 * t + 1, (g + 8) * 8 + 2 * t, (g + 8) * 8 + 2 * t + 1];
    let d = warp::mma_tf32(a, b, i.map(|i| c.get(i)));
    for e in 0..4 {
        c.set(i[e], d[e]);
    }
}

#[test]
fn tf32_product() {
    // Every element has its own value, with bits below tf32's ten that must not count.
    let tail = 1.0 + 2f32.powi(-12);
    let a: Vec<f32> = (0..128).map(|i| (i as f32 - 60.0) * tail).collect();
    let b: Vec<f32> = (0..64).map(|i| (i as f32 * 7.0 % 31.0 - 9.0) * tail).collect();
    let c: Vec<f32> = (0..128).map(|i| i as f32 / 4.0).collect();
    let (a_buf, b_buf) = (HostBuf::from(a), HostBuf::from(b));
    for seed in crate::SEEDS {
        let c_buf = HostBuf::from(c.clone());
        let launch = ProductTf32 { a: a_buf.buf().into(), b: b_buf.buf().into(), c: c_buf.buf().into() };
        cuda_std::emulator::Emulator::new(seed).launch(&launch).unwrap();
        let got = c_buf.to_vec();
        for row in 0..16 {
            for col in 0..8 {
                // Exact in f32: small integers after the truncation.
                let sum: f32 = (0..8)
                    .map(|k| (row * 8 + k) as f32 - 60.0)
                    .zip((0..8).map(|k| ((k * 8 + col) as f32 * 7.0) % 31.0 - 9.0))
                    .map(|(a, b)| a * b)
                    .sum();
                assert_eq!(got[row * 8 + col], c[row * 8 + col] + sum, "({row}, {col})");
            }
        }
    }
}

/// As [`product_tf32`] in bf16: A (16 x 16), B (16 x 8); each word of the inputs holds the bf16 of one element.
#[kernel(block = 32, grid = 1, mmas = 1)]
fn product_bf16(a: In<u16>, b: In<u16>, c: Out<f32>) {
    let (g, t) = (thread::lane() / 4, thread::lane() % 4);
    let pair = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    let a = |row: u32, col: u32| pair(a.get(row * 16 + col), a.get(row * 16 + col + 1));
    let b = |row: u32| pair(b.get(row * 8 + g), b.get((row + 1) * 8 + g));
    let d = warp::mma_bf16(
        [a(g, 2 * t), a(g + 8, 2 * t), a(g, 2 * t + 8), a(g + 8, 2 * t + 8)],
        [b(2 * t), b(2 * t + 8)],
        [1.0; 4],
    );
    let i = [g * 8 + 2 * t, g * 8 + 2 * t + 1, (g + 8) * 8 + 2 * t, (g + 8) * 8 + 2 * t + 1];
    for e in 0..4 {
        c.set(i[e], d[e]);
    }
}

#[test]
fn bf16_product() {
    let bf16 = |x: i32| ((x as f32).to_bits() >> 16) as u16;
    let a = HostBuf::from((0..256).map(|i| bf16(i % 113 - 50)).collect::<Vec<_>>());
    let b = HostBuf::from((0..128).map(|i| bf16(i * 11 % 61 - 30)).collect::<Vec<_>>());
    let c = HostBuf::<f32>::zeroed(128);
    passes(&ProductBf16 { a: a.buf().into(), b: b.buf().into(), c: c.buf().into() });
    let c = c.to_vec();
    for row in 0..16 {
        for col in 0..8 {
            let sum: i32 =
                (0..16).map(|k| ((row * 16 + k) % 113 - 50) * ((k * 8 + col) * 11 % 61 - 30)).sum();
            assert_eq!(c[(row * 8 + col) as usize], (sum + 1) as f32, "({row}, {col})");
        }
    }
}

/// Four matrices of 16 rows by 16 16-bit elements each way: rows 0 to 7 and 8 to 15, columns 0 to 7 and 8 to 15.
#[kernel(block = 32, grid = 1, shared = 512, barriers = 1, mmas = 2)]
fn load_matrices(y: Out<u32>) {
    let (lane, words) = (thread::lane(), shared::array::<u32>(0, 128));
    for i in 0..4 {
        let word = 4 * lane + i;
        words.set(word, (2 * word) | ((2 * word + 1) << 16));
    }
    thread::sync(); // the elements, each its own index, are there
    let row = 8 * (lane / 8 % 2 * 8 + lane % 8) + 4 * (lane / 16);
    let (straight, transposed) = (words.get_matrices(row), words.get_matrices_transposed(row));
    for i in 0..4 {
        y.set(4 * lane + i, straight[i as usize]);
        y.set(128 + 4 * lane + i, transposed[i as usize]);
    }
}

#[test]
fn matrices_arrive_as_products_want_them() {
    let y = HostBuf::<u32>::zeroed(256);
    passes(&LoadMatrices { y: y.buf().into() });
    let y = y.to_vec();
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        for i in 0..4 {
            let element =
                |row: usize, column: usize| (16 * (8 * (i % 2) + row) + 8 * (i / 2) + column) as u32;
            let pair = |low: u32, high: u32| low | high << 16;
            assert_eq!(
                y[4 * lane + i],
                pair(element(g, 2 * t), element(g, 2 * t + 1)),
                "lane {lane}, matrix {i}"
            );
            assert_eq!(
                y[128 + 4 * lane + i],
                pair(element(2 * t, g), element(2 * t + 1, g)),
                "lane {lane}, matrix {i}"
            );
        }
    }
}
