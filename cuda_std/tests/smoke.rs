use cuda_std::Kernel;
use cuda_std::emulator::{Emulator, HostBuf};
use cuda_std::prelude::*;

/// y[r, c] = x[r, c] + bias[c].
#[kernel(block = 64, grid = (rows * cols).div_ceil(64), requires(
    x.len() >= (rows as usize) * (cols as usize),
    bias.len() >= cols as usize,
))]
pub fn add_bias(
    /// Rows.
    rows: u32,
    cols: u32,
    bias: In<f32>,
    x: InOut<f32>,
) {
    let i = thread::global_index();
    if i < rows * cols {
        x.set(i, x.get(i) + bias.get(i % cols));
    }
}

/// Sum of 64 values per block.
#[kernel(block = 64, grid = n, shared = 64 * 4, barriers = 1, shuffles = 5)]
pub fn block_sum(n: u32, x: In<f32>, sum: Out<f32>) {
    let s = shared::array::<f32>(0, 64);
    let t = thread::thread_idx();
    s.set(t, x.get(thread::global_index()));
    thread::sync();
    if t < 32 {
        let v = warp::sum(s.get(t) + s.get(t + 32));
        if t == 0 {
            sum.set(thread::block_idx(), v);
        }
    }
    let _ = n;
}

#[test]
fn adds_and_sums() {
    let x = HostBuf::from((0..192).map(|i| i as f32).collect::<Vec<_>>());
    let bias = HostBuf::from(vec![1.0f32, 2.0, 3.0]);
    let mut emulator = Emulator::new(1);
    let launch = AddBias { rows: 64, cols: 3, bias: bias.buf().into(), x: x.buf().into() };
    emulator.launch(&launch).unwrap();
    assert_eq!(x.to_vec()[..4], [1.0, 3.0, 5.0, 4.0]);
    let err = AddBias { rows: 65, ..launch }.check().unwrap_err();
    println!("{err}");
    let err = AddBias { rows: u32::MAX, ..launch }.check().unwrap_err();
    println!("{err}");
    let sum = HostBuf::<f32>::zeroed(3);
    let stats = emulator.launch(&BlockSum { n: 3, x: x.buf().into(), sum: sum.buf().into() }).unwrap();
    println!("{stats:?} {:?}", sum.to_vec());
    assert_eq!(sum.to_vec()[0], x.to_vec()[..64].iter().sum::<f32>());
    let err = emulator.launch(&BlockSum { n: 4, x: x.buf().into(), sum: sum.buf().into() }).unwrap_err();
    println!("{err}");
}
