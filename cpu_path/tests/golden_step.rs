//! The golden training step: an independent float64 program's values against the learner in f64 and in f32.

use cpu_path::golden::{Golden, StepProblem, tensor_errors};
use cpu_path::{Evaluation, Hyper, Learner, Net, Real};
use settings::Layout;

use crate::support::{assert_within, golden_step, learner, max_abs, narrow_batch, widen};

/// Error allowed between two f64 programs, relative to the largest value of an array.
///
/// Five layers of sums over at most 32 products, exponentials and logarithms: some hundred roundings of 1.1e-16,
/// with room for their amplification by the softmax.
const F64: f64 = 1e-13;

fn assert_array<T: Real>(golden: &Golden, name: &str, got: &[T], relative: f64) {
    let want = golden.floats(name).unwrap();
    assert_within(name, got, want, relative * max_abs(want).max(1.0));
}

#[test]
fn every_forward_value_in_f64() {
    let (golden, problem) = golden_step();
    let learner = learner::<f64>(&problem, &Hyper::from(&problem.optimizer));
    let online = learner.activations(Net::Online, &problem.batch.states).unwrap();
    assert_array(&golden, "fwd.h1", &online.h1, F64);
    assert_array(&golden, "fwd.h2", &online.h2, F64);
    assert_array(&golden, "fwd.value", &online.value, F64);
    let next_online = learner.activations(Net::Online, &problem.batch.next_states).unwrap();
    let next_target = learner.activations(Net::Target, &problem.batch.next_states).unwrap();
    for d in 0..problem.shape.branches.len() {
        assert_array(&golden, &format!("fwd.adv{d}"), &online.advantages[d], F64);
        assert_array(&golden, &format!("fwd.logits{d}"), &online.logits[d], F64);
        assert_array(&golden, &format!("fwd.probs{d}"), &online.probabilities[d], F64);
        assert_array(&golden, &format!("fwd.q{d}"), &online.q[d], F64);
        assert_array(&golden, &format!("next_online.q{d}"), &next_online.q[d], F64);
        assert_array(&golden, &format!("next_target.probs{d}"), &next_target.probabilities[d], F64);
        assert_array(&golden, &format!("next_target.q{d}"), &next_target.q[d], F64);
    }
}

fn next_actions(golden: &Golden) -> Vec<u32> {
    golden.integers("next_actions").unwrap().iter().map(|&a| a as u32).collect()
}

#[test]
fn every_loss_value_and_gradient_in_f64() {
    let (golden, problem) = golden_step();
    let e = learner::<f64>(&problem, &Hyper::from(&problem.optimizer)).evaluate(&problem.batch).unwrap();
    assert_eq!(e.next_actions, next_actions(&golden));
    assert_array(&golden, "projected_target", &e.target_mass, F64);
    assert_array(&golden, "log_probs_taken", &e.log_probabilities, F64);
    assert_array(&golden, "ce_per_branch", &e.cross_entropy_per_branch, F64);
    assert_array(&golden, "loss_per_sample", &e.cross_entropy, F64);
    let weighted: Vec<f64> = e.cross_entropy.iter().zip(&problem.batch.weights).map(|(l, w)| l * w).collect();
    assert_array(&golden, "weighted_loss_per_sample", &weighted, F64);
    assert_array(&golden, "td_signed_per_branch", &e.td_per_branch, F64);
    assert_array(&golden, "td_abs_mean", &e.td, F64);
    assert_array(&golden, "loss", &[e.loss], F64);
    assert_array(&golden, "grad_norm", &[e.gradient_norm], F64);
    assert_gradients(&golden, &problem, &e, 1e-12, 0.0);
}

/// Each tensor within `relative` of max(its norm, `floor` of the whole gradient's norm).
fn assert_gradients<T: Real>(
    golden: &Golden,
    problem: &StepProblem,
    e: &Evaluation<T>,
    relative: f64,
    floor: f64,
) {
    let layout = Layout::main(&problem.shape);
    let want = golden.flat(&layout, "grad.main.").unwrap();
    let floor = floor * want.iter().map(|g| g * g).sum::<f64>().sqrt();
    for t in tensor_errors(&layout, &widen(&e.gradient), &want) {
        assert!(t.difference <= relative * t.norm.max(floor), "gradient of {}: {t:?}", t.name);
    }
}

/// SPEC section 8, fp32: Q within 1e-5 max|z|; loss and td 1e-4 relative; gradients 1e-3 of their norm.
#[test]
fn the_same_in_f32_within_the_stated_accuracy() {
    let (golden, problem) = golden_step();
    let learner = learner::<f32>(&problem, &Hyper::from(&problem.optimizer));
    let batch = narrow_batch::<f32>(&problem.batch);
    let max_z = max_abs(golden.floats("in.support").unwrap());
    for (prefix, net, states) in [
        ("fwd", Net::Online, &batch.states),
        ("next_online", Net::Online, &batch.next_states),
        ("next_target", Net::Target, &batch.next_states),
    ] {
        let values = learner.activations(net, states).unwrap();
        for (d, q) in values.q.iter().enumerate() {
            let name = format!("{prefix}.q{d}");
            assert_within(&name, q, golden.floats(&name).unwrap(), 1e-5 * max_z);
        }
    }
    let e = learner.evaluate(&batch).unwrap();
    assert_eq!(e.next_actions, next_actions(&golden));
    // td is a difference of two expectations of size max|z|, so its error scales with that where it is small.
    for (name, got, absolute) in [
        ("loss_per_sample", &e.cross_entropy, 0.0),
        ("td_abs_mean", &e.td, 1e-6 * max_z),
        ("loss", &vec![e.loss], 0.0),
    ] {
        for (g, w) in got.iter().zip(golden.floats(name).unwrap()) {
            assert!((f64::from(*g) - w).abs() <= 1e-4 * w.abs() + absolute, "{name}: {g}, want {w}");
        }
    }
    assert_gradients(&golden, &problem, &e, 1e-3, 1e-3);
}

/// Bounds of a run of several steps.
struct RunBounds {
    /// Loss and gradient norm, relative.
    scalars: f64,
    /// Updates and moments, relative to the norm of the reference, per tensor.
    updates: f64,
    /// Half an ulp of 1.
    rounding: f64,
}

/// Runs five steps and compares everything after one and after five; `prefix` is empty or `clipped.`.
fn assert_run<T: Real>(prefix: &str, bounds: &RunBounds) {
    let (golden, problem) = golden_step();
    let mut hyper = Hyper::from(&problem.optimizer);
    if prefix == "clipped." {
        hyper.max_grad_norm = cpu_path::decimal(problem.tight_norm);
    }
    let (mut learner, batch) = (learner::<T>(&problem, &hyper), narrow_batch::<T>(&problem.batch));
    let losses = golden.floats(&format!("{prefix}loss_before_step")).unwrap();
    let norms = golden.floats(&format!("{prefix}grad_norm_per_step")).unwrap();
    let layout = Layout::main(&problem.shape);
    for step in 1..=5 {
        let metrics = learner.train_step(&batch).unwrap();
        assert!(!metrics.skipped);
        assert_within("loss", &[metrics.loss], &losses[step - 1..step], bounds.scalars * losses[step - 1]);
        assert_within("norm", &[metrics.grad_norm], &norms[step - 1..step], bounds.scalars * norms[step - 1]);
        if step == 1 || step == 5 {
            assert_state(&golden, &problem, &layout, &learner, prefix, step, bounds);
        }
    }
    let last = learner.evaluate(&batch).unwrap().loss.to_f64();
    assert_within("loss after 5 steps", &[last], &losses[5..], bounds.scalars * losses[5]);
}

fn assert_state<T: Real>(
    golden: &Golden,
    problem: &StepProblem,
    layout: &Layout,
    learner: &Learner<T>,
    prefix: &str,
    step: usize,
    bounds: &RunBounds,
) {
    let state = learner.export();
    assert_eq!(state.step, step as u64);
    let update = |now: &[f64], start: &[f64]| now.iter().zip(start).map(|(a, b)| a - b).collect::<Vec<f64>>();
    for (name, got, start) in
        [("online", &state.online, &problem.online), ("target", &state.target, &problem.target)]
    {
        let want = golden.flat(layout, &format!("{prefix}{name}{step}.main.")).unwrap();
        let errors = tensor_errors(layout, &update(&widen(got), start), &update(&want, start));
        let sizes = tensor_errors(layout, start, start);
        for (e, size) in errors.iter().zip(&sizes) {
            // Each step rounds the stored parameter once.
            let bound = bounds.updates * e.norm + step as f64 * bounds.rounding * size.norm;
            assert!(e.difference <= bound, "{prefix}{name} after step {step}: {e:?}, bound {bound:e}");
        }
    }
    for (name, got) in [("adam_m", &state.m), ("adam_v", &state.v)] {
        let want = golden.flat(layout, &format!("{prefix}{name}{step}.main.")).unwrap();
        for e in tensor_errors(layout, &widen(got), &want) {
            assert!(e.difference <= bounds.updates * e.norm, "{prefix}{name} after step {step}: {e:?}");
        }
    }
}

/// Twenty times the bound of one evaluation's gradient: five of them follow each other.
const F64_RUN: RunBounds = RunBounds { scalars: 1e-12, updates: 2e-11, rounding: f64::EPSILON / 2.0 };
/// SPEC section 8.
const F32_RUN: RunBounds = RunBounds { scalars: 1e-4, updates: 5e-3, rounding: f32::EPSILON as f64 / 2.0 };

#[test]
fn updates_after_one_and_five_steps_in_f64() {
    assert_run::<f64>("", &F64_RUN);
}

#[test]
fn updates_after_one_and_five_clipped_steps_in_f64() {
    assert_run::<f64>("clipped.", &F64_RUN);
}

#[test]
fn updates_after_one_and_five_steps_in_f32() {
    assert_run::<f32>("", &F32_RUN);
}

#[test]
fn updates_after_one_and_five_clipped_steps_in_f32() {
    assert_run::<f32>("clipped.", &F32_RUN);
}

/// SPEC section 8: after 100 steps the f32 update is within 2e-2 of the oracle's, per tensor.
#[test]
fn a_hundred_f32_steps_stay_near_the_oracle() {
    let (_, problem) = golden_step();
    let hyper = Hyper::from(&problem.optimizer);
    let (mut oracle, mut fast) = (learner::<f64>(&problem, &hyper), learner::<f32>(&problem, &hyper));
    let batch = narrow_batch::<f32>(&problem.batch);
    for _ in 0..100 {
        oracle.train_step(&problem.batch).unwrap();
        fast.train_step(&batch).unwrap();
    }
    let update = |now: Vec<f64>| now.iter().zip(&problem.online).map(|(a, b)| a - b).collect::<Vec<f64>>();
    let (want, got) = (update(oracle.export().online), update(widen(&fast.export().online)));
    for e in tensor_errors(oracle.layout(), &got, &want) {
        assert!(e.difference <= 2e-2 * e.norm, "{e:?}");
    }
}

#[test]
fn a_wrong_prefix_or_type_is_a_clear_error() {
    let (golden, problem) = golden_step();
    let missing = golden.flat(&Layout::main(&problem.shape), "online9.main.").unwrap_err().to_string();
    assert!(
        missing.ends_with("step.safetensors: no array is called online9.main.trunk1.weight"),
        "{missing}"
    );
    assert!(golden.floats("in.actions").unwrap_err().to_string().contains("in.actions is I64"));
    assert_eq!(golden.meta()["seed"], 2024);
    assert!(golden.names().any(|name| name == "loss"));
    assert_eq!(golden.shape("in.states").unwrap(), [16, problem.shape.state]);
}
