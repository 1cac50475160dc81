//! A collection step as a sequence of launches: act with the online network, move every environment one step, insert
//! the transitions into the replay ring. One graph launch per step of all environments, like the training step.
//!
//! A backtest is the same sequence with one environment, epsilon 0, a ring of one slot, single steps and a log of every
//! bar; a task's evaluation with an environment for each episode.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::dueling_q::{DuelingQ, DuelingQWide};
use gpu::kernels::market_count::MarketCount;
use gpu::kernels::select_action::SelectAction;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::attention::{self, Context, Folded};
use crate::step::buffers::{Activations, Replay};
use crate::step::ensemble::Bonus;
use crate::step::environments::{EnvironmentInput, Environments, Stepped, filled};
use crate::step::mamba::{self, MambaForwardBuffers};
use crate::step::network::{Network, View};
use crate::step::noisy::NoiseBuffers;
use crate::step::replay::{self, Windows};
use crate::step::shape::StepShape;
use crate::step::state::StateBlock;

/// Environments, with the policy's activations.
#[derive(Clone, Copy, Debug)]
pub struct Collector {
    /// E.
    pub environments: usize,
    /// Rows of the log of each environment, 0 for none.
    pub log_rows: usize,
    /// Discount of one step.
    gamma: f64,
    /// Their own memory.
    pub environment: Environments,
    /// Where transitions go.
    pub replay: Replay,
    /// Observation of every environment `[E, stride]`.
    pub states: Buf<f32>,
    /// Packed actions `[E]`.
    pub actions: Buf<u64>,
    /// End flags of the last step `[E]`.
    pub flags: Buf<u32>,
    /// Steps of each running episode, counted up to n `[E]`.
    pub ages: Buf<u32>,
    /// Q values `[E, sum n_d]`.
    pub q: Buf<f32>,
    activations: Activations,
    /// The attention's folded matrices and contexts, where it is on.
    attention: Option<(Folded, Context)>,
    /// The Mamba-2 block's parameters and inputs of the first layer, where it is on.
    mamba: Option<MambaForwardBuffers>,
    /// Noise of the heads, where they are noisy; a backtest acts without.
    noise: Option<NoiseBuffers>,
    /// The ensemble's exploration bonus, where there is one.
    bonus: Option<Bonus>,
    /// Exploration rate, one value.
    pub epsilon: Buf<f32>,
    /// `[v_min, v_max]`.
    support: Buf<f32>,
    /// Counters; `clock::COLLECT` numbers the collection steps.
    pub clock: Buf<u64>,
}

/// What a collector runs on, besides the shapes.
#[derive(Clone, Copy)]
pub struct CollectorInput<'a> {
    /// What the environments are.
    pub environment: EnvironmentInput<'a>,
    /// E.
    pub environments: usize,
    /// Rows of the log.
    pub log_rows: usize,
    /// Counters shared with the training step, or `None` for counters of its own (a backtest).
    pub clock: Option<Buf<u64>>,
    /// The training step's support, which may move, or `None` for the model's.
    pub support: Option<Buf<f32>>,
    /// Exploration rate that the training step sets, or `None` for one of its own.
    pub epsilon: Option<Buf<f32>>,
    /// Whether rewards have the ensemble's exploration bonus, if `ensemble.explore` asks for one: what is trained on.
    pub explores: bool,
}

impl Collector {
    /// Allocates environments that stand before their first episode.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        input: CollectorInput<'_>,
        replay: Replay,
        name: &str,
    ) -> Result<Self, ExecError> {
        let e = input.environments;
        let greedy = input.environment.greedy();
        let collector = Self {
            environments: e,
            log_rows: input.log_rows,
            gamma: input.environment.gamma(),
            environment: Environments::alloc(memory, &input.environment, e, input.log_rows, name)?,
            replay,
            states: memory.alloc(&format!("{name}.states"), e * shape.stride)?,
            actions: memory.alloc(&format!("{name}.actions"), e)?,
            flags: memory.alloc(&format!("{name}.flags"), e)?,
            ages: memory.alloc(&format!("{name}.ages"), e)?,
            q: memory.alloc(&format!("{name}.q"), e * shape.actions)?,
            activations: Activations::alloc(memory, shape, e, name)?,
            attention: match shape.parts.attention.enabled {
                true => Some((
                    Folded::alloc(memory, shape, 1, &format!("{name}.folded"))?,
                    Context::alloc(memory, shape, e, 0, name)?,
                )),
                false => None,
            },
            mamba: match shape.parts.mamba.enabled {
                true => Some(MambaForwardBuffers::alloc(memory, shape, e, 0, &format!("{name}.mamba"))?),
                false => None,
            },
            noise: match shape.model.noisy && !greedy {
                true => Some(NoiseBuffers::alloc(memory, shape, 1, &format!("{name}.noise"))?),
                false => None,
            },
            bonus: match input.explores && shape.parts.ensemble.explores() {
                true => Some(Bonus::alloc(memory, shape, e, &format!("{name}.ensemble"))?),
                false => None,
            },
            epsilon: match input.epsilon {
                Some(epsilon) => epsilon,
                None => memory.alloc(&format!("{name}.epsilon"), 1)?,
            },
            support: match input.support {
                Some(support) => support,
                None => filled(memory, &format!("{name}.support"), &[shape.model.v_min, shape.model.v_max])?,
            },
            clock: match input.clock {
                Some(clock) => clock,
                None => memory.alloc(&format!("{name}.clock"), clock::WORDS as usize)?,
            },
        };
        Ok(collector)
    }

    /// What a collection step leaves for the next one, the ring's first `filled` slots among it (`step::state`).
    pub fn state(&self, name: &str, filled: usize) -> Vec<StateBlock> {
        let Self {
            environments: _,
            log_rows: _,
            gamma: _,
            environment,
            replay,
            states,
            actions: _,
            flags: _,
            ages,
            q: _,
            activations: _,
            attention: _,
            mamba: _,
            noise: _,
            bonus: _,
            epsilon,
            support: _,
            clock,
        } = self;
        let mut state = environment.state(name);
        state.extend([
            StateBlock::new(format!("{name}.states"), *states),
            StateBlock::new(format!("{name}.ages"), *ages),
            // The training step's own where it shares them.
            StateBlock::new(format!("{name}.epsilon"), *epsilon),
            StateBlock::new(format!("{name}.clock"), *clock),
        ]);
        state.extend(replay.state(&format!("{name}.ring"), filled));
        state
    }

    /// The first observation, before any step.
    pub fn record_first<E: Exec>(&self, exec: &mut E, shape: &StepShape) -> Result<(), ExecError> {
        self.environment.first(exec, shape, &self.stepped())
    }

    /// One step of all environments.
    pub fn record<E: Exec>(
        &self,
        exec: &mut E,
        shape: &StepShape,
        online: Buf<f32>,
    ) -> Result<(), ExecError> {
        let x = View::new(self.states, shape.stride);
        let mut heads = online;
        if let Some(noise) = &self.noise {
            // Beside the trunk.
            exec.after(Lane::TARGET, Lane::MAIN)?;
            noise.acting(exec, Lane::TARGET, shape, self.clock, online)?;
            heads = noise.online();
        }
        if let Some(forward) = &self.mamba {
            let lane = Lane::MAIN;
            mamba::fold_networks(exec, shape, lane, forward, online, online)?;
            mamba::join_networks(exec, shape, lane, forward, online, online)?;
            mamba::block_of(exec, shape, lane, forward, self.states)?;
            mamba::trunk(exec, shape, lane, forward, 0, online, &self.activations)?;
        } else {
            Network { exec, shape, parameters: online, copies: None }.trunk(
                Lane::MAIN,
                x,
                &self.activations,
            )?;
        }
        if let Some((folded, context)) = &self.attention {
            // Folded anew in every step: some microseconds beside the environments, and never stale.
            let (e, lane) = (self.environments, Lane::MAIN);
            attention::fold_networks(exec, shape, lane, folded, online, online)?;
            attention::context_of(exec, shape, lane, folded, 0, context, e, self.states)?;
            attention::apply_to(exec, shape, lane, folded, 0, context, &self.activations, online, None)?;
        }
        if let Some(bonus) = &self.bonus {
            bonus.forward(exec, shape, online, self.activations.features)?;
        }
        if self.noise.is_some() {
            exec.after(Lane::MAIN, Lane::TARGET)?;
        }
        Network { exec, shape, parameters: heads, copies: None }.heads(Lane::MAIN, &self.activations)?;
        self.record_q(exec, shape)?;
        exec.launch(
            Lane::MAIN,
            &SelectAction {
                rows: self.environments as u32,
                branches: shape.branches as u32,
                sizes: shape.sizes,
                seed: shape.seed,
                clock_words: self.clock.into(),
                epsilon: self.epsilon.into(),
                q: self.q.into(),
                actions: self.actions.into(),
            },
        )?;
        self.environment.step(exec, shape, &self.stepped())?;
        if let Some(bonus) = &self.bonus {
            bonus.add(exec, shape, &self.replay, self.support, self.clock)?;
        }
        let windows = Windows {
            environments: self.environments,
            steps: shape.replay.n_step,
            gamma: self.gamma,
            flags: self.flags,
            ages: self.ages,
        };
        replay::insert(exec, shape, &self.replay, &windows)?;
        exec.launch(
            Lane::MAIN,
            &MarketCount {
                inserted: self.environments as u32,
                capacity: self.replay.capacity as u32,
                ring_words: self.replay.words.into(),
                clock_words: self.clock.into(),
            },
        )
    }

    fn record_q<E: Exec>(&self, exec: &mut E, shape: &StepShape) -> Result<(), ExecError> {
        macro_rules! launch {
            ($kernel:ident) => {
                exec.launch(
                    Lane::MAIN,
                    &$kernel {
                        rows: self.environments as u32,
                        branches: shape.branches as u32,
                        sizes: shape.sizes,
                        atoms: shape.model.atoms as u32,
                        stride: shape.logits as u32,
                        support: self.support.into(),
                        logits: self.activations.logits.into(),
                        q: self.q.into(),
                    },
                )
            };
        }
        if shape.model.atoms <= 64 { launch!(DuelingQ) } else { launch!(DuelingQWide) }
    }

    fn stepped(&self) -> Stepped<'_> {
        Stepped {
            environments: self.environments,
            log_rows: self.log_rows,
            states: self.states,
            actions: self.actions,
            flags: self.flags,
            replay: &self.replay,
        }
    }

    /// Puts all environments before their first episode, and empties ring and log.
    pub fn reset(&self, memory: &mut impl Memory) -> Result<(), ExecError> {
        self.environment.reset(memory)?;
        memory.upload(self.ages, &vec![0u32; self.ages.len()])?;
        self.replay.clear(memory)
    }
}
