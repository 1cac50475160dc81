//! The agent on the CPU: candle's learner, the same environment functions, a replay in host memory.

mod state;

use std::ops::ControlFlow;

use anyhow::{Context, bail};
use cpu_path::{C51Batch, CpuLearner, LearnerState, StepMetrics};
use gpu::kernels::ensemble_loss::learns;
use gpu::kernels::probe::permuted;
use gpu::kernels::{exploration_bonus, noisy};
use gpu::market::{LogRow, MarketError, Transitions, VecMarket, rollout};
use gpu::task::Finished;
use gpu::{action, philox};
use settings::{Config, Ensemble, Flat, NoisyLayout, Priority};

use crate::room::{self, NoRoom};
use crate::step::Kept;
use crate::tensors::Tensors;
use crate::train::Stop;
use crate::train::agent::{Agent, Learned, PartName, PartRow, StepRow};
use crate::train::host_environments::{HostEnvironments, episodes};
use crate::train::offline::Offline;
use crate::train::replay::{Draw, HostReplay};
use crate::train::world::World;

/// The quantile samples of a step, draw for draw those of the device: [batch, samples], one draw per element.
fn taus(count: usize, seed: u64, step: u64, stream: philox::Stream) -> Vec<f32> {
    let tau = |index: usize| philox::uniform_open(philox::draw(seed, step, stream, index as u32, 0)[0]);
    (0..count).map(tau).collect()
}

/// Which members of the ensemble learn from which samples, draw for draw as on the device: [batch, members].
fn masks(batch: usize, ensemble: &Ensemble, seed: u64, step: u64) -> Vec<bool> {
    let members = ensemble.members;
    let mask = |i: usize| learns(seed, step, (i / members) as u32, (i % members) as u32, ensemble.mask);
    (0..batch * members).map(mask).collect()
}

/// The factors of the heads' noise in a step, draw for draw those of the device: the online network's, the target's.
fn noise(factors: usize, seed: u64, step: u64) -> Vec<f32> {
    let of = |stream| noisy::factors(seed, step, stream, factors);
    [of(philox::Stream::NoiseOnline), of(philox::Stream::NoiseTarget)].concat()
}

/// What a step says about the parts beside C51.
fn part_row(metrics: &StepMetrics<f32>, budgeted: bool) -> PartRow {
    let find = |values: &[(&'static str, f64)], name: &str| {
        values.iter().find(|(n, _)| *n == name).map(|(_, value)| *value as f32)
    };
    let kept = |name: &str| find(&metrics.kept, name);
    let (loss, norm) = (|name: &str| find(&metrics.losses, name), |name: &str| find(&metrics.norms, name));
    PartRow {
        loss_cql: loss("cql"),
        loss_iqn: loss("iqn"),
        loss_iql_high: loss("iql_high"),
        loss_iql_low: loss("iql_low"),
        loss_ensemble: loss("ensemble"),
        uncertainty: loss("uncertainty"),
        loss_confidence: loss("confidence"),
        iql_gap: kept("iql_gap"),
        iql_epsilon: kept("iql_epsilon"),
        v_min: kept("v_min"),
        v_max: kept("v_max"),
        vaccine_cosine: kept("vaccine_cosine"),
        td_median: kept("td_median"),
        norm_c51: norm("c51").filter(|_| budgeted),
        norm_cql: norm("cql"),
        norm_iqn_trunk: norm("iqn_trunk"),
        norm_aux_trunk: norm("aux_trunk"),
        norm_iqn: norm("iqn"),
        norm_attention: norm("attention"),
        norm_mamba: norm("mamba"),
        norm_iql_high: norm("iql_high"),
        norm_iql_low: norm("iql_low"),
        norm_ensemble: norm("ensemble"),
        norm_confidence: norm("confidence"),
    }
}

/// Whether the host has memory for a ring of `capacity` slots, the networks and a step on a batch.
fn check_room(config: &Config, capacity: usize) -> Result<(), NoRoom> {
    let (float, model) = (size_of::<f32>(), &config.model);
    // s and s', action, reward, discount; with priorities a leaf and two nodes of the tree.
    let slot = 2 * model.state * float + size_of::<u64>() + 2 * float;
    let tree = if config.replay.prioritized { float + 4 * size_of::<f64>() } else { 0 };
    let ring = capacity.saturating_mul(slot + tree) as u64;
    let keys = match config.task.is_transitions() {
        true => "transitions.resident",
        false => "collect.capacity or model.state",
    };
    room::check("the replay ring", ring, keys)?;
    if config.vaccine.enabled {
        let ring = config.vaccine.capacity.saturating_mul(slot) as u64;
        room::check("the ring of held-out transitions", ring, "vaccine.capacity")?;
    }
    // Parameters, target, two moments, gradients of several terms and what autograd copies of them.
    let networks = Flat::new(model, &config.parts()).len.saturating_mul(12 * float) as u64;
    room::check("the networks", networks, "the widths in [model] and of the parts")?;
    // Activations of three passes and their gradients.
    let logits = (1 + model.actions()) * model.atoms;
    let row = model.state + model.trunk1 + model.trunk2 + model.heads_pre() + 4 * logits;
    let batch = config.train.batch.saturating_mul(6 * row * float) as u64;
    room::check("a training step", batch, "train.batch or the widths in [model]")
}

/// Environments on the held-out bars, with what they collect.
struct HeldOut<'a> {
    environments: HostEnvironments<'a>,
    states: Vec<f32>,
    transitions: Transitions,
    replay: HostReplay,
}

/// The CPU agent.
pub struct CpuAgent<'a> {
    config: &'a Config,
    world: World<'a>,
    learner: CpuLearner,
    environments: HostEnvironments<'a>,
    states: Vec<f32>,
    transitions: Transitions,
    replay: HostReplay,
    /// The part of a data set that the ring holds, where that is not all of it.
    shard: u64,
    held_out: Option<HeldOut<'a>>,
    sensitivity: Vec<f32>,
    train_step: u64,
    collect_step: u64,
    /// Factors of a network's noise.
    factors: usize,
}

impl<'a> CpuAgent<'a> {
    /// Environments, an empty replay and a learner with the initial parameters of the seed.
    pub fn new(config: &'a Config, world: impl Into<World<'a>>) -> anyhow::Result<Self> {
        let world = world.into();
        let data_set = world.data_set();
        check_room(config, data_set.map_or(config.collect.capacity, Offline::capacity))?;
        let learner = CpuLearner::from_config(config)?;
        let e = if data_set.is_some() { 0 } else { config.collect.environments };
        let s = config.model.state;
        let environments = HostEnvironments::new(world, e, config.train.seed)?;
        let mut states = vec![0.0; e * s];
        environments.observe(&mut states)?;
        let held_out = match world.market().and_then(|market| Some((market, market.held_out()?))) {
            Some((market, part)) => {
                let e = config.vaccine.environments;
                let environments = VecMarket::new(market.params, &market.table, part, e, config.train.seed)?;
                let environments = HostEnvironments::Market(environments);
                let mut states = vec![0.0; e * s];
                environments.observe(&mut states)?;
                // Drawn uniformly, whatever the training's ring does.
                let uniform = settings::Replay { prioritized: false, ..config.replay.clone() };
                let replay = HostReplay::new(&uniform, config.vaccine.capacity, s, e, market.params.gamma);
                Some(HeldOut { environments, states, transitions: Transitions::new(e, s), replay })
            }
            None => None,
        };
        let replay = match data_set {
            Some(data) => {
                let mut ring = HostReplay::of_data_set(&config.replay, data.capacity(), s, world.gamma());
                ring.fill(&data.rows, &data.drawn_in(0));
                ring
            }
            None => HostReplay::new(&config.replay, config.collect.capacity, s, e, world.gamma())
                .with_hindsight(world.task().and_then(|task| task.hindsight)),
        };
        Ok(Self {
            config,
            world,
            learner,
            environments,
            states,
            transitions: Transitions::new(e, s),
            replay,
            shard: 0,
            held_out,
            sensitivity: Vec::new(),
            train_step: 0,
            collect_step: 0,
            factors: NoisyLayout::new(&config.model).factors,
        })
    }

    /// Puts the part of a data set into the ring that the next step draws from.
    fn turn_to_shard(&mut self) {
        let Some(data) = self.world.data_set() else { return };
        let Some(shards) = data.shards() else { return };
        let wanted = shards.of_step(self.train_step);
        if wanted != self.shard {
            self.replay.fill(&data.rows, &data.drawn_in(self.train_step));
            self.shard = wanted;
        }
    }

    /// Epsilon-greedy actions, draw for draw those of the kernel `select_action`.
    fn act(&self, states: &[f32], epsilon: f32) -> anyhow::Result<Vec<u64>> {
        let branches = &self.config.model.branches;
        let decision = if self.config.model.noisy {
            let (seed, step) = (self.config.train.seed, self.collect_step);
            let noise = noisy::factors(seed, step, philox::Stream::NoiseActing, self.factors);
            self.learner.act_with_noise(states, &noise)?
        } else {
            self.learner.act(states)?
        };
        let explore = philox::Stream::Explore;
        let draw = |e: usize, block: u32| {
            philox::draw(self.config.train.seed, self.collect_step, explore, e as u32, block)
        };
        let pack = |e: usize| {
            let random = philox::uniform(draw(e, 0)[0]) < epsilon;
            (0..branches.len()).fold(0, |packed, d| {
                let chosen = if random {
                    ((u64::from(draw(e, 1 + d as u32)[0]) * branches[d] as u64) >> 32) as u32
                } else {
                    decision.greedy[e * branches.len() + d]
                };
                action::with_branch(packed, d as u32, chosen)
            })
        };
        Ok((0..states.len() / self.config.model.state).map(pack).collect())
    }

    /// The exploration bonus of leaving each environment's state; empty where there is none.
    fn bonus(&self) -> anyhow::Result<Vec<f32>> {
        let ensemble = &self.config.ensemble;
        if !ensemble.explores() {
            return Ok(Vec::new());
        }
        let weight = exploration_bonus::weight(ensemble.explore, ensemble.explore_steps, self.collect_step);
        Ok(self.learner.uncertainty(&self.states)?.into_iter().map(|u| weight * u).collect())
    }

    /// Mean |dQ| of every state feature, permuted over the batch as on the device.
    fn probe(&self, states: &[f32]) -> anyhow::Result<Vec<f32>> {
        let (width, seed) = (self.config.model.state, self.config.train.seed);
        let batch = states.len() / width;
        let base = self.learner.act(states)?.q;
        let sensitivity = |feature: usize| -> anyhow::Result<f32> {
            let mut probed = states.to_vec();
            for (row, x) in probed.chunks_exact_mut(width).enumerate() {
                let from = permuted(seed, self.train_step, feature as u32, batch as u32, row as u32);
                x[feature] = states[from as usize * width + feature];
            }
            let q = self.learner.act(&probed)?.q;
            let sum: f64 = q.iter().zip(&base).map(|(q, base)| f64::from((q - base).abs())).sum();
            Ok((sum / q.len() as f64) as f32)
        };
        (0..width).map(sensitivity).collect()
    }
}

impl Agent for CpuAgent<'_> {
    fn device(&self) -> String {
        "CPU (candle, f32)".into()
    }

    fn collect(&mut self, steps: usize, epsilon: f32, stop: &Stop) -> anyhow::Result<usize> {
        let schedule = epsilon;
        let epsilon = self.learner.epsilon().map_or(epsilon, |epsilon| epsilon as f32);
        let mut done = 0;
        while done < steps && !stop.asked() {
            let actions = self.act(&self.states, epsilon)?;
            if let Some(mut held_out) = self.held_out.take() {
                let actions = self.act(&held_out.states, schedule)?;
                held_out.environments.step(&actions, &mut held_out.transitions)?;
                held_out.replay.insert(&held_out.states, &actions, &held_out.transitions);
                held_out.environments.observe(&mut held_out.states)?;
                self.held_out = Some(held_out);
            }
            let bonus = self.bonus()?;
            self.environments.step(&actions, &mut self.transitions)?;
            self.transitions.rewards.iter_mut().zip(bonus).for_each(|(reward, bonus)| *reward += bonus);
            self.replay.insert(&self.states, &actions, &self.transitions);
            self.environments.observe(&mut self.states)?;
            self.collect_step += 1;
            done += 1;
        }
        Ok(done)
    }

    fn train(
        &mut self,
        steps: usize,
        stop: &Stop,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> anyhow::Result<Vec<StepRow>> {
        if self.replay.complete() == 0 && !stop.asked() {
            bail!("training before any transition was collected");
        }
        let (batch, branches) = (self.config.train.batch, self.config.model.branches.len());
        let mut rows = Vec::with_capacity(steps);
        for done in 0..steps {
            if stop.asked() {
                break;
            }
            self.turn_to_shard();
            let (seed, step) = (self.config.train.seed, self.train_step);
            let Draw { batch: mut sample, slots } = self.replay.sample(batch, branches, seed, step);
            let iqn = &self.config.iqn;
            if iqn.enabled {
                sample.taus = taus(batch * iqn.samples, seed, step, philox::Stream::IqnTau);
                let count = batch * iqn.target_samples;
                sample.target_taus = taus(count, seed, step, philox::Stream::IqnTauTarget);
            }
            if self.config.model.noisy {
                sample.noise = noise(self.factors, seed, step);
            }
            if self.config.ensemble.enabled {
                sample.masks = masks(batch, &self.config.ensemble, seed, step);
            }
            let held_out = self.held_out.as_ref().filter(|_| self.config.vaccine.is_in(step));
            let held_out = held_out.map(|held_out| {
                let drawn = held_out.replay.sample(batch, branches, seed, step).batch;
                C51Batch { noise: sample.noise.clone(), ..drawn }
            });
            let metrics =
                self.learner.train_step_against(&sample, held_out.as_ref()).context("training step")?;
            self.train_step += 1;
            if !metrics.skipped {
                let c51 = match self.config.replay.priority {
                    Priority::Td => &metrics.td,
                    Priority::CrossEntropy => &metrics.cross_entropy,
                };
                self.replay.update(&slots, c51, &metrics.iqn_loss);
            }
            if self.config.probe.is_in(step) {
                self.sensitivity = self.probe(&sample.states)?;
            }
            rows.push(StepRow {
                loss: metrics.loss as f32,
                td: metrics.td.iter().sum::<f32>() / batch as f32,
                q: metrics.mean_q as f32,
                clipped_low: metrics.clipped_low as f32,
                clipped_high: metrics.clipped_high as f32,
                gradient_norm: metrics.grad_norm as f32,
                skipped: metrics.skipped,
                parts: part_row(&metrics, self.config.parts().budgeted()),
            });
            if progress(done + 1).is_break() || self.learner.skipped().1 >= self.config.train.max_nonfinite {
                break;
            }
        }
        Ok(rows)
    }

    fn backtest(&mut self, part: PartName, symbol: usize, stop: &Stop) -> anyhow::Result<Vec<LogRow>> {
        let market = self.world.market().context("only a market has a backtest")?;
        let (learner, part) = (&self.learner, market.symbol_part(part, symbol));
        rollout(&market.params, &market.table, part, |state| {
            stop.check().map_err(anyhow::Error::from)?;
            let greedy = learner.act(state).map_err(anyhow::Error::from)?.greedy;
            let actions: Vec<usize> = greedy.iter().map(|&a| a as usize).collect();
            Ok(action::pack(&actions))
        })
        .map_err(|error: BacktestError| error.0)
    }

    fn episodes(&mut self, seed: u64, stop: &Stop) -> anyhow::Result<Vec<Finished>> {
        let task = self.world.task().context("only a control task has episodes to evaluate")?;
        let branches = self.config.model.branches.len();
        episodes(&task, seed, |states| {
            stop.check()?;
            let greedy = self.learner.act(states)?.greedy;
            let pack = |row: &[u32]| action::pack(&row.iter().map(|&a| a as usize).collect::<Vec<_>>());
            Ok(greedy.chunks_exact(branches).map(pack).collect())
        })
    }

    fn learned(&mut self) -> anyhow::Result<Learned> {
        let state = self.learner.export();
        let masks = pruning_masks(&state);
        Ok(Learned {
            online: state.online,
            target: state.target,
            m: state.m,
            v: state.v,
            updates: state.step,
            spectral: state.spectral,
            kept: Kept { iql: state.iql, confidence: state.confidence, masks },
        })
    }

    fn set_learned(&mut self, learned: &Learned) -> anyhow::Result<()> {
        let fresh = self.learner.export();
        let Learned { online, target, m, v, updates: step, spectral, kept } = learned.clone();
        let Kept { iql, confidence, masks } = kept;
        let pruned = pruned(&masks, fresh.pruned.clone());
        Ok(self.learner.import(LearnerState {
            online,
            target,
            m,
            v,
            step,
            spectral,
            pruned,
            iql,
            confidence,
            ..fresh
        })?)
    }

    fn parameters(&mut self) -> anyhow::Result<(Vec<f32>, Vec<f32>)> {
        let state = self.learner.export();
        Ok((state.online, state.target))
    }

    fn set_parameters(&mut self, online: &[f32], target: &[f32]) -> anyhow::Result<()> {
        let mut state = self.learner.export();
        state.online = online.to_vec();
        state.target = target.to_vec();
        Ok(self.learner.import(state)?)
    }

    fn sensitivity(&mut self) -> anyhow::Result<Vec<f32>> {
        Ok(self.sensitivity.clone())
    }

    fn kept(&mut self) -> anyhow::Result<Kept> {
        let state = self.learner.export();
        let masks = pruning_masks(&state);
        Ok(Kept { iql: state.iql, confidence: state.confidence, masks })
    }

    fn set_kept(&mut self, kept: &Kept) -> anyhow::Result<()> {
        let mut state = self.learner.export();
        if !kept.iql.is_empty() {
            state.iql = kept.iql.clone();
        }
        if !kept.confidence.is_empty() {
            state.confidence = kept.confidence.clone();
        }
        state.pruned = pruned(&kept.masks, state.pruned);
        Ok(self.learner.import(state)?)
    }

    fn save_state(&mut self) -> anyhow::Result<Tensors> {
        Ok(self.state())
    }

    fn load_state(&mut self, state: &mut Tensors) -> anyhow::Result<()> {
        self.restore(state)
    }

    fn sparsity(&mut self) -> anyhow::Result<Vec<(String, f64)>> {
        Ok(self.learner.sparsity())
    }

    fn skipped_in_a_row(&mut self) -> anyhow::Result<u64> {
        Ok(self.learner.skipped().1.into())
    }
}

/// What is pruned, as a checkpoint holds it.
fn pruning_masks(state: &LearnerState<f32>) -> Vec<f32> {
    state.pruned.iter().map(|&pruned| if pruned { 0.0 } else { 1.0 }).collect()
}

/// What a checkpoint's masks say is pruned; where it has none, or for another network, what is pruned now.
fn pruned(masks: &[f32], now: Vec<bool>) -> Vec<bool> {
    if masks.len() == now.len() { masks.iter().map(|&kept| kept == 0.0).collect() } else { now }
}

/// An error of the policy or of the environment during a backtest.
struct BacktestError(anyhow::Error);

impl From<MarketError> for BacktestError {
    fn from(error: MarketError) -> Self {
        Self(error.into())
    }
}

impl From<anyhow::Error> for BacktestError {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_samples_are_inside_the_unit_interval_and_new_in_every_step_and_stream() {
        let draw = |step, stream| taus(4096, 7, step, stream);
        let first = draw(3, philox::Stream::IqnTau);
        assert!(first.iter().all(|&tau| tau > 0.0 && tau < 1.0));
        // Mean of 4096 uniform draws: five standard errors of sqrt(1/12/4096).
        let mean = first.iter().map(|&tau| f64::from(tau)).sum::<f64>() / 4096.0;
        assert!((mean - 0.5).abs() < 5.0 * (1.0 / 12.0 / 4096.0_f64).sqrt(), "{mean}");
        assert_eq!(first, draw(3, philox::Stream::IqnTau));
        for other in [draw(4, philox::Stream::IqnTau), draw(3, philox::Stream::IqnTauTarget)] {
            assert!(first.iter().zip(&other).filter(|(a, b)| a == b).count() < 5);
        }
    }
}
