//! Prioritized replay in plain Rust: what the device's tree (`gpu::kernels::priority`) is held against, and what trains
//! where there is no GPU.
//!
//! A binary sum tree (Schaul, Quan, Antonoglou and Silver, "Prioritized Experience Replay", 2016, appendix B.2.1): every
//! node is the f64 sum of its two children, recomputed and never changed by a difference, so the root carries no error of
//! earlier updates. A descent never enters a subtree whose sum is 0.

use settings::Replay;

/// Leaves (p + eps)^alpha of the slots of a ring; 0 where a slot must not be drawn.
#[derive(Clone, Debug)]
pub struct PriorityTree {
    leaves: Vec<f32>,
    /// Node 1 is the root, the children of i are 2 i and 2 i + 1, the leaves begin at `first`.
    nodes: Vec<f64>,
    first: usize,
    highest: f32,
}

impl PriorityTree {
    /// The tree of an empty ring of at least one slot. New transitions get the leaf 1 until a larger one was set.
    pub fn new(capacity: usize) -> Self {
        let first = capacity.next_power_of_two();
        Self { leaves: vec![0.0; capacity], nodes: vec![0.0; 2 * first], first, highest: 1.0 }
    }

    /// The tree with these leaves, one per slot, as one that was built up step by step holds them. `highest` is the largest
    /// leaf that was ever set.
    pub fn with_leaves(leaves: &[f32], highest: f32) -> Self {
        let mut tree = Self::new(leaves.len());
        tree.leaves.copy_from_slice(leaves);
        for (node, &leaf) in tree.nodes[tree.first..].iter_mut().zip(leaves) {
            *node = leaf.into();
        }
        for node in (1..tree.first).rev() {
            tree.nodes[node] = tree.nodes[2 * node] + tree.nodes[2 * node + 1];
        }
        tree.highest = highest;
        tree
    }

    /// Sum of all leaves.
    pub fn total(&self) -> f64 {
        self.nodes[1]
    }

    /// All leaves, one per slot.
    pub fn leaves(&self) -> &[f32] {
        &self.leaves
    }

    /// The largest leaf that was ever set, at least 1.
    pub fn highest(&self) -> f32 {
        self.highest
    }

    /// Sets one leaf and the nodes above it.
    pub fn set(&mut self, slot: usize, leaf: f32) {
        self.leaves[slot] = leaf;
        let mut node = self.first + slot;
        self.nodes[node] = leaf.into();
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1];
        }
    }

    /// A new transition: the largest leaf so far.
    pub fn insert(&mut self, slot: usize) {
        self.set(slot, self.highest);
    }

    /// Priorities p after the losses of a batch, in its order: of a slot that occurs more than once the last one stays.
    pub fn update(&mut self, slots: &[usize], priorities: &[f64], settings: &Replay) {
        for (&slot, &p) in slots.iter().zip(priorities) {
            let leaf = (p + settings.eps).powf(settings.alpha) as f32;
            self.set(slot, leaf);
            // Not `max`, which passes over a NaN: no later comparison with it is true.
            if leaf > self.highest || leaf.is_nan() {
                self.highest = leaf;
            }
        }
    }

    /// The slot that owns `place` of [0, total): the first with place < the sum of the leaves up to it. At or beyond the
    /// total, where rounding may put a draw, the last one that is not 0. `None` if the total is not positive and finite.
    pub fn find(&self, mut place: f64) -> Option<usize> {
        let total = self.total();
        let usable = total > 0.0 && total < f64::INFINITY;
        if !usable {
            return None;
        }
        let mut node = 1;
        while node < self.first {
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            // An empty side is never entered, whatever is left of the place.
            let go_right = left == 0.0 || (right > 0.0 && place >= left);
            if go_right {
                place -= left;
            }
            node = 2 * node + usize::from(go_right);
        }
        Some(node - self.first)
    }

    /// Where sample i of a stratified batch falls: a place in the i-th of `batch` equal parts of the total, by `fraction`
    /// in [0, 1) of that part.
    pub fn place(&self, i: usize, batch: usize, fraction: f64) -> f64 {
        (i as f64 + fraction) / batch as f64 * self.total()
    }

    /// P of a slot: its share of the total.
    pub fn probability(&self, slot: usize) -> f64 {
        f64::from(self.leaves[slot]) / self.total()
    }

    /// Importance weights (N P_i)^-beta over the largest of the batch. N, the number of transitions, and the total cancel:
    /// they are (least leaf / leaf)^beta.
    pub fn weights(&self, slots: &[usize], beta: f64) -> Vec<f64> {
        let leaf = |slot: usize| f64::from(self.leaves[slot]);
        let least = slots.iter().map(|&slot| leaf(slot)).fold(f64::INFINITY, f64::min);
        slots.iter().map(|&slot| (least / leaf(slot)).powf(beta)).collect()
    }
}
