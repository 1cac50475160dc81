//! The complete step against an independent program's three training steps in f64 (`tests/golden/full_t1`, `full_t2`):
//! C51, CQL, IQN, both value networks, attention, spectral norm, budgets, clips, Adam with decay, EMA.
//!
//! Bounds are those of SPEC section 8, fp32, with the reasons of `golden_step`; a tensor whose gradient is below a
//! thousandth of its group's is measured by the group's (the attention's key bias has none, by symmetry).

use cpu_path::golden::{FullProblem, Golden, golden_name, tensor_errors};
use gpu::kernels::c51_loss::stat;
use gpu::kernels::learner_signals::sample;
use gpu::kernels::step_signals::signal;
use gpu::kernels::update_scales::scale;
use host::error::ExecError;
use host::step::{Matmul, StepBuffers, StepShape, record};
use settings::{Config, Group, Precision};

use super::golden::{f32s, f64s, read, upload_batch};
use super::{Backend, Outcome};

const FLOOR: f64 = 1e-3;

fn golden(file: &str) -> (Golden, FullProblem) {
    let golden = read(file);
    let problem = golden.full_problem().expect("the golden file is whole");
    (golden, problem)
}

/// The configuration of a golden file.
pub fn config(problem: &FullProblem, precision: Precision) -> Config {
    let parts = problem.parts.clone();
    let mut config = Config { model: problem.shape.clone(), ..Config::default() };
    config.optimizer = problem.optimizer.clone();
    config.cql = parts.cql;
    config.iqn = parts.iqn;
    config.iql = parts.iql;
    config.attention = parts.attention;
    config.mamba = parts.mamba;
    config.spectral = parts.spectral;
    config.budgets = parts.budgets;
    config.train.batch = problem.batch.len();
    config.train.precision = precision;
    config
}

fn set_up<B: Backend>(
    b: &mut B,
    problem: &FullProblem,
    matmul: Matmul,
    precision: Precision,
) -> Result<(StepShape, StepBuffers), ExecError> {
    let config = config(problem, precision);
    let shape = StepShape::new(&config, matmul);
    let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
    let batch = &problem.batch;
    upload_batch(b, &shape, &buffers, batch)?;
    b.upload(buffers.parameters.online, &f32s(&problem.online))?;
    b.upload(buffers.parameters.target, &f32s(&problem.target))?;
    let iqn = buffers.parts.and_then(|parts| parts.iqn).expect("the problem has an IQN head");
    b.upload(iqn.taus, &f32s(&batch.taus))?;
    b.upload(iqn.target_taus, &f32s(&batch.target_taus))?;
    let spectral = buffers.spectral.expect("the problem has a spectral norm");
    let mut u = vec![0.0f32; 2 * spectral.stride];
    for (row, values) in u.chunks_exact_mut(spectral.stride).zip(&problem.spectral) {
        row[..values.len()].copy_from_slice(&f32s(values));
    }
    b.upload(spectral.u, &u)?;
    Ok((shape, buffers))
}

/// What differs between arithmetics: relative bounds of losses, of gradients, of updates.
struct Bounds {
    losses: f64,
    gradients: f64,
    updates: f64,
}

#[track_caller]
fn near(what: &str, got: f64, want: f64, bound: f64) {
    assert!((got - want).abs() <= bound, "{what}: {got}, expected {want} within {bound:e}");
}

fn floats<'a>(golden: &'a Golden, name: &str) -> &'a [f64] {
    golden.floats(name).unwrap_or_else(|e| panic!("{e}"))
}

/// Per-sample losses, gradients of terms and groups, norms and factors of the first step.
fn check_first_step<B: Backend>(
    b: &mut B,
    (golden, problem): (&Golden, &FullProblem),
    (shape, s): (&StepShape, &StepBuffers),
    bounds: &Bounds,
) -> Outcome {
    let parts = s.parts.expect("the problem has parts");
    let stats = b.download(s.stats)?;
    let samples = b.download(parts.samples)?;
    let reach = f64::from(shape.model.v_max.abs().max(shape.model.v_min.abs()));
    let column =
        |c: u32| stats.chunks_exact(stat::COLUMNS as usize).map(|r| r[c as usize]).collect::<Vec<_>>();
    let row = |r: u32| samples[r as usize * shape.batch..][..shape.batch].to_vec();
    for (name, got) in [
        ("per.c51", column(stat::LOSS)),
        ("per.cql", row(sample::CQL)),
        ("per.iqn", row(sample::IQN)),
        ("per.iql_hi", row(sample::IQL_LOSS)),
        ("per.iql_lo", row(sample::IQL_LOSS + 1)),
    ] {
        for (i, (&got, &want)) in got.iter().zip(floats(golden, name)).enumerate() {
            // The expectile losses are squares of differences of values of size max|z|.
            let absolute =
                if name.contains("iql") { 1e-2 * bounds.losses * reach * want.sqrt() } else { 0.0 };
            near(&format!("{name}[{i}]"), got.into(), want, bounds.losses * want.abs() + absolute);
        }
    }

    let scales = b.download(parts.scales)?;
    let at = |word: u32, i: usize| f64::from(scales[word as usize + i]);
    let clip = at(scale::GROUP, 0);
    let first = |name: &str| floats(golden, name)[0];
    for (t, name) in ["c51", "cql", "iqn_trunk"].into_iter().enumerate() {
        let (norm, factor) = (first(&format!("norm.{name}")), first(&format!("scale.{name}")));
        near(&format!("norm.{name}"), at(scale::TERM_NORM, t), norm, bounds.gradients * norm);
        near(&format!("scale.{name}"), at(scale::TERM, t), factor * clip, bounds.gradients);
    }
    for (g, name) in ["sum", "iqn", "att", "iql_hi", "iql_lo"].into_iter().enumerate() {
        let (norm, factor) = (first(&format!("norm.{name}")), first(&format!("scale.{name}")));
        near(&format!("norm.{name}"), at(scale::GROUP_NORM, g), norm, bounds.gradients * norm);
        near(&format!("scale.{name}"), at(scale::GROUP, g), factor, bounds.gradients);
    }

    let check = |what: &str, layout: &settings::Layout, got: &[f64], want: &[f64]| {
        let errors = tensor_errors(layout, got, want);
        let whole = errors.iter().map(|e| e.norm * e.norm).sum::<f64>().sqrt();
        for e in errors {
            let bound = bounds.gradients * e.norm.max(FLOOR * whole);
            assert!(e.difference <= bound, "{what} {}: {:e} > {bound:e}", e.name, e.difference);
        }
    };
    let main = &shape.layout;
    let grads = f64s(&b.download(parts.grads)?);
    for (got, name) in grads.chunks_exact(main.len).zip(["c51", "cql"]) {
        let prefix = format!("grad.{name}.main.");
        let want = golden.flat(main, &prefix).unwrap_or_else(|e| panic!("{e}"));
        check(&prefix, main, got, &want);
    }
    let mut trunk = f64s(&b.download(parts.trunk_grads)?);
    trunk.resize(main.len, 0.0);
    let mut want = vec![0.0; main.len];
    for t in main.tensors.iter().filter(|t| t.name.starts_with("trunk")) {
        want[t.offset..t.offset + t.len()]
            .copy_from_slice(floats(golden, &format!("grad.iqn.main.{}", t.name)));
    }
    check("grad.iqn.main.", main, &trunk, &want);
    let own = f64s(&b.download(s.parameters.grad)?);
    for segment in problem.flat.segments.iter().filter(|s| s.group != Group::Main) {
        let want = golden.flat(&segment.layout, "grad.own.").unwrap_or_else(|e| panic!("{e}"));
        let got = &own[segment.offset..][..segment.len];
        check(&format!("grad.own.{}", segment.group.name()), &segment.layout, got, &want);
    }
    Ok(())
}

/// |dp - dp_ref| per tensor of every group, and the spectral norm's vectors.
fn check_state<B: Backend>(
    b: &mut B,
    (golden, problem): (&Golden, &FullProblem),
    s: &StepBuffers,
    step: usize,
    bounds: &Bounds,
) -> Outcome {
    for (net, buffer, start) in
        [("online", s.parameters.online, &problem.online), ("target", s.parameters.target, &problem.target)]
    {
        let now = f64s(&b.download(buffer)?);
        for segment in problem.flat.segments.iter().filter(|s| net == "online" || s.group.has_target()) {
            let range = segment.offset..segment.offset + segment.len;
            let prefix = format!("{net}{step}.{}", golden_name(segment.group, ""));
            let want = golden.flat(&segment.layout, &prefix).unwrap_or_else(|e| panic!("{e}"));
            let start = &start[range.clone()];
            let update = |now: &[f64]| now.iter().zip(start).map(|(a, b)| a - b).collect::<Vec<f64>>();
            let errors = tensor_errors(&segment.layout, &update(&now[range]), &update(&want));
            let sizes = tensor_errors(&segment.layout, start, start);
            // A gradient that is rounding only moves a parameter by at most lr / eps times itself; each step rounds the
            // stored parameter once.
            let o = &problem.optimizer;
            let noise = f64::from(o.lr / o.eps * o.max_grad_norm) * bounds.gradients * FLOOR;
            for (e, size) in errors.iter().zip(&sizes) {
                let ulp = f64::from(f32::EPSILON) / 2.0 * size.norm;
                let bound = bounds.updates * e.norm + step as f64 * (ulp + noise);
                assert!(e.difference <= bound, "{prefix}{}: {:e} > {bound:e}", e.name, e.difference);
            }
        }
    }
    let spectral = s.spectral.expect("the problem has a spectral norm");
    let u = b.download(spectral.u)?;
    for (i, row) in u.chunks_exact(spectral.stride).enumerate() {
        for (&got, &want) in row.iter().zip(floats(golden, &format!("spectral{step}.u{}", i + 1))) {
            // Components of a unit vector.
            near(&format!("u{} after step {step}", i + 1), got.into(), want, 1e-4);
        }
    }
    Ok(())
}

fn three_steps<B: Backend>(b: &mut B, matmul: Matmul) -> Outcome {
    let bounds = Bounds { losses: 1e-4, gradients: 1e-3, updates: 5e-3 };
    for file in ["full_t1", "full_t2"] {
        let (golden, problem) = golden(file);
        let (shape, buffers) = set_up(b, &problem, matmul, Precision::Fp32)?;
        for step in 1..=3 {
            record(b, &shape, &buffers, None)?;
            if step == 1 {
                check_first_step(b, (&golden, &problem), (&shape, &buffers), &bounds)?;
            }
            if step != 2 {
                check_state(b, (&golden, &problem), &buffers, step, &bounds)?;
            }
            let sigma = b.download(buffers.spectral.expect("the problem has a spectral norm").sigma)?;
            for (i, &sigma) in sigma.iter().enumerate() {
                let want = floats(&golden, &format!("spectral.sigma{}", i + 1))[step - 1];
                near("sigma", sigma.into(), want, 1e-4 * want);
            }
        }
        let history = b.download(buffers.history)?;
        let rows = history.chunks_exact(signal::COLUMNS as usize);
        for (step, row) in rows.take(3).enumerate() {
            let loss = |word: u32| f64::from(row[word as usize]);
            for (name, got) in [
                ("loss.c51", loss(stat::WEIGHTED_LOSS)),
                ("loss.cql", loss(signal::SAMPLES + sample::CQL)),
                ("loss.iql_hi", loss(signal::SAMPLES + sample::IQL_LOSS)),
                ("loss.iql_lo", loss(signal::SAMPLES + sample::IQL_LOSS + 1)),
            ] {
                let want = floats(&golden, name)[step];
                near(&format!("{file} {name} of step {}", step + 1), got, want, 1e-4 * want.abs());
            }
            assert_eq!(row[signal::SKIPPED as usize], 0.0);
        }
    }
    Ok(())
}

/// With the Rust products, fused and grouped.
pub fn rust_products<B: Backend>(b: &mut B) -> Outcome {
    three_steps(b, Matmul::Rust)
}

/// With one product a launch (cuBLASLt on a GPU).
pub fn library_products<B: Backend>(b: &mut B) -> Outcome {
    three_steps(b, Matmul::CublasLt)
}
