//! What the choice of an algorithm depends on, and the product in cuBLASLt's column-major terms.

use std::fmt;
use std::hash::{Hash, Hasher};

use settings::Precision;

use crate::exec::{Form, Product};

/// Alignments beyond this one make no difference to the library.
const MOST_ALIGNMENT: u64 = 256;

/// Everything the choice of an algorithm depends on. Two products with equal keys share a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanKey {
    form: Form,
    m: usize,
    n: usize,
    k: usize,
    lda: usize,
    ldb: usize,
    ldc: usize,
    pub(super) bias: bool,
    pub(super) precision: Precision,
    /// Bytes that the addresses of a, b, c are multiples of.
    pub(super) alignment: [u32; 3],
}

impl PlanKey {
    /// The key of a product of which cuBLASLt adds the bias (`bias`) or only multiplies.
    pub fn new(product: &Product, bias: bool) -> Self {
        let Product { form, m, n, k, lda, ldb, ldc, precision, .. } = *product;
        let alignment = [product.a, product.b, product.c].map(|buffer| alignment(buffer.addr()));
        Self { form, m, n, k, lda, ldb, ldc, bias, precision, alignment }
    }

    /// Floats that a, b and c span.
    pub fn spans(&self) -> [usize; 3] {
        let span = |rows: usize, columns: usize, ld: usize| (rows - 1) * ld + columns;
        let a = if self.form == Form::Tn {
            span(self.k, self.m, self.lda)
        } else {
            span(self.m, self.k, self.lda)
        };
        let b = if self.form == Form::Nt {
            span(self.n, self.k, self.ldb)
        } else {
            span(self.k, self.n, self.ldb)
        };
        [a, b, span(self.m, self.n, self.ldc)]
    }

    /// Floats of the bias, 0 without one.
    pub fn bias_len(&self) -> usize {
        if self.bias { self.n } else { 0 }
    }

    /// Operands and result in column-major terms: C^T = op(B)^T op(A)^T, so the library's first operand is our
    /// `b`, its second our `a`, and a row-major matrix with stride ld is its transpose with leading dimension ld.
    /// Returns (transpose first, transpose second, [first, second, result] as (rows, columns, ld)).
    pub(super) fn column_major(&self) -> (bool, bool, [(usize, usize, usize); 3]) {
        let Self { form, m, n, k, lda, ldb, ldc, .. } = *self;
        let first = if form == Form::Nt { (k, n, ldb) } else { (n, k, ldb) };
        let second = if form == Form::Tn { (m, k, lda) } else { (k, m, lda) };
        (form == Form::Nt, form == Form::Tn, [first, second, (n, m, ldc)])
    }
}

impl Hash for PlanKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Without the precision, which has no hash: equal keys have equal hashes all the same.
        (self.form, self.m, self.n, self.k, self.lda, self.ldb, self.ldc, self.bias, self.alignment)
            .hash(state);
    }
}

/// The key in the plan cache; a stable text.
impl fmt::Display for PlanKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Nt => "nt",
            Form::Nn => "nn",
            Form::Tn => "tn",
        };
        let precision = match self.precision {
            Precision::Fp32 => "fp32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        };
        let Self { m, n, k, lda, ldb, ldc, alignment: [a, b, c], .. } = self;
        let bias = if self.bias { " bias" } else { "" };
        write!(f, "{form} {precision} m{m} n{n} k{k} lda{lda} ldb{ldb} ldc{ldc} align{a},{b},{c}{bias}")
    }
}

fn alignment(address: u64) -> u32 {
    // Lowest set bit; an address of 0 does not occur, and would count as fully aligned.
    (1 << address.trailing_zeros().min(MOST_ALIGNMENT.trailing_zeros())) as u32
}

#[cfg(test)]
mod tests {
    use cuda_std::Buf;

    use super::*;
    use crate::exec::Epilogue;

    fn product(form: Form, m: usize, n: usize, k: usize) -> Product {
        Product {
            label: "test",
            form,
            m,
            n,
            k,
            a: Buf::from_raw(0x1000, 1 << 20),
            lda: if form == Form::Tn { m } else { k } + 3,
            b: Buf::from_raw(0x2010, 1 << 20),
            ldb: if form == Form::Nt { k } else { n } + 1,
            c: Buf::from_raw(0x3004, 1 << 20),
            ldc: n + 2,
            epilogue: Epilogue::None,
            precision: Precision::Tf32,
        }
    }

    /// Column-major op(first) op(second) with the key's layouts, against the row-major definition: the mapping
    /// is right exactly if both read the same elements.
    #[test]
    fn column_major_terms_give_the_row_major_product() {
        let (m, n, k) = (3, 4, 5);
        for form in [Form::Nt, Form::Nn, Form::Tn] {
            let product = product(form, m, n, k);
            let key = PlanKey::new(&product, false);
            let [a_len, b_len, c_len] = key.spans();
            let a: Vec<f32> = (0..a_len).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let b: Vec<f32> = (0..b_len).map(|i| (i * 5 % 13) as f32 - 6.0).collect();
            let mut expected = vec![0.0; c_len];
            Product { precision: Precision::Fp32, ..product }.compute(&a, &b, &[], &mut expected);

            let (transpose_first, transpose_second, [first, second, result]) = key.column_major();
            let read = |data: &[f32], (rows, columns, ld): (usize, usize, usize), transpose, i, j| {
                let (row, column) = if transpose { (j, i) } else { (i, j) };
                assert!(row < rows && column < columns && ld >= rows);
                data[column * ld + row]
            };
            let mut actual = vec![0.0; c_len];
            assert_eq!((result.0, result.1), (n, m));
            for row in 0..n {
                for column in 0..m {
                    actual[column * result.2 + row] = (0..k)
                        .map(|l| {
                            read(&b, first, transpose_first, row, l)
                                * read(&a, second, transpose_second, l, column)
                        })
                        .sum();
                }
            }
            assert_eq!(actual, expected, "{form:?}");
        }
    }

    #[test]
    fn a_key_is_a_stable_text_with_the_alignments() {
        let key = PlanKey::new(&product(Form::Nt, 1024, 256, 80), true);
        assert_eq!(key.to_string(), "nt tf32 m1024 n256 k80 lda83 ldb81 ldc258 align256,16,4 bias");
        assert_eq!(key.bias_len(), 256);
    }
}
