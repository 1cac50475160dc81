//! The learner: acting, losses and gradients of a batch, the update.

use candle_core::{Device, Tensor};
use settings::{Layout, ModelShape};

use crate::batch::C51Batch;
use crate::c51::{self, Support, argmax, project};
use crate::distribution::Heads;
use crate::error::CpuError;
use crate::group::{ParameterGroup, Weights, check_len};
use crate::hyper::Hyper;
use crate::init::init_flat;
use crate::network::{Forward, Network, taken_logits};
use crate::ops::to_vec;
use crate::optimizer::{Adam, clip_scale, ema, norm};
use crate::real::Real;
use crate::state::LearnerState;
use crate::values::{Activations, Decision, Evaluation, StepMetrics};

/// The learner that trains where there is no GPU.
pub type CpuLearner = Learner<f32>;
/// The same learner in f64, the oracle of the tests.
pub type Oracle = Learner<f64>;

/// Which parameters a forward pass uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// The network that is trained.
    Online,
    /// Its moving average.
    Target,
}

/// Online and target network, optimizer, and the C51 loss with Double DQN targets.
#[derive(Debug)]
pub struct Learner<T: Real> {
    shape: ModelShape,
    hyper: Hyper,
    network: Network<T>,
    support: Support,
    main: ParameterGroup<T>,
    target: Vec<T>,
    target_weights: Weights,
    step: u64,
    skipped: u64,
    skipped_in_row: u32,
}

impl<T: Real> Learner<T> {
    /// A learner with the initial parameters of [`init_flat`] in both networks.
    ///
    /// # Errors
    /// A shape or a setting that cannot work, with key and value.
    pub fn new(shape: &ModelShape, optimizer: &settings::Optimizer, seed: u64) -> Result<Self, CpuError> {
        shape.check().map_err(CpuError::Shape)?;
        let initial: Vec<T> = init_flat(shape, seed).iter().map(|&x| T::from_f64(x.into())).collect();
        Self::with_parameters(shape, Hyper::from(optimizer), initial.clone(), initial)
    }

    /// A learner with the given flat parameters, zero moments and step 0.
    ///
    /// # Errors
    /// A shape or a setting that cannot work, or a vector that does not fill the layout.
    pub fn with_parameters(
        shape: &ModelShape,
        hyper: Hyper,
        online: Vec<T>,
        target: Vec<T>,
    ) -> Result<Self, CpuError> {
        shape.check().map_err(CpuError::Shape)?;
        hyper.check()?;
        let layout = Layout::main(shape);
        Ok(Self {
            network: Network::new(shape),
            support: Support::new(shape),
            target_weights: Weights::constant(&layout, &target)?,
            main: ParameterGroup::new(layout, online)?,
            target,
            shape: shape.clone(),
            hyper,
            step: 0,
            skipped: 0,
            skipped_in_row: 0,
        })
    }

    /// Shape of the network.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Where each tensor lies in the flat vectors.
    pub fn layout(&self) -> &Layout {
        self.main.layout()
    }

    /// Adam steps taken.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Steps skipped for a non-finite gradient norm: in all, and in a row up to now.
    pub fn skipped(&self) -> (u64, u32) {
        (self.skipped, self.skipped_in_row)
    }

    /// Sets the learning rate of the steps to come; a schedule calls it before each step.
    ///
    /// # Errors
    /// [`CpuError::Setting`] if it is negative or not finite.
    pub fn set_learning_rate(&mut self, lr: f64) -> Result<(), CpuError> {
        let hyper = Hyper { lr, ..self.hyper.clone() };
        hyper.check()?;
        self.hyper = hyper;
        Ok(())
    }

    /// Q values and greedy actions of the online network for states [batch, S].
    ///
    /// # Errors
    /// A length that is no multiple of S, or a Q value that is not finite.
    pub fn act(&self, states: &[T]) -> Result<Decision<T>, CpuError> {
        let heads = Heads::<T>::new(&self.run(&self.main.weights().detached(), states)?)?;
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
            Net::Online => self.run(&self.main.weights().detached(), states)?,
            Net::Target => self.run(&self.target_weights, states)?,
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
        Ok(Activations {
            h1: to_vec(&forward.h1)?,
            h2: to_vec(&forward.h2)?,
            value: to_vec(&forward.value)?,
            advantages: forward.advantages.iter().map(to_vec).collect::<candle_core::Result<_>>()?,
            logits,
            probabilities,
            q: heads.q_values(&self.support),
        })
    }

    /// Loss, its intermediates and its gradient for a batch; changes nothing.
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn evaluate(&self, batch: &C51Batch<T>) -> Result<Evaluation<T>, CpuError> {
        batch.check(&self.shape)?;
        let (samples, branches, atoms) = (batch.len(), self.shape.branches.len(), self.shape.atoms);
        let next_online = Heads::new(&self.run(&self.main.weights().detached(), &batch.next_states)?)?;
        let next_actions = self.greedy(&next_online);
        let next_target = Heads::new(&self.run(&self.target_weights, &batch.next_states)?)?;
        let next = next_target.taken_probabilities(&next_actions);
        let target = project(&self.support, &next, branches, &batch.rewards, &batch.discounts);

        let online = self.run(self.main.weights(), &batch.states)?;
        let logits = taken_logits::<T>(&online.value, &online.advantages, &batch.actions)?;
        let mass = Tensor::from_slice(&target.mass, (samples, branches, atoms), &Device::Cpu)?;
        let ce = c51::cross_entropy(&logits, &mass)?;
        let per_sample = c51::per_sample(&ce.per_branch)?;
        let weights = Tensor::from_slice(&batch.weights, samples, &Device::Cpu)?;
        let loss = c51::weighted_mean(&per_sample, &weights)?;
        let gradient = self.main.gradient(&loss.backward()?)?;

        let log_probabilities: Vec<T> = to_vec(&ce.log_probabilities)?;
        let mut td_per_branch = Vec::with_capacity(samples * branches);
        let mut q_sum = 0.0;
        for (log_p, m) in log_probabilities.chunks_exact(atoms).zip(target.mass.chunks_exact(atoms)) {
            let q: f64 = log_p.iter().zip(self.support.atoms()).map(|(l, z)| z * l.to_f64().exp()).sum();
            q_sum += q;
            td_per_branch.push(self.support.expectation(m) - q);
        }
        let mean_abs = |tds: &[f64]| tds.iter().map(|td| td.abs()).sum::<f64>() / branches as f64;
        Ok(Evaluation {
            next_actions,
            target_mass: target.mass,
            clipped_low: target.clipped_low,
            clipped_high: target.clipped_high,
            log_probabilities,
            cross_entropy_per_branch: to_vec(&ce.per_branch)?,
            cross_entropy: to_vec(&per_sample)?,
            td: td_per_branch.chunks_exact(branches).map(|tds| T::from_f64(mean_abs(tds))).collect(),
            mean_q: q_sum / td_per_branch.len() as f64,
            td_per_branch: td_per_branch.into_iter().map(T::from_f64).collect(),
            loss: loss.to_scalar()?,
            gradient_norm: norm(&gradient),
            gradient,
        })
    }

    /// One training step: loss, gradient, clip, Adam, moving average of the target.
    ///
    /// A gradient norm that is not finite leaves everything as it was and is counted ([`Learner::skipped`]).
    ///
    /// # Errors
    /// A batch whose lengths or actions do not fit the shape.
    pub fn train_step(&mut self, batch: &C51Batch<T>) -> Result<StepMetrics<T>, CpuError> {
        let evaluation = self.evaluate(batch)?;
        let skipped = !self.apply(&evaluation.gradient, evaluation.gradient_norm)?;
        let mean = |x: &[T]| x.iter().map(|x| x.to_f64()).sum::<f64>() / x.len() as f64;
        Ok(StepMetrics {
            loss: evaluation.loss.to_f64(),
            grad_norm: evaluation.gradient_norm,
            mean_q: evaluation.mean_q,
            clipped_low: mean(&evaluation.clipped_low),
            clipped_high: mean(&evaluation.clipped_high),
            td: evaluation.td,
            cross_entropy: evaluation.cross_entropy,
            skipped,
        })
    }

    /// Clips, updates and averages with a gradient of that norm; false if the norm is not finite and nothing changed.
    fn apply(&mut self, gradient: &[T], gradient_norm: f64) -> Result<bool, CpuError> {
        if !gradient_norm.is_finite() {
            self.skipped += 1;
            self.skipped_in_row += 1;
            return Ok(false);
        }
        let scale = clip_scale(gradient_norm, self.hyper.max_grad_norm);
        self.main.update(&self.hyper, self.step + 1, gradient, scale)?;
        ema(&mut self.target, self.main.values(), self.hyper.tau);
        self.target_weights = Weights::constant(self.main.layout(), &self.target)?;
        self.step += 1;
        self.skipped_in_row = 0;
        Ok(true)
    }

    /// Copies the whole state for a checkpoint.
    pub fn export(&self) -> LearnerState<T> {
        LearnerState {
            online: self.main.values().to_vec(),
            target: self.target.clone(),
            m: self.main.adam().m.clone(),
            v: self.main.adam().v.clone(),
            step: self.step,
            skipped: self.skipped,
            skipped_in_row: self.skipped_in_row,
        }
    }

    /// Goes on from an exported state of a learner with the same shape; the learner is unchanged on an error.
    ///
    /// # Errors
    /// A vector of the wrong length, or a value that no run can have written.
    pub fn import(&mut self, state: LearnerState<T>) -> Result<(), CpuError> {
        state.check(self.main.layout())?;
        let target_weights = Weights::constant(self.main.layout(), &state.target)?;
        self.main.restore(state.online, Adam { m: state.m, v: state.v })?;
        self.target_weights = target_weights;
        self.target = state.target;
        self.step = state.step;
        self.skipped = state.skipped;
        self.skipped_in_row = state.skipped_in_row;
        Ok(())
    }

    /// Forward pass on host states [batch, S].
    fn run(&self, weights: &Weights, states: &[T]) -> Result<Forward, CpuError> {
        let width = self.shape.state;
        let batch = states.len() / width;
        check_len("states [batch, state]", states.len(), batch.max(1) * width)?;
        let states = Tensor::from_slice(states, (batch, width), &Device::Cpu)?;
        Ok(self.network.forward(weights, &states)?)
    }

    /// Greedy action of each branch, [batch, branches].
    fn greedy(&self, heads: &Heads<T>) -> Vec<u32> {
        let q = heads.q_values(&self.support);
        let mut greedy = Vec::with_capacity(heads.batch() * q.len());
        for row in 0..heads.batch() {
            greedy
                .extend(q.iter().zip(&self.shape.branches).map(|(q, &n)| argmax(&q[row * n..][..n]) as u32));
        }
        greedy
    }
}
