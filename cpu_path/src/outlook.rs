//! What a policy says of states beside its greedy actions: distributions, quantiles, the ensemble's opinions.

use candle_core::{Device, Tensor};

use crate::c51::argmax;
use crate::distribution::Heads;
use crate::error::CpuError;
use crate::hyper::decimal;
use crate::iqn::QuantileHead;
use crate::learner::Learner;
use crate::ops::{log_softmax, to_vec};
use crate::real::Real;
use crate::{confidence, ensemble};

/// Everything that the online networks say of states, row-major; noisy heads by their mu.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook<T> {
    /// z, [atoms].
    pub atoms: Vec<f64>,
    /// Q, [batch, sum n_d], branch after branch.
    pub q: Vec<T>,
    /// argmax of each branch, the lowest index among equals, [batch, branches].
    pub greedy: Vec<u32>,
    /// p of every action, [batch, sum n_d, atoms], branch after branch.
    pub probabilities: Vec<T>,
    /// Z(tau) of every action by the IQN head, [batch, taus, sum n_d]; empty without it.
    pub quantiles: Vec<T>,
    /// Expected value of the state by each member of the ensemble, [batch, members]; empty without it.
    pub members: Vec<T>,
    /// Probability that the error at the state is above its running median, [batch]; empty without the confidence head.
    pub above_median: Vec<T>,
}

impl<T: Real> Learner<T> {
    /// Looks at states [batch, S]; `taus` are the quantiles asked of the IQN head, the same for every state.
    ///
    /// # Errors
    /// A length that is no multiple of S, or a Q value that is not finite.
    pub fn outlook(&self, states: &[T], taus: &[T]) -> Result<Outlook<T>, CpuError> {
        let weights = self.networks.online().detached();
        let forward = self.run(&weights, states)?;
        let heads = Heads::<T>::new(&forward)?;
        let (batch, branches, atoms) = (heads.batch(), &self.shape.branches, self.shape.atoms);
        let actions = self.shape.actions();
        let per_branch = heads.q_values(&self.support);
        let (mut q, mut greedy) = (Vec::with_capacity(batch * actions), Vec::new());
        for row in 0..batch {
            for (branch, (all, &n)) in per_branch.iter().zip(branches).enumerate() {
                let own = &all[row * n..][..n];
                if let Some(action) = own.iter().position(|x| !x.is_finite()) {
                    let value = own[action].to_f64();
                    return Err(CpuError::NonFiniteValue { row, branch, action, value });
                }
                q.extend_from_slice(own);
                greedy.push(argmax(own) as u32);
            }
        }
        let mut probabilities = vec![T::default(); batch * actions * atoms];
        let mut first = 0;
        for (d, &n) in branches.iter().enumerate() {
            heads.each(d, |row, action, _, p| {
                probabilities[(row * actions + first + action) * atoms..][..atoms].copy_from_slice(p);
            });
            first += n;
        }
        let mut quantiles = Vec::new();
        if self.parts.iqn.enabled {
            let head = QuantileHead::new(&self.shape, &self.parts.iqn);
            let tiled: Vec<T> = (0..batch).flat_map(|_| taus.iter().copied()).collect();
            let per_branch = head.quantiles(&weights, &forward.features, &tiled)?;
            quantiles = to_vec(&Tensor::cat(&per_branch, 2)?)?;
        }
        let mut members = Vec::new();
        if self.parts.ensemble.enabled {
            let slope = decimal(self.shape.leaky_slope);
            let logits =
                ensemble::logits::<T>(&weights, &forward.features, self.parts.ensemble.members, slope)?;
            let z: Vec<T> = self.support.atoms().iter().map(|&z| T::from_f64(z)).collect();
            let z = Tensor::from_vec(z, (atoms, 1), &Device::Cpu)?;
            let expected = logits
                .iter()
                .map(|logits| log_softmax(logits)?.exp()?.matmul(&z))
                .collect::<candle_core::Result<Vec<_>>>()?;
            members = to_vec(&Tensor::cat(&expected, 1)?)?;
        }
        let mut above_median = Vec::new();
        if self.parts.confidence.enabled {
            let logits: Vec<T> = to_vec(&confidence::logits(&weights, &forward.features, &self.confidence)?)?;
            above_median = logits.iter().map(|c| T::from_f64(1.0 / (1.0 + (-c.to_f64()).exp()))).collect();
        }
        let atoms = self.support.atoms().to_vec();
        Ok(Outlook { atoms, q, greedy, probabilities, quantiles, members, above_median })
    }
}

#[cfg(test)]
mod tests {
    use settings::Config;

    use crate::{CpuLearner, Oracle};

    fn config() -> Config {
        let mut config = Config::cpu_preset();
        (config.model.state, config.model.window, config.model.bar_features) = (14, 3, 2);
        (config.model.trunk1, config.model.trunk2, config.model.atoms) = (8, 8, 11);
        (config.iqn.enabled, config.ensemble.enabled, config.confidence.enabled) = (true, true, true);
        (config.model.noisy, config.attention.enabled) = (true, true);
        config
    }

    #[test]
    fn it_agrees_with_acting_and_with_itself() {
        let config = config();
        let learner = Oracle::from_config(&config).unwrap();
        let states: Vec<f64> = (0..3 * 14).map(|i| (i as f64 * 0.7).sin()).collect();
        let taus = [0.1, 0.5, 0.9];
        let outlook = learner.outlook(&states, &taus).unwrap();
        let decision = learner.act(&states).unwrap();
        assert_eq!((&outlook.q, &outlook.greedy), (&decision.q, &decision.greedy));
        // Q is the mean of the distribution.
        for (q, p) in outlook.q.iter().zip(outlook.probabilities.chunks_exact(11)) {
            let mean: f64 = p.iter().zip(&outlook.atoms).map(|(p, z)| p * z).sum();
            assert!((mean - q).abs() < 1e-12 && (p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert_eq!(outlook.quantiles.len(), 3 * taus.len() * 15);
        assert_eq!((outlook.members.len(), outlook.above_median.len()), (3 * 5, 3));
        assert!(outlook.above_median.iter().all(|&p| p > 0.0 && p < 1.0));
        // A state's values do not depend on the others beside it.
        let second = learner.outlook(&states[14..28], &taus).unwrap();
        assert!(second.q.iter().zip(&outlook.q[15..30]).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!(second.members.iter().zip(&outlook.members[5..10]).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn what_is_off_says_nothing_and_a_wrong_length_is_an_error() {
        let mut config = config();
        (config.iqn.enabled, config.ensemble.enabled, config.confidence.enabled) = (false, false, false);
        let learner = CpuLearner::from_config(&config).unwrap();
        let outlook = learner.outlook(&[0.0; 14], &[0.5]).unwrap();
        assert!(
            outlook.quantiles.is_empty() && outlook.members.is_empty() && outlook.above_median.is_empty()
        );
        assert!(learner.outlook(&[0.0; 13], &[0.5]).is_err());
    }
}
