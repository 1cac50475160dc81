//! Rows of heads' outputs, dense for the references and in the layout that the kernels read.

use gpu::kernels::distribution::reference::Heads;

use super::data::Random;

/// Sizes that every kernel over logits takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// n_d.
    pub sizes: Vec<usize>,
    /// K.
    pub atoms: usize,
}

impl Shape {
    /// Shape with these branches and atoms.
    pub fn new(sizes: &[usize], atoms: usize) -> Self {
        Self { sizes: sizes.to_vec(), atoms }
    }

    /// Branch sizes as kernels take them: byte d for branch d.
    pub fn packed(&self) -> u64 {
        pack(&self.sizes)
    }

    /// Number of branches.
    pub fn branches(&self) -> u32 {
        self.sizes.len() as u32
    }

    /// Sum of the branch sizes.
    pub fn actions(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// First column of the value block (None) or of a branch: each block is padded to a multiple of 4.
    pub fn column(&self, branch: Option<usize>) -> usize {
        let Some(branch) = branch else { return 0 };
        let block = |actions: usize| (actions * self.atoms).next_multiple_of(4);
        block(1) + self.sizes[..branch].iter().map(|&n| block(n)).sum::<usize>()
    }

    /// Columns of a row.
    pub fn columns(&self) -> usize {
        self.column(Some(self.sizes.len()))
    }

    /// Random outputs of the heads.
    pub fn random(&self, random: &mut Random, spread: f64) -> Heads {
        let block = |random: &mut Random| random.normals(self.atoms, spread);
        Heads {
            value: block(random),
            advantage: self.sizes.iter().map(|&n| (0..n).map(|_| block(random)).collect()).collect(),
        }
    }

    /// The same number everywhere.
    pub fn constant(&self, x: f32) -> Heads {
        Heads {
            value: vec![x; self.atoms],
            advantage: self.sizes.iter().map(|&n| vec![vec![x; self.atoms]; n]).collect(),
        }
    }

    /// Rows with `stride` floats each. What lies between blocks and behind them is `padding`.
    pub fn flat(&self, rows: &[Heads], stride: usize, padding: f32) -> Vec<f32> {
        let mut out = vec![padding; rows.len() * stride];
        for (row, heads) in out.chunks_mut(stride).zip(rows) {
            row[..self.atoms].copy_from_slice(&heads.value);
            for (d, branch) in heads.advantage.iter().enumerate() {
                for (a, atoms) in branch.iter().enumerate() {
                    let at = self.column(Some(d)) + a * self.atoms;
                    row[at..at + self.atoms].copy_from_slice(atoms);
                }
            }
        }
        out
    }

    /// A flat row taken apart again, and the floats that belong to no block.
    pub fn split(&self, row: &[f32]) -> (Heads, Vec<f32>) {
        let mut used = vec![false; row.len()];
        let mut take = |at: usize| {
            used[at..at + self.atoms].fill(true);
            row[at..at + self.atoms].to_vec()
        };
        let value = take(0);
        let advantage = (0..self.sizes.len())
            .map(|d| (0..self.sizes[d]).map(|a| take(self.column(Some(d)) + a * self.atoms)).collect())
            .collect();
        let rest = row.iter().zip(&used).filter(|(_, used)| !**used).map(|(&x, _)| x).collect();
        (Heads { value, advantage }, rest)
    }
}

/// One byte per branch.
pub fn pack(values: &[usize]) -> u64 {
    let mut bytes = [0u8; 8];
    for (byte, &value) in bytes.iter_mut().zip(values) {
        *byte = u8::try_from(value).expect("branch sizes and actions are below 256");
    }
    u64::from_le_bytes(bytes)
}
