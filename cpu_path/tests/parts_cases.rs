//! Collected pitfalls of the quantile loss, the expectile loss, the conservative term, spectral norm and attention.

use candle_core::{Device, Tensor, Var};
use cpu_path::Real;
use cpu_path::attention::attend;
use cpu_path::c51::{per_sample, weighted_mean};
use cpu_path::cql::penalty;
use cpu_path::iql::expectile;
use cpu_path::iqn::quantile_huber;
use cpu_path::spectral::{limit, power_iteration};
use serde_json::Value;

use crate::support::{Case, narrow, number, numbers, widen};

fn variable<T: Real>(values: &Value, shape: &[usize]) -> Var {
    Var::from_vec(narrow::<T>(&numbers(values)), shape, &Device::Cpu).unwrap()
}

fn constant<T: Real>(values: &Value, shape: &[usize]) -> Tensor {
    Tensor::from_vec(narrow::<T>(&numbers(values)), shape, &Device::Cpu).unwrap()
}

fn flat<T: Real>(tensor: &Tensor) -> Vec<T> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// d(sum of the loss's elements)/d(variable).
fn gradient<T: Real>(loss: &Tensor, variable: &Var) -> Vec<T> {
    flat(loss.sum_all().unwrap().backward().unwrap().get(variable).unwrap())
}

fn quantile_axes<T: Real>() {
    let case = Case::read("C12");
    let theta = variable::<T>(case.input("theta_online[b][i]"), &[2, 1, 3]);
    let taus = constant::<T>(case.input("tau_online[b][i]"), &[2, 3]);
    let targets = constant::<T>(case.input("target[b][j]"), &[2, 1, 4]);
    let weights = constant::<T>(case.input("is_weights"), &[2]);
    let loss = quantile_huber(&theta, &taus, &targets, number(case.input("kappa"))).unwrap();
    let unweighted = per_sample(&loss).unwrap();
    let wrong = [case.known_wrong("mean_over_both"), case.known_wrong("sum_over_targets_mean_over_online")];
    case.assert_values("per sample", &flat::<T>(&unweighted), case.expected("per_sample"), &wrong);
    let loss = weighted_mean(&unweighted, &weights).unwrap();
    case.assert_values("loss", &flat::<T>(&loss), case.expected("loss"), &[]);
    case.assert_values("gradient", &gradient::<T>(&loss, &theta), case.expected("dL_dtheta"), &[]);
}

#[test]
fn c12_sum_over_online_samples_mean_over_target_samples() {
    quantile_axes::<f64>();
    quantile_axes::<f32>();
}

fn kappa_other_than_one<T: Real>() {
    let case = Case::read("C14");
    for kappa in numbers(case.input("kappas")) {
        let key = format!("{kappa:?}");
        let theta = variable::<T>(case.input("theta_online"), &[1, 1, 3]);
        let taus = constant::<T>(case.input("tau_online"), &[1, 3]);
        let targets = constant::<T>(case.input("target"), &[1, 1, 4]);
        let loss = quantile_huber(&theta, &taus, &targets, kappa).unwrap();
        let expected = &case.expected("by_kappa")[&key];
        let wrong = &case.known_wrong("no_division")[&key];
        let wrong: &[&Value] = if kappa == 1.0 { &[] } else { &[wrong] };
        case.assert_values(&format!("loss, kappa {key}"), &flat::<T>(&loss), &expected["loss"], wrong);
        case.assert_values("gradient", &gradient::<T>(&loss, &theta), &expected["dL_dtheta"], &[]);
    }
}

#[test]
fn c14_the_huber_loss_is_divided_by_kappa() {
    kappa_other_than_one::<f64>();
    kappa_other_than_one::<f32>();
}

fn expectile_sides<T: Real>() {
    let case = Case::read("C16");
    let q = constant::<T>(case.input("Q"), &[4]);
    for tau in numbers(case.input("expectiles")) {
        let v = variable::<T>(case.input("V"), &[4]);
        let loss = expectile(&q, &v, tau).unwrap().mean(0).unwrap();
        let expected = &case.expected("by_tau")[format!("{tau:?}")];
        let swapped = case.known_wrong("u_is_V_minus_Q_tau0.9");
        let wrong: &[&Value] = if tau == 0.9 { &[swapped] } else { &[] };
        case.assert_values(&format!("loss, tau {tau}"), &flat::<T>(&loss), &expected["loss"], wrong);
        case.assert_values("gradient", &gradient::<T>(&loss, &v), &expected["dL_dV"], &[]);
    }
}

#[test]
fn c16_the_expectile_weighs_q_above_v() {
    expectile_sides::<f64>();
    expectile_sides::<f32>();
}

fn penalties_of_large_values<T: Real>() {
    let case = Case::read("C18");
    let q = variable::<T>(case.input("Q"), &[4, 3]);
    let taken: Vec<u32> = numbers(case.input("taken")).iter().map(|&a| a as u32).collect();
    let loss = penalty(&q, &taken).unwrap();
    let (values, gradient) = (flat::<T>(&loss), gradient::<T>(&loss, &q));
    case.assert_values("penalty", &values, case.expected("penalty"), &[]);
    case.assert_values("gradient", &gradient, case.expected("dpenalty_dQ"), &[]);
    assert!(values.iter().all(|p| p.to_f64() >= 0.0) && gradient.iter().all(|g| g.is_finite()));
    // Formed as a difference of centred values the penalty does not cancel: far inside the case's tolerance.
    assert!((values[0].to_f64() - number(&case.expected("penalty")[0])).abs() < 1e-6);
}

#[test]
fn c18_the_conservative_term_of_values_beyond_the_range_of_exp() {
    penalties_of_large_values::<f64>();
    penalties_of_large_values::<f32>();
}

fn power_iterations<T: Real>() {
    let case = Case::read("C42");
    let weight = narrow::<T>(&numbers(case.input("W")));
    let mut u = narrow::<T>(&numbers(case.input("u0")));
    let wanted = numbers(case.input("iterations"));
    for i in 1..=30 {
        let step = power_iteration(&weight, 2, &mut u);
        if wanted.contains(&f64::from(i)) {
            let expected = &case.expected("by_iterations")[i.to_string()];
            let wrong = case.known_wrong("sigma_with_old_u");
            case.assert_values("sigma", &[step.sigma], &expected["sigma"], &[wrong]);
            case.assert_values("v", &step.v, &expected["v"], &[]);
            case.assert_values("u", &u, &expected["u"], &[]);
        }
    }
    // Once the iteration has converged, the largest singular value of the scaled matrix is the limit.
    let mut scaled = weight.clone();
    limit(&mut scaled, power_iteration(&weight, 2, &mut u).sigma, 1.5);
    assert!(case.close(&[power_iteration(&scaled, 2, &mut u).sigma], &[1.5]));
    assert!(case.close(&[power_iteration(&weight, 2, &mut u).sigma], &numbers(case.expected("sigma_true"))));
}

#[test]
fn c42_sigma_comes_from_the_fresh_vectors_and_they_persist() {
    power_iterations::<f64>();
    power_iterations::<f32>();
}

/// The case masks keys; here a query is given the keys that it may see. A query that may see none has no place in this
/// program: states without a window are refused with attention (`settings` tests that), so only the other rows remain.
fn queries_see_their_own_keys_only<T: Real>() {
    let case = Case::read("C44");
    let of = |key: &str| variable::<T>(case.input(key), &[3, 4]);
    let (q, k, v) = (of("q"), of("k"), of("v"));
    let grad_out = constant::<T>(case.input("grad_out"), &[3, 4]);
    let blocked = numbers(case.input("mask(1=blocked)"));
    assert_eq!(number(case.input("scale")), 1.0 / 4.0_f64.sqrt());
    let mut total = Tensor::zeros((), T::DTYPE, &Device::Cpu).unwrap();
    for row in 0..3 {
        let seen = blocked[row * 3..][..3].iter().filter(|b| **b == 0.0).count();
        if seen == 0 {
            assert!(numbers(&case.expected("out")[row]).iter().all(|x| *x == 0.0));
            continue;
        }
        let keys = |x: &Var| x.narrow(0, 0, seen).unwrap().reshape((1, 1, seen, 4)).unwrap();
        let query = q.narrow(0, row, 1).unwrap().reshape((1, 1, 4)).unwrap();
        let (probabilities, out) = attend(&query, &keys(&k), &keys(&v)).unwrap();
        let padded = [widen(&flat::<T>(&probabilities)), vec![0.0; 3 - seen]].concat();
        case.assert_values("probabilities", &padded, &case.expected("probs")[row], &[]);
        case.assert_values("out", &flat::<T>(&out), &case.expected("out")[row], &[]);
        let share = (out.reshape((1, 4)).unwrap() * grad_out.narrow(0, row, 1).unwrap()).unwrap();
        total = (total + share.sum_all().unwrap()).unwrap();
    }
    let grads = total.backward().unwrap();
    for (name, variable) in [("dq", &q), ("dk", &k), ("dv", &v)] {
        case.assert_values(name, &flat::<T>(grads.get(variable).unwrap()), case.expected(name), &[]);
    }
}

#[test]
fn c44_attention_over_the_keys_that_a_query_may_see() {
    queries_see_their_own_keys_only::<f64>();
    queries_see_their_own_keys_only::<f32>();
}
