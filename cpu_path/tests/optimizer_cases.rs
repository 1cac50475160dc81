//! Collected pitfalls of Adam, clipping and the moving average.

use cpu_path::optimizer::{Adam, clip_scale, ema, norm};
use cpu_path::{Hyper, Real};
use serde_json::Value;

use crate::support::{Case, narrow, number, numbers, widen};

fn hyper(case: &Case) -> Hyper {
    let betas = numbers(case.input("betas"));
    let decay = case.input("weight_decay(adamw)").as_f64().unwrap_or(0.0);
    Hyper {
        lr: case.input("lr").as_f64().unwrap_or(f64::NAN),
        beta1: betas[0],
        beta2: betas[1],
        eps: number(case.input("eps")),
        weight_decay: decay,
        max_grad_norm: f64::MAX,
        tau: 0.0,
        schedule: Default::default(),
    }
}

fn gradients<T: Real>(case: &Case) -> Vec<Vec<T>> {
    case.input("grads_per_step").as_array().unwrap().iter().map(|g| narrow(&numbers(g))).collect()
}

fn eps_outside_the_root<T: Real>() {
    let case = Case::read("C36");
    let (hyper, mut p) = (hyper(&case), narrow::<T>(&numbers(case.input("p0"))));
    let mut adam = Adam::new(p.len());
    let mut all = Vec::new();
    for (i, gradient) in gradients::<T>(&case).iter().enumerate() {
        adam.update(&hyper, i as u64 + 1, gradient, 1.0, &mut p);
        all.extend(widen(&p));
    }
    let wrong = [case.known_wrong("eps_before_bias_correction"), case.known_wrong("eps_inside_sqrt")];
    case.assert_values("p", &all, case.expected("p_after_each_step"), &wrong);
}

#[test]
fn c36_eps_is_added_outside_the_root_after_bias_correction() {
    eps_outside_the_root::<f64>();
    eps_outside_the_root::<f32>();
}

#[test]
fn c38_one_norm_over_all_tensors() {
    let case = Case::read("C38");
    let flat = |value: &Value| ["a", "b", "c"].iter().flat_map(|k| numbers(&value[k])).collect::<Vec<f64>>();
    let gradient = flat(case.input("grads"));
    let total = norm(&gradient);
    case.assert_values("norm", &[total], case.expected("global_norm"), &[]);
    let scale = clip_scale(total, number(case.input("max_norm")));
    let clipped: Vec<f64> = gradient.iter().map(|g| scale * g).collect();
    let wrong: Value = flat(case.known_wrong("per_tensor")).into();
    case.assert_values("clipped", &clipped, &flat(case.expected("clipped")).into(), &[&wrong]);
    // A norm below the limit is not scaled up; a zero gradient is not 0/0.
    assert_eq!(clip_scale(total, 100.0).to_bits(), 1.0_f64.to_bits());
    assert_eq!(clip_scale(norm(&[0.0_f32; 5]), 10.0), 1.0);
}

fn small_updates_arrive<T: Real>(expected: &str) {
    let case = Case::read("C40");
    let online = [T::from_f64(number(case.input("online")))];
    let mut target = [T::from_f64(number(case.input("target0")))];
    let tau = number(case.input("tau"));
    ema(&mut target, &online, tau);
    let swapped = case.known_wrong("swapped_tau_after_1");
    assert!(
        !case.close(&widen(&target), &numbers(swapped)),
        "tau weighs the target instead of the online value"
    );
    for _ in 1..number(case.input("steps")) as usize {
        ema(&mut target, &online, tau);
    }
    let wrong = [case.known_wrong("bf16_in_place"), case.known_wrong("f16_in_place")];
    case.assert_values("target", &target, case.expected(expected), &wrong);
}

#[test]
fn c40_a_thousand_small_steps_of_the_target() {
    small_updates_arrive::<f64>("target_after");
    small_updates_arrive::<f32>("float32_sim");
}

fn scheduled_learning_rate<T: Real>() {
    let case = Case::read("C46");
    let (mut hyper, mut p) = (hyper(&case), narrow::<T>(&numbers(case.input("p0"))));
    let mut adam = Adam::new(p.len());
    let mut all = Vec::new();
    let rates = numbers(case.input("lr_schedule"));
    for (i, (gradient, lr)) in gradients::<T>(&case).iter().zip(rates).enumerate() {
        hyper.lr = lr;
        adam.update(&hyper, i as u64 + 1, gradient, 1.0, &mut p);
        all.extend(widen(&p));
    }
    let frozen = case.known_wrong("lr_frozen_at_first");
    case.assert_values("p", &all, case.expected("p_after_each_step"), &[frozen]);
}

#[test]
fn c46_the_learning_rate_of_each_step_is_used() {
    scheduled_learning_rate::<f64>();
    scheduled_learning_rate::<f32>();
}

fn resumed_from_moments_and_step<T: Real>() {
    let case = Case::read("C48");
    let (hyper, gradients) = (hyper(&case), gradients::<T>(&case));
    let start = narrow::<T>(&numbers(case.input("p0")));
    let run = |adam: &mut Adam<T>, p: &mut Vec<T>, steps: std::ops::Range<usize>| {
        let mut all = Vec::new();
        for i in steps {
            adam.update(&hyper, i as u64 + 1, &gradients[i], 1.0, p);
            all.extend(widen(p));
        }
        all
    };
    let (mut adam, mut p) = (Adam::new(1), start.clone());
    let whole = run(&mut adam, &mut p, 0..6);
    case.assert_values("p", &whole, case.expected("p_after_each_step"), &[]);

    let (mut adam, mut p) = (Adam::new(1), start);
    run(&mut adam, &mut p, 0..3);
    let saved = (adam.m.clone(), adam.v.clone(), p.clone());
    case.assert_values("m", &saved.0, case.expected("m_at_3"), &[]);
    case.assert_values("v", &saved.1, case.expected("v_at_3"), &[]);
    let mut resumed = Adam { m: saved.0, v: saved.1 };
    let after = run(&mut resumed, &mut p, 3..6);
    assert_eq!(after, whole[3..], "resumed equals uninterrupted, bit for bit");
    let wrong = [case.known_wrong("weights_only"), case.known_wrong("moments_but_t_reset")];
    for wrong in wrong {
        assert!(!case.close(&after, &numbers(wrong)));
    }
}

#[test]
fn c48_adam_resumes_from_moments_and_step() {
    resumed_from_moments_and_step::<f64>();
    resumed_from_moments_and_step::<f32>();
}
