//! Operands with every element outside the matrix NaN, and the checks of what a kernel wrote.

use cuda_std::Buf;
use cuda_std::emulator::HostBuf;
use gpu::kernels::gemm::reference::Rounding;
use gpu::reference::Bounded;

pub use super::random::Random;

/// Content of memory that a kernel must not write.
pub const UNTOUCHED: f32 = -77.0;

/// Which operand is stored along the summed index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Nt,
    Nn,
    Tn,
}

/// Shape of one product with its strides beyond the columns, and how far its buffers are from a 16-byte boundary.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// Added to the smallest row stride of A, B, C.
    pub pad: [usize; 3],
    /// Floats before A, B, C.
    pub offset: [usize; 3],
}

impl Shape {
    pub const fn dense(m: usize, n: usize, k: usize) -> Shape {
        Shape { m, n, k, pad: [0; 3], offset: [0; 3] }
    }
}

/// A row-major matrix inside a larger buffer.
pub struct Matrix {
    memory: HostBuf<f32>,
    values: Vec<f32>,
    rows: usize,
    columns: usize,
    pub stride: usize,
    offset: usize,
}

impl Matrix {
    fn new(
        rows: usize,
        columns: usize,
        pad: usize,
        offset: usize,
        around: f32,
        mut value: impl FnMut() -> f32,
    ) -> Matrix {
        let stride = columns + pad;
        let mut values = vec![around; offset + rows * stride];
        for r in 0..rows {
            values[offset + r * stride..][..columns].fill_with(&mut value);
        }
        Matrix { memory: HostBuf::from(values.as_slice()), values, rows, columns, stride, offset }
    }

    /// An input: NaN around the matrix shows when a kernel reads what does not belong to it.
    pub fn input(rows: usize, columns: usize, pad: usize, offset: usize, random: &mut Random) -> Matrix {
        Matrix::new(rows, columns, pad, offset, f32::NAN, || random.uniform())
    }

    /// An output, everywhere [`UNTOUCHED`].
    pub fn output(rows: usize, columns: usize, pad: usize, offset: usize) -> Matrix {
        Matrix::new(rows, columns, pad, offset, UNTOUCHED, || UNTOUCHED)
    }

    /// From the first element to the last row's last column.
    pub fn buf(&self) -> Buf<f32> {
        let end = (self.rows - 1) * self.stride + self.columns;
        self.memory.buf().slice(self.offset, end)
    }

    /// An input's element.
    pub fn at(&self, r: usize, c: usize) -> f32 {
        self.values[self.offset + r * self.stride + c]
    }

    /// What is in memory now, bit by bit.
    pub fn bits(&self) -> Vec<u32> {
        self.memory.to_vec().into_iter().map(f32::to_bits).collect()
    }

    /// Checks every element against `expected`, and that nothing around the matrix was written.
    pub fn check(&self, what: &str, expected: impl Fn(usize, usize) -> Bounded) {
        let got = self.memory.to_vec();
        for (i, &value) in got.iter().enumerate() {
            let place = i.checked_sub(self.offset).map(|i| (i / self.stride, i % self.stride));
            match place {
                Some((r, c)) if c < self.columns => {
                    let expected = expected(r, c);
                    assert!(expected.accepts(value), "{what}: C[{r}, {c}] = {value}, expected {expected:?}");
                }
                _ => assert_eq!(value, UNTOUCHED, "{what}: element {i} around the matrix was written"),
            }
        }
    }
}

/// The operands of one product.
pub struct Operands {
    pub form: Form,
    pub a: Matrix,
    pub b: Matrix,
}

impl Operands {
    pub fn new(form: Form, shape: Shape, random: &mut Random) -> Operands {
        let Shape { m, n, k, pad, offset } = shape;
        let a = if form == Form::Tn { (k, m) } else { (m, k) };
        let b = if form == Form::Nt { (n, k) } else { (k, n) };
        Operands {
            form,
            a: Matrix::input(a.0, a.1, pad[0], offset[0], random),
            b: Matrix::input(b.0, b.1, pad[1], offset[1], random),
        }
    }

    /// A[m, k] of C = A B, wherever it is stored.
    pub fn a(&self, row: usize, k: usize) -> f32 {
        if self.form == Form::Tn { self.a.at(k, row) } else { self.a.at(row, k) }
    }

    /// B[k, n].
    pub fn b(&self, column: usize, k: usize) -> f32 {
        if self.form == Form::Nt { self.b.at(column, k) } else { self.b.at(k, column) }
    }

    /// C[r, c] summed over a range of k.
    pub fn expected(&self, rounding: Rounding, range: std::ops::Range<usize>, r: usize, c: usize) -> Bounded {
        // At most four groups of warps add their parts.
        let at = range.start;
        gpu::kernels::gemm::reference::element(
            rounding,
            range.len(),
            4,
            |i| self.a(r, at + i),
            |i| self.b(c, at + i),
        )
    }
}
