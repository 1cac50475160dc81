//! References of the acting kernels for one row.

use crate::kernels::distribution::reference::{Heads, atoms, dueling, expectation, softmax};
use crate::reference::Bounded;

/// Q [D, n_d].
pub fn dueling_q(heads: &Heads, support: [f32; 2]) -> Vec<Vec<Bounded>> {
    let z = atoms(support, heads.value.len());
    let q_of = |logits: &Vec<Bounded>| expectation(&z, &softmax(logits).p);
    heads.advantage.iter().map(|branch| dueling(&heads.value, branch).iter().map(q_of).collect()).collect()
}

/// log p [D, n_d, K].
pub fn dueling_log_p(heads: &Heads) -> Vec<Vec<Vec<Bounded>>> {
    let log_p =
        |branch: &Vec<Vec<f32>>| dueling(&heads.value, branch).iter().map(|l| softmax(l).log_p).collect();
    heads.advantage.iter().map(log_p).collect()
}
