//! The step with the value networks' feedback, the ensemble and the confidence head against the oracle: candle's autograd
//! in f64 on the same batch, over several steps, so that what a step keeps for the next one is seen too.
//!
//! Bounds are those of SPEC section 8, fp32, with the reasons of `golden_step`.

use cpu_path::golden::tensor_errors;
use cpu_path::{C51Batch, Evaluation, Hyper, LearnerState, Oracle, Start, init_parameters};
use gpu::kernels::c51_loss::stat;
use gpu::kernels::ensemble_loss::learns;
use gpu::kernels::learner_signals::sample;
use gpu::kernels::step_signals::signal;
use gpu::kernels::update_scales::scale;
use host::step::{Kept, Matmul, StepBuffers, StepShape, record};
use settings::{Config, Flat, Group, Precision};

use super::data::Random;
use super::golden::{f32s, f64s, upload_batch};
use super::{Backend, Outcome, matmuls};

const LOSSES: f64 = 1e-4;
const GRADIENTS: f64 = 1e-3;
const UPDATES: f64 = 5e-3;
/// A tensor whose gradient is below this share of its group's is measured by the group's.
const FLOOR: f64 = 1e-3;

/// A small step with nothing but C51.
pub fn config(samples: usize) -> Config {
    let mut config = Config::default();
    let model = &mut config.model;
    (model.state, model.window, model.bar_features) = (11, 2, 4);
    (model.trunk1, model.trunk2, model.value_hidden, model.branch_hidden) = (20, 16, 8, 12);
    (model.branches, model.atoms) = (vec![3, 2, 4], 13);
    (model.v_min, model.v_max) = (-3.0, 4.0);
    config.train.batch = samples;
    config.train.precision = Precision::Fp32;
    config.optimizer.lr = 1e-3;
    config.iql.hidden = 16;
    (config.iqn.cosines, config.iqn.hidden) = (8, 16);
    (config.iqn.samples, config.iqn.target_samples) = (4, 3);
    config
}

/// Everything on that feeds back.
pub fn feedback(config: &mut Config) {
    config.iql.enabled = true;
    config.iql.advantage_weighting = true;
    config.iql.branch_scaling = true;
    config.iql.adaptive_support = true;
    config.iql.adaptive_epsilon = true;
    (config.iql.support_rate, config.iql.signal_rate) = (0.2, 0.3);
}

fn batch(random: &mut Random, config: &Config) -> C51Batch<f64> {
    let (samples, model) = (config.train.batch, &config.model);
    let branches = model.branches.len();
    let mut normals = |len, spread| f64s(&random.normals(len, spread));
    let mut batch = C51Batch {
        states: normals(samples * model.state, 1.0),
        next_states: normals(samples * model.state, 1.0),
        rewards: normals(samples, 1.0),
        discounts: (0..samples).map(|i| if i % 5 == 4 { 0.0 } else { f64::from(0.97f32) }).collect(),
        ..C51Batch::default()
    };
    let mut uniform = |len| (0..len).map(|_| f64::from(random.uniform() as f32)).collect::<Vec<f64>>();
    batch.weights = uniform(samples);
    if config.iqn.enabled {
        // Inside (0, 1): a draw of 0 is not among these.
        batch.taus = uniform(samples * config.iqn.samples);
        batch.target_taus = uniform(samples * config.iqn.target_samples);
    }
    let action = |i: usize| random.below(model.branches[i % branches]) as u32;
    batch.actions = (0..samples * branches).map(action).collect();
    batch
}

#[track_caller]
fn near(what: &str, got: f64, want: f64, bound: f64) {
    assert!((got - want).abs() <= bound, "{what}: {got}, expected {want} within {bound:e}");
}

/// Rows of the per-sample buffer and the weighted loss.
fn check_samples<B: Backend>(b: &mut B, shape: &StepShape, s: &StepBuffers, e: &Evaluation<f64>) -> Outcome {
    let parts = s.parts.expect("the step has parts");
    let samples = b.download(parts.samples)?;
    let row = |r: u32| &samples[r as usize * shape.batch..][..shape.batch];
    // A loss may be a difference of terms; the largest of the batch is their size.
    let check = |what: &str, got: &[f32], want: &[f64]| {
        let size = want.iter().fold(0.0f64, |size, x| size.max(x.abs()));
        got.iter().zip(want).for_each(|(&got, &want)| near(what, got.into(), want, LOSSES * size));
    };
    if let Some(iql) = &e.iql {
        check("V_high", row(sample::IQL_VALUE), &iql.high);
        check("V_low", row(sample::IQL_VALUE + 1), &iql.low);
        let buffers = parts.iql.expect("the step has value networks");
        let scales = b.download(buffers.branch_scales())?;
        check("branch scale", &scales[..shape.branches], &iql.derived.branch_scales);
    }
    if let Some(iqn) = &e.iqn {
        check("iqn", row(sample::IQN), &iqn.per_sample);
    }
    if let Some(ensemble) = &e.ensemble {
        check("ensemble", row(sample::ENSEMBLE), &ensemble.per_sample);
        check("uncertainty", row(sample::UNCERTAINTY), &ensemble.variance);
    }
    if let Some(confidence) = &e.confidence {
        check("confidence", row(sample::CONFIDENCE), &confidence.per_sample);
    }
    let stats = b.download(s.stats)?;
    let weighted = stats.chunks_exact(stat::COLUMNS as usize).map(|r| f64::from(r[0])).sum::<f64>();
    near("loss", weighted / shape.batch as f64, e.loss, LOSSES * e.loss.abs());
    Ok(())
}

/// Norms of terms and groups, the trunk's gradients, the groups' own.
fn check_gradients<B: Backend>(
    b: &mut B,
    shape: &StepShape,
    s: &StepBuffers,
    e: &Evaluation<f64>,
) -> Outcome {
    let parts = s.parts.expect("the step has parts");
    let scales = b.download(parts.scales)?;
    let at = |word: u32, i: usize| f64::from(scales[word as usize + i]);
    let (grads, trunk_grads) = (b.download(parts.grads)?, b.download(parts.trunk_grads)?);
    let (main, trunk) = (shape.layout.len, shape.trunk_len());
    let mut places = (0, 2);
    for t in &e.terms {
        let is_full = matches!(t.term.name(), "c51" | "cql");
        let place = if is_full { &mut places.0 } else { &mut places.1 };
        let name = t.term.name();
        near(name, at(scale::TERM_NORM, *place), t.norm, GRADIENTS * t.norm);
        let clip = at(scale::GROUP, 0);
        near(name, at(scale::TERM, *place), t.scale * clip, GRADIENTS);
        let got = match is_full {
            true => f64s(&grads[*place * main..][..main]),
            false => f64s(&trunk_grads[(*place - 2) * trunk..][..trunk]),
        };
        let mut got = got;
        got.resize(main, 0.0);
        check_tensors(name, &shape.layout, &got, &t.gradient);
        *place += 1;
    }
    let own = f64s(&b.download(s.parameters.grad)?);
    for g in &e.own {
        let place = shape.flat.segments.iter().position(|s| s.group == g.group).expect("the group is there");
        let segment = &shape.flat.segments[place];
        near(g.group.name(), at(scale::GROUP_NORM, place), g.norm, GRADIENTS * g.norm);
        check_tensors(g.group.name(), &segment.layout, &own[segment.offset..][..segment.len], &g.gradient);
    }
    Ok(())
}

#[track_caller]
fn check_tensors(what: &str, layout: &settings::Layout, got: &[f64], want: &[f64]) {
    let errors = tensor_errors(layout, got, want);
    let whole = errors.iter().map(|e| e.norm * e.norm).sum::<f64>().sqrt();
    for e in errors {
        let bound = GRADIENTS * e.norm.max(FLOOR * whole);
        assert!(e.difference <= bound, "{what} {}: {:e} > {bound:e}", e.name, e.difference);
    }
}

/// Updates since the start, and what is kept.
pub fn check_state<B: Backend>(
    b: &mut B,
    (shape, config): (&StepShape, &Config),
    s: &StepBuffers,
    start: &[f32],
    want: &LearnerState<f64>,
    steps: usize,
) -> Outcome {
    let now = f64s(&b.download(s.parameters.online)?);
    let start = f64s(start);
    for segment in &shape.flat.segments {
        let range = segment.offset..segment.offset + segment.len;
        let update = |now: &[f64]| {
            now[range.clone()].iter().zip(&start[range.clone()]).map(|(a, b)| a - b).collect::<Vec<f64>>()
        };
        let errors = tensor_errors(&segment.layout, &update(&now), &update(&want.online));
        let sizes = tensor_errors(&segment.layout, &start[range.clone()], &start[range.clone()]);
        let o = &config.optimizer;
        // As in `golden_full`: rounding of the stored parameter, and gradients that are rounding only.
        let noise = f64::from(o.lr / o.eps * o.max_grad_norm) * GRADIENTS * FLOOR;
        for (e, size) in errors.iter().zip(&sizes) {
            let ulp = f64::from(f32::EPSILON) / 2.0 * size.norm;
            let bound = UPDATES * e.norm + steps as f64 * (ulp + noise * 1e-2);
            assert!(e.difference <= bound, "{}: {:e} > {bound:e}", e.name, e.difference);
        }
    }
    let kept = s.kept(b)?;
    for (name, got, want) in
        [("value networks", &kept.iql, &want.iql), ("confidence head", &kept.confidence, &want.confidence)]
    {
        assert_eq!(got.len(), want.len());
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            let bound = LOSSES * want.abs().max(1.0);
            near(&format!("word {i} that the {name} keep"), got.into(), want, bound);
        }
    }
    // What a checkpoint holds brings back the same bits.
    let other = |x: &[f32]| x.iter().map(|x| x + 1.0).collect::<Vec<f32>>();
    let other =
        Kept { iql: other(&kept.iql), confidence: other(&kept.confidence), masks: kept.masks.clone() };
    s.set_kept(b, &other)?;
    assert_eq!(s.kept(b)?, other);
    s.set_kept(b, &kept)?;
    assert_eq!(s.kept(b)?, kept);
    if let [.., epsilon, low, high] = kept.iql[..] {
        let history = b.download(s.history)?;
        let row = &history[(steps - 1) * signal::COLUMNS as usize..];
        let columns = [signal::IQL_EPSILON, signal::V_MIN, signal::V_MAX];
        assert_eq!(columns.map(|c| row[c as usize]), [epsilon, low, high]);
    }
    Ok(())
}

fn steps<B: Backend>(b: &mut B, config: &Config, matmul: Matmul, seed: u64) -> Outcome {
    let shape = StepShape::new(config, matmul);
    let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
    buffers.start(b, &shape)?;
    let (parts, flat) = (config.parts(), Flat::new(&config.model, &config.parts()));
    let mut online = init_parameters(&flat, seed);
    for gate in ["att.gate", "mamba.gate"].iter().filter_map(|name| flat.find(name)) {
        online[gate.offset] = 0.5;
    }
    let target = init_parameters(&flat, seed + 1)[..flat.target_len()].to_vec();
    b.upload(buffers.parameters.online, &online)?;
    b.upload(buffers.parameters.target, &target)?;
    let start = Start { online: f64s(&online), target: f64s(&target), spectral: Default::default() };
    let hyper = Hyper::from(&config.optimizer);
    let mut oracle =
        Oracle::with_parts(&config.model, &parts, hyper, start).expect("the configuration is one that works");
    let mut random = Random::new(seed);
    for step in 0..3u64 {
        // Another batch in every step: a median, an average, a support that moves.
        let mut batch = batch(&mut random, config);
        let members = config.ensemble.members;
        if config.ensemble.enabled {
            let mask = |i: usize| {
                let (row, e) = ((i / members) as u32, (i % members) as u32);
                learns(config.train.seed, step, row, e, config.ensemble.mask)
            };
            batch.masks = (0..config.train.batch * members).map(mask).collect();
        }
        upload_batch(b, &shape, &buffers, &batch)?;
        if let Some(iqn) = buffers.parts.and_then(|parts| parts.iqn) {
            b.upload(iqn.taus, &f32s(&batch.taus))?;
            b.upload(iqn.target_taus, &f32s(&batch.target_taus))?;
        }
        record(b, &shape, &buffers, None)?;
        let evaluation = oracle.evaluate(&batch).expect("the batch fits");
        check_samples(b, &shape, &buffers, &evaluation)?;
        check_gradients(b, &shape, &buffers, &evaluation)?;
        assert!(!oracle.train_step(&batch).expect("the batch fits").skipped);
        let state = oracle.export();
        check_state(b, (&shape, config), &buffers, &online, &state, step as usize + 1)?;
    }
    Ok(())
}

/// The value networks alone, each switch alone and all together.
pub fn values_feed_back<B: Backend>(b: &mut B) -> Outcome {
    for switch in 0..5 {
        let mut config = config(9 + switch);
        feedback(&mut config);
        if switch < 4 {
            let on = |i| i == switch;
            let iql = &mut config.iql;
            (iql.advantage_weighting, iql.branch_scaling) = (on(0), on(1));
            (iql.adaptive_support, iql.adaptive_epsilon) = (on(2), on(3));
        }
        steps(b, &config, Matmul::Rust, 300 + switch as u64)?;
    }
    Ok(())
}

/// Ensemble, confidence head, both.
pub fn auxiliary_heads<B: Backend>(b: &mut B) -> Outcome {
    for (members, ensemble, confidence) in [(2, true, false), (5, false, true), (8, true, true)] {
        let mut config = config(10);
        (config.ensemble.enabled, config.ensemble.members) = (ensemble, members);
        config.ensemble.lambda = 0.3;
        config.confidence.enabled = confidence;
        for &matmul in matmuls::<B>() {
            steps(b, &config, matmul, 310 + members as u64)?;
        }
    }
    Ok(())
}

/// With every other part beside them: the order of the lanes and the places of the terms.
pub fn everything<B: Backend>(b: &mut B) -> Outcome {
    let mut config = config(12);
    feedback(&mut config);
    config.cql.enabled = true;
    config.iqn.enabled = true;
    config.attention.enabled = true;
    config.mamba.enabled = true;
    config.ensemble.enabled = true;
    config.confidence.enabled = true;
    for &matmul in matmuls::<B>() {
        steps(b, &config, matmul, 320)?;
    }
    assert!(Flat::new(&config.model, &config.parts()).segment(Group::Confidence).is_some());
    Ok(())
}
