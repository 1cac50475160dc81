//! The step with the Mamba-2 block on against the f64 oracle, whose gradients are candle's autograd of the recurrence:
//! windows of 1, 8 and 24 bars, batches that fill no warp, with every other part on and with none.
//!
//! Bounds are those of SPEC section 8, fp32, with the reasons of `golden_step` and `golden_full`.

use cpu_path::golden::tensor_errors;
use cpu_path::{C51Batch, Hyper, Net, Oracle, Start, init_parameters, init_spectral};
use gpu::market::Part;
use host::error::ExecError;
use host::step::{
    Collector, CollectorInput, EnvironmentInput, Matmul, Replay, StepBuffers, StepShape, TableBuffers, record,
};
use settings::{Config, Flat, Group, Layout, NoisyLayout, Precision};

use super::golden::{f32s, f64s, upload_batch};
use super::market::STATE;
use super::market::support::{Columns, SHAPE, params};
use super::{Backend, Outcome};

const GRADIENTS: f64 = 1e-3;
const UPDATES: f64 = 5e-3;
const FLOOR: f64 = 1e-3;

/// A small step of `window` bars of `features` with the block, and with all other parts where `all` says so.
fn config(batch: usize, window: usize, features: usize, all: bool) -> Config {
    let mut config = Config::default();
    (config.model.window, config.model.bar_features) = (window, features);
    config.model.state = window * features + 3;
    (config.model.trunk1, config.model.trunk2) = (24, 20);
    (config.model.value_hidden, config.model.branch_hidden) = (12, 8);
    config.model.branches = vec![3, 2];
    config.model.atoms = 11;
    config.train.batch = batch;
    config.train.precision = Precision::Fp32;
    config.optimizer.weight_decay = 1e-3;
    config.mamba.enabled = true;
    if all {
        config.cql.enabled = true;
        config.iqn.enabled = true;
        (config.iqn.cosines, config.iqn.hidden) = (8, 16);
        (config.iqn.samples, config.iqn.target_samples) = (6, 5);
        config.iql.enabled = true;
        config.iql.hidden = 8;
        config.attention.enabled = true;
        config.model.noisy = true;
        config.spectral.enabled = true;
        config.spectral.sigma_max = 0.8;
    }
    config
}

/// A repeatable sequence on (-1, 1), exact in f32.
fn wave(len: usize, phase: f64) -> Vec<f64> {
    (0..len).map(|i| f64::from((phase + 1.7 * i as f64 + 0.01 * (i * i) as f64).sin() as f32)).collect()
}

fn batch(config: &Config) -> C51Batch<f64> {
    let (b, model) = (config.train.batch, &config.model);
    let unit =
        |n: usize, phase: f64| wave(n, phase).iter().map(|x| f64::from((0.5 + 0.45 * x) as f32)).collect();
    let branches = model.branches.len();
    let action = |i: usize| ((i / branches + i % branches) % model.branches[i % branches]) as u32;
    let samples = |n: usize| if config.iqn.enabled { b * n } else { 0 };
    let factors = if model.noisy { 2 * NoisyLayout::new(model).factors } else { 0 };
    C51Batch {
        states: wave(b * model.state, 0.0),
        next_states: wave(b * model.state, 0.5),
        actions: (0..b * branches).map(action).collect(),
        rewards: wave(b, 2.0),
        discounts: (0..b).map(|i| if i % 5 == 4 { 0.0 } else { f64::from(0.97f32) }).collect(),
        weights: (0..b).map(|i| f64::from(1.0 / (1 + i % 3) as f32)).collect(),
        taus: unit(samples(config.iqn.samples), 0.4),
        target_taus: unit(samples(config.iqn.target_samples), 0.9),
        noise: wave(factors, 1.3),
        masks: Vec::new(),
    }
}

/// Initial parameters, of a target that is another network, with the gates open.
fn start(config: &Config, flat: &Flat, gate: f32) -> Start<f64> {
    let open = |mut values: Vec<f32>, gate: f32| {
        for (name, gate) in [("att.gate", 0.6), ("mamba.gate", gate)] {
            if let Some(t) = flat.find(name) {
                values[t.offset] = gate;
            }
        }
        f64s(&values)
    };
    let mut target = open(init_parameters(flat, 4), -0.5 * gate);
    target.truncate(flat.target_len());
    let spectral = init_spectral(&config.model, 3).map(|u| f64s(&u));
    Start { online: open(init_parameters(flat, 3), gate), target, spectral }
}

struct Problem {
    config: Config,
    flat: Flat,
    batch: C51Batch<f64>,
    start: Start<f64>,
}

impl Problem {
    fn new(config: Config, gate: f32) -> Problem {
        config.check().expect("a configuration that works");
        let flat = Flat::new(&config.model, &config.parts());
        let (batch, start) = (batch(&config), start(&config, &flat, gate));
        Problem { config, flat, batch, start }
    }

    fn oracle(&self) -> Oracle {
        let hyper = Hyper::from(&self.config.optimizer);
        Oracle::with_parts(&self.config.model, &self.config.parts(), hyper, self.start.clone())
            .expect("parts that work")
    }

    fn set_up<B: Backend>(&self, b: &mut B, matmul: Matmul) -> Result<(StepShape, StepBuffers), ExecError> {
        StepShape::check_supported(&self.config).expect("a shape that the kernels take");
        let shape = StepShape::new(&self.config, matmul);
        let buffers = StepBuffers::alloc(b, &shape, &self.config.optimizer)?;
        upload_batch(b, &shape, &buffers, &self.batch)?;
        b.upload(buffers.parameters.online, &f32s(&self.start.online))?;
        b.upload(buffers.parameters.target, &f32s(&self.start.target))?;
        if let Some(iqn) = buffers.parts.and_then(|parts| parts.iqn) {
            b.upload(iqn.taus, &f32s(&self.batch.taus))?;
            b.upload(iqn.target_taus, &f32s(&self.batch.target_taus))?;
        }
        if let Some(noise) = buffers.noise {
            b.upload(noise.factors, &f32s(&self.batch.noise))?;
        }
        if let Some(spectral) = buffers.spectral {
            let mut u = vec![0.0f32; 2 * spectral.stride];
            for (row, values) in u.chunks_exact_mut(spectral.stride).zip(&self.start.spectral) {
                row[..values.len()].copy_from_slice(&f32s(values));
            }
            b.upload(spectral.u, &u)?;
        }
        Ok((shape, buffers))
    }
}

fn check_gradient(what: &str, layout: &Layout, got: &[f64], want: &[f64]) {
    let errors = tensor_errors(layout, got, want);
    let whole = errors.iter().map(|e| e.norm * e.norm).sum::<f64>().sqrt();
    for e in errors {
        let bound = GRADIENTS * e.norm.max(FLOOR * whole);
        assert!(e.difference <= bound, "{what} {}: {:e} > {bound:e}", e.name, e.difference);
    }
}

/// Gradients of the first step: of every own group, and of the terms on the main parameters.
fn check_first_step<B: Backend>(b: &mut B, p: &Problem, (shape, s): (&StepShape, &StepBuffers)) -> Outcome {
    let mut oracle = p.oracle();
    oracle.limit_spectrum().expect("finite matrices");
    let want = oracle.evaluate(&p.batch).expect("a batch that fits");
    let parts = s.parts.expect("the block is a part");
    let own = f64s(&b.download(s.parameters.grad)?);
    for group in &want.own {
        let segment = p.flat.segment(group.group).expect("a group of the networks");
        let got = &own[segment.offset..][..segment.len];
        check_gradient(group.group.name(), &segment.layout, got, &group.gradient);
        if group.group == Group::Mamba {
            assert!(group.norm > 1e-3, "the block's gradient is {}", group.norm);
        }
    }
    let main = &shape.layout;
    let grads = f64s(&b.download(parts.grads)?);
    for (got, term) in grads.chunks_exact(main.len).zip(&want.terms) {
        check_gradient(term.term.name(), main, got, &term.gradient);
    }
    let h1 = oracle.activations(Net::Online, &p.batch.states).expect("states that fit").h1;
    let got = b.download(s.online.h1)?;
    let most = h1.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (i, (&got, want)) in got.iter().zip(&h1).enumerate() {
        assert!((f64::from(got) - want).abs() <= 1e-5 * most, "h1 {i}: {got}, expected {want}");
    }
    Ok(())
}

/// |dp - dp_ref| per tensor of every group after `step` steps.
fn check_state<B: Backend>(b: &mut B, p: &Problem, oracle: &Oracle, s: &StepBuffers, step: usize) -> Outcome {
    let state = oracle.export();
    for (net, buffer, start, want) in [
        ("online", s.parameters.online, &p.start.online, &state.online),
        ("target", s.parameters.target, &p.start.target, &state.target),
    ] {
        let now = f64s(&b.download(buffer)?);
        for segment in p.flat.segments.iter().filter(|s| net == "online" || s.group.has_target()) {
            let range = segment.offset..segment.offset + segment.len;
            let start = &start[range.clone()];
            let update = |now: &[f64]| now.iter().zip(start).map(|(a, b)| a - b).collect::<Vec<f64>>();
            let errors = tensor_errors(&segment.layout, &update(&now[range.clone()]), &update(&want[range]));
            let sizes = tensor_errors(&segment.layout, start, start);
            // A gradient that is rounding only moves a parameter by at most lr / eps times itself; each step rounds the
            // stored parameter once.
            let o = &p.config.optimizer;
            let noise = f64::from(o.lr / o.eps * o.max_grad_norm) * GRADIENTS * FLOOR;
            for (e, size) in errors.iter().zip(&sizes) {
                let ulp = f64::from(f32::EPSILON) / 2.0 * size.norm;
                let bound = UPDATES * e.norm + step as f64 * (ulp + noise);
                assert!(
                    e.difference <= bound,
                    "{net} {} after {step}: {:e} > {bound:e}",
                    e.name,
                    e.difference
                );
            }
        }
    }
    Ok(())
}

fn three_steps<B: Backend>(b: &mut B, config: Config, matmul: Matmul) -> Outcome {
    let problem = Problem::new(config, 0.7);
    let (shape, buffers) = problem.set_up(b, matmul)?;
    let mut oracle = problem.oracle();
    for step in 1..=3 {
        record(b, &shape, &buffers, None)?;
        if step == 1 {
            check_first_step(b, &problem, (&shape, &buffers))?;
        }
        assert!(!oracle.train_step(&problem.batch).expect("a batch that fits").skipped);
        check_state(b, &problem, &oracle, &buffers, step)?;
    }
    Ok(())
}

/// The block alone beside C51: one bar, the default window, a long one.
pub fn windows<B: Backend>(b: &mut B) -> Outcome {
    for (batch, window, features) in [(33, 1, 3), (37, 8, 9), (11, 24, 2)] {
        three_steps(b, config(batch, window, features, false), Matmul::Rust)?;
    }
    Ok(())
}

/// Everything on, with the Rust products.
pub fn with_all_parts<B: Backend>(b: &mut B) -> Outcome {
    three_steps(b, config(37, 5, 4, true), Matmul::Rust)
}

/// Everything on, with one product a launch (cuBLASLt on a GPU), and other sizes of the block.
pub fn library_products<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config(21, 6, 3, true);
    (config.mamba.width, config.mamba.heads) = (12, 3);
    (config.mamba.state, config.mamba.conv) = (5, 2);
    three_steps(b, config, Matmul::CublasLt)
}

/// A gate of 0 leaves the function as it is without the block, whatever the block's other parameters; and the gate learns.
pub fn closed_gate<B: Backend>(b: &mut B) -> Outcome {
    let mut outputs = Vec::new();
    for enabled in [true, false] {
        let mut config = config(13, 5, 4, true);
        config.mamba.enabled = enabled;
        let problem = Problem::new(config, 0.0);
        let (shape, buffers) = problem.set_up(b, Matmul::Rust)?;
        record(b, &shape, &buffers, None)?;
        outputs.push((b.download(buffers.online.logits)?, b.download(buffers.target.logits)?));
        if enabled {
            let grad = b.download(buffers.parameters.grad)?;
            assert!(grad[shape.flat.offset("mamba.gate")].abs() > 1e-4);
        }
    }
    let [with, without] = [&outputs[0], &outputs[1]];
    for (with, without) in [(&with.0, &without.0), (&with.1, &without.1)] {
        // Products with the block's zeros are zero; only the order in which a tile adds the others may differ.
        let most = without.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(with.iter().zip(without).all(|(a, b)| (a - b).abs() <= 1e-5 * most));
    }
    Ok(())
}

/// Acting in the market with block and attention: the Q values of the first decision are the oracle's.
pub fn collection<B: Backend>(b: &mut B) -> Outcome {
    let environments = 5;
    let mut config = config(environments, SHAPE.window as usize, SHAPE.features as usize, true);
    (config.model.state, config.model.branches) = (STATE, vec![9, 3, 3]);
    // The oracle acts by mu.
    config.model.noisy = false;
    let problem = Problem::new(config, 0.7);
    let shape = StepShape::new(&problem.config, Matmul::Rust);
    let columns = Columns::random(35, 90, 0.01);
    let table = columns.table();
    let part = Part::new(&table, 0..90).expect("a part of the table");
    let params = params();
    let online = super::put(b, "online", &f32s(&problem.start.online))?;
    let replay = Replay::alloc(b, &shape, 64)?;
    let input = CollectorInput {
        environment: EnvironmentInput::Market {
            params: &params,
            part: &part,
            table: TableBuffers::upload(b, &table)?,
        },
        environments,
        log_rows: 0,
        clock: None,
        support: None,
        epsilon: None,
        explores: false,
    };
    let collector = Collector::alloc(b, &shape, input, replay, "collect")?;
    collector.record_first(b, &shape)?;
    let states = b.download(collector.states)?;
    let states: Vec<f32> = states.chunks_exact(shape.stride).flat_map(|row| row[..STATE].to_vec()).collect();
    collector.record(b, &shape, online)?;
    let want = problem.oracle().act(&f64s(&states)).expect("finite values").q;
    let got = b.download(collector.q)?;
    assert_eq!(got.len(), want.len());
    for (i, (&got, want)) in got.iter().zip(&want).enumerate() {
        // 1e-5 of the largest atom, SPEC section 8.
        assert!((f64::from(got) - want).abs() <= 1e-4, "Q {i} is {got}, expected {want}");
    }
    Ok(())
}
