//! Bodies for the matrix products: every kernel, with its fused epilogue, alone and in a group. `gpu/tests/gemm` goes
//! through more shapes in the emulator; these run on the GPU too.

use std::ops::Range;

use cuda_std::Buf;
use gpu::kernels::gemm::reference::{Rounding, bias_lrelu, element, lrelu_backward, row_sum};
use gpu::kernels::gemm::{DataKernel, Extra, Product, WeightKernel};
use gpu::reference::Bounded;
use host::error::ExecError;

use super::data::Random;
use super::{Backend, Outcome, launch, put};

/// Content of memory that a kernel must not write.
const UNTOUCHED: f32 = -77.0;
const SLOPE: f32 = 0.01;

/// m, n, k; what each row stride is longer than the row; floats before the first element.
#[derive(Clone, Copy, Debug)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    pad: usize,
    offset: usize,
}

/// More than a tile in both directions with 16-byte copies; a shape that allows none and ends inside a stage of 32.
fn shapes<B: Backend>() -> Vec<Shape> {
    let mut shapes = vec![
        Shape { m: 132, n: 68, k: 40, pad: 4, offset: 0 },
        Shape { m: 37, n: 21, k: 45, pad: 1, offset: 3 },
    ];
    if B::FULL_SIZE {
        // Layers of the default network: many tiles, deep sums, the odd width of one branch's logits.
        shapes.push(Shape { m: 1024, n: 256, k: 80, pad: 0, offset: 0 });
        shapes.push(Shape { m: 300, n: 153, k: 1024, pad: 3, offset: 0 });
    }
    shapes
}

/// A row-major matrix inside a larger buffer.
struct Matrix {
    whole: Buf<f32>,
    values: Vec<f32>,
    rows: usize,
    columns: usize,
    stride: usize,
    offset: usize,
}

impl Matrix {
    fn new<B: Backend>(
        b: &mut B,
        (rows, columns): (usize, usize),
        shape: Shape,
        around: f32,
        mut value: impl FnMut() -> f32,
    ) -> Result<Self, ExecError> {
        let (stride, offset) = (columns + shape.pad, shape.offset);
        let mut values = vec![around; offset + rows * stride];
        for row in 0..rows {
            values[offset + row * stride..][..columns].fill_with(&mut value);
        }
        Ok(Self { whole: put(b, "matrix", &values)?, values, rows, columns, stride, offset })
    }

    /// Random numbers; NaN around them shows when a kernel reads what does not belong to the matrix.
    fn input<B: Backend>(
        b: &mut B,
        size: (usize, usize),
        shape: Shape,
        random: &mut Random,
    ) -> Result<Self, ExecError> {
        Self::new(b, size, shape, f32::NAN, || random.normal(1.0))
    }

    /// From the first element to the last row's last column.
    fn buffer(&self) -> Buf<f32> {
        self.whole.slice(self.offset, (self.rows - 1) * self.stride + self.columns)
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[self.offset + row * self.stride + column]
    }
}

/// Which elements of a large result are compared: all of a small one, and otherwise every so many, at a distance that
/// shares no factor with tiles and warps.
fn compared(elements: usize) -> impl Iterator<Item = usize> {
    (0..elements).step_by(if elements > 20_000 { 37 } else { 1 })
}

#[track_caller]
fn accept(what: &str, got: f32, expected: Bounded) {
    assert!(
        expected.accepts(got),
        "{what} is {got}, expected {} within {:e}",
        expected.value,
        expected.tolerance()
    );
}

/// Products NT (B stored `[n, k]`) or NN (B stored `[k, n]`) in one launch, each with its epilogue.
fn data_products<K: DataKernel, B: Backend>(b: &mut B, b_by_columns: bool, rounding: Rounding) -> Outcome {
    let mut random = Random::new(71);
    let shapes = shapes::<B>();
    let (mut operands, mut products) = (vec![], vec![]);
    for &shape in &shapes {
        let Shape { m, n, k, .. } = shape;
        let a = Matrix::input(b, (m, k), shape, &mut random)?;
        let right = Matrix::input(b, if b_by_columns { (n, k) } else { (k, n) }, shape, &mut random)?;
        let c = Matrix::new(b, (m, n), shape, UNTOUCHED, || UNTOUCHED)?;
        // The bias follows NT, the activations' derivative NN, as in a network's passes.
        let extra = Matrix::input(b, if b_by_columns { (1, n) } else { (m, n) }, shape, &mut random)?;
        products.push(Product {
            m,
            n,
            k,
            a: (a.buffer(), a.stride),
            b: (right.buffer(), right.stride),
            c: (c.buffer(), c.stride),
            extra: Some(extra.buffer()),
        });
        operands.push((a, right, c, extra));
    }
    let extra = if b_by_columns { Extra::Bias(SLOPE) } else { Extra::Activations(SLOPE) };
    launch(b, K::of(extra, &products).expect("sizes that fit"))?;
    for (shape, (a, right, c, extra)) in shapes.iter().zip(&operands) {
        let got = b.download(c.whole)?;
        for at in compared(got.len()) {
            let place = at.checked_sub(c.offset).map(|i| (i / c.stride, i % c.stride));
            let Some((row, column)) = place.filter(|&(_, column)| column < c.columns) else {
                assert_eq!(got[at], UNTOUCHED, "{}, {shape:?}: element {at} around C", K::DECL.name);
                continue;
            };
            // Up to four groups of warps add their parts.
            let column_of_b = |i| if b_by_columns { right.at(column, i) } else { right.at(i, column) };
            let sum = element(rounding, shape.k, 4, |i| a.at(row, i), column_of_b);
            let expected = match b_by_columns {
                true => bias_lrelu(sum, extra.at(0, column), SLOPE),
                false => lrelu_backward(sum, extra.at(row, column), SLOPE),
            };
            accept(&format!("{}, {shape:?}: C[{row}, {column}]", K::DECL.name), got[at], expected);
        }
    }
    Ok(())
}

/// The part of the batch that a split sums: whole stages of 32.
fn part(k: usize, split: usize, splits: usize) -> Range<usize> {
    let length = k.div_ceil(32 * splits) * 32;
    (split * length).min(k)..((split + 1) * length).min(k)
}

/// Weight gradients (both operands stored along the batch) with bias gradients, in two planes of one flat gradient.
fn weight_products<K: WeightKernel, B: Backend>(b: &mut B, rounding: Rounding) -> Outcome {
    const SPLITS: usize = 2;
    let mut random = Random::new(72);
    let shapes = shapes::<B>();
    let mut places = vec![];
    let mut plane = 0;
    for shape in &shapes {
        let (weight, bias) = (plane, plane + shape.m * (shape.n + shape.pad));
        plane = (bias + shape.m + 4).next_multiple_of(4);
        places.push((weight, bias));
    }
    let flat = put(b, "gradient", &vec![UNTOUCHED; SPLITS * plane])?;
    let (mut operands, mut products) = (vec![], vec![]);
    for (&shape, &(weight, bias)) in shapes.iter().zip(&places) {
        let Shape { m, n, k, pad, .. } = shape;
        let d = Matrix::input(b, (k, m), shape, &mut random)?;
        let x = Matrix::input(b, (k, n), shape, &mut random)?;
        products.push(Product {
            m,
            n,
            k,
            a: (d.buffer(), d.stride),
            b: (x.buffer(), x.stride),
            c: (flat.slice(weight, SPLITS * plane - weight), n + pad),
            extra: Some(flat.slice(bias, SPLITS * plane - bias)),
        });
        operands.push((d, x));
    }
    launch(b, K::of(SPLITS as u32, plane as u32, &products).expect("sizes that fit"))?;
    let got = b.download(flat)?;
    let mut written = vec![false; got.len()];
    for split in 0..SPLITS {
        for ((shape, &(weight, bias)), (d, x)) in shapes.iter().zip(&places).zip(&operands) {
            let part = part(shape.k, split, SPLITS);
            let name = format!("{}, {shape:?}, plane {split}", K::DECL.name);
            for row in 0..shape.m {
                let first = split * plane + weight + row * (shape.n + shape.pad);
                written[first..first + shape.n].fill(true);
                let at = split * plane + bias + row;
                written[at] = true;
                // Up to eight lanes and groups of warps add their parts.
                let expected = row_sum(part.len(), 8, |i| d.at(part.start + i, row));
                accept(&format!("{name}: db[{row}]"), got[at], expected);
            }
            for i in compared(shape.m * shape.n) {
                let (row, column) = (i / shape.n, i % shape.n);
                let at = split * plane + weight + row * (shape.n + shape.pad) + column;
                let (left, right) = (|i| d.at(part.start + i, row), |i| x.at(part.start + i, column));
                let expected = element(rounding, part.len(), 4, left, right);
                accept(&format!("{name}: dW[{row}, {column}]"), got[at], expected);
            }
        }
    }
    for (at, (value, written)) in got.iter().zip(written).enumerate() {
        assert!(written || *value == UNTOUCHED, "{}: element {at} outside all gradients", K::DECL.name);
    }
    Ok(())
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $body:ident: $check:ident $arguments:tt, $($kernel:ident)*;)*) => { $(
        $(#[$doc])*
        pub fn $body<B: Backend>(b: &mut B) -> Outcome {
            $(bodies!(@ b, $check, $kernel, $arguments);)*
            Ok(())
        }
    )* };
    (@ $b:ident, $check:ident, $kernel:ident, ($rounding:ident)) => {
        $check::<gpu::kernels::gemm::$kernel, B>($b, Rounding::$rounding)?
    };
    (@ $b:ident, $check:ident, $kernel:ident, ($rounding:ident, $by_columns:literal)) => {
        $check::<gpu::kernels::gemm::$kernel, B>($b, $by_columns, Rounding::$rounding)?
    };
}

bodies! {
    /// Forward in IEEE fp32.
    nt_fp32: data_products(Exact, true), GemmNtFp32Huge GemmNtFp32Large GemmNtFp32Medium GemmNtFp32Small;
    /// Data gradient in IEEE fp32.
    nn_fp32: data_products(Exact, false), GemmNnFp32Huge GemmNnFp32Large GemmNnFp32Medium GemmNnFp32Small;
    /// Weight gradient in IEEE fp32.
    tn_fp32: weight_products(Exact), GemmTnFp32Huge GemmTnFp32Large GemmTnFp32Medium GemmTnFp32Small;
    /// Forward on tf32 operands.
    nt_tf32: data_products(Tf32, true), GemmNtTf32Huge GemmNtTf32Large GemmNtTf32Medium GemmNtTf32Small;
    /// Data gradient on tf32 operands.
    nn_tf32: data_products(Tf32, false), GemmNnTf32Huge GemmNnTf32Large GemmNnTf32Medium GemmNnTf32Small;
    /// Weight gradient on tf32 operands.
    tn_tf32: weight_products(Tf32), GemmTnTf32Huge GemmTnTf32Large GemmTnTf32Medium GemmTnTf32Small;
    /// Forward on bfloat16 operands.
    nt_bf16: data_products(Bf16, true), GemmNtBf16Huge GemmNtBf16Large GemmNtBf16Medium GemmNtBf16Small;
    /// Data gradient on bfloat16 operands.
    nn_bf16: data_products(Bf16, false), GemmNnBf16Huge GemmNnBf16Large GemmNnBf16Medium GemmNnBf16Small;
    /// Weight gradient on bfloat16 operands.
    tn_bf16: weight_products(Bf16), GemmTnBf16Huge GemmTnBf16Large GemmTnBf16Medium GemmTnBf16Small;
    /// Forward by warpgroups. On a GPU whose image is without these kernels the launches fail with the reason.
    nt_bf16_group: data_products(Bf16, true), GemmNtBf16Group;
    /// Data gradient by warpgroups.
    nn_bf16_group: data_products(Bf16, false), GemmNnBf16Group;
    /// Weight gradient by warpgroups.
    tn_bf16_group: weight_products(Bf16), GemmTnBf16Group;
}
