//! The order check on real kernels and products, on two lanes.

use gpu::kernels::bias_lrelu::{BiasLrelu, LreluBackward};
use settings::Precision;

use super::*;
use crate::exec::Form;

const ROWS: usize = 3;
const COLUMNS: usize = 8;
const SLOPE: f32 = 0.5;

struct Fixture {
    exec: EmulatedExec,
    bias: Buf<f32>,
    x: Buf<f32>,
    h: Buf<f32>,
}

/// bias = 0, 1, 2, ..; x and h alternate 1 and -1.
fn fixture() -> Fixture {
    let mut exec = EmulatedExec::new(7);
    let bias = exec.alloc("bias", COLUMNS).unwrap();
    let x = exec.alloc("x", ROWS * COLUMNS).unwrap();
    let h = exec.alloc("h", ROWS * COLUMNS).unwrap();
    let signs: Vec<f32> = (0..ROWS * COLUMNS).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    exec.upload(bias, &(0..COLUMNS).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    exec.upload(x, &signs).unwrap();
    exec.upload(h, &signs).unwrap();
    Fixture { exec, bias, x, h }
}

impl Fixture {
    fn forward(&self) -> BiasLrelu {
        let (rows, cols, stride) = (ROWS as u32, COLUMNS as u32, COLUMNS as u32);
        BiasLrelu { rows, cols, stride, slope: SLOPE, bias: self.bias.into(), x: self.x.into() }
    }

    fn backward(&self) -> LreluBackward {
        let (rows, cols, stride) = (ROWS as u32, COLUMNS as u32, COLUMNS as u32);
        LreluBackward { rows, cols, stride, slope: SLOPE, h: self.h.into(), d: self.x.into() }
    }

    /// c[i, j] = sum of x[i, l] h[j, l] over the first four columns, for three rows of x and two of h.
    fn product(&self, c: Buf<f32>, ldc: usize) -> Product {
        Product {
            label: "outer",
            form: Form::Nt,
            m: ROWS,
            n: 2,
            k: 4,
            a: self.x,
            lda: COLUMNS,
            b: self.h,
            ldb: COLUMNS,
            c,
            ldc,
            epilogue: Epilogue::None,
            precision: Precision::Fp32,
        }
    }
}

#[test]
fn a_launch_runs_and_an_after_makes_its_result_usable_on_another_lane() {
    let mut f = fixture();
    let (forward, backward) = (f.forward(), f.backward());
    f.exec.launch(Lane::MAIN, &forward).unwrap();
    f.exec.after(Lane::GRADIENT, Lane::MAIN).unwrap();
    f.exec.launch(Lane::GRADIENT, &backward).unwrap();
    // Column c: sign + c, through LeakyReLU (only column 1 of the odd ones stays at 0), times lrelu'(sign).
    let row: Vec<f32> =
        (0..COLUMNS).map(|c| if c % 2 == 0 { 1.0 + c as f32 } else { SLOPE * (c as f32 - 1.0) }).collect();
    assert_eq!(f.exec.download(f.x).unwrap(), row.repeat(ROWS));
    assert_eq!(f.exec.launches(), 2);
}

#[test]
fn without_the_after_the_conflict_names_both_launches_lanes_and_the_buffer() {
    let mut f = fixture();
    let (forward, backward) = (f.forward(), f.backward());
    f.exec.launch(Lane::MAIN, &forward).unwrap();
    let error = f.exec.launch(Lane::branch(1), &backward).unwrap_err();
    assert_eq!(
        error.to_string(),
        "buffer `x` is written by `bias_lrelu` on lane main and written by `lrelu_backward` on lane branch1, and no \
         `after` orders them"
    );
    assert_eq!(f.exec.launches(), 1, "the second launch has not run");
}

#[test]
fn column_blocks_of_one_matrix_are_free_of_each_other() {
    let mut f = fixture();
    let c = f.exec.alloc::<f32>("c", ROWS * 4).unwrap();
    let (left, right) = (f.product(c, 4), f.product(c.slice(2, ROWS * 4 - 2), 4));
    f.exec.product(Lane::branch(0), &left).unwrap();
    f.exec.product(Lane::branch(1), &right).unwrap();
    // Rows of x and h alternate 1, -1 and have even length, so every sum of four is 4.
    assert_eq!(f.exec.download(c).unwrap(), [4.0; ROWS * 4]);
    f.exec.product(Lane::branch(0), &left).unwrap();
    let shifted = f.product(c.slice(1, ROWS * 4 - 1), 4);
    let error = f.exec.product(Lane::branch(1), &shifted).unwrap_err();
    assert!(matches!(&error, ExecError::Unordered(u) if u.buffer == "c" && u.first == "outer"), "{error}");
}

#[test]
fn arguments_that_reach_too_far_can_say_what_they_touch() {
    // Two blocks of four columns, each passed as the rest of the buffer, as a kernel with a row stride takes them.
    let block = |f: &Fixture, first: usize| {
        let x = f.x.slice(first, ROWS * COLUMNS - first);
        BiasLrelu { cols: 4, bias: f.bias.slice(first, 4).into(), x: x.into(), ..f.forward() }
    };
    let touches = |kernel: &BiasLrelu| {
        let x = Extent::matrix(kernel.x.addr(), ROWS, 4, COLUMNS);
        let bias = Extent::matrix(kernel.bias.addr(), 1, 4, 4);
        [Touch { extent: bias, writes: false }, Touch { extent: x, writes: true }]
    };
    let mut f = fixture();
    let (left, right) = (block(&f, 0), block(&f, 4));
    f.exec.launch_touching(Lane::branch(0), &left, &touches(&left)).unwrap();
    f.exec.launch_touching(Lane::branch(1), &right, &touches(&right)).unwrap();
    f.exec.synchronize();
    f.exec.launch(Lane::branch(0), &left).unwrap();
    assert!(matches!(f.exec.launch(Lane::branch(1), &right), Err(ExecError::Unordered(_))));

    let elsewhere = f.exec.launch_touching(Lane::MAIN, &left, &touches(&right)).unwrap_err().to_string();
    assert!(elsewhere.ends_with("is not inside such an argument"), "{elsewhere}");
    let [bias, mut x] = touches(&left);
    x.writes = false;
    let unwritten = f.exec.launch_touching(Lane::MAIN, &left, &[bias, x]).unwrap_err().to_string();
    assert_eq!(unwritten, "kernel `bias_lrelu`: nothing is said to be written of argument `x`");
}

#[test]
fn a_step_follows_the_rules_of_a_capture() {
    let mut f = fixture();
    let (forward, x) = (f.forward(), f.x);
    let unforked = f.exec.step(|exec| exec.launch(Lane::TARGET, &forward));
    assert!(matches!(unforked, Err(ExecError::NotForked { lane: Lane::TARGET, .. })), "{unforked:?}");
    let unjoined = f.exec.step(|exec| {
        exec.after(Lane::TARGET, Lane::MAIN)?;
        exec.launch(Lane::TARGET, &forward)
    });
    assert!(
        matches!(&unjoined, Err(ExecError::Unjoined { lanes }) if *lanes == [Lane::TARGET]),
        "{unjoined:?}"
    );
    let allocating = f.exec.step(|exec| exec.alloc::<f32>("late", 4).map(drop));
    assert!(matches!(allocating, Err(ExecError::Sealed { .. })), "{allocating:?}");
    let waiting = f.exec.step(|exec| exec.download(x).map(drop));
    assert!(matches!(waiting, Err(ExecError::HostWaitInCapture { .. })), "{waiting:?}");
    let nested = f.exec.step(|exec| exec.step(|_| Ok(())));
    assert!(matches!(nested, Err(ExecError::InsideCapture { .. })), "{nested:?}");
    f.exec.synchronize();
    f.exec
        .step(|exec| {
            exec.after(Lane::TARGET, Lane::MAIN)?;
            exec.launch(Lane::TARGET, &forward)?;
            exec.after(Lane::MAIN, Lane::TARGET)
        })
        .unwrap();
    f.exec.download(x).unwrap();
}

#[test]
fn memory_outside_a_buffer_is_refused() {
    let mut f = fixture();
    let kernel = BiasLrelu { bias: Buf::from_raw(f.bias.addr(), COLUMNS + 1).into(), ..f.forward() };
    let error = f.exec.launch(Lane::MAIN, &kernel).unwrap_err().to_string();
    assert!(error.starts_with("kernel `bias_lrelu`, argument `bias`: 36 bytes at 0x"), "{error}");
    let product = f.product(Buf::from_raw(0x10, 64), 4);
    let error = f.exec.product(Lane::MAIN, &product).unwrap_err();
    assert!(matches!(error, ExecError::NotAllocated { address: 0x10, .. }), "{error}");
    let wrong_length = f.exec.upload(f.bias, &[0.0; 3]).unwrap_err().to_string();
    assert_eq!(wrong_length, "upload: the buffer has 8 elements, the host slice 3");
}

#[test]
fn a_broken_contract_is_passed_on() {
    let mut f = fixture();
    let kernel = BiasLrelu { cols: 7, ..f.forward() };
    let error = f.exec.launch(Lane::MAIN, &kernel).unwrap_err();
    assert!(matches!(&error, ExecError::Contract(_)), "{error}");
    assert!(error.to_string().contains("cols % 4 == 0"), "{error}");
}

#[test]
fn kernels_inside_a_product_are_checked_as_the_product() {
    let mut f = fixture();
    let c = f.exec.alloc::<f32>("c", ROWS * COLUMNS).unwrap();
    // A launch whose arguments reach from the product's first column to the end of the buffer.
    f.exec.set_product(|exec, lane, product| {
        let (rows, cols, stride) = (product.m as u32, product.n as u32, product.ldc as u32);
        let (h, d) = (product.a.into(), product.c.into());
        exec.launch(lane, &LreluBackward { rows, cols, stride, slope: SLOPE, h, d })
    });
    let block = |first: usize| Product {
        form: Form::Nn,
        n: 4,
        k: ROWS,
        c: c.slice(first, ROWS * COLUMNS - first),
        ldc: COLUMNS,
        ..f.product(c, COLUMNS)
    };
    let (left, right, middle) = (block(0), block(4), block(2));
    f.exec.product(Lane::branch(0), &left).unwrap();
    f.exec.product(Lane::branch(1), &right).unwrap();
    assert_eq!(f.exec.launches(), 2);
    let error = f.exec.product(Lane::branch(2), &middle);
    assert!(matches!(&error, Err(ExecError::Unordered(u)) if u.first_lane == Lane::branch(0)), "{error:?}");
    // After a product, launches are checked by themselves again.
    f.exec.synchronize();
    let forward = f.forward();
    f.exec.launch(Lane::MAIN, &forward).unwrap();
    assert!(matches!(f.exec.launch(Lane::TARGET, &forward), Err(ExecError::Unordered(_))));
}
