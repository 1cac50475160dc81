//! The training step as a graph on the GPU: what "can I trust a run" means for one step.

use cpu_path::{C51Batch, CpuLearner, init_parameters};
use gpu::{action, philox};
use host::cuda::{CudaExec, CudaOptions, Graph, Products};
use host::embedded;
use host::error::ExecError;
use host::exec::Memory;
use host::profile::random_replay;
use host::step::{
    Matmul, Replay, StepBuffers, StepShape, record, record_probe, record_pruning, record_vaccinated,
};
use settings::{Config, Head, Precision, Pruning};

use crate::kernels::data::every_part;

/// Columns of a history row.
const COLUMNS: usize = gpu::kernels::step_signals::signal::COLUMNS as usize;

fn open(matmul: Matmul) -> CudaExec {
    let products = match matmul {
        Matmul::CublasLt => Products::CublasLt,
        Matmul::Rust => Products::Rust,
    };
    let options = CudaOptions { products, ..CudaOptions::default() };
    CudaExec::open(embedded::images(), options)
        .expect("a GPU, compiled kernels, and cuBLASLt where it is asked for")
}

/// A small step whose widths are odd where they may be.
fn config(batch: usize, precision: Precision) -> Config {
    let mut config = Config::default();
    config.model.state = 22;
    config.model.trunk1 = 64;
    config.model.trunk2 = 48;
    config.model.value_hidden = 32;
    config.model.branch_hidden = 32;
    config.model.branches = vec![5, 3];
    config.model.atoms = 51;
    config.train.batch = batch;
    config.train.precision = precision;
    config
}

/// The same with everything on that a step may have: a window of 3 bars of 4 features in the state.
pub(crate) fn with_parts(batch: usize, precision: Precision) -> Config {
    let mut config = config(batch, precision);
    (config.model.window, config.model.bar_features) = (3, 4);
    every_part(&mut config);
    config.spectral.sigma_max = 1.0;
    config
}

pub(crate) struct Step {
    pub(crate) exec: CudaExec,
    shape: StepShape,
    buffers: StepBuffers,
    replay: Replay,
    initial: Vec<f32>,
}

impl Step {
    pub(crate) fn new(config: &Config, matmul: Matmul) -> Self {
        let mut exec = open(matmul);
        let shape = StepShape::new(config, matmul);
        let buffers = StepBuffers::alloc(&mut exec, &shape, &config.optimizer).unwrap();
        let replay = random_replay(&mut exec, &shape, 4096).unwrap();
        let initial = init_parameters(&shape.flat, 7);
        let mut step = Self { exec, shape, buffers, replay, initial };
        step.rewind().unwrap();
        step
    }

    /// Back to the initial parameters, zero moments and step 0.
    pub(crate) fn rewind(&mut self) -> Result<(), ExecError> {
        let (exec, p) = (&mut self.exec, self.buffers.parameters);
        let zeros = vec![0.0f32; self.initial.len()];
        exec.upload(p.online, &self.initial)?;
        exec.upload(p.target, &self.initial[..p.target.len()])?;
        self.buffers.start(exec, &self.shape)?;
        self.buffers.start_factors(exec)?;
        exec.upload(p.m, &zeros)?;
        exec.upload(p.v, &zeros)?;
        if let Some(tree) = &self.replay.priorities {
            // Every slot as a new transition.
            tree.set(exec, &vec![1.0; tree.capacity])?;
        }
        exec.upload(self.buffers.clock, &vec![0u64; self.buffers.clock.len()])?;
        exec.upload(self.buffers.adam, &vec![0u64; self.buffers.adam.len()])
    }

    fn eager(&mut self) -> Result<(), ExecError> {
        record(&mut self.exec, &self.shape, &self.buffers, Some(&self.replay))
    }

    pub(crate) fn capture(&mut self) -> Graph {
        self.eager().unwrap();
        let (shape, buffers, replay) = (&self.shape, &self.buffers, &self.replay);
        let graph =
            Graph::capture(&mut self.exec, |exec| record(exec, shape, buffers, Some(replay))).unwrap();
        self.rewind().unwrap();
        graph
    }

    /// Every bit that a step leaves: parameters, moments, target, counters, history.
    pub(crate) fn bits(&mut self) -> Vec<u64> {
        let p = self.buffers.parameters;
        let mut bits = Vec::new();
        let mut buffers =
            vec![p.online, p.target, p.m, p.v, p.grad, self.buffers.history, self.buffers.stats];
        if let Some(parts) = &self.buffers.parts {
            buffers.extend([parts.grads, parts.trunk_grads, parts.scales, parts.samples]);
            buffers.extend(parts.iqn.iter().flat_map(|iqn| [iqn.taus, iqn.target_taus]));
        }
        buffers.push(self.buffers.support);
        if let Some(iql) = self.buffers.parts.and_then(|parts| parts.iql) {
            buffers.extend([iql.averages, iql.epsilon, iql.derived, iql.loss_weights]);
        }
        let auxiliary = self.buffers.parts.and_then(|parts| parts.auxiliary);
        buffers.extend(auxiliary.and_then(|a| a.confidence).map(|confidence| confidence.kept));
        buffers.extend(self.buffers.spectral.iter().flat_map(|spectral| [spectral.u, spectral.sigma]));
        if let Some(tree) = &self.replay.priorities {
            buffers.extend([tree.leaves, tree.chosen, self.buffers.batch.weights]);
            bits.extend(self.exec.download(tree.sums).unwrap().iter().map(|x| x.to_bits()));
            bits.extend(self.exec.download(tree.highest).unwrap().iter().map(|&x| u64::from(x)));
        }
        for buffer in buffers {
            bits.extend(self.exec.download(buffer).unwrap().iter().map(|x| u64::from(x.to_bits())));
        }
        bits.extend(self.exec.download(self.buffers.clock).unwrap());
        bits.extend(self.exec.download(self.buffers.adam).unwrap());
        bits
    }
}

fn eager_equals_replay(config: &Config, matmul: Matmul) {
    let mut step = Step::new(config, matmul);
    let graph = step.capture();
    const STEPS: usize = 1000;
    for _ in 0..STEPS {
        step.eager().unwrap();
    }
    let eager = step.bits();
    for run in 0..2 {
        step.rewind().unwrap();
        for _ in 0..STEPS {
            graph.replay(&mut step.exec).unwrap();
        }
        assert!(step.bits() == eager, "replayed run {run} differs from the eager one");
    }
    // Rewriting an input changes what the same graph computes, to what the eager step computes from it.
    let rewards: Vec<f32> = (0..4096).map(|i| (i % 7) as f32 - 3.0).collect();
    step.exec.upload(step.replay.rewards, &rewards).unwrap();
    step.rewind().unwrap();
    for _ in 0..10 {
        step.eager().unwrap();
    }
    let other = step.bits();
    assert!(other != eager, "other rewards left no trace");
    step.rewind().unwrap();
    for _ in 0..10 {
        graph.replay(&mut step.exec).unwrap();
    }
    assert!(step.bits() == other, "the replay does not see the rewritten rewards");
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn eager_equals_replay_bit_for_bit_rust() {
    eager_equals_replay(&config(96, Precision::Tf32), Matmul::Rust);
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn eager_equals_replay_bit_for_bit_with_all_parts() {
    eager_equals_replay(&with_parts(96, Precision::Tf32), Matmul::Rust);
    eager_equals_replay(&with_parts(96, Precision::Bf16), Matmul::CublasLt);
    let mut glu = with_parts(96, Precision::Fp32);
    glu.model.head = Head::Glu;
    eager_equals_replay(&glu, Matmul::Rust);
}

/// Steps with the vaccine, each followed by the probe: eager and replayed alike, and not what plain steps leave.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn vaccinated_steps_and_the_probe_replay_bit_for_bit() {
    const STEPS: usize = 100;
    let mut config = with_parts(96, Precision::Tf32);
    config.vaccine.enabled = true;
    config.probe.enabled = true;
    let mut step = Step::new(&config, Matmul::Rust);
    // High returns here and their opposite there: the gradients point apart, so that there is something to project.
    let held_out = random_replay(&mut step.exec, &step.shape, 1000).unwrap();
    step.exec.upload(step.replay.rewards, &vec![8.0; step.replay.rewards.len()]).unwrap();
    step.exec.upload(held_out.rewards, &vec![-8.0; held_out.rewards.len()]).unwrap();
    let (shape, buffers, replay) = (step.shape.clone(), step.buffers, step.replay);
    let record = |exec: &mut CudaExec| {
        record_vaccinated(exec, &shape, &buffers, &replay, &held_out)?;
        record_probe(exec, &shape, &buffers)
    };
    let state = |step: &mut Step| {
        let sensitivity = step.exec.download(buffers.probe.unwrap().sensitivity).unwrap();
        assert!(sensitivity.iter().all(|&x| x > 0.0 && x.is_finite()));
        (step.bits(), sensitivity.iter().map(|x| x.to_bits()).collect::<Vec<u32>>())
    };
    for _ in 0..STEPS {
        record(&mut step.exec).unwrap();
    }
    let eager = state(&mut step);
    let graph = Graph::capture(&mut step.exec, record).unwrap();
    step.rewind().unwrap();
    for _ in 0..STEPS {
        graph.replay(&mut step.exec).unwrap();
    }
    assert!(state(&mut step) == eager);
    step.rewind().unwrap();
    for _ in 0..STEPS {
        step.eager().unwrap();
    }
    assert!(step.bits() != eager.0, "the vaccine left no trace");
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn eager_equals_replay_bit_for_bit_with_noisy_heads() {
    for (mut config, matmul) in [
        (config(96, Precision::Tf32), Matmul::Rust),
        (config(96, Precision::Tf32), Matmul::CublasLt),
        (with_parts(96, Precision::Tf32), Matmul::Rust),
    ] {
        config.model.noisy = true;
        eager_equals_replay(&config, matmul);
    }
}

/// The heads' noise is drawn anew in every replay of one graph, for both networks, and two runs with one seed draw the
/// same.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn noise_differs_in_every_replay_and_not_between_runs() {
    let run = || {
        let mut config = with_parts(64, Precision::Tf32);
        config.model.noisy = true;
        let mut step = Step::new(&config, Matmul::Rust);
        let graph = step.capture();
        let noise = step.buffers.noise.unwrap();
        let mut draws = Vec::new();
        for _ in 0..20 {
            graph.replay(&mut step.exec).unwrap();
            let both = step.exec.download(noise.factors).unwrap();
            draws.extend(both.chunks_exact(both.len() / 2).map(<[f32]>::to_vec));
        }
        draws
    };
    let draws = run();
    for (i, a) in draws.iter().enumerate() {
        assert!(draws[i + 1..].iter().all(|b| a != b), "noise {i} is another's");
    }
    assert!(draws == run());
}

/// The graph of a pruning step beside the step's own: the same bits as eager steps, and as many zeros as asked for.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn the_graph_of_a_pruning_step_does_what_the_eager_step_does() {
    let mut config = with_parts(96, Precision::Tf32);
    config.model.noisy = true;
    config.pruning = Pruning { enabled: true, sparsity: 0.8, begin: 5, end: 45, every: 10 };
    let mut step = Step::new(&config, Matmul::Rust);
    let plain = step.capture();
    let (shape, buffers, replay) = (step.shape.clone(), step.buffers, step.replay);
    record_pruning(&mut step.exec, &shape, &buffers, Some(&replay)).unwrap();
    let record = |exec: &mut CudaExec| record_pruning(exec, &shape, &buffers, Some(&replay));
    let pruning = Graph::capture(&mut step.exec, record).unwrap();
    step.rewind().unwrap();
    for n in 0..60 {
        match config.pruning.due(n) {
            true => record_pruning(&mut step.exec, &shape, &buffers, Some(&replay)).unwrap(),
            false => step.eager().unwrap(),
        }
    }
    let eager = step.bits();
    step.rewind().unwrap();
    for n in 0..60 {
        let graph = if config.pruning.due(n) { &pruning } else { &plain };
        graph.replay(&mut step.exec).unwrap();
    }
    assert!(step.bits() == eager, "the replays differ from the eager steps");
    let online = step.exec.download(buffers.parameters.online).unwrap();
    let zeros = step.exec.download(buffers.pruning.unwrap().zeros).unwrap();
    for (t, counted) in Pruning::matrices(&shape.layout).zip(zeros) {
        let zero = online[t.offset..t.offset + t.len()].iter().filter(|&&w| w == 0.0).count();
        let expected = config.pruning.zeros(59, t.len());
        assert_eq!((zero, counted as usize), (expected, expected), "{}", t.name);
    }
}

/// Draws, weights and priorities too.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn eager_equals_replay_bit_for_bit_with_priorities() {
    let mut alone = config(96, Precision::Tf32);
    alone.replay.prioritized = true;
    eager_equals_replay(&alone, Matmul::Rust);
    eager_equals_replay(&alone, Matmul::CublasLt);
    let mut all = with_parts(96, Precision::Tf32);
    all.replay.prioritized = true;
    all.replay.iqn_weight = 0.5;
    eager_equals_replay(&all, Matmul::Rust);
}

/// After many steps of a graph the sums are those of the leaves, all of them positive.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn the_tree_is_exact_after_many_steps() {
    let mut config = config(96, Precision::Fp32);
    config.replay.prioritized = true;
    let mut step = Step::new(&config, Matmul::Rust);
    let graph = step.capture();
    for _ in 0..5000 {
        graph.replay(&mut step.exec).unwrap();
    }
    let tree = step.replay.priorities.unwrap();
    let leaves = step.exec.download(tree.leaves).unwrap();
    assert!(leaves[..tree.capacity].iter().all(|&leaf| leaf > 0.0 && leaf.is_finite()));
    assert!(leaves[..tree.capacity].iter().filter(|&&leaf| leaf != 1.0).count() > tree.capacity / 2);
    for (group, sum) in leaves.chunks_exact(tree.width as usize).zip(step.exec.download(tree.sums).unwrap()) {
        let expected: f64 = group.iter().map(|&leaf| f64::from(leaf)).sum();
        // Up to 2^10 additions of positive f64.
        assert!((sum - expected).abs() <= 2f64.powi(-43) * expected, "{sum}, expected {expected}");
    }
}

/// The quantile fractions are drawn anew in every replay of one graph, and two runs with one seed draw the same.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn quantile_fractions_differ_in_every_replay_and_not_between_runs() {
    let run = || {
        let mut step = Step::new(&with_parts(64, Precision::Tf32), Matmul::Rust);
        let graph = step.capture();
        let iqn = step.buffers.parts.unwrap().iqn.unwrap();
        let mut draws = Vec::new();
        for _ in 0..20 {
            graph.replay(&mut step.exec).unwrap();
            let (tau, target) =
                (step.exec.download(iqn.taus).unwrap(), step.exec.download(iqn.target_taus).unwrap());
            assert!(tau.iter().chain(&target).all(|&t| t > 0.0 && t < 1.0));
            draws.push((tau, target));
        }
        draws
    };
    let draws = run();
    for (i, a) in draws.iter().enumerate() {
        assert!(draws[i + 1..].iter().all(|b| a.0 != b.0 && a.1 != b.1), "replay {i} drew what another did");
    }
    assert!(draws == run());
}

/// The zero-started gate of the attention: at step 0 the step with it computes what the step without computes.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn attention_leaves_the_function_unchanged_at_first() {
    let loss = |attention: bool| {
        let mut config = with_parts(64, Precision::Fp32);
        config.attention.enabled = attention;
        let mut step = Step::new(&config, Matmul::Rust);
        step.eager().unwrap();
        let parts = step.buffers.parts.unwrap();
        (step.exec.download(step.buffers.stats).unwrap(), step.exec.download(parts.samples).unwrap())
    };
    assert!(loss(true) == loss(false));
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn eager_equals_replay_bit_for_bit_cublaslt() {
    eager_equals_replay(&config(96, Precision::Tf32), Matmul::CublasLt);
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn two_executors_with_one_seed_agree_bit_for_bit() {
    let run = || {
        let mut step = Step::new(&config(64, Precision::Fp32), Matmul::Rust);
        let graph = step.capture();
        for _ in 0..200 {
            graph.replay(&mut step.exec).unwrap();
        }
        step.bits()
    };
    assert!(run() == run());
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn loss_on_a_fixed_batch_falls() {
    let mut config = config(128, Precision::Fp32);
    config.optimizer.lr = 1e-3;
    for matmul in [Matmul::Rust, Matmul::CublasLt] {
        let mut step = Step::new(&config, matmul);
        // Terminal transitions only: the targets are then fixed point masses, and the loss can fall far. One eager step
        // gathers a batch; from then on it stays.
        let terminal = vec![0.0f32; step.replay.discounts.len()];
        step.exec.upload(step.replay.discounts, &terminal).unwrap();
        step.eager().unwrap();
        step.rewind().unwrap();
        let (shape, buffers) = (&step.shape, &step.buffers);
        let graph = Graph::capture(&mut step.exec, |exec| record(exec, shape, buffers, None)).unwrap();
        for _ in 0..300 {
            graph.replay(&mut step.exec).unwrap();
        }
        let history = step.exec.download(step.buffers.history).unwrap();
        let (first, last) = (history[0], history[299 * COLUMNS]);
        assert!(last < 0.5 * first, "{matmul:?}: loss went from {first} to {last}");
    }
}

#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn memory_is_flat_and_nothing_is_allocated() {
    memory_is_flat(&config(96, Precision::Tf32), Matmul::CublasLt);
    memory_is_flat(&with_parts(96, Precision::Tf32), Matmul::Rust);
}

fn memory_is_flat(config: &Config, matmul: Matmul) {
    let mut step = Step::new(config, matmul);
    let graph = step.capture();
    step.exec.seal();
    let free = |exec: &CudaExec| exec.gpu().memory_info().unwrap().0;
    for _ in 0..100 {
        graph.replay(&mut step.exec).unwrap();
    }
    step.exec.synchronize().unwrap();
    let before = free(&step.exec);
    for _ in 0..10_000 {
        graph.replay(&mut step.exec).unwrap();
    }
    step.exec.synchronize().unwrap();
    assert_eq!(free(&step.exec), before, "free device memory changed over 10,000 replays");
    assert!(matches!(step.exec.alloc::<f32>("late", 1), Err(ExecError::Sealed { .. })));
}

/// One epoch of 100 batches, the same ones on the GPU and on candle: the final losses are within 10%. With
/// `STEPGRAPH_CURVES` set, the two curves are written there as CSV (they are in `docs/BENCHMARKS.md`).
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn hundred_batches_as_on_the_cpu() {
    let mut config = config(256, Precision::Tf32);
    config.optimizer.lr = 1e-3;
    let mut step = Step::new(&config, Matmul::CublasLt);
    let graph = step.capture();
    for _ in 0..100 {
        graph.replay(&mut step.exec).unwrap();
    }
    let history = step.exec.download(step.buffers.history).unwrap();
    let on_gpu: Vec<f32> = history.chunks_exact(COLUMNS).take(100).map(|row| row[0]).collect();

    let states = step.exec.download(step.replay.states).unwrap();
    let next_states = step.exec.download(step.replay.next_states).unwrap();
    let actions = step.exec.download(step.replay.actions).unwrap();
    let rewards = step.exec.download(step.replay.rewards).unwrap();
    let discounts = step.exec.download(step.replay.discounts).unwrap();
    let mut learner = CpuLearner::new(&config.model, &config.optimizer, 7).unwrap();
    let (width, stride) = (config.model.state, step.shape.stride);
    let mut on_cpu = Vec::new();
    for n in 0..100 {
        let mut batch = C51Batch {
            states: Vec::new(),
            next_states: Vec::new(),
            actions: Vec::new(),
            rewards: Vec::new(),
            discounts: Vec::new(),
            weights: vec![1.0; config.train.batch],
            ..C51Batch::default()
        };
        for i in 0..config.train.batch {
            let word = philox::draw(config.train.seed, n, philox::Stream::Sample, i as u32, 0);
            let slot = philox::below(word[0], word[1], 4096) as usize;
            batch.states.extend_from_slice(&states[slot * stride..][..width]);
            batch.next_states.extend_from_slice(&next_states[slot * stride..][..width]);
            batch.actions.extend((0..2).map(|d| action::branch(actions[slot], d)));
            batch.rewards.push(rewards[slot]);
            batch.discounts.push(discounts[slot]);
        }
        on_cpu.push(learner.train_step(&batch).unwrap().loss as f32);
    }
    if let Ok(path) = std::env::var("STEPGRAPH_CURVES") {
        let rows = on_gpu.iter().zip(&on_cpu).enumerate().map(|(i, (g, c))| format!("{i},{g},{c}\n"));
        std::fs::write(path, format!("step,gpu,cpu\n{}", rows.collect::<String>())).unwrap();
    }
    assert_eq!(on_gpu.len(), on_cpu.len());
    let (gpu, cpu) = (on_gpu[99], on_cpu[99]);
    assert!(
        (gpu - cpu).abs() <= 0.1 * cpu,
        "after 100 batches the loss is {gpu} on the GPU, {cpu} on the CPU"
    );
    // tf32 rounds operands to 11 bits: the curves stay together all the way, not only at the end.
    for (i, (g, c)) in on_gpu.iter().zip(&on_cpu).enumerate() {
        assert!((g - c).abs() <= 0.05 * c, "step {i}: {g} on the GPU, {c} on the CPU");
    }
}
