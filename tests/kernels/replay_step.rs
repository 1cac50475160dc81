//! Collection and training steps with the replay's options on, beside the CPU agent's: the same draws, the same ring, the
//! same priorities.
//!
//! Rewards, discounts and states of the ring are equal bit for bit. Losses of the two paths agree within 1e-4 relative
//! and, where |td| is a small difference, within 1e-5 of the support's size (SPEC section 8); so do the priorities.

use cpu_path::{CpuLearner, StepMetrics, init_parameters};
use gpu::kernels::c51_loss::stat;
use gpu::market::{MarketParams, MarketTable, Part, Transitions, VecMarket};
use host::error::ExecError;
use host::step::{
    Collector, CollectorInput, EnvironmentInput, Matmul, Replay, StepBuffers, StepShape, TableBuffers, record,
};
use host::train::replay::{Draw, HostReplay};
use settings::{Config, Precision, Priority};

use super::check::same_bits;
use super::market::support::{Columns, SHAPE, params};
use super::market::{STATE, state_row_of};
use super::{Backend, Outcome};

const ENVIRONMENTS: usize = 6;
/// No multiple of the environments: steps wrap around the end.
const CAPACITY: usize = 50;

fn config() -> Config {
    let mut config = Config::default();
    let model = &mut config.model;
    (model.state, model.window, model.bar_features) = (STATE, SHAPE.window as usize, SHAPE.features as usize);
    (model.trunk1, model.trunk2, model.value_hidden, model.branch_hidden) = (16, 16, 8, 8);
    model.atoms = 11;
    config.train.batch = 16;
    config.train.precision = Precision::Fp32;
    config.collect.environments = ENVIRONMENTS;
    config.collect.capacity = CAPACITY;
    config.replay.beta_steps = 3;
    config
}

/// Both agents, step by step.
struct Pair<'a> {
    config: &'a Config,
    shape: StepShape,
    buffers: StepBuffers,
    replay: Replay,
    collector: Collector,
    market: VecMarket<'a>,
    host: HostReplay,
    learner: CpuLearner,
    steps: u64,
}

impl<'a> Pair<'a> {
    fn new<B: Backend>(
        b: &mut B,
        config: &'a Config,
        (market_params, table, part): (&'a MarketParams, &'a MarketTable, &'a Part),
    ) -> Result<Self, ExecError> {
        config.check().expect("a configuration that can work");
        let shape = StepShape::new(config, Matmul::Rust);
        let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
        let pending = config.replay.pending(ENVIRONMENTS);
        let replay = Replay::alloc(b, &shape, CAPACITY)?.with_pending(pending);
        let input = CollectorInput {
            environment: EnvironmentInput::Market {
                params: market_params,
                part,
                table: TableBuffers::upload(b, table)?,
            },
            environments: ENVIRONMENTS,
            log_rows: 0,
            clock: Some(buffers.clock),
            support: None,
            epsilon: None,
            explores: false,
        };
        let collector = Collector::alloc(b, &shape, input, replay, "collect")?;
        let initial = init_parameters(&shape.flat, config.train.seed);
        b.upload(buffers.parameters.online, &initial)?;
        b.upload(buffers.parameters.target, &initial[..shape.flat.target_len()])?;
        buffers.start_spectral(b, &shape)?;
        b.upload(collector.epsilon, &[1.0])?;
        collector.record_first(b, &shape)?;
        let seed = config.train.seed;
        Ok(Self {
            config,
            shape,
            buffers,
            replay,
            collector,
            market: VecMarket::new(*market_params, table, part, ENVIRONMENTS, seed).expect("a market"),
            host: HostReplay::new(&config.replay, CAPACITY, STATE, ENVIRONMENTS, market_params.gamma),
            learner: CpuLearner::from_config(config).expect("a learner"),
            steps: 0,
        })
    }

    /// One bar of all environments; then the rings are the same.
    fn collect<B: Backend>(&mut self, b: &mut B) -> Outcome {
        let mut states = vec![0.0; ENVIRONMENTS * STATE];
        self.market.observe(&mut states).expect("room for the states");
        self.collector.record(b, &self.shape, self.buffers.parameters.online)?;
        let actions = b.download(self.collector.actions)?;
        let mut out = Transitions::new(ENVIRONMENTS, STATE);
        self.market.step(&actions, &mut out).expect("actions of the layout");
        self.host.insert(&states, &actions, &out);

        same_bits("r", &b.download(self.replay.rewards)?, &self.host.rewards);
        same_bits("discount", &b.download(self.replay.discounts)?, &self.host.discounts);
        assert_eq!(b.download(self.replay.actions)?, self.host.actions);
        let stride = self.shape.stride;
        for (name, device, host) in [
            ("s", self.replay.states, &self.host.states),
            ("s'", self.replay.next_states, &self.host.next_states),
        ] {
            let rows = b.download(device)?;
            for slot in 0..CAPACITY {
                same_bits(name, state_row_of(&rows, slot, stride), &host[slot * STATE..][..STATE]);
            }
        }
        self.compare_trees(b)
    }

    /// Which slots may be drawn is the same; leaves agree in priorities as the losses do.
    fn compare_trees<B: Backend>(&self, b: &mut B) -> Outcome {
        let (Some(device), Some(host)) = (&self.replay.priorities, self.host.tree()) else { return Ok(()) };
        let leaves = b.download(device.leaves)?;
        let p = |leaf: f32| f64::from(leaf).powf(1.0 / self.config.replay.alpha);
        let reach = f64::from(self.config.model.v_max);
        for (slot, (&got, &want)) in leaves.iter().zip(host.leaves()).enumerate() {
            assert_eq!(got > 0.0, want > 0.0, "slot {slot}: leaf {got}, on the CPU {want}");
            let (got, want) = (p(got), p(want));
            assert!(
                (got - want).abs() <= 1e-4 * want + 1e-5 * reach,
                "slot {slot}: priority {got}, on the CPU {want}"
            );
        }
        let total: f64 = b.download(device.sums)?.iter().sum();
        let sum: f64 = leaves.iter().map(|&leaf| f64::from(leaf)).sum();
        assert!((total - sum).abs() <= 1e-12 * sum, "total {total}, leaves {sum}");
        let highest = f32::from_bits(b.download(device.highest)?[0]);
        assert!((p(highest) - p(host.highest())).abs() <= 2e-4 * p(highest));
        Ok(())
    }

    /// One training step of both; the CPU's numbers.
    fn train<B: Backend>(&mut self, b: &mut B) -> Result<StepMetrics<f32>, ExecError> {
        let config = self.config;
        let (batch, branches) = (config.train.batch, config.model.branches.len());
        let Draw { batch: mut drawn, slots } =
            self.host.sample(batch, branches, config.train.seed, self.steps);
        record(b, &self.shape, &self.buffers, Some(&self.replay))?;
        if let Some(iqn) = self.buffers.parts.and_then(|parts| parts.iqn) {
            drawn.taus = b.download(iqn.taus)?;
            drawn.target_taus = b.download(iqn.target_taus)?;
        }
        let indices: Vec<usize> =
            b.download(self.buffers.batch.indices)?.iter().map(|&i| i as usize).collect();
        assert_eq!(indices, slots, "slots of step {}", self.steps);
        same_bits("rewards of the batch", &b.download(self.buffers.batch.rewards)?, &drawn.rewards);
        for (i, (got, want)) in b.download(self.buffers.batch.weights)?.iter().zip(&drawn.weights).enumerate()
        {
            // Leaves agree within 1e-3 relative at the least, ratios within twice that.
            let same = (got - want).abs() <= 2e-3 * want || (got.is_nan() && want.is_nan());
            assert!(same, "weight {i} of step {}: {got}, on the CPU {want}", self.steps);
        }
        let metrics = self.learner.train_step(&drawn).expect("a batch that fits");
        if !metrics.skipped {
            let c51 = match config.replay.priority {
                Priority::Td => &metrics.td,
                Priority::CrossEntropy => &metrics.cross_entropy,
            };
            self.host.update(&slots, c51, &metrics.iqn_loss);
        }
        self.steps += 1;
        let stats = b.download(self.buffers.stats)?;
        for (row, (&td, &ce)) in
            stats.chunks_exact(stat::COLUMNS as usize).zip(metrics.td.iter().zip(&metrics.cross_entropy))
        {
            let near = |got: f32, want: f32| (got - want).abs() <= 1e-4 * want.abs() + 1e-4 || want.is_nan();
            assert!(
                near(row[stat::TD as usize], td) && near(row[stat::LOSS as usize], ce),
                "{row:?}: {td}, {ce}"
            );
        }
        Ok(metrics)
    }
}

fn market(volatility: f64) -> (MarketParams, MarketTable, Part) {
    let table = Columns::random(71, 120, volatility).table();
    let part = Part::new(&table, 0..120).expect("a part of the table");
    (MarketParams { episode: 5, ..params() }, table, part)
}

/// Bars that ruin some accounts, episodes of five bars: windows that are cut by both kinds of ends.
fn run<B: Backend>(b: &mut B, config: &Config) -> Outcome {
    let (params, table, part) = market(0.3);
    let mut pair = Pair::new(b, config, (&params, &table, &part))?;
    for _ in 0..4 {
        pair.collect(b)?;
    }
    let mut unequal = 0;
    for _ in 0..3 {
        for _ in 0..2 {
            let metrics = pair.train(b)?;
            assert!(!metrics.skipped);
            let weights = b.download(pair.buffers.batch.weights)?;
            unequal += usize::from(weights.iter().any(|&w| w < 0.99));
            pair.compare_trees(b)?;
        }
        for _ in 0..3 {
            pair.collect(b)?;
        }
    }
    assert_eq!(
        unequal > 0,
        config.replay.prioritized,
        "weights that correct, where there is something to correct"
    );
    assert!(pair.host.complete() > CAPACITY / 2);
    Ok(())
}

/// C51 alone, three-step windows.
pub fn prioritized_n_step<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config();
    config.replay.prioritized = true;
    config.replay.n_step = 3;
    run(b, &config)
}

/// The cross-entropy and the IQN head's loss as priority, every part beside it.
pub fn all_parts<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config();
    config.cql.enabled = true;
    config.iqn.enabled = true;
    (config.iqn.cosines, config.iqn.hidden) = (8, 16);
    (config.iqn.samples, config.iqn.target_samples) = (4, 4);
    config.iql.enabled = true;
    config.iql.hidden = 8;
    config.attention.enabled = true;
    config.attention.heads = 2;
    config.spectral.enabled = true;
    config.replay.prioritized = true;
    config.replay.priority = Priority::CrossEntropy;
    config.replay.iqn_weight = 0.3;
    run(b, &config)
}

/// Uniform draws leave the windows out that are not complete.
pub fn uniform_n_step<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config();
    config.replay.n_step = 4;
    run(b, &config)
}

/// A reward that is no number: the step is skipped and counted, and no priority changes, nor the largest leaf.
pub fn a_skipped_step_keeps_its_priorities<B: Backend>(b: &mut B) -> Outcome {
    let mut with_parts = config();
    with_parts.cql.enabled = true;
    for mut config in [config(), with_parts] {
        config.replay.prioritized = true;
        let (params, table, part) = market(0.01);
        let mut pair = Pair::new(b, &config, (&params, &table, &part))?;
        for _ in 0..4 {
            pair.collect(b)?;
        }
        pair.train(b)?;
        let tree = pair.replay.priorities.expect("prioritized");
        let before = (b.download(tree.leaves)?, b.download(tree.sums)?, b.download(tree.highest)?);
        let rewards = pair.host.rewards.clone();
        b.upload(pair.replay.rewards, &[f32::NAN; CAPACITY])?;
        pair.host.rewards.fill(f32::NAN);
        assert!(pair.train(b)?.skipped);
        assert_eq!(b.download(pair.buffers.clock)?[gpu::clock::SKIPPED as usize], 1);
        let after = (b.download(tree.leaves)?, b.download(tree.sums)?, b.download(tree.highest)?);
        assert!(before == after, "a skipped step changed the tree");
        b.upload(pair.replay.rewards, &rewards)?;
        pair.host.rewards.copy_from_slice(&rewards);
        assert!(!pair.train(b)?.skipped, "and the run goes on");
        pair.compare_trees(b)?;
    }
    Ok(())
}
