//! Magnitude pruning of the main network's weight matrices ([`settings::Pruning`]; Zhu and Gupta 2017).

use settings::{Layout, Pruning};

use crate::error::CpuError;
use crate::learner::Learner;
use crate::real::Real;

/// Settings, and which parameters of the main group are pruned.
#[derive(Clone, Debug)]
pub struct Mask {
    settings: Pruning,
    /// One entry per float of the main group's flat layout.
    pub(crate) pruned: Vec<bool>,
}

impl Mask {
    /// Nothing is pruned yet.
    pub fn new(settings: &Pruning, layout: &Layout) -> Self {
        Self { settings: settings.clone(), pruned: vec![false; layout.len] }
    }

    /// Whether step `step` (from 0) begins with a pruning.
    pub fn due(&self, step: u64) -> bool {
        self.settings.due(step)
    }

    /// Marks the smallest weights of each matrix until as many are pruned as the step asks for: first those that were,
    /// then by magnitude, by index where equal. A NaN is never marked.
    pub fn grow<T: Real>(&mut self, step: u64, layout: &Layout, values: &[T]) {
        for t in Pruning::matrices(layout) {
            let range = t.offset..t.offset + t.len();
            let (values, pruned) = (&values[range.clone()], &mut self.pruned[range]);
            let count = self.settings.zeros(step, t.len());
            let missing = count.saturating_sub(pruned.iter().filter(|&&p| p).count());
            let size = |i: usize| values[i].to_f64().abs();
            let mut order: Vec<usize> =
                (0..values.len()).filter(|&i| !pruned[i] && !size(i).is_nan()).collect();
            order.sort_by(|&a, &b| size(a).total_cmp(&size(b)).then(a.cmp(&b)));
            order.into_iter().take(missing).for_each(|i| pruned[i] = true);
        }
    }

    /// Multiplies a gradient with the mask: a product, so that a NaN stays.
    pub fn apply<T: Real>(&self, gradient: &mut [T]) {
        for (g, _) in gradient.iter_mut().zip(&self.pruned).filter(|(_, pruned)| **pruned) {
            *g *= T::default();
        }
    }

    /// Sets pruned elements to zero.
    pub fn clear<T: Real>(&self, values: &mut [T]) {
        for (x, _) in values.iter_mut().zip(&self.pruned).filter(|(_, pruned)| **pruned) {
            *x = T::default();
        }
    }

    /// Fraction of zeros of each matrix.
    pub fn sparsity(&self, layout: &Layout) -> Vec<(String, f64)> {
        let share = |t: &settings::Tensor| {
            let pruned = self.pruned[t.offset..t.offset + t.len()].iter().filter(|&&p| p).count();
            (t.name.clone(), pruned as f64 / t.len() as f64)
        };
        Pruning::matrices(layout).map(share).collect()
    }
}

impl<T: Real> Learner<T> {
    /// The learner with pruning, where the settings say so; nothing is pruned yet.
    pub fn with_pruning(mut self, pruning: &Pruning) -> Self {
        self.mask = pruning.enabled.then(|| Mask::new(pruning, self.layout()));
        self
    }

    /// Pruning, at the steps that begin with one: the smallest weights become zero, their moments too.
    ///
    /// # Errors
    /// A tensor operation that failed.
    pub fn prune(&mut self) -> Result<(), CpuError> {
        // Steps begun, as the device counts them.
        let step = self.step() + self.skipped().0;
        let Some(mask) = self.mask.as_mut().filter(|mask| mask.due(step)) else { return Ok(()) };
        let main = self.networks.main();
        mask.grow(step, main.layout(), main.values());
        let mask = &*mask;
        self.networks.edit_main_all(|values| mask.clear(values))
    }

    /// Fraction of pruned weights of each matrix, by name; empty without pruning.
    pub fn sparsity(&self) -> Vec<(String, f64)> {
        self.mask.as_ref().map_or(Vec::new(), |mask| mask.sparsity(self.layout()))
    }
}

#[cfg(test)]
mod tests {
    use settings::ModelShape;

    use super::*;

    #[test]
    fn masks_grow_by_magnitude_and_index_and_never_hide_a_nan() {
        let shape = ModelShape { state: 2, trunk1: 3, trunk2: 2, branches: vec![2], ..Default::default() };
        let layout = Layout::main(&shape);
        let settings = Pruning { enabled: true, sparsity: 0.9, begin: 0, end: 2, every: 1 };
        let mut mask = Mask::new(&settings, &layout);
        let mut values = vec![1.0_f64; layout.len];
        let first = layout.offset("trunk1.weight");
        values[first..first + 6].copy_from_slice(&[-0.25, 0.5, f64::NAN, 0.25, -3.0, 0.125]);
        let pruned =
            |mask: &Mask| (0..6).filter(|i| mask.pruned[first + i]).map(|i| i as i32).collect::<Vec<i32>>();
        mask.grow(0, &layout, &values);
        assert!(mask.pruned.iter().all(|p| !p));
        mask.grow(1, &layout, &values); // 0.9 (1 - 1/8) 6 = 4.7
        assert_eq!(pruned(&mask), [0, 1, 3, 4, 5]);
        values[first + 4] = 7.0; // whatever it is now, it stays pruned
        mask.grow(2, &layout, &values); // 5.4
        assert_eq!(pruned(&mask), [0, 1, 3, 4, 5]);
        assert_eq!(mask.sparsity(&layout)[0], ("trunk1.weight".into(), 5.0 / 6.0));
        mask.clear(&mut values);
        assert!(values[first + 2].is_nan() && values[first + 4] == 0.0);
        let mut gradient = vec![f64::NAN; layout.len];
        mask.apply(&mut gradient);
        assert!(gradient[first].is_nan());
        assert!(mask.pruned[layout.offset("trunk1.bias")..][..3].iter().all(|p| !p));
    }
}
