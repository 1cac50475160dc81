//! Collected pitfalls of the C51 loss: projection, clipping, cross-entropy, branches, dueling.

use candle_core::{Device, Tensor, Var};
use cpu_path::Real;
use cpu_path::c51::{Projection, Support, cross_entropy, per_sample, project, weighted_mean};
use cpu_path::distribution::Heads;
use cpu_path::network::{taken, taken_logits};
use settings::ModelShape;

use crate::support::{Case, narrow, number, numbers};

fn support(case: &Case) -> Support {
    Support::new(&ModelShape {
        v_min: number(case.input("v_min")) as f32,
        v_max: number(case.input("v_max")) as f32,
        atoms: number(case.input("num_atoms")) as usize,
        ..Default::default()
    })
}

/// Projects the case's one distribution for each of its rewards.
fn project_case<T: Real>(case: &Case) -> Projection<T> {
    let rewards = numbers(case.input("rewards"));
    let probabilities = numbers(case.input("p_next")).repeat(rewards.len());
    let discount = number(case.input("gamma")) * (1.0 - number(case.input("done")));
    let discounts = vec![T::from_f64(discount); rewards.len()];
    project(&support(case), &narrow(&probabilities), 1, &narrow::<T>(&rewards), &discounts)
}

fn sum<T: Real>(mass: &[T]) -> f64 {
    mass.iter().map(|m| m.to_f64()).sum()
}

fn integer_positions_keep_their_mass<T: Real>() {
    let case = Case::read("C02");
    let projection = project_case::<T>(&case);
    let rows: Vec<&[T]> = projection.mass.chunks_exact(51).collect();
    for (row, key) in rows.iter().zip(["m_r0", "m_r+0.4", "m_r-0.4"]) {
        case.assert_values(key, row, case.expected(key), &[]);
        let dropped = case.known_wrong("l_eq_u_dropped_sum_r0");
        case.assert_values("sum", &[sum(row)], case.expected("sum_each"), &[dropped]);
    }
    // gamma = 1, r = 0: z_50 = v_max is on the support, not outside it.
    assert_eq!((projection.clipped_low[0].to_f64(), projection.clipped_high[0].to_f64()), (0.0, 0.0));
}

#[test]
fn c02_identity_and_one_atom_shift() {
    integer_positions_keep_their_mass::<f64>();
    integer_positions_keep_their_mass::<f32>();
}

fn overflow_goes_to_the_end_atoms<T: Real>() {
    let case = Case::read("C04");
    let projection = project_case::<T>(&case);
    let (z, p) = (support(&case).atoms().to_vec(), numbers(case.input("p_next")));
    for (i, row) in projection.mass.chunks_exact(9).enumerate() {
        let reward = &case.input("rewards")[i];
        let key = format!("{:?}", number(reward));
        case.assert_values(&format!("m for r = {key}"), row, &case.expected("m")[&key], &[]);
        let wrong = &case.known_wrong("l_eq_u_dropped_sum")[&key];
        case.assert_values("sum", &[sum(row)], case.expected("sum_each"), &[wrong]);
        let outside = |out: &dyn Fn(f64) -> bool| {
            let pairs = z.iter().zip(&p).filter(|(z, _)| out(number(reward) + 0.9 * **z));
            pairs.map(|(_, p)| p).sum::<f64>()
        };
        let (low, high) = (projection.clipped_low[i].to_f64(), projection.clipped_high[i].to_f64());
        assert!(case.close(&[low, high], &[outside(&|x| x < -2.0), outside(&|x| x > 6.0)]), "r = {key}");
    }
}

#[test]
fn c04_mass_beyond_the_support_is_clipped_to_its_ends() {
    overflow_goes_to_the_end_atoms::<f64>();
    overflow_goes_to_the_end_atoms::<f32>();
}

fn log_of_an_underflowed_probability<T: Real>() {
    let case = Case::read("C06");
    let logits = Var::from_vec(narrow::<T>(&numbers(case.input("logits"))), (4, 1, 3), &Device::Cpu).unwrap();
    let target =
        Tensor::from_vec(narrow::<T>(&numbers(case.input("target"))), (4, 1, 3), &Device::Cpu).unwrap();
    let ce = cross_entropy(&logits, &target).unwrap().per_branch;
    let loss: Vec<T> = ce.flatten_all().unwrap().to_vec1().unwrap();
    case.assert_values("loss", &loss, case.expected("loss"), &[case.known_wrong("clamped_probs_1e-5_loss")]);
    let grads = ce.sum_all().unwrap().backward().unwrap();
    let gradient: Vec<T> = grads.get(&logits).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    case.assert_values("gradient", &gradient, case.expected("dloss_dlogits"), &[]);
}

#[test]
fn c06_cross_entropy_of_logits_a_thousand_apart() {
    log_of_an_underflowed_probability::<f64>();
    log_of_an_underflowed_probability::<f32>();
}

fn mean_over_branches_and_importance_weights<T: Real>() {
    let case = Case::read("C08");
    let sizes = [3, 2];
    let samples = case.input("logits[b][d][a][n]").as_array().unwrap();
    let branch = |d: usize| {
        let rows = samples.iter().flat_map(|sample| numbers(&sample[d])).collect::<Vec<_>>();
        Var::from_vec(narrow::<T>(&rows), (2, sizes[d], 5), &Device::Cpu).unwrap()
    };
    let logits = [branch(0), branch(1)];
    let actions: Vec<u32> = numbers(case.input("actions")).iter().map(|&a| a as u32).collect();
    let target = numbers(case.input("target_dist[b][d][n]"));
    let target = Tensor::from_vec(narrow::<T>(&target), (2, 2, 5), &Device::Cpu).unwrap();
    let weights = narrow::<T>(&numbers(case.input("is_weights")));
    let weights = Tensor::from_vec(weights, 2, &Device::Cpu).unwrap();

    let tensors: Vec<Tensor> = logits.iter().map(|v| v.as_tensor().clone()).collect();
    let ce = cross_entropy(&taken(&tensors, &actions).unwrap(), &target).unwrap();
    let unweighted = per_sample(&ce.per_branch).unwrap();
    let expected = case.expected("per_sample_cross_entropy");
    case.assert_values("per sample", &unweighted.to_vec1::<T>().unwrap(), expected, &[]);
    let loss = weighted_mean(&unweighted, &weights).unwrap();
    let wrong = [case.known_wrong("sum_over_branches"), case.known_wrong("divided_by_sum_w")];
    case.assert_values("loss", &[loss.to_scalar::<T>().unwrap()], case.expected("loss"), &wrong);

    let grads = loss.backward().unwrap();
    for (d, logits) in logits.iter().enumerate() {
        let got: Vec<T> = grads.get(logits).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let samples = case.expected("dL_dlogits").as_array().unwrap();
        let want: Vec<f64> = samples.iter().flat_map(|sample| numbers(&sample[d])).collect();
        case.assert_values(&format!("gradient of branch {d}"), &got, &want.clone().into(), &[]);
        for (g, w) in got.iter().zip(&want) {
            assert!(*w != 0.0 || g.to_f64() == 0.0, "an action that was not taken has gradient {g}");
        }
    }
}

#[test]
fn c08_loss_is_a_mean_over_branches_weighted_once() {
    mean_over_branches_and_importance_weights::<f64>();
    mean_over_branches_and_importance_weights::<f32>();
}

fn advantage_mean_per_atom<T: Real>() {
    let case = Case::read("C10");
    let (value, advantage) = (numbers(case.input("V[n]")), numbers(case.input("A[a][n]")));
    let z = numbers(case.input("support"));
    let support =
        Support::new(&ModelShape { atoms: 4, v_min: z[0] as f32, v_max: z[3] as f32, ..Default::default() });
    assert!(case.close(support.atoms(), &z));

    // Without a gradient: all actions at once.
    let heads = Heads::from_parts(narrow::<T>(&value), vec![narrow(&advantage)], 4);
    let (mut logits, mut probabilities) = (Vec::new(), Vec::new());
    heads.each(0, |_, _, l, p| {
        logits.extend_from_slice(l);
        probabilities.extend_from_slice(p);
    });
    case.assert_values("logits", &logits, case.expected("logits"), &[]);
    case.assert_values("probs", &probabilities, case.expected("probs"), &[]);
    let wrong = [&case.known_wrong("mean_over_all")["Q"], &case.known_wrong("mean_over_atoms")["Q"]];
    case.assert_values("Q", &heads.q_values(&support)[0], case.expected("Q"), &wrong);
    assert!(heads.taken_probabilities(&[1]) == probabilities[4..8]);

    // With a gradient: one action at a time.
    let value = Tensor::from_vec(narrow::<T>(&value), (1, 4), &Device::Cpu).unwrap();
    let advantage = Tensor::from_vec(narrow::<T>(&advantage), (1, 3, 4), &Device::Cpu).unwrap();
    for action in 0..3 {
        let got = taken_logits::<T>(&value, std::slice::from_ref(&advantage), &[action]).unwrap();
        let got: Vec<T> = got.flatten_all().unwrap().to_vec1().unwrap();
        case.assert_values("taken logits", &got, &case.expected("logits")[action as usize], &[]);
    }
}

#[test]
fn c10_the_advantage_mean_is_taken_atom_by_atom() {
    advantage_mean_per_atom::<f64>();
    advantage_mean_per_atom::<f32>();
}

/// Hand-computed, after Dopamine's projection tests: branches of one sample share its reward and discount.
#[test]
fn rows_of_a_sample_use_its_reward_and_discount() {
    let shape = ModelShape { atoms: 3, v_min: 0.0, v_max: 2.0, ..Default::default() };
    let p = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let projection = project(&Support::new(&shape), &p, 2, &[0.5, -1.0], &[0.5, 0.0]);
    let want = [0.0, 1.0, 0.0, 0.5, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    assert_eq!(projection.mass, want);
    assert_eq!(projection.clipped_low, [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(projection.clipped_high, [0.0; 4]);
}

#[test]
fn a_non_finite_reward_stays_visible_in_the_target() {
    let shape = ModelShape { atoms: 3, v_min: 0.0, v_max: 2.0, ..Default::default() };
    let projection = project(&Support::new(&shape), &[0.2, 0.3, 0.5], 1, &[f64::NAN], &[0.9]);
    assert!(projection.mass.iter().any(|m| m.is_nan()));
}
