//! Groups of products against the product's own definition, in the emulator.

use super::*;
use crate::emulated::EmulatedExec;
use crate::exec::Memory;

const LANE: Lane = Lane::MAIN;

/// Numbers in (-1, 1), the same for the same seed.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn filled(exec: &mut EmulatedExec, len: usize, seed: u32) -> Buf<f32> {
    let buf = exec.alloc("operand", len).expect("memory");
    exec.upload(buf, &numbers(len, seed)).expect("an upload");
    buf
}

/// A forward product of its own buffers, with a bias.
fn forward(
    exec: &mut EmulatedExec,
    (m, n, k): (usize, usize, usize),
    precision: Precision,
    seed: u32,
) -> Product {
    let bias = filled(exec, n, seed + 2);
    Product {
        label: "forward",
        form: Form::Nt,
        m,
        n,
        k,
        a: filled(exec, m * k, seed),
        lda: k,
        b: filled(exec, n * k, seed + 1),
        ldb: k,
        c: exec.alloc("c", m * n).expect("memory"),
        ldc: n,
        epilogue: Epilogue::BiasLrelu(bias, 0.01),
        precision,
    }
}

/// f32 sums of k products of numbers below 1 differ from exact ones by at most k units of 2^-24 for each product.
fn close(got: &[f32], expected: &[f32], k: usize) {
    let bound = (k * k) as f32 * 2f32.powi(-24);
    assert_eq!(got.len(), expected.len());
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= bound, "element {i}: {g}, expected {e} within {bound}");
    }
}

fn problem(result: Result<(), ExecError>) -> String {
    match result {
        Err(ExecError::Product { label: _, problem }) => problem,
        other => panic!("expected a refused product, got {other:?}"),
    }
}

#[test]
fn a_group_is_one_launch_and_gives_each_product() {
    let mut exec = EmulatedExec::new(1);
    let products: Vec<Product> = [(20, 51, 24), (20, 9, 24), (33, 12, 8)]
        .into_iter()
        .enumerate()
        .map(|(i, shape)| forward(&mut exec, shape, Precision::Fp32, 10 * i as u32))
        .collect();
    group(&mut exec, LANE, &products).expect("a group");
    assert_eq!(exec.launches(), 1);
    for product in &products {
        let got = exec.download(product.c).expect("a download");
        exec.product(LANE, product).expect("the definition");
        close(&got, &exec.download(product.c).expect("a download"), product.k);
    }
}

#[test]
fn weight_gradients_sum_over_their_planes() {
    let mut exec = EmulatedExec::new(2);
    let (rows, outputs, inputs, splits, plane) = (70, 21, 16, 2, 21 * 16 + 24);
    let (d_y, x) = (filled(&mut exec, rows * outputs, 1), filled(&mut exec, rows * inputs, 2));
    let parts = exec.alloc("parts", splits * plane).expect("memory");
    let layer = WeightGradient {
        label: "layer",
        rows,
        outputs,
        inputs,
        d_y,
        ldy: outputs,
        x,
        ldx: inputs,
        weight: 0,
        bias: outputs * inputs,
        precision: Precision::Fp32,
    };
    weight_gradients(&mut exec, LANE, &[layer], parts, splits, plane).expect("gradients");
    let parts = exec.download(parts).expect("a download");
    let sum = |at: usize| parts[at] + parts[plane + at];
    let (d_y, x) = (numbers(rows * outputs, 1), numbers(rows * inputs, 2));
    for o in 0..outputs {
        for i in 0..inputs {
            let expected: f64 =
                (0..rows).map(|r| f64::from(d_y[r * outputs + o]) * f64::from(x[r * inputs + i])).sum();
            close(&[sum(o * inputs + i)], &[expected as f32], rows);
        }
        let expected: f64 = (0..rows).map(|r| f64::from(d_y[r * outputs + o])).sum();
        close(&[sum(outputs * inputs + o)], &[expected as f32], rows);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_reason() {
    let mut exec = EmulatedExec::new(3);
    let product = forward(&mut exec, (8, 8, 8), Precision::Fp32, 1);
    let other = forward(&mut exec, (8, 8, 8), Precision::Tf32, 5);
    let mixed = problem(group(&mut exec, LANE, &[product, other]));
    assert_eq!(mixed, "`forward` has another form or precision than its group");
    let plain = Product { epilogue: Epilogue::None, ..forward(&mut exec, (8, 8, 8), Precision::Fp32, 9) };
    let mixed = problem(group(&mut exec, LANE, &[product, plain]));
    assert_eq!(mixed, "`forward` has another epilogue than its group");
    let transposed = problem(group(&mut exec, LANE, &[Product { form: Form::Tn, ..product }]));
    assert_eq!(transposed, "form TN takes no epilogue");
    let twice = problem(group(&mut exec, LANE, &[product, product]));
    assert_eq!(twice, "it writes `c` of `forward` in the same launch");
    let many: Vec<Product> =
        (0..10).map(|i| forward(&mut exec, (4, 4, 4), Precision::Fp32, 100 + 10 * i)).collect();
    assert_eq!(problem(group(&mut exec, LANE, &many)), "10 products in one launch: 1 to 9 are possible");
    let short = problem(group(&mut exec, LANE, &[Product { k: 9, lda: 9, ldb: 9, ..product }]));
    assert!(short.starts_with("a has 64 floats"), "{short}");
    assert_eq!(exec.launches(), 0);
}
