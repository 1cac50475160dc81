//! Reference of the batch means.

use crate::reference::Bounded;

/// Mean of one statistic over the batch: a term goes through batch / 32 additions in its thread and 32 over the threads
/// of its column.
pub fn mean(column: &[f32]) -> Bounded {
    let sum = Bounded::sum(column.iter().map(|&x| Bounded::exact(x)), column.len() / 32 + 33);
    sum / Bounded::exact(column.len() as f32)
}
