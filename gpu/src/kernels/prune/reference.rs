//! Pruning by sorting.

/// How many of `len` elements shall be zero at a step: the nearest integer to Zhu and Gupta's cubic share (equation 1,
/// from an initial sparsity of 0).
pub fn target(step: u64, begin: u64, end: u64, sparsity: f64, len: usize) -> usize {
    let x = (step.clamp(begin, end) - begin) as f64 / (end - begin) as f64;
    (sparsity * (1.0 - (1.0 - x).powi(3)) * len as f64).round() as usize
}

/// Which elements of one matrix are zero afterwards: those that were, and of the others the smallest by magnitude, by
/// index where equal, until there are `count`.
pub fn pruned(values: &[f32], before: &[bool], count: usize) -> Vec<bool> {
    let mut after = before.to_vec();
    let mut order: Vec<usize> = (0..values.len()).filter(|&i| !before[i] && !values[i].is_nan()).collect();
    order.sort_by(|&a, &b| values[a].abs().total_cmp(&values[b].abs()).then(a.cmp(&b)));
    let missing = count.saturating_sub(before.iter().filter(|&&pruned| pruned).count());
    order.into_iter().take(missing).for_each(|i| after[i] = true);
    after
}
