//! A step's state is complete: after it has been saved, restored into other buffers that hold something else, and a few
//! more steps, every buffer of the step has the bits of a run that was not interrupted. Also those that are no state: a
//! scratch buffer that a step reads before it writes it would differ.

use cpu_path::init_parameters;
use gpu::market::{MarketParams, MarketTable, Part};
use host::emulated::EmulatedExec;
use host::error::ExecError;
use host::exec::Memory;
use host::step::state::{self, StateError};
use host::step::{
    Collector, CollectorInput, EnvironmentInput, Matmul, Replay, StepBuffers, StepShape, TableBuffers, prune,
    record, record_probe, record_vaccinated,
};
use host::tensors::Tensors;
use host::train::task::TaskRun;
use settings::{Config, Precision};

use crate::kernels::market::STATE;
use crate::kernels::market::support::{Columns, SHAPE, params};

const ENVIRONMENTS: usize = 3;

/// Everything that keeps something from step to step; vaccine, pruning and probe in every second step.
fn everything() -> Config {
    let mut config = Config::default();
    let model = &mut config.model;
    (model.state, model.window, model.bar_features) = (STATE, SHAPE.window as usize, SHAPE.features as usize);
    (model.trunk1, model.trunk2, model.value_hidden, model.branch_hidden) = (12, 8, 8, 8);
    (model.atoms, model.noisy) = (11, true);
    config.train.batch = 6;
    config.train.precision = Precision::Fp32;
    (config.collect.environments, config.collect.capacity) = (ENVIRONMENTS, 25);
    config.replay.prioritized = true;
    config.replay.n_step = 3;
    config.cql.enabled = true;
    config.iqn.enabled = true;
    (config.iqn.cosines, config.iqn.hidden) = (8, 8);
    (config.iqn.samples, config.iqn.target_samples) = (4, 4);
    let iql = &mut config.iql;
    (iql.enabled, iql.hidden) = (true, 8);
    (iql.advantage_weighting, iql.branch_scaling) = (true, true);
    (iql.adaptive_support, iql.adaptive_epsilon) = (true, true);
    config.ensemble.enabled = true;
    (config.ensemble.explore, config.ensemble.explore_steps) = (0.2, 40);
    config.confidence.enabled = true;
    config.attention.enabled = true;
    config.attention.heads = 2;
    config.mamba.enabled = true;
    config.spectral.enabled = true;
    (config.vaccine.enabled, config.vaccine.every) = (true, 2);
    (config.vaccine.environments, config.vaccine.capacity) = (2, 15);
    (config.probe.enabled, config.probe.every) = (true, 2);
    let pruning = &mut config.pruning;
    (pruning.enabled, pruning.sparsity) = (true, 0.5);
    (pruning.begin, pruning.every, pruning.end) = (0, 2, 8);
    config
}

/// What the environments are.
#[derive(Clone, Copy)]
enum Ground<'a> {
    Market(&'a MarketParams, &'a MarketTable, &'a Part),
    Task(TaskRun),
}

/// An agent as the one on the GPU, in the emulator.
struct Rig {
    exec: EmulatedExec,
    shape: StepShape,
    buffers: StepBuffers,
    collector: Collector,
    /// Where the configuration has it.
    vaccine: Option<Collector>,
    steps: u64,
}

impl Rig {
    fn new(config: &Config, seed: u64, ground: Ground<'_>) -> Result<Self, ExecError> {
        let mut exec = EmulatedExec::new(seed);
        let shape = StepShape::new(config, Matmul::Rust);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer)?;
        let pending = config.replay.pending(ENVIRONMENTS);
        let mut replay = Replay::alloc(&mut exec, &shape, config.collect.capacity)?.with_pending(pending);
        let environment = match ground {
            Ground::Market(params, table, part) => {
                let table = TableBuffers::upload(&mut exec, table)?;
                EnvironmentInput::Market { params, part, table }
            }
            Ground::Task(task) => {
                replay = replay.for_task(&mut exec, task.hindsight)?;
                task.environment()
            }
        };
        let input = CollectorInput {
            environment,
            environments: ENVIRONMENTS,
            log_rows: 0,
            clock: Some(buffers.clock),
            support: Some(buffers.support),
            epsilon: buffers.parts.and_then(|parts| parts.iql).map(|iql| iql.epsilon),
            explores: true,
        };
        let collector = Collector::alloc(&mut exec, &shape, input, replay, "collect")?;
        let vaccine = match config.vaccine.enabled {
            true => {
                let environments = config.vaccine.environments;
                let held_out = Replay::alloc(&mut exec, &shape, config.vaccine.capacity)?;
                let held_out = held_out.with_pending(config.replay.pending(environments));
                let held_out = Replay { priorities: None, ..held_out };
                let input =
                    CollectorInput { environments, clock: None, epsilon: None, explores: false, ..input };
                Some(Collector::alloc(&mut exec, &shape, input, held_out, "vaccine")?)
            }
            false => None,
        };
        let initial = init_parameters(&shape.flat, config.train.seed);
        let p = buffers.parameters;
        exec.upload(p.online, &initial)?;
        exec.upload(p.target, &initial[..p.target.len()])?;
        buffers.start(&mut exec, &shape)?;
        collector.record_first(&mut exec, &shape)?;
        if let Some(vaccine) = &vaccine {
            exec.upload(vaccine.epsilon, &[0.5])?;
            vaccine.record_first(&mut exec, &shape)?;
        }
        let mut rig = Self { exec, shape, buffers, collector, vaccine, steps: 0 };
        for _ in 0..4 {
            rig.collect()?;
        }
        Ok(rig)
    }

    fn collect(&mut self) -> Result<(), ExecError> {
        let (exec, online) = (&mut self.exec, self.buffers.parameters.online);
        self.collector.record(exec, &self.shape, online)?;
        self.vaccine.map_or(Ok(()), |vaccine| vaccine.record(exec, &self.shape, online))
    }

    /// One bar, one training step with what is due.
    fn step(&mut self) -> Result<(), ExecError> {
        self.collect()?;
        let (exec, shape, buffers) = (&mut self.exec, &self.shape, &self.buffers);
        if shape.pruning.due(self.steps) {
            prune::prune(exec, shape, buffers)?;
        }
        match self.vaccine.filter(|_| shape.parts.vaccine.is_in(self.steps)) {
            Some(held_out) => {
                record_vaccinated(exec, shape, buffers, &self.collector.replay, &held_out.replay)?
            }
            None => record(exec, shape, buffers, Some(&self.collector.replay))?,
        }
        if shape.parts.probe.is_in(self.steps) {
            record_probe(exec, shape, buffers)?;
        }
        self.steps += 1;
        Ok(())
    }

    fn save(&mut self) -> Result<Tensors, ExecError> {
        let mut to = Tensors::default();
        state::save(&mut self.exec, &self.buffers.state(), &mut to)?;
        self.collector.save(&mut self.exec, "collect", &mut to)?;
        if let Some(vaccine) = &self.vaccine {
            vaccine.save(&mut self.exec, "vaccine", &mut to)?;
        }
        Ok(to)
    }

    fn load(&mut self, from: &mut Tensors, steps: u64) -> Result<(), StateError> {
        state::load(&mut self.exec, &self.buffers.state(), from)?;
        self.collector.load(&mut self.exec, "collect", from)?;
        if let Some(vaccine) = &self.vaccine {
            vaccine.load(&mut self.exec, "vaccine", from)?;
        }
        self.steps = steps;
        Ok(())
    }
}

fn market() -> (MarketParams, MarketTable, Part) {
    let table = Columns::random(71, 120, 0.02).table();
    let part = Part::new(&table, 0..120).expect("a part of the table");
    (MarketParams { episode: 5, ..params() }, table, part)
}

#[test]
fn every_buffer_goes_on_as_if_nothing_had_been_interrupted() {
    let (params, table, part) = market();
    let moving = ["online", "adam.m", "clock", "history", "confidence.kept", "spectral.u"];
    goes_on(&everything(), Ground::Market(&params, &table, &part), &moving);
}

/// A task with goals: episodes that end in the midst, their ends in the ring, hindsight.
#[test]
fn a_task_with_hindsight_goes_on_as_if_nothing_had_been_interrupted() {
    let mut config = everything();
    (config.task.name, config.task.size) = ("bit_flip".into(), 4);
    config.her.enabled = true;
    // What a task or hindsight does not go with.
    (config.replay.prioritized, config.replay.n_step) = (false, 1);
    (config.attention.enabled, config.mamba.enabled, config.vaccine.enabled) = (false, false, false);
    (config.model.state, config.model.window, config.model.bar_features) = (0, 0, 0);
    let task = TaskRun::prepare(&mut config).unwrap();
    let moving = [
        "online",
        "clock",
        "history",
        "collect.words",
        "collect.counters",
        "collect.states",
        "collect.ring.ends",
    ];
    goes_on(&config, Ground::Task(task), &moving);
}

/// Steps, a saved state, steps; and the second steps again from the state, in buffers that hold something else. `moving`
/// names states that these steps have to change.
fn goes_on(config: &Config, input: Ground<'_>, moving: &[&str]) {
    config.check().unwrap();
    // The ring is not full when it is saved, and goes around afterwards.
    let mut whole = Rig::new(config, 3, input).unwrap();
    for _ in 0..3 {
        whole.step().unwrap();
    }
    let saved = whole.save().unwrap();
    assert_eq!(saved.get::<u64>("collect.ring.words").unwrap(), [21, 21]);
    for _ in 0..4 {
        whole.step().unwrap();
    }

    // Its buffers hold what another run's steps left.
    let other = Config { train: settings::Train { seed: 99, ..config.train.clone() }, ..config.clone() };
    let mut resumed = Rig::new(&other, 5, input).unwrap();
    for _ in 0..2 {
        resumed.step().unwrap();
    }
    resumed.shape = StepShape::new(config, Matmul::Rust);
    let mut state = saved.clone();
    resumed.load(&mut state, 3).unwrap();
    state.finish().unwrap();
    assert!(resumed.save().unwrap() == saved, "what was loaded is what was saved");
    for _ in 0..4 {
        resumed.step().unwrap();
    }

    let (whole_state, resumed_state) = (whole.save().unwrap(), resumed.save().unwrap());
    for (name, values) in &whole_state.by_name {
        assert!(values.bytes() == resumed_state.by_name[name].bytes(), "state `{name}` differs");
        // Nothing here would be missed if it stood still; a support and masks may.
        if moving.contains(&&**name) {
            assert!(values.bytes() != saved.by_name[name].bytes(), "state `{name}` did not move");
        }
    }
    let (whole, resumed) = (whole.exec.contents(), resumed.exec.contents());
    assert_eq!(whole.len(), resumed.len());
    for ((label, expected), (_, found)) in whole.iter().zip(&resumed) {
        assert!(expected == found, "buffer `{label}` differs");
    }
}

#[test]
fn a_state_of_another_shape_is_refused_with_the_tensors_name() {
    let config = everything();
    let (params, table, part) = market();
    let mut rig = Rig::new(&config, 3, Ground::Market(&params, &table, &part)).unwrap();
    let saved = rig.save().unwrap();
    let refused = |rig: &mut Rig, change: &dyn Fn(&mut Tensors)| {
        let mut state = saved.clone();
        change(&mut state);
        rig.load(&mut state, 0).unwrap_err().to_string()
    };
    let message = refused(&mut rig, &|state| drop(state.take_any::<f32>("adam.v")));
    assert_eq!(message, "there is no tensor `adam.v`");
    let message = refused(&mut rig, &|state| {
        let mut words = state.take_any::<u64>("collect.ring.words").unwrap();
        words[0] = 26;
        state.put("collect.ring.words", words);
    });
    assert_eq!(message, "`collect.ring.words` is 26, expected at most 25");
    let message = refused(&mut rig, &|state| {
        let mut counters = state.take_any::<u32>("collect.counters").unwrap();
        counters[0] = 120;
        state.put("collect.counters", counters);
    });
    assert!(message.contains("bar of an account") && message.contains("120"), "{message}");
}
