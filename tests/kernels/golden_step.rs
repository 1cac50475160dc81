//! The whole step against an independent program's training step in f64 (`tests/golden/step.safetensors`).
//!
//! Bounds are those of SPEC section 8, fp32. Q: 1e-5 max|z|, a few hundred f32 roundings of values below max|z|. Losses
//! and td: 1e-4 relative, since a cross-entropy sums some hundred rounded logarithms. Gradients: 1e-3 of the tensor's
//! norm, or of a thousandth of the whole gradient's where a tensor's own is smaller (its elements are differences of
//! larger terms). Updates: 5e-3 of the update's norm, since Adam's first steps divide the gradient by its own size and
//! pass its relative error on, plus half an ulp of each parameter, which storing p + dp loses.

use cpu_path::golden::{Golden, StepProblem, tensor_errors};
use gpu::kernels::dueling_q::DuelingQ;
use host::exec::Lane;
use host::step::{Matmul, StepBuffers, StepShape, record};
use settings::{Config, Layout, Precision};

use super::golden::{f32s, f64s, read, upload_batch};
use super::{Backend, Outcome, filled};

fn golden() -> (Golden, StepProblem) {
    let golden = read("step");
    let problem = golden.step_problem().expect("the golden file is whole");
    (golden, problem)
}

/// A step on the golden batch, ready to run.
fn set_up<B: Backend>(
    b: &mut B,
    problem: &StepProblem,
    matmul: Matmul,
    max_norm: f32,
) -> Result<(StepShape, StepBuffers), host::error::ExecError> {
    let mut config = Config { model: problem.shape.clone(), ..Config::default() };
    config.optimizer = problem.optimizer.clone();
    config.optimizer.max_grad_norm = max_norm;
    config.train.batch = problem.batch.len();
    config.train.precision = Precision::Fp32;
    let shape = StepShape::new(&config, matmul);
    let buffers = StepBuffers::alloc(b, &shape, &config.optimizer)?;
    upload_batch(b, &shape, &buffers, &problem.batch)?;
    b.upload(buffers.parameters.online, &f32s(&problem.online))?;
    b.upload(buffers.parameters.target, &f32s(&problem.target))?;
    Ok((shape, buffers))
}

#[track_caller]
fn within(what: &str, got: &[f32], want: &[f64], bound: impl Fn(f64) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of values");
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= bound(want), "{what}[{i}] is {got}, expected {want}");
    }
}

/// |dp - dp_ref| <= 5e-3 |dp_ref| per tensor, plus half an ulp of every parameter.
fn check_update(layout: &Layout, what: &str, before: &[f64], got: &[f32], want: &[f64]) {
    let step = |after: &[f64]| -> Vec<f64> { after.iter().zip(before).map(|(a, b)| a - b).collect() };
    let errors = tensor_errors(layout, &step(&f64s(got)), &step(want));
    for (error, tensor) in errors.iter().zip(&layout.tensors) {
        let values = &want[tensor.offset..][..tensor.len()];
        let ulp =
            values.iter().map(|p| (p.abs() * f64::from(f32::EPSILON) / 2.0).powi(2)).sum::<f64>().sqrt();
        let bound = 5e-3 * error.norm + ulp;
        assert!(error.difference <= bound, "{what} {}: {:e} > {bound:e}", error.name, error.difference);
    }
}

fn check_first_step<B: Backend>(b: &mut B, golden: &Golden, shape: &StepShape, s: &StepBuffers) -> Outcome {
    let floats = |name: &str| golden.floats(name).unwrap_or_else(|e| panic!("{e}"));
    let rows = shape.batch;
    let q = filled(b, "q", rows * shape.actions, f32::NAN)?;
    let logits = s.online.logits.slice(0, rows * shape.logits);
    b.launch(
        Lane::MAIN,
        &DuelingQ {
            rows: rows as u32,
            branches: shape.branches as u32,
            sizes: shape.sizes,
            atoms: shape.model.atoms as u32,
            stride: shape.logits as u32,
            support: s.support.into(),
            logits: logits.into(),
            q: q.into(),
        },
    )?;
    let q = b.download(q)?;
    let reach = shape.model.v_max.abs().max(shape.model.v_min.abs());
    let mut first = 0;
    for (d, &n) in shape.model.branches.iter().enumerate() {
        let of_branch: Vec<f32> =
            q.chunks_exact(shape.actions).flat_map(|row| row[first..first + n].to_vec()).collect();
        within(&format!("q{d}"), &of_branch, floats(&format!("fwd.q{d}")), |_| 1e-5 * f64::from(reach));
        first += n;
    }
    let relative = |want: f64| 1e-4 * want.abs();
    let floor = |want: f64| 1e-4 * want.abs().max(1e-2);
    within("cross-entropy", &b.download(s.cross_entropy)?, floats("ce_per_branch"), relative);
    within("td", &b.download(s.td_error)?, floats("td_signed_per_branch"), floor);
    let stats = b.download(s.stats)?;
    let column = |c: u32| -> Vec<f32> { stats.chunks_exact(8).map(|row| row[c as usize]).collect() };
    use gpu::kernels::c51_loss::stat;
    within("loss", &column(stat::LOSS), floats("loss_per_sample"), relative);
    within("weighted loss", &column(stat::WEIGHTED_LOSS), floats("weighted_loss_per_sample"), relative);
    within("mean |td|", &column(stat::TD), floats("td_abs_mean"), floor);

    let want = golden.flat(&shape.layout, "grad.main.").unwrap_or_else(|e| panic!("{e}"));
    let got = f64s(&b.download(s.parameters.grad)?);
    let whole = want.iter().map(|g| g * g).sum::<f64>().sqrt();
    for error in tensor_errors(&shape.layout, &got, &want) {
        let bound = 1e-3 * error.norm.max(1e-3 * whole);
        assert!(error.difference <= bound, "gradient {}: {:e} > {bound:e}", error.name, error.difference);
    }
    let norm = b.download(s.history)?[gpu::kernels::step_signals::signal::GRADIENT_NORM as usize];
    within("gradient norm", &[norm], floats("grad_norm"), relative);
    Ok(())
}

fn five_steps<B: Backend>(b: &mut B, matmul: Matmul, clipped: bool) -> Outcome {
    let (golden, problem) = golden();
    let max_norm = if clipped { problem.tight_norm } else { problem.optimizer.max_grad_norm };
    let prefix = if clipped { "clipped." } else { "" };
    let (shape, buffers) = set_up(b, &problem, matmul, max_norm)?;
    for step in 1..=5 {
        record(b, &shape, &buffers, None)?;
        if step == 1 {
            check_first_step(b, &golden, &shape, &buffers)?;
        }
        if step == 1 || step == 5 {
            for (net, buffer, before) in [
                ("online", buffers.parameters.online, &problem.online),
                ("target", buffers.parameters.target, &problem.target),
            ] {
                let name = format!("{prefix}{net}{step}.main.");
                let want = golden.flat(&shape.layout, &name).unwrap_or_else(|e| panic!("{e}"));
                check_update(&shape.layout, &name, before, &b.download(buffer)?, &want);
            }
        }
    }
    let losses = golden.floats(&format!("{prefix}loss_before_step")).unwrap_or_else(|e| panic!("{e}"));
    let history = b.download(buffers.history)?;
    let got: Vec<f32> = history
        .chunks_exact(gpu::kernels::step_signals::signal::COLUMNS as usize)
        .take(5)
        .map(|row| row[0])
        .collect();
    within("loss before each step", &got, &losses[..5], |want| 1e-4 * want.abs());
    Ok(())
}

/// With the Rust products, fused and grouped.
pub fn rust_products<B: Backend>(b: &mut B) -> Outcome {
    five_steps(b, Matmul::Rust, false)
}

/// With one product a launch, branch heads on their own lanes (cuBLASLt on a GPU).
pub fn library_products<B: Backend>(b: &mut B) -> Outcome {
    five_steps(b, Matmul::CublasLt, false)
}

/// With a clip that bites at every step.
pub fn clipped<B: Backend>(b: &mut B) -> Outcome {
    five_steps(b, Matmul::Rust, true)
}
