//! Where the heads' outputs lie in a row of logits, the same for all kernels and for the host's products.
//!
//! A row is `[value block | branch 0 block | branch 1 block | ...]`; the value block has K columns, branch d has
//! n_d * K (column a * K + k is atom k of action a), and each block is padded to a multiple of 4 columns, so that
//! every block starts on 16 bytes. The padding belongs to zero rows of the output layers and is always zero.

use crate::action::branch;

/// Next multiple of 4.
#[inline(always)]
pub const fn pad4(n: u32) -> u32 {
    (n + 3) & !3
}

/// First column of branch `d`.
#[inline(always)]
pub fn branch_column(sizes: u64, atoms: u32, d: u32) -> u32 {
    let mut column = pad4(atoms);
    let mut j = 0;
    while j < d {
        column += pad4(branch(sizes, j) * atoms);
        j += 1;
    }
    column
}

/// Columns of a row: the row stride of a logits buffer.
pub fn columns(sizes: u64, branches: u32, atoms: u32) -> u32 {
    branch_column(sizes, atoms, branches)
}

/// Sum of n_j for j < d: first column of branch `d` in a row of Q values.
#[inline(always)]
pub fn action_offset(sizes: u64, d: u32) -> u32 {
    let mut sum = 0;
    let mut j = 0;
    while j < d {
        sum += branch(sizes, j);
        j += 1;
    }
    sum
}
