//! Reference of the tree's changes: loops over the batch and over the slots.

use crate::reference::Bounded;

/// (p + eps)^alpha with p = (1 - w) c + w l, as exp(alpha ln(p + eps)).
pub fn leaf(c: f32, l: f32, iqn_weight: f32, eps: f32, alpha: f32) -> Bounded {
    let [c, l, w, eps, alpha] = [c, l, iqn_weight, eps, alpha].map(Bounded::exact);
    let p = if w.value == 0.0 { c } else { (Bounded::exact(1.0) - w) * c + w * l };
    let value = (p.value + eps.value).powf(alpha.value);
    // The kernel's form has the bound, the definition the value.
    Bounded { value, scale: (alpha * (p + eps).ln()).exp().scale }
}

/// Which sample's priority each slot has after a batch, as a loop over the batch leaves it; `None` for the others.
pub fn owners(indices: &[u32], slots: usize) -> Vec<Option<usize>> {
    let mut owners = vec![None; slots];
    for (sample, &slot) in indices.iter().enumerate() {
        owners[slot as usize] = Some(sample);
    }
    owners
}

/// Sum of a group of leaves.
pub fn sum(leaves: &[f32]) -> f64 {
    leaves.iter().map(|&leaf| f64::from(leaf)).sum()
}

/// The leaves after one step that wrote `inserted` transitions from `cursor` on into a ring that held `size` before.
pub fn insert(
    leaves: &mut [f32],
    (cursor, size): (usize, usize),
    (inserted, pending): (usize, usize),
    new: f32,
) {
    let capacity = leaves.len();
    for i in 0..inserted {
        leaves[(cursor + i) % capacity] = 0.0;
    }
    if size >= pending {
        for i in 0..inserted {
            leaves[(cursor + capacity - pending + i) % capacity] = new;
        }
    }
}
