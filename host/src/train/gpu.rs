//! The agent on the GPU: one graph for a training step, one for a collection step, one for each backtest's bar. On a data set
//! nothing is collected, and where not all of it is on the device there is a training step's graph for either half.

mod agent;
mod rows;
mod source;

use anyhow::{Context, bail};
use gpu::clock;
use gpu::kernels::c51_loss::stat;
use gpu::kernels::iql_derive::state as averages;
use gpu::kernels::step_signals::signal;
use gpu::market::MarketParams;
use settings::Config;

use crate::cuda::{CudaExec, Graph};
use crate::exec::Memory;
use crate::step::state::StateBlock;
use crate::step::{
    Collector, CollectorInput, EnvironmentInput, Matmul, Replay, StepBuffers, StepShape, TableBuffers, prune,
    record_probe, record_vaccinated,
};
use crate::train::agent::{PartName, StepRow};
use crate::train::gpu_task::GreedyEpisodes;
use crate::train::offline::{Offline, Staging, ring};
use crate::train::world::World;
use rows::part_row;
use source::{Collection, Drawn, Source};

/// Graph launches between two looks at the device: enough that the host is never waited for.
const CHUNK: usize = 250;

/// Names in a saved state: training steps begun, the environments, those on the held-out bars.
const STEPS: &str = "steps";
const COLLECTOR: &str = "collect";
const VACCINE: &str = "vaccine";

/// A part's backtest: one environment with its own ring of one slot. One graph serves all symbols: which one it walks
/// is read from device memory.
struct Backtest {
    part: PartName,
    collector: Collector,
    graph: Graph,
    symbols: Vec<SymbolPass>,
}

/// Where a symbol's backtest begins and ends.
struct SymbolPass {
    params: MarketParams,
    start: u32,
    bars: usize,
}

/// Environments on the held-out bars, and the training step that uses what they collect.
struct VaccineGraphs {
    collector: Collector,
    collect_graph: Graph,
    train_graph: Graph,
    /// The same step beginning with a pruning.
    pruning_graph: Option<Graph>,
}

/// The GPU agent.
pub struct GpuAgent {
    /// Before the executor, whose memory its threads may be writing.
    source: Source,
    exec: CudaExec,
    shape: StepShape,
    buffers: StepBuffers,
    /// One; two of a data set of which only a part is on the device.
    drawn: Vec<Drawn>,
    vaccine: Option<VaccineGraphs>,
    /// The causal probe, behind the steps that end with it.
    probe_graph: Option<Graph>,
    backtests: Vec<Backtest>,
    /// A control task's evaluation.
    greedy: Option<GreedyEpisodes>,
    /// Training steps begun since the start.
    steps: u64,
    description: String,
    max_nonfinite: u64,
}

impl GpuAgent {
    /// Allocates everything, runs each sequence once eagerly, captures the graphs, then sets the initial parameters.
    ///
    /// With `profile` the last steps of every epoch are timed ([`Agent::profile`]).
    pub fn new<'a>(
        config: &Config,
        world: impl Into<World<'a>>,
        mut exec: CudaExec,
        matmul: Matmul,
        profile: bool,
    ) -> anyhow::Result<Self> {
        StepShape::check_supported(config)?;
        let world = world.into();
        let shape = StepShape::new(config, matmul);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer)?;
        let pending = config.replay.pending(config.collect.environments);
        let (environment, market) = match world {
            World::Market(market) => {
                let (params, part) = (&market.params, market.learned());
                let table = TableBuffers::upload(&mut exec, &market.table)?;
                (Some(EnvironmentInput::Market { params, part, table }), Some((market, table)))
            }
            World::Task(task) => (Some(task.environment()), None),
            World::Transitions(_) => (None, None),
        };
        let values = buffers.parts.and_then(|parts| parts.iql);
        let collector = match environment {
            Some(environment) => {
                let input = CollectorInput {
                    environment,
                    environments: config.collect.environments,
                    log_rows: 0,
                    clock: Some(buffers.clock),
                    support: Some(buffers.support),
                    epsilon: values.filter(|_| config.iql.adaptive_epsilon).map(|iql| iql.epsilon),
                    explores: true,
                };
                let mut replay =
                    Replay::alloc(&mut exec, &shape, config.collect.capacity)?.with_pending(pending);
                if let World::Task(task) = world {
                    replay = replay.for_task(&mut exec, task.hindsight)?;
                }
                Some(Collector::alloc(&mut exec, &shape, input, replay, "collect")?)
            }
            None => None,
        };
        let staging = match world.data_set().and_then(|data| Some((data, data.shards()?))) {
            Some((data, shards)) => Some(Staging::alloc(&mut exec, &shape, data, shards)?),
            None => None,
        };
        let rings = match (&staging, &collector) {
            (Some(staging), _) => staging.rings().to_vec(),
            (None, Some(collector)) => vec![collector.replay],
            (None, None) => {
                let slots = world.data_set().map_or(1, Offline::capacity);
                let hint =
                    "a data set that the device has no room for is drawn from in parts: transitions.resident";
                vec![Replay::alloc(&mut exec, &shape, slots).context(hint)?]
            }
        };

        // A backtest always takes the Rust products: with one row they are as fast, and the same checkpoint gives
        // the same decisions whatever cuBLASLt is installed.
        let mut backtest_shape = StepShape::new(config, Matmul::Rust);
        backtest_shape.precision = settings::Precision::Fp32;
        // Nothing is drawn from a backtest's ring.
        backtest_shape.replay = settings::Replay::default();
        let online = buffers.parameters.online;
        let mut backtests = Vec::new();
        let parts = [PartName::Train, PartName::Validation, PartName::Test];
        for (part, (market, table)) in parts.into_iter().flat_map(|part| market.map(|market| (part, market)))
        {
            let symbols: Vec<SymbolPass> = (0..market.symbols.len())
                .map(|symbol| {
                    let part = market.symbol_part(part, symbol);
                    let params = market.params.backtest(part);
                    SymbolPass { params, start: part.backtest_start()[0], bars: part.backtest_steps() }
                })
                .collect();
            let bars = symbols.iter().map(|symbol| symbol.bars).max().context("no symbol to trade")?;
            let params: MarketParams = market.params.backtest(market.part(part));
            let input = CollectorInput {
                environment: EnvironmentInput::Market { params: &params, part: market.part(part), table },
                environments: 1,
                log_rows: bars,
                clock: None,
                support: Some(buffers.support),
                epsilon: None,
                explores: false,
            };
            let name = format!("backtest.{part:?}").to_lowercase();
            let slot = Replay::alloc(&mut exec, &backtest_shape, 1)?;
            let collector = Collector::alloc(&mut exec, &backtest_shape, input, slot, &name)?;
            collector.record(&mut exec, &backtest_shape, online)?;
            let graph = Graph::capture(&mut exec, |exec| collector.record(exec, &backtest_shape, online))
                .with_context(|| format!("capturing the {name}"))?;
            backtests.push(Backtest { part, collector, graph, symbols });
        }

        let greedy = match world.task() {
            Some(task) => Some(GreedyEpisodes::new(&mut exec, config, &task, (online, buffers.support))?),
            None => None,
        };

        let drawn = rings
            .iter()
            .map(|&replay| Drawn::capture(&mut exec, &shape, &buffers, replay, profile))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let collection = match collector {
            Some(collector) => {
                collector.record(&mut exec, &shape, online)?;
                let graph = Graph::capture(&mut exec, |exec| collector.record(exec, &shape, online))
                    .context("capturing the collection step")?;
                Some(Collection { collector, graph })
            }
            None => None,
        };
        let held_out = market.and_then(|(market, table)| Some((market, table, market.held_out()?)));
        let vaccine = match held_out {
            Some((market, table, part)) => {
                let replay = rings[0];
                let input = CollectorInput {
                    environment: EnvironmentInput::Market { params: &market.params, part, table },
                    environments: config.vaccine.environments,
                    log_rows: 0,
                    clock: None,
                    support: Some(buffers.support),
                    epsilon: None,
                    explores: false,
                };
                // Drawn uniformly, whatever the training's ring does.
                let pending = config.replay.pending(config.vaccine.environments);
                let held_out = Replay::alloc(&mut exec, &shape, config.vaccine.capacity)?;
                let held_out = Replay { priorities: None, ..held_out.with_pending(pending) };
                let collector = Collector::alloc(&mut exec, &shape, input, held_out, "vaccine")?;
                collector.record(&mut exec, &shape, online)?;
                record_vaccinated(&mut exec, &shape, &buffers, &replay, &held_out)?;
                let collect_graph = Graph::capture(&mut exec, |exec| collector.record(exec, &shape, online))
                    .context("capturing the collection step on held-out bars")?;
                let train_graph = Graph::capture(&mut exec, |exec| {
                    record_vaccinated(exec, &shape, &buffers, &replay, &held_out)
                })
                .context("capturing the vaccinated training step")?;
                let pruning_graph = match config.pruning.enabled {
                    true => {
                        let record = |exec: &mut CudaExec| {
                            prune::prune(exec, &shape, &buffers)?;
                            record_vaccinated(exec, &shape, &buffers, &replay, &held_out)
                        };
                        Some(
                            Graph::capture(&mut exec, record)
                                .context("capturing the pruning with vaccine")?,
                        )
                    }
                    false => None,
                };
                Some(VaccineGraphs { collector, collect_graph, train_graph, pruning_graph })
            }
            None => None,
        };
        let probe_graph = match config.probe.enabled {
            true => {
                record_probe(&mut exec, &shape, &buffers)?;
                let graph = Graph::capture(&mut exec, |exec| record_probe(exec, &shape, &buffers));
                Some(graph.context("capturing the causal probe")?)
            }
            false => None,
        };
        exec.seal();
        let description = format!(
            "{} ({:?}, products by {matmul:?})",
            exec.gpu().properties().name,
            config.train.precision
        );
        let source = match (collection, staging, world.data_set()) {
            (Some(collection), _, _) => Source::Collection(Box::new(collection)),
            (None, Some(staging), _) => Source::Staged(Box::new(staging)),
            (None, None, Some(data)) => {
                Source::Resident { rows: data.rows.clone(), learned: data.learned.clone() }
            }
            (None, None, None) => bail!("neither environments nor a data set to learn from"),
        };
        let mut agent = Self {
            source,
            exec,
            shape,
            buffers,
            drawn,
            vaccine,
            probe_graph,
            backtests,
            greedy,
            steps: 0,
            description,
            max_nonfinite: config.train.max_nonfinite.into(),
        };
        agent.start_over(config)?;
        Ok(agent)
    }

    /// Undoes what the eager runs wrote: parameters, moments, counters, accounts, ring.
    fn start_over(&mut self, config: &Config) -> anyhow::Result<()> {
        let initial = cpu_path::init_parameters(&self.shape.flat, config.train.seed);
        let p = self.buffers.parameters;
        let zeros = vec![0.0f32; initial.len()];
        self.exec.upload(p.online, &initial)?;
        self.exec.upload(p.target, &initial[..p.target.len()])?;
        self.buffers.start(&mut self.exec, &self.shape)?;
        self.buffers.start_factors(&mut self.exec)?;
        self.exec.upload(p.m, &zeros)?;
        self.exec.upload(p.v, &zeros)?;
        self.exec.upload(self.buffers.clock, &[0u64; clock::WORDS as usize])?;
        self.exec.upload(self.buffers.adam, &[0u64; clock::adam::WORDS as usize])?;
        match &mut self.source {
            Source::Collection(collection) => {
                let collector = collection.collector;
                collector.reset(&mut self.exec)?;
                collector.record_first(&mut self.exec, &self.shape)?;
            }
            Source::Resident { rows, learned } => {
                ring::fill(&mut self.exec, self.shape.stride, &self.drawn[0].replay, rows, learned)?;
            }
            Source::Staged(staging) => staging.begin(&mut self.exec, 0)?,
        }
        let Some(collector) = self.vaccine.as_ref().map(|vaccine| vaccine.collector) else { return Ok(()) };
        collector.reset(&mut self.exec)?;
        self.exec.upload(collector.clock, &[0u64; clock::WORDS as usize])?;
        collector.record_first(&mut self.exec, &self.shape)?;
        Ok(())
    }

    /// Launches the next `count` training steps of an epoch that ends before step `end`, with pruning, vaccine and probe
    /// where they are due.
    fn launch(&mut self, count: usize, end: u64) -> anyhow::Result<()> {
        let parts = &self.shape.parts;
        for step in self.steps..self.steps + count as u64 {
            let ring = match &mut self.source {
                Source::Staged(staging) => {
                    staging.advance(&mut self.exec, step)?;
                    staging.ring_of(step)
                }
                Source::Collection(_) | Source::Resident { .. } => 0,
            };
            let Drawn { train_graph, pruning_graph, profiler, .. } = &mut self.drawn[ring];
            let vaccine = self.vaccine.as_ref().filter(|_| parts.vaccine.is_in(step));
            let pruning = pruning_graph.as_ref().filter(|_| self.shape.pruning.due(step));
            let pruning = pruning.map(|plain| vaccine.map_or(Some(plain), |v| v.pruning_graph.as_ref()));
            let special = pruning.flatten().or(vaccine.map(|vaccine| &vaccine.train_graph));
            // Steps as they mostly are get profiled.
            let timed = match (profiler, special) {
                (Some(profiler), None) => profiler.step(&mut self.exec, (end - step) as usize)?,
                _ => false,
            };
            if !timed {
                special.unwrap_or(train_graph).replay(&mut self.exec)?;
            }
            if let Some(probe) = self.probe_graph.as_ref().filter(|_| parts.probe.is_in(step)) {
                probe.replay(&mut self.exec)?;
            }
        }
        self.steps += count as u64;
        Ok(())
    }

    /// Whether exploration is the value networks': from their first accepted training step on.
    fn adapts_epsilon(&mut self) -> anyhow::Result<bool> {
        let iql = self.buffers.parts.and_then(|parts| parts.iql);
        match iql.filter(|_| self.shape.parts.iql.adaptive_epsilon) {
            Some(iql) => Ok(self.exec.download(iql.averages)?[averages::STARTED as usize] != 0.0),
            None => Ok(false),
        }
    }

    /// What changes of a data set's rings.
    fn priorities(&self) -> Vec<StateBlock> {
        let trees = self.drawn.iter().filter_map(|drawn| drawn.replay.priorities);
        trees.flat_map(|tree| tree.state(&format!("{COLLECTOR}.ring"))).collect()
    }

    /// History rows of the last `count` steps, oldest first.
    fn history(&mut self, count: usize) -> anyhow::Result<Vec<StepRow>> {
        let words = self.exec.download(self.buffers.history)?;
        let (rows, columns) = (self.shape.history as u64, signal::COLUMNS as usize);
        Ok((self.steps - count as u64..self.steps)
            .map(|step| {
                let row = &words[(step % rows) as usize * columns..][..columns];
                StepRow {
                    loss: row[stat::WEIGHTED_LOSS as usize],
                    td: row[stat::TD as usize],
                    q: row[stat::Q_TAKEN as usize],
                    clipped_low: row[stat::CLIPPED_LOW as usize],
                    clipped_high: row[stat::CLIPPED_HIGH as usize],
                    gradient_norm: row[signal::GRADIENT_NORM as usize],
                    skipped: row[signal::SKIPPED as usize] != 0.0,
                    parts: part_row(&self.shape, row, step),
                }
            })
            .collect())
    }

    /// The training step's graph, for `profile` and reports.
    pub fn train_graph(&self) -> &Graph {
        &self.drawn[0].train_graph
    }
}
