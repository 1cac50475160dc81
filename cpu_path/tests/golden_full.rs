//! The golden complete steps: an independent float64 program's values against the learner with every part on. T1 has
//! MLP heads and the default budgets; T2 GLU heads, four branches and other settings throughout.

use cpu_path::golden::{FullProblem, Golden, TensorError, golden_name, tensor_errors};
use cpu_path::optimizer::clip_scale;
use cpu_path::terms::Term;
use cpu_path::{Evaluation, Hyper, Learner, Net, Real, Start};
use settings::{Flat, Group};

use crate::support::{assert_within, max_abs, narrow, narrow_batch, widen};

const FILES: [&str; 2] = ["full_t1", "full_t2"];

/// Error allowed between two f64 programs, relative to the largest value of an array.
///
/// Seven layers of sums over at most 32 products, exponentials and logarithms: some hundred roundings of 1.1e-16,
/// with room for their amplification by two softmaxes.
const F64: f64 = 1e-13;

/// Of a gradient, relative to its tensor's norm: sums of values like the above over the batch and the samples.
const F64_GRADIENT: f64 = 1e-12;

/// SPEC section 8: a tensor whose own gradient is smaller than this share of its group's is measured by the group's.
/// (The attention's keys have a bias whose gradient is zero by symmetry, and rounding in any program.)
const FLOOR: f64 = 1e-3;

fn read(file: &str) -> (Golden, FullProblem) {
    let path = format!("{}/../tests/golden/{file}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let golden = Golden::read(path).unwrap();
    let problem = golden.full_problem().unwrap();
    (golden, problem)
}

fn learner<T: Real>(problem: &FullProblem) -> Learner<T> {
    let start = Start {
        online: narrow(&problem.online),
        target: narrow(&problem.target),
        spectral: [narrow(&problem.spectral[0]), narrow(&problem.spectral[1])],
    };
    Learner::with_parts(&problem.shape, &problem.parts, Hyper::from(&problem.optimizer), start).unwrap()
}

/// Name of a group in the files' norms and scales.
fn group_key(group: Group) -> &'static str {
    match group {
        Group::Main => "sum",
        Group::Iqn => "iqn",
        Group::Attention => "att",
        Group::IqlHigh => "iql_hi",
        Group::IqlLow => "iql_lo",
        Group::Mamba | Group::Ensemble | Group::Confidence => unreachable!("the files do not have these"),
    }
}

#[track_caller]
fn assert_array<T: Real>(golden: &Golden, name: &str, got: &[T], relative: f64) {
    let want = golden.floats(name).unwrap();
    assert_within(name, got, want, relative * max_abs(want).max(1.0));
}

/// One of the files' three values per step.
#[track_caller]
fn assert_step(golden: &Golden, name: &str, step: usize, got: f64, relative: f64) {
    let want = golden.floats(name).unwrap()[step];
    let difference = (got - want).abs();
    assert!(difference <= relative * want.abs(), "{name} of step {}: {got}, want {want}", step + 1);
}

fn integers(golden: &Golden, name: &str) -> Vec<u32> {
    golden.integers(name).unwrap().iter().map(|&a| a as u32).collect()
}

/// The learner behind the spectral norm of step 1, where the files' forward values are taken.
fn limited(golden: &Golden, problem: &FullProblem) -> Learner<f64> {
    let mut learner = learner::<f64>(problem);
    let steps = learner.limit_spectrum().unwrap();
    let state = learner.export();
    let split = problem.shape.trunk1;
    for (i, u) in [&state.spectral[..split], &state.spectral[split..]].into_iter().enumerate() {
        let layer = i + 1;
        assert_step(golden, &format!("spectral.sigma{layer}"), 0, steps[i].sigma, F64);
        assert_array(golden, &format!("spectral1.v{layer}"), &steps[i].v, F64);
        assert_array(golden, &format!("spectral1.u{layer}"), u, F64);
        let t = problem.flat.find(&format!("trunk{layer}.weight")).unwrap();
        let weight = &state.online[t.offset..t.offset + t.len()];
        assert_array(golden, &format!("normed.main.trunk{layer}.weight"), weight, F64);
        let limited = weight != &problem.online[t.offset..t.offset + t.len()];
        assert_eq!(limited, steps[i].sigma > f64::from(problem.parts.spectral.sigma_max), "trunk{layer}");
    }
    learner
}

#[test]
fn spectral_norm_and_every_forward_value_in_f64() {
    for file in FILES {
        let (golden, problem) = read(file);
        let learner = limited(&golden, &problem);
        let batch = &problem.batch;
        let passes = [
            ("fwd", Net::Online, &batch.states),
            ("next_online", Net::Online, &batch.next_states),
            ("next_target", Net::Target, &batch.next_states),
            ("target_s", Net::Target, &batch.states),
        ];
        for (prefix, net, states) in passes {
            let got = learner.activations(net, states).unwrap();
            assert_array(&golden, &format!("{prefix}.h2"), &got.h2, F64);
            assert_array(&golden, &format!("{prefix}.att_o"), &got.attention_output, F64);
            assert_array(&golden, &format!("{prefix}.h2p"), &got.features, F64);
            assert!(got.features != got.h2, "the gate is open here");
            for d in 0..problem.shape.branches.len() {
                assert_array(&golden, &format!("{prefix}.q{d}"), &got.q[d], F64);
                if prefix == "fwd" {
                    assert_array(&golden, &format!("fwd.adv{d}"), &got.advantages[d], F64);
                    assert_array(&golden, &format!("fwd.logits{d}"), &got.logits[d], F64);
                }
                if prefix == "fwd" || prefix == "next_target" {
                    assert_array(&golden, &format!("{prefix}.probs{d}"), &got.probabilities[d], F64);
                }
            }
            if prefix == "fwd" {
                assert_array(&golden, "fwd.h1", &got.h1, F64);
                assert_array(&golden, "fwd.att_probs", &got.attention_probabilities, F64);
                assert_array(&golden, "fwd.value", &got.value, F64);
            }
        }
    }
}

#[test]
fn every_loss_value_in_f64() {
    for file in FILES {
        let (golden, problem) = read(file);
        let e = limited(&golden, &problem).evaluate(&problem.batch).unwrap();
        assert_eq!(e.next_actions, integers(&golden, "next_actions"));
        assert_array(&golden, "projected_target", &e.target_mass, F64);
        assert_array(&golden, "clipped_mass_low", &e.clipped_low, F64);
        assert_array(&golden, "clipped_mass_high", &e.clipped_high, F64);
        assert_array(&golden, "ce_per_branch", &e.cross_entropy_per_branch, F64);
        assert_array(&golden, "per.c51", &e.cross_entropy, F64);
        assert_array(&golden, "td_signed_per_branch", &e.td_per_branch, F64);
        assert_array(&golden, "td_abs_mean", &e.td, F64);

        let cql = e.cql.as_ref().unwrap();
        assert_array(&golden, "cql_per_branch", &cql.per_branch, F64);
        assert_array(&golden, "per.cql", &cql.per_sample, F64);

        let iqn = e.iqn.as_ref().unwrap();
        assert_array(&golden, "iqn.quantiles", &side_by_side(&iqn.quantiles, &problem), F64);
        let target = side_by_side(&iqn.target_quantiles, &problem);
        assert_array(&golden, "iqn.target_quantiles", &target, F64);
        assert_eq!(iqn.next_actions, integers(&golden, "iqn.next_actions"));
        assert_array(&golden, "iqn.targets", &iqn.targets, F64);
        assert_array(&golden, "iqn.theta", &iqn.taken, F64);
        assert_array(&golden, "iqn_per_branch", &iqn.per_branch, F64);
        assert_array(&golden, "per.iqn", &iqn.per_sample, F64);

        let iql = e.iql.as_ref().unwrap();
        assert_array(&golden, "iql.q_target_per_branch", &iql.q_per_branch, F64);
        assert_array(&golden, "iql.q_target", &iql.q, F64);
        assert_array(&golden, "iql.v_high", &iql.high, F64);
        assert_array(&golden, "iql.v_low", &iql.low, F64);
        assert_array(&golden, "per.iql_hi", &iql.high_per_sample, F64);
        assert_array(&golden, "per.iql_lo", &iql.low_per_sample, F64);
        let derived = &iql.derived;
        assert_array(&golden, "iql.advantage", &derived.advantages, F64);
        assert_array(&golden, "iql.advantage_per_branch", &derived.advantages_per_branch, F64);
        assert_array(&golden, "iql.advantage_weights", &derived.weights, F64);
        assert_array(&golden, "iql.branch_scales", &derived.branch_scales, F64);
        assert_array(&golden, "iql.gap", &[derived.gap], F64);

        let losses = [
            ("c51", e.loss),
            ("cql", cql.loss),
            ("iqn", iqn.loss),
            ("iql_hi", iql.high_loss),
            ("iql_lo", iql.low_loss),
        ];
        for (name, loss) in losses {
            assert_step(&golden, &format!("loss.{name}"), 0, loss, F64);
        }
    }
}

/// Quantiles of all branches as the files have them: [batch, samples, sum n_d].
fn side_by_side(quantiles: &[Vec<f64>], problem: &FullProblem) -> Vec<f64> {
    let branches = &problem.shape.branches;
    let rows = quantiles[0].len() / branches[0];
    let row = |r: usize| quantiles.iter().zip(branches).flat_map(move |(q, &n)| &q[r * n..(r + 1) * n]);
    (0..rows).flat_map(row).copied().collect()
}

/// Asserts each tensor within `relative` of max(its norm, FLOOR of the group's norm).
#[track_caller]
fn assert_tensors(what: &str, errors: &[TensorError], relative: f64) {
    let group = errors.iter().map(|e| e.norm * e.norm).sum::<f64>().sqrt();
    for e in errors {
        let bound = relative * e.norm.max(FLOOR * group);
        assert!(e.difference <= bound, "{what}: {e:?}, bound {bound:e}");
    }
}

fn assert_gradients<T: Real>(golden: &Golden, problem: &FullProblem, e: &Evaluation<T>, relative: f64) {
    let main = &problem.flat.segment(Group::Main).unwrap().layout;
    let terms: Vec<Term> = e.terms.iter().map(|t| t.term).collect();
    assert_eq!(terms, [Term::C51, Term::Cql, Term::Iqn]);
    for (t, key) in e.terms.iter().zip(["c51", "cql", "iqn"]) {
        let prefix = format!("grad.{key}.main.");
        let want = if t.term == Term::Iqn {
            trunk(golden, problem, &prefix)
        } else {
            golden.flat(main, &prefix).unwrap()
        };
        assert_tensors(&prefix, &tensor_errors(main, &widen(&t.gradient), &want), relative);
        assert_step(golden, &format!("norm.{}", t.term.name()), 0, t.norm, relative);
        assert_step(golden, &format!("scale.{}", t.term.name()), 0, t.scale, relative);
    }
    let groups: Vec<Group> = e.own.iter().map(|g| g.group).collect();
    assert_eq!(groups, [Group::Iqn, Group::Attention, Group::IqlHigh, Group::IqlLow]);
    for own in &e.own {
        let layout = &problem.flat.segment(own.group).unwrap().layout;
        let want = golden.flat(layout, "grad.own.").unwrap();
        assert_tensors("grad.own", &tensor_errors(layout, &widen(&own.gradient), &want), relative);
        assert_step(golden, &format!("norm.{}", group_key(own.group)), 0, own.norm, relative);
        assert_step(golden, &format!("scale.{}", group_key(own.group)), 0, own.scale, relative);
    }
    assert_step(golden, "norm.sum", 0, e.gradient_norm, relative);
    let scale = clip_scale(e.gradient_norm, Hyper::from(&problem.optimizer).max_grad_norm);
    assert_step(golden, "scale.sum", 0, scale, relative);
    let total: Vec<f64> = e.gradient.iter().map(|g| scale * g.to_f64()).collect();
    let want = golden.flat(main, "total.main.").unwrap();
    assert_tensors("total", &tensor_errors(main, &total, &want), relative);
}

/// The trunk's gradient in the main layout; the rest is zero, as the quantile loss leaves it.
fn trunk(golden: &Golden, problem: &FullProblem, prefix: &str) -> Vec<f64> {
    let main = &problem.flat.segment(Group::Main).unwrap().layout;
    let mut flat = vec![0.0; main.len];
    for t in main.tensors.iter().filter(|t| t.name.starts_with("trunk")) {
        let values = golden.floats(&format!("{prefix}{}", t.name)).unwrap();
        flat[t.offset..t.offset + t.len()].copy_from_slice(values);
    }
    flat
}

#[test]
fn gradients_of_every_term_and_group_with_norms_and_scales_in_f64() {
    for file in FILES {
        let (golden, problem) = read(file);
        let e = limited(&golden, &problem).evaluate(&problem.batch).unwrap();
        assert_gradients(&golden, &problem, &e, F64_GRADIENT);
        // The files' scales are not all 1: some budget and some clip is at work.
        assert!(e.terms.iter().any(|t| t.scale < 1.0) && e.own.iter().any(|g| g.scale < 1.0), "{file}");
    }
}

/// SPEC section 8, fp32: Q within 1e-5 max|z|; losses 1e-4 relative; gradients 1e-3 of their norm.
#[test]
fn the_same_in_f32_within_the_stated_accuracy() {
    for file in FILES {
        let (golden, problem) = read(file);
        let mut learner = learner::<f32>(&problem);
        learner.limit_spectrum().unwrap();
        let batch = narrow_batch::<f32>(&problem.batch);
        let max_z = max_abs(golden.floats("in.support").unwrap());
        let got = learner.activations(Net::Online, &batch.states).unwrap();
        for (d, q) in got.q.iter().enumerate() {
            assert_array(&golden, &format!("fwd.q{d}"), q, 1e-5 * max_z / max_z.max(1.0));
        }
        let e = learner.evaluate(&batch).unwrap();
        assert_eq!(e.next_actions, integers(&golden, "next_actions"));
        let (cql, iqn, iql) = (e.cql.as_ref().unwrap(), e.iqn.as_ref().unwrap(), e.iql.as_ref().unwrap());
        assert_eq!(iqn.next_actions, integers(&golden, "iqn.next_actions"));
        for (name, got) in [
            ("per.c51", &e.cross_entropy),
            ("per.cql", &cql.per_sample),
            ("per.iqn", &iqn.per_sample),
            ("per.iql_hi", &iql.high_per_sample),
            ("per.iql_lo", &iql.low_per_sample),
        ] {
            // The expectile losses are squares of differences of values of size max|z|: near zero their error is that
            // of the difference, 1e-6 max|z|, squared, or times the difference.
            for (g, w) in got.iter().zip(golden.floats(name).unwrap()) {
                let absolute = if name.contains("iql") { 1e-6 * max_z * w.sqrt() } else { 0.0 };
                assert!((f64::from(*g) - w).abs() <= 1e-4 * w + absolute, "{file} {name}: {g}, want {w}");
            }
        }
        assert_gradients(&golden, &problem, &e, 1e-3);
    }
}

/// Bounds of a run of three steps.
struct RunBounds {
    /// Losses, norms, sigmas, relative.
    scalars: f64,
    /// Gradients, relative to max(their tensor's norm, FLOOR of the group's).
    gradients: f64,
    /// Updates, relative to the norm of the reference, per tensor.
    updates: f64,
    /// Half an ulp of 1.
    rounding: f64,
}

/// Twenty times the bound of one evaluation's gradient: three of them follow each other.
const F64_RUN: RunBounds =
    RunBounds { scalars: 1e-12, gradients: 1e-12, updates: 2e-11, rounding: f64::EPSILON / 2.0 };
/// SPEC section 8.
const F32_RUN: RunBounds =
    RunBounds { scalars: 1e-4, gradients: 1e-3, updates: 5e-3, rounding: f32::EPSILON as f64 / 2.0 };

fn assert_run<T: Real>(file: &str, bounds: &RunBounds) {
    let (golden, problem) = read(file);
    let (mut learner, batch) = (learner::<T>(&problem), narrow_batch::<T>(&problem.batch));
    let names = |key: &str| match key {
        "iql_high" => "iql_hi".to_string(),
        "iql_low" => "iql_lo".to_string(),
        "attention" => "att".to_string(),
        other => other.to_string(),
    };
    for step in 0..3 {
        let metrics = learner.train_step(&batch).unwrap();
        assert!(!metrics.skipped);
        assert_step(&golden, "loss.c51", step, metrics.loss, bounds.scalars);
        assert_step(&golden, "norm.sum", step, metrics.grad_norm, bounds.scalars);
        assert_eq!((metrics.losses.len(), metrics.norms.len(), metrics.sigmas.len()), (4, 7, 2));
        for (name, loss) in metrics.losses {
            assert_step(&golden, &format!("loss.{}", names(name)), step, loss, bounds.scalars);
        }
        for (name, norm) in metrics.norms {
            assert_step(&golden, &format!("norm.{}", names(name)), step, norm, bounds.scalars);
        }
        for (i, sigma) in metrics.sigmas.into_iter().enumerate() {
            assert_step(&golden, &format!("spectral.sigma{}", i + 1), step, sigma, bounds.scalars);
        }
        if step == 0 || step == 2 {
            assert_state(&golden, &problem, &learner, step + 1, bounds);
        }
    }
}

fn assert_state<T: Real>(
    golden: &Golden,
    problem: &FullProblem,
    learner: &Learner<T>,
    step: usize,
    bounds: &RunBounds,
) {
    let state = learner.export();
    assert_eq!(state.step, step as u64);
    let (u1, u2) = state.spectral.split_at(problem.shape.trunk1);
    assert_array(golden, &format!("spectral{step}.u1"), u1, bounds.scalars);
    assert_array(golden, &format!("spectral{step}.u2"), u2, bounds.scalars);
    let hyper = Hyper::from(&problem.optimizer);
    for (name, got, start) in
        [("online", &state.online, &problem.online), ("target", &state.target, &problem.target)]
    {
        let flat: &Flat = &problem.flat;
        for segment in flat.segments.iter().filter(|s| name == "online" || s.group.has_target()) {
            let range = segment.offset..segment.offset + segment.len;
            let (start, got) = (&start[range.clone()], widen(&got[range]));
            let prefix = format!("{name}{step}.{}", golden_name(segment.group, ""));
            let want = golden.flat(&segment.layout, &prefix).unwrap();
            let update = |now: &[f64]| now.iter().zip(start).map(|(a, b)| a - b).collect::<Vec<f64>>();
            let errors = tensor_errors(&segment.layout, &update(&got), &update(&want));
            let sizes = tensor_errors(&segment.layout, start, start);
            // A gradient that is rounding only moves a parameter by at most lr / eps times itself.
            let noise = hyper.lr / hyper.eps * bounds.gradients * FLOOR * hyper.max_grad_norm;
            for (e, size) in errors.iter().zip(&sizes) {
                // Each step rounds the stored parameter once.
                let bound = bounds.updates * e.norm + step as f64 * (bounds.rounding * size.norm + noise);
                assert!(e.difference <= bound, "{prefix} after step {step}: {e:?}, bound {bound:e}");
            }
        }
    }
}

#[test]
fn parameters_targets_norms_and_losses_of_three_steps_in_f64() {
    FILES.iter().for_each(|file| assert_run::<f64>(file, &F64_RUN));
}

#[test]
fn parameters_targets_norms_and_losses_of_three_steps_in_f32() {
    FILES.iter().for_each(|file| assert_run::<f32>(file, &F32_RUN));
}
