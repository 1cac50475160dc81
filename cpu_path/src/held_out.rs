//! The C51 loss of transitions that are not learned from: no gradient, no noise, no weights.

use candle_core::{Device, Tensor};
use settings::{ModelShape, Parts};

use crate::batch::C51Batch;
use crate::c51::{self, project};
use crate::distribution::Heads;
use crate::error::CpuError;
use crate::learner::Learner;
use crate::network::taken_logits;
use crate::ops::to_vec;
use crate::real::Real;

/// Means over a batch of transitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOut {
    /// Cross-entropy of the targets, mean over branches.
    pub loss: f64,
    /// |E_m\[z\] - Q(s, a)|, mean over branches.
    pub td: f64,
    /// Q(s, a), mean over branches.
    pub q: f64,
    /// Share of the batch's actions that are greedy, mean over branches.
    pub agreement: f64,
}

impl<T: Real> Learner<T> {
    /// Evaluates a batch as a training step would, Double DQN targets by the target network, with noisy heads by their mu and
    /// every sample's weight 1. Quantile samples, masks and noise of the batch are not looked at.
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn held_out(&self, batch: &C51Batch<T>) -> Result<HeldOut, CpuError> {
        let plain = C51Batch {
            taus: Vec::new(),
            target_taus: Vec::new(),
            masks: Vec::new(),
            noise: Vec::new(),
            ..batch.clone()
        };
        plain.check(&ModelShape { noisy: false, ..self.shape.clone() }, &Parts::default())?;
        let online = self.networks.online().detached();
        let next_online = Heads::<T>::new(&self.run(&online, &plain.next_states)?)?;
        let next_target = Heads::<T>::new(&self.run(self.networks.target(), &plain.next_states)?)?;
        let now = self.run(&online, &plain.states)?;
        let (branches, atoms) = (self.shape.branches.len(), self.shape.atoms);
        let next_actions = self.greedy(&next_online);
        let next = next_target.taken_probabilities(&next_actions);
        let target = project(&self.support, &next, branches, &plain.rewards, &plain.discounts);
        let logits = taken_logits::<T>(&now.value, &now.advantages, &plain.actions)?;
        let mass = Tensor::from_slice(&target.mass, (plain.len(), branches, atoms), &Device::Cpu)?;
        let entropies: Vec<T> = to_vec(&c51::cross_entropy(&logits, &mass)?.per_branch)?;
        let heads = Heads::<T>::new(&now)?;
        let taken = heads.taken_probabilities(&plain.actions);
        let agreed = self.greedy(&heads).iter().zip(&plain.actions).filter(|(a, b)| a == b).count();
        let count = (plain.len() * branches) as f64;
        let (mut td, mut q) = (0.0, 0.0);
        for (p, m) in taken.chunks_exact(atoms).zip(target.mass.chunks_exact(atoms)) {
            let value = self.support.expectation(p);
            td += (self.support.expectation(m) - value).abs();
            q += value;
        }
        let loss = entropies.iter().map(|x| x.to_f64()).sum::<f64>() / count;
        Ok(HeldOut { loss, td: td / count, q: q / count, agreement: agreed as f64 / count })
    }
}

#[cfg(test)]
mod tests {
    use settings::Config;

    use crate::{C51Batch, Oracle};

    /// Beside a training step's own evaluation, which is written with autograd.
    #[test]
    fn it_is_the_loss_of_a_step_with_weights_of_one() {
        let mut config = Config::cpu_preset();
        (config.model.state, config.model.trunk1, config.model.trunk2) = (4, 8, 8);
        (config.model.atoms, config.model.branches) = (11, vec![3, 2]);
        let learner = Oracle::from_config(&config).unwrap();
        let number = |i: usize| (i as f64 * 0.7).sin();
        let batch = C51Batch {
            states: (0..20).map(number).collect(),
            next_states: (20..40).map(number).collect(),
            actions: vec![0, 1, 2, 0, 1, 1, 0, 0, 2, 1],
            rewards: vec![1.0, -0.5, 12.0, 0.0, 0.25],
            discounts: vec![0.99, 0.0, 0.99, 0.5, 0.99],
            weights: vec![1.0; 5],
            ..C51Batch::default()
        };
        let held_out = learner.held_out(&batch).unwrap();
        let step = learner.evaluate(&batch).unwrap();
        assert!((held_out.loss - step.loss).abs() < 1e-12);
        assert!((held_out.td - step.td.iter().sum::<f64>() / 5.0).abs() < 1e-12);
        assert!((held_out.q - step.mean_q).abs() < 1e-12);
        let greedy = learner.act(&batch.states).unwrap().greedy;
        let agreed = greedy.iter().zip(&batch.actions).filter(|(a, b)| a == b).count();
        assert_eq!(held_out.agreement, agreed as f64 / 10.0);
        assert!(learner.held_out(&C51Batch { rewards: vec![0.0; 4], ..batch }).is_err());
    }
}
