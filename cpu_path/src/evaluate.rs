//! Losses of a batch with every intermediate, and the gradient of each term by autograd.

use candle_core::{Device, Tensor};
use settings::{Group, Parts};

use crate::batch::C51Batch;
use crate::c51::{self, Projection, argmax, project};
use crate::confidence;
use crate::cql;
use crate::distribution::Heads;
use crate::ensemble;
use crate::error::CpuError;
use crate::group::Weights;
use crate::hyper::decimal;
use crate::iql;
use crate::iqn::{self, QuantileHead};
use crate::learner::Learner;
use crate::network::{Forward, taken_logits};
use crate::ops::to_vec;
use crate::optimizer::norm;
use crate::real::Real;
use crate::terms::{OwnGradient, Term, combine};
use crate::values::{ConfidenceValues, CqlValues, EnsembleValues, Evaluation, IqlValues, IqnValues};

/// The batch's forward passes that several terms read.
struct Passes {
    /// Online network on s, differentiable.
    online: Forward,
    /// Online network on s', constant.
    next_online: Forward,
    /// Target network on s'.
    next_target: Forward,
    /// What the target network is in this step.
    target: Weights,
    /// s, [batch, S].
    states: Tensor,
    /// w, [batch], times the advantage weights where they are on.
    weights: Tensor,
}

/// Values of the heads beside the main ones.
struct Auxiliary<T> {
    ensemble: Option<EnsembleValues<T>>,
    confidence: Option<ConfidenceValues<T>>,
}

impl<T: Real> Learner<T> {
    /// Losses, their intermediates and gradients for a batch; changes nothing (so the trunk is taken as it is, without
    /// the spectral norm that a training step begins with).
    ///
    /// C51's gradient goes to the main parameters, under its budget, to the attention and to the Mamba-2 block; CQL's to the main parameters;
    /// the quantile loss's to its head and to the trunk; ensemble's and confidence head's to themselves and, under one
    /// budget, to the trunk; each value network's to itself.
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn evaluate(&self, batch: &C51Batch<T>) -> Result<Evaluation<T>, CpuError> {
        batch.check(&self.shape, &self.parts)?;
        let samples = batch.len();
        let mut passes = self.passes(batch)?;
        let main = self.networks.main();
        let max_norm = self.hyper.max_grad_norm;

        // The value networks come first: what they say of the batch may weigh the other losses.
        let mut own_values = Vec::new();
        let iql = match self.parts.iql.enabled {
            true => Some(self.iql(batch, &passes, &mut own_values)?),
            false => None,
        };
        if let Some(iql) = iql.as_ref().filter(|_| self.parts.iql.advantage_weighting) {
            let weights = batch.weights.iter().zip(&iql.derived.weights);
            let weights: Vec<T> = weights.map(|(w, a)| T::from_f64(w.to_f64() * a.to_f64())).collect();
            passes.weights = Tensor::from_vec(weights, samples, &Device::Cpu)?;
        }
        let (next_actions, target, mean_next_q) = self.c51_target(batch, &passes)?;
        let (branches, atoms) = (self.shape.branches.len(), self.shape.atoms);
        let logits = taken_logits::<T>(&passes.online.value, &passes.online.advantages, &batch.actions)?;
        let mass = Tensor::from_slice(&target.mass, (samples, branches, atoms), &Device::Cpu)?;
        let ce = c51::cross_entropy(&logits, &mass)?;
        let per_sample = c51::per_sample(&ce.per_branch)?;
        let scaled = match iql.as_ref().filter(|_| self.parts.iql.branch_scaling) {
            Some(iql) => {
                let scales: Vec<T> = iql.derived.branch_scales.iter().map(|&s| T::from_f64(s)).collect();
                let scales = Tensor::from_vec(scales, branches, &Device::Cpu)?;
                c51::per_sample(&ce.per_branch.broadcast_mul(&scales)?)?
            }
            None => per_sample.clone(),
        };
        let loss = c51::weighted_mean(&scaled, &passes.weights)?;
        let grads = loss.backward()?;
        let mut terms = vec![(Term::C51, main.gradient(&grads)?)];
        let mut own = Vec::new();

        let cql = if self.parts.cql.enabled { Some(self.cql(batch, &passes, &mut terms)?) } else { None };
        let iqn =
            if self.parts.iqn.enabled { Some(self.iqn(batch, &passes, &mut terms, &mut own)?) } else { None };
        if self.parts.attention.enabled {
            let gradient = self.networks.group(Group::Attention)?.gradient(&grads)?;
            own.push(OwnGradient::new(Group::Attention, gradient, max_norm));
        }
        if self.parts.mamba.enabled {
            let gradient = self.networks.group(Group::Mamba)?.gradient(&grads)?;
            own.push(OwnGradient::new(Group::Mamba, gradient, max_norm));
        }
        own.append(&mut own_values);

        let log_probabilities: Vec<T> = to_vec(&ce.log_probabilities)?;
        let mut td_per_branch = Vec::with_capacity(samples * branches);
        let mut q_sum = 0.0;
        for (log_p, m) in log_probabilities.chunks_exact(atoms).zip(target.mass.chunks_exact(atoms)) {
            let q: f64 = log_p.iter().zip(self.support.atoms()).map(|(l, z)| z * l.to_f64().exp()).sum();
            q_sum += q;
            td_per_branch.push(self.support.expectation(m) - q);
        }
        let mean_abs = |tds: &[f64]| tds.iter().map(|td| td.abs()).sum::<f64>() / branches as f64;
        let td: Vec<T> = td_per_branch.chunks_exact(branches).map(|tds| T::from_f64(mean_abs(tds))).collect();
        let auxiliary = self.auxiliary(batch, &passes, &mass.mean(1)?, &td, &mut terms, &mut own)?;
        if let Some(mask) = &self.mask {
            terms.iter_mut().for_each(|(_, gradient)| mask.apply(gradient));
        }
        let (terms, gradient) = combine(terms, &self.parts.budgets, max_norm);
        Ok(Evaluation {
            next_actions,
            target_mass: target.mass,
            clipped_low: target.clipped_low,
            clipped_high: target.clipped_high,
            log_probabilities,
            cross_entropy_per_branch: to_vec(&ce.per_branch)?,
            cross_entropy: to_vec(&per_sample)?,
            td,
            mean_q: q_sum / td_per_branch.len() as f64,
            td_per_branch: td_per_branch.into_iter().map(T::from_f64).collect(),
            loss: loss.to_scalar()?,
            mean_next_q,
            cql,
            iqn,
            iql,
            ensemble: auxiliary.ensemble,
            confidence: auxiliary.confidence,
            terms,
            gradient_norm: norm(&gradient),
            gradient,
            own,
        })
    }

    /// The C51 gradient of a batch on the main parameters, before any budget; nothing else of the step has a part in it.
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn c51_gradient(&self, batch: &C51Batch<T>) -> Result<Vec<T>, CpuError> {
        // Quantile samples and masks belong to terms that are not formed.
        batch.check(&self.shape, &Parts::default())?;
        let samples = batch.len();
        let passes = self.passes(batch)?;
        let (_, target, _) = self.c51_target(batch, &passes)?;
        let Forward { value, advantages, .. } = &passes.online;
        let logits = taken_logits::<T>(value, advantages, &batch.actions)?;
        let shape = (samples, self.shape.branches.len(), self.shape.atoms);
        let mass = Tensor::from_slice(&target.mass, shape, &Device::Cpu)?;
        let per_sample = c51::per_sample(&c51::cross_entropy(&logits, &mass)?.per_branch)?;
        let loss = c51::weighted_mean(&per_sample, &passes.weights)?;
        let mut gradient = self.networks.main().gradient(&loss.backward()?)?;
        if let Some(mask) = &self.mask {
            mask.apply(&mut gradient);
        }
        Ok(gradient)
    }

    fn passes(&self, batch: &C51Batch<T>) -> Result<Passes, CpuError> {
        let samples = batch.len();
        let (online_noise, target_noise) = batch.noise.split_at(batch.noise.len() / 2);
        let online = self.noisy(self.networks.online(), online_noise)?;
        let target = self.noisy(self.networks.target(), target_noise)?;
        Ok(Passes {
            next_online: self.run(&online.detached(), &batch.next_states)?,
            next_target: self.run(&target, &batch.next_states)?,
            online: self.run(&online, &batch.states)?,
            target,
            states: Tensor::from_slice(&batch.states, (samples, self.shape.state), &Device::Cpu)?,
            weights: Tensor::from_slice(&batch.weights, samples, &Device::Cpu)?,
        })
    }

    /// Double DQN: the online network chooses the action at s', the target network's distribution is projected.
    fn c51_target(
        &self,
        batch: &C51Batch<T>,
        passes: &Passes,
    ) -> Result<(Vec<u32>, Projection<T>, f64), CpuError> {
        let online = Heads::new(&passes.next_online)?;
        let next_actions = self.greedy(&online);
        let chosen = online.taken_probabilities(&next_actions);
        let q = chosen.chunks_exact(self.shape.atoms).map(|p| self.support.expectation(p)).sum::<f64>();
        let next = Heads::new(&passes.next_target)?.taken_probabilities(&next_actions);
        let branches = self.shape.branches.len();
        let target = project(&self.support, &next, branches, &batch.rewards, &batch.discounts);
        let mean_q = q / next_actions.len() as f64;
        Ok((next_actions, target, mean_q))
    }

    /// Ensemble and confidence head: one gradient on the trunk, a group each. `target` is the mean over the branches of the
    /// C51 targets, [batch, atoms].
    fn auxiliary(
        &self,
        batch: &C51Batch<T>,
        passes: &Passes,
        target: &Tensor,
        td: &[T],
        terms: &mut Vec<(Term, Vec<T>)>,
        own: &mut Vec<OwnGradient<T>>,
    ) -> Result<Auxiliary<T>, CpuError> {
        if !self.parts.auxiliary() {
            return Ok(Auxiliary { ensemble: None, confidence: None });
        }
        let (online, features) = (self.networks.online(), passes.online.trunk_features()?);
        let (mut losses, mut groups) = (Vec::new(), Vec::new());
        let (mut ensemble_values, mut confidence_values) = (None, None);
        if self.parts.ensemble.enabled {
            let settings = &self.parts.ensemble;
            let slope = decimal(self.shape.leaky_slope);
            let logits = ensemble::logits::<T>(online, &features, settings.members, slope)?;
            let lambda = decimal(settings.lambda);
            let values =
                ensemble::loss::<T>(&self.support, &logits, target, &batch.masks, &passes.weights, lambda)?;
            let loss = values.per_sample.mean(0)?;
            ensemble_values = Some(EnsembleValues {
                per_sample: to_vec(&values.per_sample)?,
                variance: to_vec(&values.variance)?,
                loss: loss.to_scalar()?,
            });
            losses.push(loss);
            groups.push(Group::Ensemble);
        }
        if self.parts.confidence.enabled {
            let logits = confidence::logits(online, &features, &self.confidence)?;
            let per_sample = confidence::loss(&logits, td, self.confidence.median)?;
            let loss = per_sample.mean(0)?;
            confidence_values = Some(ConfidenceValues {
                logits: to_vec(&logits)?,
                per_sample: to_vec(&per_sample)?,
                loss: loss.to_scalar()?,
            });
            losses.push(loss);
            groups.push(Group::Confidence);
        }
        let grads = Tensor::stack(&losses, 0)?.sum(0)?.backward()?;
        let trunk = self.networks.main().gradient_of(&grads, |name| name.starts_with("trunk"))?;
        terms.push((Term::Auxiliary, trunk));
        for group in groups {
            let gradient = self.networks.group(group)?.gradient(&grads)?;
            own.push(OwnGradient::new(group, gradient, self.hyper.max_grad_norm));
        }
        Ok(Auxiliary { ensemble: ensemble_values, confidence: confidence_values })
    }

    fn cql(
        &self,
        batch: &C51Batch<T>,
        passes: &Passes,
        terms: &mut Vec<(Term, Vec<T>)>,
    ) -> Result<CqlValues<T>, CpuError> {
        let Forward { value, advantages, .. } = &passes.online;
        let per_branch = cql::penalties::<T>(&self.support, value, advantages, &batch.actions)?;
        let per_sample = (c51::per_sample(&per_branch)? * decimal(self.parts.cql.alpha))?;
        let loss = per_sample.mean(0)?;
        terms.push((Term::Cql, self.networks.main().gradient(&loss.backward()?)?));
        Ok(CqlValues {
            per_branch: to_vec(&per_branch)?,
            per_sample: to_vec(&per_sample)?,
            loss: loss.to_scalar()?,
        })
    }

    fn iqn(
        &self,
        batch: &C51Batch<T>,
        passes: &Passes,
        terms: &mut Vec<(Term, Vec<T>)>,
        own: &mut Vec<OwnGradient<T>>,
    ) -> Result<IqnValues<T>, CpuError> {
        let (samples, branches) = (batch.len(), &self.shape.branches);
        let settings = &self.parts.iqn;
        let head = QuantileHead::new(&self.shape, settings);
        let to_host = |q: &[Tensor]| q.iter().map(to_vec).collect::<candle_core::Result<Vec<Vec<T>>>>();
        let at_next = |weights, pass: &Forward| {
            to_host(&head.quantiles(weights, &pass.features, &batch.target_taus)?)
        };
        let target_quantiles = at_next(self.networks.target(), &passes.next_target)?;
        let next_actions = if settings.double {
            let online = at_next(&self.networks.online().detached(), &passes.next_online)?;
            iqn::greedy(&online, branches, samples)
        } else {
            iqn::greedy(&target_quantiles, branches, samples)
        };
        let targets =
            iqn::targets(&target_quantiles, branches, &next_actions, &batch.rewards, &batch.discounts);

        let features = passes.online.trunk_features()?;
        let quantiles = head.quantiles(self.networks.online(), &features, &batch.taus)?;
        let taken = iqn::taken(&quantiles, &batch.actions)?;
        let taus = Tensor::from_slice(&batch.taus, (samples, settings.samples), &Device::Cpu)?;
        let target_shape = (samples, branches.len(), settings.target_samples);
        let target = Tensor::from_slice(&targets, target_shape, &Device::Cpu)?;
        let per_branch = iqn::quantile_huber(&taken, &taus, &target, decimal(settings.kappa))?;
        let per_sample = c51::per_sample(&per_branch)?;
        let loss = c51::weighted_mean(&per_sample, &passes.weights)?;
        let grads = loss.backward()?;
        let trunk = self.networks.main().gradient_of(&grads, |name| name.starts_with("trunk"))?;
        terms.push((Term::Iqn, trunk));
        let gradient = self.networks.group(Group::Iqn)?.gradient(&grads)?;
        own.push(OwnGradient::new(Group::Iqn, gradient, self.hyper.max_grad_norm));
        Ok(IqnValues {
            quantiles: to_host(&quantiles)?,
            taken: to_vec(&taken)?,
            target_quantiles,
            next_actions,
            targets,
            per_branch: to_vec(&per_branch)?,
            per_sample: to_vec(&per_sample)?,
            loss: loss.to_scalar()?,
        })
    }

    fn iql(
        &self,
        batch: &C51Batch<T>,
        passes: &Passes,
        own: &mut Vec<OwnGradient<T>>,
    ) -> Result<IqlValues<T>, CpuError> {
        let (samples, branches) = (batch.len(), self.shape.branches.len());
        let heads = Heads::<T>::new(&self.run(&passes.target, &batch.states)?)?;
        let probabilities = heads.taken_probabilities(&batch.actions);
        let expectation = |p: &[T]| T::from_f64(self.support.expectation(p));
        let q_per_branch: Vec<T> = probabilities.chunks_exact(self.shape.atoms).map(expectation).collect();
        let mean = |q: &[T]| T::from_f64(q.iter().map(|q| q.to_f64()).sum::<f64>() / branches as f64);
        let q: Vec<T> = q_per_branch.chunks_exact(branches).map(mean).collect();
        let q_tensor = Tensor::from_slice(&q, samples, &Device::Cpu)?;
        let slope = decimal(self.shape.leaky_slope);
        let mut train = |network, group, tau| -> Result<(Vec<T>, Vec<T>, T), CpuError> {
            let v = iql::value::<T>(self.networks.online(), network, &passes.states, slope)?;
            let per_sample = iql::expectile(&q_tensor, &v, decimal(tau))?;
            let loss = per_sample.mean(0)?;
            let gradient = self.networks.group(group)?.gradient(&loss.backward()?)?;
            own.push(OwnGradient::new(group, gradient, self.hyper.max_grad_norm));
            Ok((to_vec(&v)?, to_vec(&per_sample)?, loss.to_scalar()?))
        };
        let (high, high_per_sample, high_loss) = train("iql.hi", Group::IqlHigh, self.parts.iql.tau_high)?;
        let (low, low_per_sample, low_loss) = train("iql.lo", Group::IqlLow, self.parts.iql.tau_low)?;
        let derived = iql::derive(&q_per_branch, &high, &low, decimal(self.parts.iql.beta));
        Ok(IqlValues {
            q_per_branch,
            q,
            high,
            low,
            high_per_sample,
            low_per_sample,
            high_loss,
            low_loss,
            derived,
        })
    }

    /// Greedy action of each branch, [batch, branches].
    pub(crate) fn greedy(&self, heads: &Heads<T>) -> Vec<u32> {
        let q = heads.q_values(&self.support);
        let mut greedy = Vec::with_capacity(heads.batch() * q.len());
        for row in 0..heads.batch() {
            greedy
                .extend(q.iter().zip(&self.shape.branches).map(|(q, &n)| argmax(&q[row * n..][..n]) as u32));
        }
        greedy
    }
}
