//! Q of the taken actions of one row, in f64.

use crate::kernels::distribution::reference::{Heads, atoms, dueling, expectation, softmax};
use crate::reference::Bounded;

/// Q_d(a_d) of every branch.
pub fn taken_q(support: [f32; 2], heads: &Heads, taken: &[usize]) -> Vec<Bounded> {
    let z = atoms(support, heads.value.len());
    let of = |rows: &Vec<Vec<f32>>, a: usize| expectation(&z, &softmax(&dueling(&heads.value, rows)[a]).p);
    heads.advantage.iter().zip(taken).map(|(rows, &a)| of(rows, a)).collect()
}
