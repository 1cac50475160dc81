//! Value distributions and Q values where no gradient is needed: acting, greedy actions, targets.
//!
//! Plain loops over the heads' outputs. Composed from tensor operations the same takes a dozen passes over
//! [batch, actions, atoms], which is what a CPU step would mostly consist of.

use crate::c51::Support;
use crate::network::Forward;
use crate::ops::{mean_of_rows, to_vec};
use crate::real::Real;

/// The heads' outputs of a forward pass on the host.
#[derive(Clone, Debug)]
pub struct Heads<T> {
    /// v, [batch, atoms].
    value: Vec<T>,
    /// a_d, [batch, actions of d, atoms].
    advantages: Vec<Vec<T>>,
    atoms: usize,
}

impl<T: Real> Heads<T> {
    /// Copies the outputs of a forward pass.
    pub fn new(forward: &Forward) -> candle_core::Result<Self> {
        let (_, atoms) = forward.value.dims2()?;
        let advantages = forward.advantages.iter().map(to_vec).collect::<candle_core::Result<_>>()?;
        Ok(Self { value: to_vec(&forward.value)?, advantages, atoms })
    }

    /// Heads with given outputs: `value` [batch, atoms], `advantages` one [batch, actions of d, atoms] per branch.
    pub fn from_parts(value: Vec<T>, advantages: Vec<Vec<T>>, atoms: usize) -> Self {
        assert!(
            advantages.iter().all(|a| a.len().is_multiple_of(value.len()))
                && value.len().is_multiple_of(atoms)
        );
        Self { value, advantages, atoms }
    }

    /// Number of states.
    pub fn batch(&self) -> usize {
        self.value.len() / self.atoms
    }

    /// Calls `see(row, action, logits, probabilities)` for every row and every action of branch `d`, in order.
    pub fn each(&self, d: usize, mut see: impl FnMut(usize, usize, &[T], &[T])) {
        let mut buffers = Buffers::new(self.atoms);
        let actions = self.advantages[d].len() / self.value.len();
        for row in 0..self.batch() {
            self.baseline(row, d, &mut buffers);
            for action in 0..actions {
                self.distribution(row, d, action, &mut buffers);
                see(row, action, &buffers.logits, &buffers.probabilities);
            }
        }
    }

    /// Q_d(a) = sum_k z_k p_d(a, k) of every branch: [batch, actions of d] each.
    pub fn q_values(&self, support: &Support) -> Vec<Vec<T>> {
        let branch = |d: usize| {
            let mut q = Vec::with_capacity(self.advantages[d].len() / self.atoms);
            self.each(d, |_, _, _, p| q.push(T::from_f64(support.expectation(p))));
            q
        };
        (0..self.advantages.len()).map(branch).collect()
    }

    /// p_d of one action per branch: from `actions` [batch, branches] to [batch, branches, atoms].
    pub fn taken_probabilities(&self, actions: &[u32]) -> Vec<T> {
        let mut buffers = Buffers::new(self.atoms);
        let mut probabilities = Vec::with_capacity(actions.len() * self.atoms);
        let branches = self.advantages.len();
        for (i, &action) in actions.iter().enumerate() {
            let (row, d) = (i / branches, i % branches);
            self.baseline(row, d, &mut buffers);
            self.distribution(row, d, action as usize, &mut buffers);
            probabilities.extend_from_slice(&buffers.probabilities);
        }
        probabilities
    }

    /// baseline[k] = v[k] - mean over a of a_d[a, k].
    fn baseline(&self, row: usize, d: usize, buffers: &mut Buffers<T>) {
        let value = &self.value[row * self.atoms..][..self.atoms];
        let sample = self.advantages[d].len() / self.batch();
        mean_of_rows(&self.advantages[d][row * sample..][..sample], &mut buffers.baseline);
        buffers.baseline.iter_mut().zip(value).for_each(|(mean, &v)| *mean = v - *mean);
    }

    /// logits = baseline + a_d[action], probabilities = softmax(logits) with the maximum subtracted.
    fn distribution(&self, row: usize, d: usize, action: usize, buffers: &mut Buffers<T>) {
        let actions = self.advantages[d].len() / self.value.len();
        let advantage = &self.advantages[d][(row * actions + action) * self.atoms..][..self.atoms];
        let Buffers { baseline, logits, probabilities } = buffers;
        let mut max = advantage[0] + baseline[0];
        for ((logit, &a), &b) in logits.iter_mut().zip(advantage).zip(&*baseline) {
            *logit = a + b;
            if *logit > max {
                max = *logit;
            }
        }
        let mut sum = T::default();
        for (p, &logit) in probabilities.iter_mut().zip(&*logits) {
            *p = (logit - max).exp();
            sum += *p;
        }
        probabilities.iter_mut().for_each(|p| *p /= sum);
    }
}

/// Work space for one action, [atoms] each.
struct Buffers<T> {
    baseline: Vec<T>,
    logits: Vec<T>,
    probabilities: Vec<T>,
}

impl<T: Real> Buffers<T> {
    fn new(atoms: usize) -> Self {
        let zeros = vec![T::default(); atoms];
        Self { baseline: zeros.clone(), logits: zeros.clone(), probabilities: zeros }
    }
}
