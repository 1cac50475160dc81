//! What every backend of a matrix product needs: its operands' extents, checks, a description, a reference.

use std::fmt;

use settings::Precision;

use crate::error::ExecError;
use crate::exec::{Epilogue, Form, Product, Touch};
use crate::extent::Extent;

/// One matrix or vector that a product touches.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// `a`, `b`, `c`, `bias` or `h`.
    pub name: &'static str,
    /// The bytes; the product writes `c` and reads the others.
    pub touch: Touch,
}

impl Product {
    /// Shape of `a` as stored: rows, columns.
    fn a_shape(&self) -> (usize, usize) {
        match self.form {
            Form::Nt | Form::Nn => (self.m, self.k),
            Form::Tn => (self.k, self.m),
        }
    }

    /// Shape of `b` as stored: rows, columns.
    fn b_shape(&self) -> (usize, usize) {
        match self.form {
            Form::Nt => (self.n, self.k),
            Form::Nn | Form::Tn => (self.k, self.n),
        }
    }

    /// The memory the product reads and writes.
    pub fn operands(&self) -> Vec<Operand> {
        let read = |name, extent| Operand { name, touch: Touch { extent, writes: false } };
        let ((a_rows, a_columns), (b_rows, b_columns)) = (self.a_shape(), self.b_shape());
        let mut operands = vec![
            read("a", Extent::matrix(self.a.addr(), a_rows, a_columns, self.lda)),
            read("b", Extent::matrix(self.b.addr(), b_rows, b_columns, self.ldb)),
        ];
        match self.epilogue {
            Epilogue::None => {}
            Epilogue::Bias(bias) | Epilogue::BiasLrelu(bias, _) => {
                operands.push(read("bias", Extent::matrix(bias.addr(), 1, self.n, self.n)));
            }
            Epilogue::LreluBackward(h, _) => {
                operands.push(read("h", Extent::matrix(h.addr(), self.m, self.n, self.ldc)));
            }
        }
        let c = Extent::matrix(self.c.addr(), self.m, self.n, self.ldc);
        operands.push(Operand { name: "c", touch: Touch { extent: c, writes: true } });
        operands
    }

    /// Says which operand is too short, has too small a stride, or overlaps the result.
    pub fn check(&self) -> Result<(), ExecError> {
        let fail = |problem| Err(ExecError::Product { label: self.label, problem });
        if self.m == 0 || self.n == 0 || self.k == 0 {
            return fail(format!("m = {}, n = {}, k = {}: each must be positive", self.m, self.n, self.k));
        }
        let ((a_rows, a_columns), (b_rows, b_columns)) = (self.a_shape(), self.b_shape());
        let mut matrices = vec![
            ("a", self.a, a_rows, a_columns, self.lda),
            ("b", self.b, b_rows, b_columns, self.ldb),
            ("c", self.c, self.m, self.n, self.ldc),
        ];
        match self.epilogue {
            Epilogue::None => {}
            Epilogue::Bias(bias) | Epilogue::BiasLrelu(bias, _) => {
                matrices.push(("bias", bias, 1, self.n, self.n));
            }
            Epilogue::LreluBackward(h, _) => matrices.push(("h", h, self.m, self.n, self.ldc)),
        }
        for (name, buffer, rows, columns, ld) in matrices {
            if ld < columns {
                return fail(format!("ld{name} = {ld}, but a row of {name} has {columns} floats"));
            }
            let needed = (rows - 1) * ld + columns;
            if buffer.len() < needed {
                let len = buffer.len();
                return fail(format!(
                    "{name} has {len} floats, {rows} x {columns} with stride {ld} needs {needed}"
                ));
            }
            if !buffer.addr().is_multiple_of(4) {
                return fail(format!("{name} at {:#x} is not aligned to 4 bytes", buffer.addr()));
            }
        }
        let operands = self.operands();
        let (result, inputs) = operands.split_last().expect("c is always an operand");
        match inputs.iter().find(|input| input.touch.extent.overlaps(&result.touch.extent)) {
            Some(input) => fail(format!("{} overlaps the result c", input.name)),
            None => Ok(()),
        }
    }

    /// The product on the host, for the emulator: operands rounded to the precision, sums in f64, one rounding
    /// to f32, then the epilogue in f32.
    ///
    /// `a`, `b`, `extra` (bias or h) and `c` are the buffers' contents; only C's m x n block is written.
    pub fn compute(&self, a: &[f32], b: &[f32], extra: &[f32], c: &mut [f32]) {
        let a: Vec<f64> = a.iter().map(|&x| f64::from(round_operand(self.precision, x))).collect();
        let b: Vec<f64> = b.iter().map(|&x| f64::from(round_operand(self.precision, x))).collect();
        for i in 0..self.m {
            for j in 0..self.n {
                let mut sum = 0.0;
                for l in 0..self.k {
                    let a = match self.form {
                        Form::Nt | Form::Nn => a[i * self.lda + l],
                        Form::Tn => a[l * self.lda + i],
                    };
                    let b = match self.form {
                        Form::Nt => b[j * self.ldb + l],
                        Form::Nn | Form::Tn => b[l * self.ldb + j],
                    };
                    sum += a * b;
                }
                let at = i * self.ldc + j;
                c[at] = match self.epilogue {
                    Epilogue::None => sum as f32,
                    Epilogue::Bias(_) => sum as f32 + extra[j],
                    Epilogue::BiasLrelu(_, slope) => lrelu(sum as f32 + extra[j], slope),
                    Epilogue::LreluBackward(_, slope) => {
                        // h has the sign of the activation's argument; the derivative at 0 is the slope.
                        if extra[at] > 0.0 { sum as f32 } else { sum as f32 * slope }
                    }
                };
            }
        }
    }
}

fn lrelu(x: f32, slope: f32) -> f32 {
    if x > 0.0 { x } else { slope * x }
}

/// An operand as the tensor cores see it: tf32 keeps 10 mantissa bits, bf16 keeps 7 (round to nearest even).
fn round_operand(precision: Precision, x: f32) -> f32 {
    match precision {
        Precision::Fp32 => x,
        Precision::Tf32 => f32::from_bits(x.to_bits() & !0x1fff),
        Precision::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epilogue = match self.epilogue {
            Epilogue::None => "",
            Epilogue::Bias(_) => " + bias",
            Epilogue::BiasLrelu(..) => " + bias, lrelu",
            Epilogue::LreluBackward(..) => " * lrelu'",
        };
        write!(
            f,
            "product `{}` {:?} m={} n={} k={} lda={} ldb={} ldc={} {:?}{epilogue}",
            self.label, self.form, self.m, self.n, self.k, self.lda, self.ldb, self.ldc, self.precision
        )
    }
}

#[cfg(test)]
mod tests {
    use cuda_std::Buf;

    use super::*;

    fn buf(address: u64, len: usize) -> Buf<f32> {
        Buf::from_raw(address, len)
    }

    /// m = 2, n = 3, k = 4 with strides 5, 6, 7 where the operand's rows allow it.
    fn product(form: Form, epilogue: Epilogue) -> Product {
        Product {
            label: "test",
            form,
            m: 2,
            n: 3,
            k: 4,
            a: buf(0x1000, 64),
            lda: 5,
            b: buf(0x2000, 64),
            ldb: 6,
            c: buf(0x3000, 64),
            ldc: 7,
            epilogue,
            precision: Precision::Fp32,
        }
    }

    #[test]
    fn forms_agree_with_sums_written_out() {
        // A[i, l] = 10 i + l, B[l, j] = l - 2 j as logical matrices: C[i, j] = sum_l (10 i + l)(l - 2 j).
        let expected = |i: usize, j: usize| {
            (0..4).map(|l| (10.0 * i as f32 + l as f32) * (l as f32 - 2.0 * j as f32)).sum::<f32>()
        };
        for form in [Form::Nt, Form::Nn, Form::Tn] {
            let product = product(form, Epilogue::None);
            let (mut a, mut b, mut c) = (vec![f32::NAN; 64], vec![f32::NAN; 64], vec![9.0; 64]);
            for l in 0..4 {
                for i in 0..2 {
                    let at = if form == Form::Tn { l * 5 + i } else { i * 5 + l };
                    a[at] = 10.0 * i as f32 + l as f32;
                }
                for j in 0..3 {
                    let at = if form == Form::Nt { j * 6 + l } else { l * 6 + j };
                    b[at] = l as f32 - 2.0 * j as f32;
                }
            }
            product.compute(&a, &b, &[], &mut c);
            for i in 0..2 {
                for j in 0..3 {
                    assert_eq!(c[i * 7 + j], expected(i, j), "{form:?} {i} {j}");
                }
            }
            assert_eq!(c[3], 9.0, "outside the block nothing is written");
        }
    }

    #[test]
    fn epilogues_follow_their_definitions() {
        let a = vec![1.0; 64];
        let b = vec![1.0; 64];
        let extra = [-5.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 3.0, -1.0, 0.0];
        let run = |epilogue| {
            let mut c = vec![0.0; 64];
            product(Form::Nt, epilogue).compute(&a, &b, &extra, &mut c);
            (c[0], c[1], c[8])
        };
        // Every sum is 4.
        assert_eq!(run(Epilogue::Bias(buf(0x4000, 3))), (-1.0, 5.0, 5.0));
        assert_eq!(run(Epilogue::BiasLrelu(buf(0x4000, 3), 0.5)), (-0.5, 5.0, 5.0));
        assert_eq!(run(Epilogue::LreluBackward(buf(0x4000, 64), 0.5)), (2.0, 4.0, 2.0));
    }

    #[test]
    fn reduced_precisions_round_operands() {
        let x = 1.0 + 2f32.powi(-9) + 2f32.powi(-12);
        assert_eq!(round_operand(Precision::Fp32, x), x);
        assert_eq!(round_operand(Precision::Tf32, x), 1.0 + 2f32.powi(-9));
        assert_eq!(round_operand(Precision::Bf16, x), 1.0);
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_numbers() {
        let message = |product: Product| product.check().unwrap_err().to_string();
        assert!(product(Form::Nt, Epilogue::None).check().is_ok());
        let mut short = product(Form::Nt, Epilogue::None);
        short.b = buf(0x2000, 15);
        assert_eq!(message(short), "product `test`: b has 15 floats, 3 x 4 with stride 6 needs 16");
        let narrow = Product { lda: 3, ..product(Form::Nn, Epilogue::None) };
        assert_eq!(message(narrow), "product `test`: lda = 3, but a row of a has 4 floats");
        let bias = product(Form::Nt, Epilogue::Bias(buf(0x4000, 2)));
        assert_eq!(message(bias), "product `test`: bias has 2 floats, 1 x 3 with stride 3 needs 3");
        let mut in_place = product(Form::Nt, Epilogue::None);
        in_place.c = in_place.a;
        assert_eq!(message(in_place), "product `test`: a overlaps the result c");
        let empty = Product { k: 0, ..product(Form::Nt, Epilogue::None) };
        assert_eq!(message(empty), "product `test`: m = 2, n = 3, k = 0: each must be positive");
    }
}
