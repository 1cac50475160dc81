//! The environments of a collector in device memory: the market's, or a control task's.

use cuda_std::Buf;
use gpu::kernels::market_observe::MarketObserve;
use gpu::kernels::market_step::MarketStep;
use gpu::kernels::task_step::TaskStep;
use gpu::market::{ACCOUNT_COUNTERS, ACCOUNT_VALUES, LOG_FIELDS, MarketParams, MarketTable, Mode, Part};
use gpu::task::{self, Finished, Task};

use crate::error::ExecError;
use crate::exec::{Element, Exec, Lane, Memory};
use crate::step::buffers::Replay;
use crate::step::shape::StepShape;
use crate::step::state::{StateBlock, StateError, Words};

/// The market's bars in device memory; one copy serves all environments and parts.
#[derive(Clone, Copy, Debug)]
pub struct TableBuffers {
    /// T.
    pub bars: usize,
    /// W.
    pub window: u32,
    /// F.
    pub features_per_bar: u32,
    prices: Buf<f64>,
    elapsed: Buf<f64>,
    clock: Buf<f32>,
    features: Buf<f32>,
}

impl TableBuffers {
    /// Uploads a table.
    pub fn upload(memory: &mut impl Memory, table: &MarketTable) -> Result<Self, ExecError> {
        let shape = table.shape();
        Ok(Self {
            bars: table.bars(),
            window: shape.window,
            features_per_bar: shape.features,
            prices: filled(memory, "market.prices", &table.prices)?,
            elapsed: filled(memory, "market.elapsed", &table.elapsed)?,
            clock: filled(memory, "market.clock", &table.clock)?,
            features: filled(memory, "market.features", &table.features)?,
        })
    }
}

/// A buffer with these values.
pub(super) fn filled<T: Element>(
    memory: &mut impl Memory,
    label: &str,
    data: &[T],
) -> Result<Buf<T>, ExecError> {
    let buf = memory.alloc(label, data.len())?;
    memory.upload(buf, data)?;
    Ok(buf)
}

/// What a collector's environments are.
#[derive(Clone, Copy)]
pub enum EnvironmentInput<'a> {
    /// Market environments on a part of the bars.
    Market {
        /// Costs, limits, mode.
        params: &'a MarketParams,
        /// The part of the bars they may use.
        part: &'a Part,
        /// The market in device memory.
        table: TableBuffers,
    },
    /// Environments of a control task.
    Task {
        /// The task.
        task: Task,
        /// Discount of one step.
        gamma: f64,
        /// Seed of the episodes' starts, until another one is uploaded.
        seed: u64,
        /// Whether they are an evaluation's.
        greedy: bool,
    },
}

impl EnvironmentInput<'_> {
    /// Whether noisy heads act without their noise: in a backtest, and in a task's evaluation.
    pub fn greedy(&self) -> bool {
        match self {
            Self::Market { params, .. } => params.mode == Mode::Backtest,
            Self::Task { greedy, .. } => *greedy,
        }
    }

    /// Discount of one step.
    pub fn gamma(&self) -> f64 {
        match self {
            Self::Market { params, .. } => params.gamma,
            Self::Task { gamma, .. } => *gamma,
        }
    }
}

/// Market environments.
#[derive(Clone, Copy, Debug)]
pub struct MarketBuffers {
    /// Number of start bars.
    starts_len: usize,
    table: TableBuffers,
    params: Buf<f64>,
    run_end: Buf<u32>,
    starts: Buf<u32>,
    /// `[ACCOUNT_VALUES, E]`.
    pub values: Buf<f64>,
    /// `[ACCOUNT_COUNTERS, E]`.
    pub counters: Buf<u32>,
    /// Log rows `[E, log_rows, LOG_FIELDS]`.
    pub log: Buf<f64>,
}

/// Environments of a control task.
#[derive(Clone, Copy, Debug)]
pub struct TaskBuffers {
    task: Task,
    gamma: f64,
    /// Seed of the episodes' starts, one word.
    pub seed: Buf<u64>,
    /// `[task::WORDS, E]`.
    pub words: Buf<u64>,
    /// `[task::COUNTERS, E]`.
    pub counters: Buf<u32>,
    /// Finished episodes `[E, log_rows, task::LOG_FIELDS]`.
    pub log: Buf<f64>,
}

impl TaskBuffers {
    /// Each environment's first finished episode, of environments that log one; `None` for one that has not ended.
    pub fn finished(&self, memory: &mut impl Memory) -> Result<Vec<Option<Finished>>, ExecError> {
        let log = memory.download(self.log)?;
        let rows = log.chunks_exact(task::LOG_FIELDS as usize);
        Ok(rows
            .map(|row| {
                let (steps, flags) = (row[1] as u32, row[2] as u32);
                (flags != 0).then_some(Finished { total: row[0], steps, flags })
            })
            .collect())
    }
}

/// The environments of a collector.
#[derive(Clone, Copy, Debug)]
pub enum Environments {
    /// Of the market.
    Market(MarketBuffers),
    /// Of a control task.
    Task(TaskBuffers),
}

/// What a step of the environments reads and writes besides their own memory.
#[derive(Clone, Copy, Debug)]
pub struct Stepped<'a> {
    /// E.
    pub environments: usize,
    /// Rows of the log of each environment, 0 for none.
    pub log_rows: usize,
    /// Observation of every environment `[E, stride]`.
    pub states: Buf<f32>,
    /// Packed actions `[E]`.
    pub actions: Buf<u64>,
    /// End flags of the step `[E]`.
    pub flags: Buf<u32>,
    /// Where transitions go.
    pub replay: &'a Replay,
}

impl Environments {
    /// Allocates environments that stand before their first episode.
    pub fn alloc(
        memory: &mut impl Memory,
        input: &EnvironmentInput<'_>,
        environments: usize,
        log_rows: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        let e = environments;
        match *input {
            EnvironmentInput::Market { params, part, table } => {
                let backtest = params.mode == Mode::Backtest;
                let starts = if backtest { part.backtest_start() } else { &part.starts };
                Ok(Self::Market(MarketBuffers {
                    starts_len: starts.len(),
                    table,
                    params: filled(memory, &format!("{name}.params"), &params.words())?,
                    run_end: filled(memory, &format!("{name}.run_end"), &part.run_end)?,
                    starts: filled(memory, &format!("{name}.starts"), starts)?,
                    values: memory.alloc(&format!("{name}.values"), ACCOUNT_VALUES as usize * e)?,
                    counters: memory.alloc(&format!("{name}.counters"), ACCOUNT_COUNTERS as usize * e)?,
                    log: memory.alloc(&format!("{name}.log"), e * log_rows.max(1) * LOG_FIELDS as usize)?,
                }))
            }
            EnvironmentInput::Task { task, gamma, seed, .. } => Ok(Self::Task(TaskBuffers {
                task,
                gamma,
                seed: filled(memory, &format!("{name}.seed"), &[seed])?,
                words: memory.alloc(&format!("{name}.words"), task::WORDS as usize * e)?,
                counters: memory.alloc(&format!("{name}.counters"), task::COUNTERS as usize * e)?,
                log: memory.alloc(&format!("{name}.log"), e * log_rows.max(1) * task::LOG_FIELDS as usize)?,
            })),
        }
    }

    /// Puts all environments before their first episode and empties the log.
    pub fn reset(&self, memory: &mut impl Memory) -> Result<(), ExecError> {
        match self {
            Self::Market(market) => {
                memory.upload(market.values, &vec![0.0f64; market.values.len()])?;
                memory.upload(market.counters, &vec![0u32; market.counters.len()])?;
                memory.upload(market.log, &vec![0.0f64; market.log.len()])
            }
            Self::Task(task) => {
                memory.upload(task.words, &vec![0u64; task.words.len()])?;
                memory.upload(task.counters, &vec![0u32; task.counters.len()])?;
                memory.upload(task.log, &vec![0.0f64; task.log.len()])
            }
        }
    }

    /// The first observation, before any step.
    pub fn first<E: Exec>(
        &self,
        exec: &mut E,
        shape: &StepShape,
        with: &Stepped<'_>,
    ) -> Result<(), ExecError> {
        match self {
            Self::Market(market) => exec.launch(Lane::MAIN, &market.observe(shape, with, 0)),
            Self::Task(task) => exec.launch(Lane::MAIN, &task.step(shape, with, 0)),
        }
    }

    /// One step of all environments; the transitions are in the ring then, single steps before the cursor moves.
    pub fn step<E: Exec>(
        &self,
        exec: &mut E,
        shape: &StepShape,
        with: &Stepped<'_>,
    ) -> Result<(), ExecError> {
        match self {
            Self::Market(market) => {
                exec.launch(Lane::MAIN, &market.step(shape, with))?;
                exec.launch(Lane::MAIN, &market.observe(shape, with, 1))
            }
            Self::Task(task) => exec.launch(Lane::MAIN, &task.step(shape, with, 1)),
        }
    }
}

/// What steps leave for the next one (`step::state`).
impl Environments {
    /// The environments' own memory by name.
    pub fn state(&self, name: &str) -> Vec<StateBlock> {
        let block = |what: &str, words: Words| StateBlock::new(format!("{name}.{what}"), words);
        match self {
            Self::Market(market) => {
                // The log is of a backtest alone, which begins anew every time; the start too.
                let MarketBuffers {
                    starts_len: _,
                    table: _,
                    params: _,
                    run_end: _,
                    starts: _,
                    values,
                    counters,
                    log: _,
                } = market;
                vec![block("values", (*values).into()), block("counters", (*counters).into())]
            }
            Self::Task(task) => {
                // The seed is another one in evaluations alone, which begin anew every time as their log does.
                let TaskBuffers { task: _, gamma: _, seed: _, words, counters, log: _ } = task;
                vec![block("words", (*words).into()), block("counters", (*counters).into())]
            }
        }
    }

    /// Whether a saved state's counters can be those of `environments` such environments.
    ///
    /// # Errors
    /// [`StateError`] for counters of another number of environments, and for those that no run can have.
    pub fn check_counters(&self, counters: &[u32], environments: usize) -> Result<(), StateError> {
        match self {
            Self::Market(market) => {
                Ok(gpu::market::check_counters(counters, environments, market.table.bars)?)
            }
            Self::Task(task) => Ok(task::check_counters(counters, environments, task.task.limit)?),
        }
    }

    /// The market's buffers, if it is that.
    pub fn market(&self) -> Option<&MarketBuffers> {
        match self {
            Self::Market(market) => Some(market),
            Self::Task(_) => None,
        }
    }
}

impl TaskBuffers {
    fn step(&self, shape: &StepShape, with: &Stepped<'_>, insert: u32) -> TaskStep {
        TaskStep {
            environments: with.environments as u32,
            stride: shape.stride as u32,
            kind: self.task.kind,
            size: self.task.size,
            limit: self.task.limit,
            capacity: with.replay.capacity as u32,
            log_rows: with.log_rows as u32,
            insert,
            gamma: self.gamma,
            seed_words: self.seed.into(),
            actions: with.actions.into(),
            words: self.words.into(),
            counters: self.counters.into(),
            ring_words: with.replay.words.into(),
            states: with.states.into(),
            ring_states: with.replay.states.into(),
            ring_next_states: with.replay.next_states.into(),
            ring_actions: with.replay.actions.into(),
            ring_rewards: with.replay.rewards.into(),
            ring_discounts: with.replay.discounts.into(),
            ring_ends: with.replay.ends.into(),
            flags: with.flags.into(),
            log: self.log.into(),
        }
    }
}

impl MarketBuffers {
    /// Lets a backtest begin at bar `start` with these numbers, the last bar among them. The accounts must be zeroed.
    ///
    /// # Errors
    /// What the copy to the device said.
    pub fn begin_at(
        &self,
        memory: &mut impl Memory,
        params: &MarketParams,
        start: u32,
    ) -> Result<(), ExecError> {
        memory.upload(self.params, &params.words())?;
        memory.upload(self.starts, &[start])
    }

    fn step(&self, shape: &StepShape, with: &Stepped<'_>) -> MarketStep {
        MarketStep {
            environments: with.environments as u32,
            start_count: self.starts_len as u32,
            capacity: with.replay.capacity as u32,
            log_rows: with.log_rows as u32,
            seed: shape.seed,
            params: self.params.into(),
            prices: self.table.prices.into(),
            elapsed: self.table.elapsed.into(),
            run_end: self.run_end.into(),
            starts: self.starts.into(),
            actions: with.actions.into(),
            values: self.values.into(),
            counters: self.counters.into(),
            ring_words: with.replay.words.into(),
            ring_actions: with.replay.actions.into(),
            ring_rewards: with.replay.rewards.into(),
            ring_discounts: with.replay.discounts.into(),
            flags: with.flags.into(),
            log: self.log.into(),
        }
    }

    fn observe(&self, shape: &StepShape, with: &Stepped<'_>, insert: u32) -> MarketObserve {
        MarketObserve {
            environments: with.environments as u32,
            stride: shape.stride as u32,
            window: self.table.window,
            bar_features: self.table.features_per_bar,
            start_count: self.starts_len as u32,
            capacity: with.replay.capacity as u32,
            insert,
            seed: shape.seed,
            params: self.params.into(),
            prices: self.table.prices.into(),
            clock: self.table.clock.into(),
            features: self.table.features.into(),
            run_end: self.run_end.into(),
            starts: self.starts.into(),
            values: self.values.into(),
            counters: self.counters.into(),
            ring_words: with.replay.words.into(),
            states: with.states.into(),
            ring_states: with.replay.states.into(),
            ring_next_states: with.replay.next_states.into(),
        }
    }
}
