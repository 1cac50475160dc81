//! The learner: acting, the update, its state. `evaluate` has the losses and gradients of a batch.

use candle_core::{Device, Tensor};
use settings::{Config, Flat, Layout, ModelShape, NoisyLayout, Parts};

use crate::attention::Attended;
use crate::batch::C51Batch;
use crate::c51::{Support, argmax};
use crate::distribution::Heads;
use crate::error::CpuError;
use crate::group::{Weights, check_len};
use crate::hyper::{Hyper, decimal};
use crate::init::{init_parameters, init_spectral};
use crate::network::{Forward, Network};
use crate::networks::Networks;
use crate::noisy::with_noise;
use crate::ops::to_vec;
use crate::optimizer::clip_scale;
use crate::pruning::Mask;
use crate::real::Real;
use crate::spectral::{self, PowerStep};
use crate::values::{Activations, Decision, Evaluation, StepMetrics};
use crate::{confidence, ensemble, iql, vaccine};

/// The learner that trains where there is no GPU.
pub type CpuLearner = Learner<f32>;
/// The same learner in f64, the oracle of the tests.
pub type Oracle = Learner<f64>;

/// The matrices that the spectral norm limits.
const TRUNK: [&str; 2] = ["trunk1.weight", "trunk2.weight"];

/// Which parameters a forward pass uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// The network that is trained.
    Online,
    /// Its moving average.
    Target,
}

/// What a learner starts from.
#[derive(Clone, Debug)]
pub struct Start<T> {
    /// Online parameters of all networks, in the flat layout.
    pub online: Vec<T>,
    /// Target parameters, up to the end of the last network that has a target copy.
    pub target: Vec<T>,
    /// Vectors of the spectral norm, [H1] and [H2]; not looked at where it is off.
    pub spectral: [Vec<T>; 2],
}

/// Online and target networks, optimizer, and the losses: C51 with Double DQN targets, and what else is on.
#[derive(Debug)]
pub struct Learner<T: Real> {
    pub(crate) shape: ModelShape,
    pub(crate) parts: Parts,
    pub(crate) hyper: Hyper,
    network: Network<T>,
    pub(crate) support: Support,
    pub(crate) networks: Networks<T>,
    /// What the value networks keep; not used without them.
    pub(crate) kept: iql::Kept<T>,
    /// What the confidence head keeps; not used without it.
    pub(crate) confidence: confidence::Kept<T>,
    noise: NoisyLayout,
    /// u of the trunk's two matrices; empty without spectral norm.
    pub(crate) spectral: Vec<Vec<T>>,
    /// What is pruned, where pruning is on.
    pub(crate) mask: Option<Mask>,
    pub(crate) step: u64,
    pub(crate) skipped: u64,
    pub(crate) skipped_in_row: u32,
}

impl<T: Real> Learner<T> {
    /// A learner of the C51 loss alone, with the initial parameters of the seed in both networks.
    ///
    /// # Errors
    /// A shape or a setting that cannot work, with key and value.
    pub fn new(shape: &ModelShape, optimizer: &settings::Optimizer, seed: u64) -> Result<Self, CpuError> {
        Self::initial(shape, &Parts::default(), optimizer, seed)
    }

    /// The learner that a configuration describes, with the initial parameters of its seed.
    ///
    /// # Errors
    /// A shape or a setting that cannot work, with key and value.
    pub fn from_config(config: &Config) -> Result<Self, CpuError> {
        let learner = Self::initial(&config.model, &config.parts(), &config.optimizer, config.train.seed)?;
        Ok(learner.with_pruning(&config.pruning))
    }

    fn initial(
        shape: &ModelShape,
        parts: &Parts,
        optimizer: &settings::Optimizer,
        seed: u64,
    ) -> Result<Self, CpuError> {
        shape.check().map_err(CpuError::Shape)?;
        let flat = Flat::new(shape, parts);
        let widen = |x: &[f32]| x.iter().map(|&x| T::from_f64(x.into())).collect::<Vec<T>>();
        let online = widen(&init_parameters(&flat, seed));
        let target = online[..flat.target_len()].to_vec();
        let spectral = init_spectral(shape, seed).map(|u| widen(&u));
        Self::with_parts(shape, parts, Hyper::from(optimizer), Start { online, target, spectral })
    }

    /// A learner of the C51 loss alone with the given flat parameters, zero moments and step 0.
    ///
    /// # Errors
    /// A shape or a setting that cannot work, or a vector that does not fill the layout.
    pub fn with_parameters(
        shape: &ModelShape,
        hyper: Hyper,
        online: Vec<T>,
        target: Vec<T>,
    ) -> Result<Self, CpuError> {
        let start = Start { online, target, spectral: Default::default() };
        Self::with_parts(shape, &Parts::default(), hyper, start)
    }

    /// A learner with the given parts and parameters, zero moments and step 0.
    ///
    /// # Errors
    /// A shape or a setting that cannot work, or a vector of the wrong length.
    pub fn with_parts(
        shape: &ModelShape,
        parts: &Parts,
        hyper: Hyper,
        start: Start<T>,
    ) -> Result<Self, CpuError> {
        shape.check().map_err(CpuError::Shape)?;
        parts.check(shape).map_err(|e| CpuError::Shape(e.to_string()))?;
        hyper.check()?;
        let spectral = if parts.spectral.enabled {
            let [u1, u2] = start.spectral;
            check_len("spectral vector of trunk1 [H1]", u1.len(), shape.trunk1)?;
            check_len("spectral vector of trunk2 [H2]", u2.len(), shape.trunk2)?;
            vec![u1, u2]
        } else {
            Vec::new()
        };
        Ok(Self {
            network: Network::new(shape, parts),
            support: Support::new(shape),
            kept: iql::Kept::new(&parts.iql),
            confidence: confidence::Kept::default(),
            noise: NoisyLayout::new(shape),
            networks: Networks::new(Flat::new(shape, parts), &start.online, start.target)?,
            shape: shape.clone(),
            parts: parts.clone(),
            hyper,
            spectral,
            mask: None,
            step: 0,
            skipped: 0,
            skipped_in_row: 0,
        })
    }

    /// Shape of the network.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Where each tensor of the main network lies in the flat vectors.
    pub fn layout(&self) -> &Layout {
        self.networks.main().layout()
    }

    /// Where each tensor of every network lies in the flat vectors.
    pub fn flat(&self) -> &Flat {
        self.networks.flat()
    }

    /// Adam steps taken.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Steps skipped for a non-finite gradient norm: in all, and in a row up to now.
    pub fn skipped(&self) -> (u64, u32) {
        (self.skipped, self.skipped_in_row)
    }

    /// Sets the learning rate of the steps to come, before the schedule.
    ///
    /// # Errors
    /// [`CpuError::Setting`] if it is negative or not finite.
    pub fn set_learning_rate(&mut self, lr: f64) -> Result<(), CpuError> {
        let hyper = Hyper { lr, ..self.hyper.clone() };
        hyper.check()?;
        self.hyper = hyper;
        Ok(())
    }

    /// Q values and greedy actions of the online network for states [batch, S]; noisy heads act by their mu.
    ///
    /// # Errors
    /// A length that is no multiple of S, or a Q value that is not finite.
    pub fn act(&self, states: &[T]) -> Result<Decision<T>, CpuError> {
        self.decide(&self.networks.online().detached(), states)
    }

    /// The same with noisy heads' noise, one draw for all states; `noise` are the factors f(e) of one network.
    ///
    /// # Errors
    /// As [`Learner::act`], or a list of factors that does not fit, or heads without noise.
    pub fn act_with_noise(&self, states: &[T], noise: &[T]) -> Result<Decision<T>, CpuError> {
        self.decide(&with_noise(&self.networks.online().detached(), &self.noise, noise)?, states)
    }

    /// How far the ensemble's members disagree about states [batch, S]: the standard deviation of their expected values,
    /// [batch]; empty without an ensemble.
    ///
    /// # Errors
    /// A length that is no multiple of S.
    pub fn uncertainty(&self, states: &[T]) -> Result<Vec<T>, CpuError> {
        if !self.parts.ensemble.enabled {
            return Ok(Vec::new());
        }
        let weights = self.networks.online().detached();
        let features = self.run(&weights, states)?.features;
        let logits = ensemble::logits::<T>(
            &weights,
            &features,
            self.parts.ensemble.members,
            decimal(self.shape.leaky_slope),
        )?;
        Ok(to_vec(&ensemble::variance::<T>(&self.support, &logits)?.sqrt()?)?)
    }

    fn decide(&self, weights: &Weights, states: &[T]) -> Result<Decision<T>, CpuError> {
        let heads = Heads::<T>::new(&self.run(weights, states)?)?;
        let (batch, q) = (heads.batch(), heads.q_values(&self.support));
        let mut decision = Decision {
            q: Vec::with_capacity(batch * self.shape.actions()),
            greedy: Vec::with_capacity(batch * self.shape.branches.len()),
        };
        for row in 0..batch {
            for (branch, (q, &n)) in q.iter().zip(&self.shape.branches).enumerate() {
                let q = &q[row * n..][..n];
                if let Some(action) = q.iter().position(|x| !x.is_finite()) {
                    let value = q[action].to_f64();
                    return Err(CpuError::NonFiniteValue { row, branch, action, value });
                }
                decision.q.extend_from_slice(q);
                decision.greedy.push(argmax(q) as u32);
            }
        }
        Ok(decision)
    }

    /// Every value of a forward pass, for tests and inspection.
    ///
    /// # Errors
    /// A length that is no multiple of S.
    pub fn activations(&self, net: Net, states: &[T]) -> Result<Activations<T>, CpuError> {
        let forward = match net {
            Net::Online => self.run(&self.networks.online().detached(), states)?,
            Net::Target => self.run(self.networks.target(), states)?,
        };
        let heads = Heads::new(&forward)?;
        let (mut logits, mut probabilities) = (Vec::new(), Vec::new());
        for d in 0..self.shape.branches.len() {
            let (mut l, mut p): (Vec<T>, Vec<T>) = (Vec::new(), Vec::new());
            heads.each(d, |_, _, logits, probabilities| {
                l.extend_from_slice(logits);
                p.extend_from_slice(probabilities);
            });
            logits.push(l);
            probabilities.push(p);
        }
        let attention = |pick: fn(&Attended) -> &Tensor| {
            forward.attended.as_ref().map_or(Ok(Vec::new()), |attended| to_vec(pick(attended)))
        };
        Ok(Activations {
            h1: to_vec(&forward.h1)?,
            h2: to_vec(&forward.h2)?,
            mamba_output: forward.scanned.as_ref().map_or(Ok(Vec::new()), |s| to_vec(&s.output))?,
            attention_probabilities: attention(|a| &a.probabilities)?,
            attention_output: attention(|a| &a.output)?,
            features: to_vec(&forward.features)?,
            value: to_vec(&forward.value)?,
            advantages: forward.advantages.iter().map(to_vec).collect::<candle_core::Result<_>>()?,
            logits,
            probabilities,
            q: heads.q_values(&self.support),
        })
    }

    /// Spectral norm of the online trunk, in place: one power iteration per matrix, then W *= min(1, sigma_max/sigma).
    ///
    /// The first thing a training step does. Empty, and nothing changes, where the spectral norm is off.
    ///
    /// # Errors
    /// A tensor operation that failed.
    pub fn limit_spectrum(&mut self) -> Result<Vec<PowerStep>, CpuError> {
        let mut steps = Vec::with_capacity(self.spectral.len());
        let limit = decimal(self.parts.spectral.sigma_max);
        let columns = [self.shape.state, self.shape.trunk1];
        for ((tensor, columns), u) in TRUNK.into_iter().zip(columns).zip(&mut self.spectral) {
            self.networks.edit_main(tensor, |weight| {
                let step = spectral::power_iteration(weight, columns, u);
                spectral::limit(weight, step.sigma, limit);
                steps.push(step);
            })?;
        }
        Ok(steps)
    }

    /// One training step: pruning, spectral norm, losses, gradients, budgets and clips, Adam, moving average of the target.
    ///
    /// A gradient norm that is not finite, of any term or group, skips the update of all and is counted
    /// ([`Learner::skipped`]).
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn train_step(&mut self, batch: &C51Batch<T>) -> Result<StepMetrics<T>, CpuError> {
        self.train_step_against(batch, None)
    }

    /// The same with the vaccine: where the gradient and the C51 gradient of a held-out batch point apart, what is against
    /// the latter is taken away. The clip is that of the gradient as it was. The held-out batch has no quantile samples and
    /// no masks.
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn train_step_against(
        &mut self,
        batch: &C51Batch<T>,
        held_out: Option<&C51Batch<T>>,
    ) -> Result<StepMetrics<T>, CpuError> {
        batch.check(&self.shape, &self.parts)?;
        self.prune()?;
        let sigmas = self.limit_spectrum()?.iter().map(|s| s.sigma).collect();
        let mut evaluation = self.evaluate(batch)?;
        let cosine = match held_out {
            Some(held_out) => Some(vaccine::project(&mut evaluation.gradient, &self.c51_gradient(held_out)?)),
            None => None,
        };
        let skipped = !self.apply(&evaluation, cosine.is_none_or(f64::is_finite))?;
        let mean = |x: &[T]| x.iter().map(|x| x.to_f64()).sum::<f64>() / x.len() as f64;
        let mut losses = Vec::new();
        losses.extend(evaluation.cql.as_ref().map(|v| ("cql", v.loss.to_f64())));
        losses.extend(evaluation.iqn.as_ref().map(|v| ("iqn", v.loss.to_f64())));
        if let Some(iql) = &evaluation.iql {
            losses.extend([("iql_high", iql.high_loss.to_f64()), ("iql_low", iql.low_loss.to_f64())]);
        }
        if let Some(ensemble) = &evaluation.ensemble {
            let variance = mean(&ensemble.variance);
            losses.extend([("ensemble", ensemble.loss.to_f64()), ("uncertainty", variance)]);
        }
        losses.extend(evaluation.confidence.as_ref().map(|v| ("confidence", v.loss.to_f64())));
        let terms = evaluation.terms.iter().map(|t| (t.term.name(), t.norm));
        let norms = terms.chain(evaluation.own.iter().map(|g| (g.group.name(), g.norm))).collect();
        Ok(StepMetrics {
            loss: evaluation.loss.to_f64(),
            losses,
            kept: self
                .kept_metrics(&evaluation)
                .into_iter()
                .chain(cosine.map(|c| ("vaccine_cosine", c)))
                .collect(),
            grad_norm: evaluation.gradient_norm,
            norms,
            sigmas,
            mean_q: evaluation.mean_q,
            clipped_low: mean(&evaluation.clipped_low),
            clipped_high: mean(&evaluation.clipped_high),
            td: evaluation.td,
            cross_entropy: evaluation.cross_entropy,
            iqn_loss: evaluation.iqn.map_or_else(Vec::new, |values| values.per_sample),
            skipped,
        })
    }

    /// `finite` false if something beside the evaluation is not finite. Clips, updates and averages with an evaluation's gradients; false if a norm is not finite and nothing changed.
    fn apply(&mut self, evaluation: &Evaluation<T>, finite: bool) -> Result<bool, CpuError> {
        if !finite || !evaluation.is_finite() {
            self.skipped += 1;
            self.skipped_in_row += 1;
            return Ok(false);
        }
        let scale = clip_scale(evaluation.gradient_norm, self.hyper.max_grad_norm);
        let mut steps = vec![(&evaluation.gradient[..], scale)];
        steps.extend(evaluation.own.iter().map(|g| (&g.gradient[..], g.scale)));
        let hyper = Hyper { lr: self.hyper.rate(self.step + 1), ..self.hyper.clone() };
        self.networks.update(&hyper, self.step + 1, &steps)?;
        self.step += 1;
        self.skipped_in_row = 0;
        self.advance(evaluation);
        Ok(true)
    }

    /// A network's weights in a step: with the noise of these factors where the heads are noisy.
    pub(crate) fn noisy(&self, weights: &Weights, factors: &[T]) -> Result<Weights, CpuError> {
        if self.shape.noisy { with_noise(weights, &self.noise, factors) } else { Ok(weights.clone()) }
    }

    /// Forward pass on host states [batch, S].
    pub(crate) fn run(&self, weights: &Weights, states: &[T]) -> Result<Forward, CpuError> {
        let width = self.shape.state;
        let batch = states.len() / width;
        check_len("states [batch, state]", states.len(), batch.max(1) * width)?;
        let states = Tensor::from_slice(states, (batch, width), &Device::Cpu)?;
        Ok(self.network.forward(weights, &states)?)
    }
}
