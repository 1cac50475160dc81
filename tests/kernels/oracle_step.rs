//! Whole steps on a back end beside the oracle in f64: what the bodies of parts share that no golden file has.

use cpu_path::golden::tensor_errors;
use cpu_path::{C51Batch, Hyper, Oracle, Start, init_parameters, init_spectral};
use gpu::kernels::noisy::factors;
use gpu::philox::Stream;
use gpu::{action, clock};
use host::error::ExecError;
use host::profile::random_replay;
use host::step::{Matmul, Replay, StepBuffers, StepShape};
use settings::{Config, Group, Head, NoisyLayout, Precision};

use super::data::Random;
use super::golden::f64s;
use super::{Backend, Outcome};

/// A tensor whose gradient is below this share of the whole one's is measured by that.
const FLOOR: f64 = 1e-3;

/// C51 alone, nothing a multiple of anything.
pub fn odd() -> Config {
    let mut config = Config::default();
    let model = &mut config.model;
    (model.state, model.trunk1, model.trunk2) = (5, 9, 7);
    (model.value_hidden, model.branch_hidden, model.branches) = (6, 5, vec![2, 4, 3]);
    (model.atoms, model.v_min, model.v_max) = (11, -2.0, 3.0);
    (config.train.batch, config.train.precision) = (6, Precision::Fp32);
    (config.optimizer.lr, config.optimizer.tau) = (1e-3, 0.1);
    config
}

/// C51 and CQL on one branch, with a clip that bites.
pub fn two_terms() -> Config {
    let mut config = odd();
    let model = &mut config.model;
    (model.state, model.trunk1, model.trunk2) = (12, 16, 20);
    (model.value_hidden, model.branch_hidden, model.branches) = (4, 12, vec![5]);
    (model.atoms, config.train.batch) = (51, 9);
    config.cql.enabled = true;
    (config.optimizer.max_grad_norm, config.optimizer.weight_decay) = (0.05, 0.01);
    config
}

/// Gated heads and every part.
pub fn everything() -> Config {
    let mut config = odd();
    let model = &mut config.model;
    (model.state, model.window, model.bar_features) = (14, 3, 4);
    (model.trunk1, model.trunk2, model.head) = (20, 24, Head::Glu);
    (model.value_hidden, model.branch_hidden, model.branches) = (8, 4, vec![5, 3]);
    (model.atoms, config.train.batch) = (21, 7);
    (config.cql.enabled, config.iqn.enabled, config.iql.enabled) = (true, true, true);
    (config.iqn.cosines, config.iqn.hidden) = (16, 32);
    (config.iqn.samples, config.iqn.target_samples) = (8, 6);
    config.iql.hidden = 12;
    (config.attention.enabled, config.attention.heads) = (true, 2);
    (config.spectral.enabled, config.spectral.sigma_max) = (true, 0.7);
    config
}

/// A step on a back end and the oracle at its start.
pub struct Beside {
    pub config: Config,
    pub shape: StepShape,
    pub buffers: StepBuffers,
    pub replay: Replay,
    pub oracle: Oracle,
    start: [Vec<f64>; 2],
}

impl Beside {
    /// Random parameters, the target's others; sigmas of different sizes; an open gate.
    pub fn new<B: Backend>(b: &mut B, config: &Config, matmul: Matmul) -> Result<Self, ExecError> {
        Self::of_shape(b, config, StepShape::new(config, matmul))
    }

    /// The same with a shape of this configuration.
    pub fn of_shape<B: Backend>(b: &mut B, config: &Config, shape: StepShape) -> Result<Self, ExecError> {
        let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
        let replay = random_replay(b, &shape, 32).expect("a ring of transitions");
        let mut random = Random::new(151);
        let mut networks = [3, 4].map(|seed| init_parameters(&shape.flat, seed));
        for t in shape.flat.tensors().filter(|t| t.is_sigma()) {
            for values in &mut networks {
                for x in &mut values[t.offset..t.offset + t.len()] {
                    *x *= 0.5 + random.uniform() as f32;
                }
            }
        }
        if let Some(gate) = shape.flat.find("att.gate") {
            networks.iter_mut().for_each(|values| values[gate.offset] = 0.7);
        }
        let [online, mut target] = networks;
        target.truncate(shape.flat.target_len());
        b.upload(buffers.parameters.online, &online)?;
        b.upload(buffers.parameters.target, &target)?;
        let spectral = init_spectral(&shape.model, shape.seed).map(|u| f64s(&u));
        let start = [f64s(&online), f64s(&target)];
        let [online, target] = start.clone();
        let hyper = Hyper::from(&config.optimizer);
        let from = Start { online, target, spectral };
        let oracle = Oracle::with_parts(&shape.model, &config.parts(), hyper, from)
            .expect("a configuration that works")
            .with_pruning(&config.pruning);
        Ok(Self { config: config.clone(), shape, buffers, replay, oracle, start })
    }

    /// The batch of the step that was just recorded, with the quantile samples that the device drew, and with the noise
    /// that the host draws for that step.
    pub fn batch<B: Backend>(&self, b: &mut B) -> Result<C51Batch<f64>, ExecError> {
        let (shape, batch) = (&self.shape, &self.buffers.batch);
        let x = b.download(batch.x)?;
        let rows: Vec<f64> =
            x.chunks_exact(shape.stride).flat_map(|row| f64s(&row[..shape.model.state])).collect();
        let (states, next_states) = rows.split_at(shape.batch * shape.model.state);
        let packed = b.download(batch.actions)?;
        let branches = shape.branches as u32;
        let iqn = self.buffers.parts.and_then(|parts| parts.iqn);
        let step = b.download(self.buffers.clock)?[clock::STEP as usize] - 1;
        let noise = match shape.model.noisy {
            true => {
                let count = NoisyLayout::new(&shape.model).factors;
                let of = |stream| f64s(&factors(shape.seed, step, stream, count));
                [of(Stream::NoiseOnline), of(Stream::NoiseTarget)].concat()
            }
            false => Vec::new(),
        };
        Ok(C51Batch {
            states: states.to_vec(),
            next_states: next_states.to_vec(),
            actions: packed.iter().flat_map(|&a| (0..branches).map(move |d| action::branch(a, d))).collect(),
            rewards: f64s(&b.download(batch.rewards)?),
            discounts: f64s(&b.download(batch.discounts)?),
            weights: f64s(&b.download(batch.weights)?),
            taus: match iqn {
                Some(iqn) => f64s(&b.download(iqn.taus)?),
                None => Vec::new(),
            },
            target_taus: match iqn {
                Some(iqn) => f64s(&b.download(iqn.target_taus)?),
                None => Vec::new(),
            },
            noise,
            masks: Vec::new(),
        })
    }

    /// Gradients of the step that was just recorded: of every term on the main parameters, of every other group, tensor by
    /// tensor within SPEC section 8's bound for fp32, 1e-3 of its norm; and the terms' norms.
    pub fn check_gradients<B: Backend>(&self, b: &mut B, batch: &C51Batch<f64>) -> Outcome {
        for (what, error) in self.gradient_errors(b, batch)? {
            assert!(error <= 1e-3, "{what}: {error:e}");
        }
        Ok(())
    }

    /// Errors of what [`Self::check_gradients`] checks, each relative to its norm, or to a thousandth of its group's where
    /// that is larger.
    pub fn gradient_errors<B: Backend>(
        &self,
        b: &mut B,
        batch: &C51Batch<f64>,
    ) -> Result<Vec<(String, f64)>, ExecError> {
        let (shape, s) = (&self.shape, &self.buffers);
        let mut oracle = self.again();
        oracle.prune().expect("a state that works");
        oracle.limit_spectrum().expect("a state that works");
        let e = oracle.evaluate(batch).expect("a batch that fits");
        let mut all = Vec::new();
        let mut add = |what: &str, layout: &settings::Layout, got: &[f64], want: &[f64]| {
            let errors = tensor_errors(layout, got, want);
            let whole = errors.iter().map(|e| e.norm * e.norm).sum::<f64>().sqrt();
            for e in errors {
                // A tensor without gradient has none here either.
                let norm = e.norm.max(FLOOR * whole).max(f64::MIN_POSITIVE);
                all.push((format!("{what} {}", e.name), e.difference / norm));
            }
        };
        let own = f64s(&b.download(s.parameters.grad)?);
        let main = &shape.layout;
        let Some(parts) = &s.parts else {
            add("gradient", main, &own[..main.len], &e.terms[0].gradient);
            return Ok(all);
        };
        let grads = f64s(&b.download(parts.grads)?);
        for (got, term) in grads.chunks_exact(main.len).zip(&e.terms) {
            add(term.term.name(), main, got, &term.gradient);
        }
        if shape.trunk_terms() > 0 {
            let mut trunk = f64s(&b.download(parts.trunk_grads)?);
            trunk.resize(main.len, 0.0);
            add("trunk", main, &trunk, &e.terms[shape.full_terms()].gradient);
        }
        for group in shape.flat.segments.iter().filter(|s| s.group != Group::Main) {
            let want = e.own.iter().find(|g| g.group == group.group).expect("a gradient");
            let got = &own[group.offset..][..group.len];
            add(group.group.name(), &group.layout, got, &want.gradient);
        }
        let scales = b.download(parts.scales)?;
        for (t, want) in e.terms.iter().map(|t| t.norm).enumerate().take(shape.full_terms()) {
            let got = f64::from(scales[gpu::kernels::update_scales::scale::TERM_NORM as usize + t]);
            all.push((format!("norm of term {t}"), (got - want).abs() / want));
        }
        Ok(all)
    }

    /// Online and target parameters after `steps` steps: the bound of SPEC section 8 on their change, 5e-3 of its norm
    /// per tensor, plus half an ulp of each parameter and step, plus what a gradient that is rounding only moves
    /// (`golden_full`).
    pub fn check_state<B: Backend>(&self, b: &mut B, steps: usize) -> Outcome {
        let state = self.oracle.export();
        let p = self.buffers.parameters;
        for (net, buffer, want, start) in [
            ("online", p.online, &state.online, &self.start[0]),
            ("target", p.target, &state.target, &self.start[1]),
        ] {
            let now = f64s(&b.download(buffer)?);
            for segment in self.shape.flat.segments.iter().filter(|s| net == "online" || s.group.has_target())
            {
                let range = segment.offset..segment.offset + segment.len;
                let start = &start[range.clone()];
                let change = |x: &[f64]| x.iter().zip(start).map(|(x, s)| x - s).collect::<Vec<f64>>();
                let (got, want) = (change(&now[range.clone()]), change(&want[range]));
                let errors = tensor_errors(&segment.layout, &got, &want);
                let sizes = tensor_errors(&segment.layout, start, start);
                let o = &self.config.optimizer;
                let noise = f64::from(o.lr / o.eps * o.max_grad_norm) * 1e-3 * FLOOR;
                for (e, size) in errors.iter().zip(&sizes) {
                    let ulp = f64::from(f32::EPSILON) / 2.0 * size.norm;
                    let bound = 5e-3 * e.norm + steps as f64 * (ulp + noise);
                    assert!(e.difference <= bound, "{net} {}: {:e} > {bound:e}", e.name, e.difference);
                }
            }
        }
        Ok(())
    }

    /// Another oracle in the same state.
    pub fn again(&self) -> Oracle {
        let state = self.oracle.export();
        let [online, target] = self.start.clone();
        let spectral = init_spectral(&self.shape.model, self.shape.seed).map(|u| f64s(&u));
        let start = Start { online, target, spectral };
        let hyper = Hyper::from(&self.config.optimizer);
        let mut oracle = Oracle::with_parts(&self.shape.model, &self.config.parts(), hyper, start)
            .expect("a configuration that works")
            .with_pruning(&self.config.pruning);
        oracle.import(state).expect("the state of such a learner");
        oracle
    }
}
