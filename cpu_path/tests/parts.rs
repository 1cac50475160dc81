//! Behaviour of the parts beside C51: who gets which gradient, what is left alone, refusing, resuming.

use cpu_path::terms::Term;
use cpu_path::{C51Batch, CpuLearner, Hyper, LearnerState, Net, Oracle, Start};
use cpu_path::{init_flat, init_parameters, init_spectral};
use settings::{Config, Flat, Group, Head, Layout, ModelShape, Optimizer, Parts};

use crate::support::{batch, narrow_batch, small_shape, wave};

pub fn shape() -> ModelShape {
    ModelShape { window: 2, bar_features: 2, trunk2: 8, head: Head::Glu, ..small_shape() }
}

pub fn everything() -> Parts {
    let mut parts = Parts::default();
    parts.cql.enabled = true;
    (parts.iqn.enabled, parts.iqn.samples, parts.iqn.target_samples) = (true, 5, 3);
    (parts.iqn.cosines, parts.iqn.hidden) = (7, 6);
    (parts.iql.enabled, parts.iql.hidden) = (true, 6);
    (parts.iql.advantage_weighting, parts.iql.branch_scaling) = (true, true);
    (parts.iql.adaptive_support, parts.iql.adaptive_epsilon) = (true, true);
    (parts.ensemble.enabled, parts.ensemble.members, parts.ensemble.lambda) = (true, 3, 0.2);
    parts.confidence.enabled = true;
    (parts.attention.enabled, parts.attention.heads) = (true, 2);
    (parts.mamba.enabled, parts.mamba.width, parts.mamba.heads, parts.mamba.state) = (true, 8, 2, 3);
    (parts.spectral.enabled, parts.spectral.sigma_max) = (true, 0.7);
    parts
}

fn optimizer() -> Optimizer {
    Optimizer { lr: 1e-2, weight_decay: 1e-3, ..Default::default() }
}

fn config(parts: Parts) -> Config {
    let mut config = Config {
        cql: parts.cql,
        iqn: parts.iqn,
        iql: parts.iql,
        ensemble: parts.ensemble,
        confidence: parts.confidence,
        attention: parts.attention,
        mamba: parts.mamba,
        spectral: parts.spectral,
        budgets: parts.budgets,
        ..Config::default()
    };
    (config.model, config.optimizer, config.train.seed) = (shape(), optimizer(), 11);
    config
}

/// A batch with the quantile samples that the parts ask for.
pub fn full_batch(parts: &Parts, samples: usize) -> C51Batch<f64> {
    let taus = |n: usize, phase: f64| {
        let wave = wave(samples * n, phase);
        wave.iter().map(|x| 0.5 + 0.45 * x).collect::<Vec<f64>>()
    };
    let mut batch = batch(&shape(), samples);
    if parts.iqn.enabled {
        batch.taus = taus(parts.iqn.samples, 0.4);
        batch.target_taus = taus(parts.iqn.target_samples, 0.9);
    }
    if parts.ensemble.enabled {
        batch.masks = (0..samples * parts.ensemble.members).map(|i| i % 4 != 1).collect();
    }
    batch
}

/// A learner whose attention and Mamba-2 block have open gates and whose target is another network.
pub fn oracle(parts: &Parts) -> Oracle {
    let flat = Flat::new(&shape(), parts);
    let widen = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let mut online = widen(&init_parameters(&flat, 3));
    for gate in ["att.gate", "mamba.gate"].iter().filter_map(|name| flat.find(name)) {
        online[gate.offset] = 0.7;
    }
    let target = widen(&init_parameters(&flat, 4)[..flat.target_len()]);
    let spectral = init_spectral(&shape(), 3).map(|u| widen(&u));
    let start = Start { online, target, spectral };
    Oracle::with_parts(&shape(), parts, Hyper::from(&optimizer()), start).unwrap()
}

fn bits(state: &LearnerState<f32>) -> Vec<u32> {
    let vectors =
        [&state.online, &state.target, &state.m, &state.v, &state.spectral, &state.iql, &state.confidence];
    vectors.iter().flat_map(|x| x.iter().map(|x| x.to_bits())).collect()
}

#[test]
fn attention_changes_nothing_at_step_0() {
    let mut parts = Parts::default();
    parts.attention.enabled = true;
    let with = CpuLearner::from_config(&config(parts)).unwrap();
    let without = CpuLearner::from_config(&config(Parts::default())).unwrap();
    let states: Vec<f32> = wave(4 * shape().state, 0.2).iter().map(|&x| x as f32).collect();
    assert_eq!(with.act(&states).unwrap(), without.act(&states).unwrap());
    let activations = with.activations(Net::Online, &states).unwrap();
    assert!(activations.attention_output.iter().any(|x| *x != 0.0));
    assert_eq!(activations.attention_probabilities.len(), 4 * 4 * 2);
    for row in activations.attention_probabilities.chunks_exact(2) {
        assert!((row[0] + row[1] - 1.0).abs() < 1e-6);
    }
}

#[test]
fn the_mamba_block_changes_nothing_at_step_0() {
    let mut parts = Parts::default();
    parts.mamba.enabled = true;
    let with = CpuLearner::from_config(&config(parts)).unwrap();
    let without = CpuLearner::from_config(&config(Parts::default())).unwrap();
    let states: Vec<f32> = wave(4 * shape().state, 0.2).iter().map(|&x| x as f32).collect();
    assert_eq!(with.act(&states).unwrap(), without.act(&states).unwrap());
    let activations = with.activations(Net::Online, &states).unwrap();
    assert_eq!(activations.mamba_output.len(), 4 * shape().trunk1);
    assert!(activations.mamba_output.iter().all(|x| x.is_finite() && *x != 0.0));
}

/// The recurrence's gradient, through convolution, scan and norm, is what differences of the loss say.
#[test]
fn the_mamba_blocks_gradient_matches_central_differences() {
    let mut parts = Parts::default();
    (parts.mamba.enabled, parts.mamba.width, parts.mamba.heads, parts.mamba.state) = (true, 8, 2, 3);
    let base = oracle(&parts);
    let batch = full_batch(&parts, 6);
    let e = base.evaluate(&batch).unwrap();
    let gradient = &e.own.iter().find(|g| g.group == Group::Mamba).unwrap().gradient;
    let segment = base.flat().segment(Group::Mamba).unwrap().clone();
    let state = base.export();
    let h = 1e-5;
    for t in &segment.layout.tensors {
        for i in (t.offset..t.offset + t.len()).step_by(7) {
            let at = |change: f64| {
                let mut moved = state.clone();
                moved.online[segment.offset + i] += change;
                let mut learner = oracle(&parts);
                learner.import(moved).unwrap();
                learner.evaluate(&batch).unwrap().loss
            };
            // Off by h^2 |f'''| / 6 and by 2 eps |loss| / h, both about 1e-10.
            let difference = (gradient[i] - (at(h) - at(-h)) / (2.0 * h)).abs();
            assert!(difference < 5e-9, "{} {i}: {difference:e}", t.name);
        }
    }
}

#[test]
fn value_networks_beside_c51_leave_the_main_network_bit_for_bit_alone() {
    let mut parts = Parts::default();
    (parts.iql.enabled, parts.iql.hidden) = (true, 6);
    let mut with = CpuLearner::from_config(&config(parts.clone())).unwrap();
    let mut without = CpuLearner::from_config(&config(Parts::default())).unwrap();
    let batch = narrow_batch::<f32>(&full_batch(&parts, 8));
    for _ in 0..3 {
        // One term reaches the main parameters: no budget, so no scale below 1 either.
        assert_eq!(with.evaluate(&batch).unwrap().terms[0].scale, 1.0);
        with.train_step(&batch).unwrap();
        without.train_step(&batch).unwrap();
    }
    let (a, b) = (with.export(), without.export());
    let len = Layout::main(&shape()).len;
    assert_eq!((&a.online[..len], &a.target), (&b.online[..], &b.target));
    let moved = with.flat().offset("iql.lo.1.weight");
    assert_ne!(a.online[moved], init_parameters(with.flat(), 11)[moved]);
}

/// Which tensors each term's gradient reaches, and that no term leaks into another's.
#[test]
fn each_term_reaches_its_own_parameters_only() {
    let parts = everything();
    let learner = oracle(&parts);
    let batch = full_batch(&parts, 6);
    let e = learner.evaluate(&batch).unwrap();
    let layout = learner.layout();
    for t in &e.terms {
        for tensor in &layout.tensors {
            let values = &t.gradient[tensor.offset..][..tensor.len()];
            let trunk_only = matches!(t.term, Term::Iqn | Term::Auxiliary);
            let reached = !trunk_only || tensor.name.starts_with("trunk");
            assert_eq!(values.iter().any(|g| *g != 0.0), reached, "{:?} and {}", t.term, tensor.name);
        }
    }
    // The attention's and the block's gradients are C51's alone: the other terms change nothing about them.
    let own = |e: &cpu_path::Evaluation<f64>, group| {
        e.own.iter().find(|g| g.group == group).unwrap().gradient.clone()
    };
    let (attention, mamba) = (parts.attention.clone(), parts.mamba.clone());
    // The value networks weigh its loss.
    let alone = Parts { attention, mamba, iql: parts.iql.clone(), ..Parts::default() };
    let c51 = oracle(&alone).evaluate(&full_batch(&alone, 6)).unwrap();
    for group in [Group::Attention, Group::Mamba] {
        assert_eq!(own(&c51, group), own(&e, group));
        assert!(own(&e, group).iter().any(|g| *g != 0.0));
    }
    assert_eq!(c51.terms[0].gradient, e.terms[0].gradient);
}

/// The quantile loss sees the attention's output but does not train it: its trunk gradient is the derivative with the
/// attention held fixed, which the trunk does not reach anyway. So it matches differences of the loss itself.
#[test]
fn the_budgeted_terms_match_central_differences_on_the_trunk() {
    let parts = everything();
    let base = oracle(&parts);
    let batch = full_batch(&parts, 6);
    let e = base.evaluate(&batch).unwrap();
    let state = base.export();
    let h = 1e-6;
    for name in ["trunk1.weight", "trunk2.weight", "trunk2.bias"] {
        let t = base.layout().find(name).unwrap().clone();
        for i in (t.offset..t.offset + t.len()).step_by(5) {
            let at = |x: f64| {
                let mut moved = state.clone();
                moved.online[i] = x;
                let mut learner = oracle(&parts);
                learner.import(moved).unwrap();
                let e = learner.evaluate(&batch).unwrap();
                let auxiliary = e.ensemble.unwrap().loss + e.confidence.unwrap().loss;
                [e.loss, e.cql.unwrap().loss, e.iqn.unwrap().loss, auxiliary]
            };
            let (above, below) = (at(state.online[i] + h), at(state.online[i] - h));
            for (t, (a, b)) in e.terms.iter().zip(above.iter().zip(below)) {
                // Off by h^2 |f'''| / 6 and by 2 eps |loss| / h, about 1e-12 and 1e-9.
                let difference = (t.gradient[i] - (a - b) / (2.0 * h)).abs();
                assert!(difference < 5e-9, "{:?} {name} {i}: {difference:e}", t.term);
            }
        }
    }
}

#[test]
fn next_actions_of_the_quantile_head_by_the_target_or_by_the_online_head() {
    let mut parts = everything();
    let batch = full_batch(&parts, 24);
    let single = oracle(&parts).evaluate(&batch).unwrap().iqn.unwrap();
    parts.iqn.double = true;
    let double = oracle(&parts).evaluate(&batch).unwrap().iqn.unwrap();
    assert_eq!(single.target_quantiles, double.target_quantiles);
    assert_ne!(single.next_actions, double.next_actions, "the two heads are different networks here");

    // The online head at s' with tau', from an evaluation whose states are these.
    let mut at_next = parts.clone();
    (at_next.iqn.samples, at_next.iqn.target_samples) = (parts.iqn.target_samples, parts.iqn.samples);
    let swapped = C51Batch {
        states: batch.next_states.clone(),
        taus: batch.target_taus.clone(),
        target_taus: batch.taus.clone(),
        ..batch.clone()
    };
    let online = oracle(&at_next).evaluate(&swapped).unwrap().iqn.unwrap().quantiles;
    for (values, quantiles) in [(&double, &online), (&single, &single.target_quantiles)] {
        let branches = shape().branches;
        for (i, &action) in values.next_actions.iter().enumerate() {
            let (row, d) = (i / branches.len(), i % branches.len());
            let (n, samples) = (branches[d], parts.iqn.target_samples);
            let mean =
                |a: usize| (0..samples).map(|j| quantiles[d][(row * samples + j) * n + a]).sum::<f64>();
            assert!((0..n).all(|a| mean(a) <= mean(action as usize)), "row {row}, branch {d}");
            // The value is the target head's either way.
            for j in 0..samples {
                let z = values.target_quantiles[d][(row * samples + j) * n + action as usize];
                let want = batch.rewards[row] + batch.discounts[row] * z;
                assert_eq!(values.targets[i * samples + j], want);
            }
        }
    }
}

#[test]
fn two_runs_and_a_resumed_run_with_everything_on_are_equal_bit_for_bit() {
    let parts = everything();
    let batch = narrow_batch::<f32>(&full_batch(&parts, 8));
    let new = |seed| {
        let mut config = config(everything());
        config.train.seed = seed;
        CpuLearner::from_config(&config).unwrap()
    };
    let run = |learner: &mut CpuLearner, steps| {
        for _ in 0..steps {
            assert!(!learner.train_step(&batch).unwrap().skipped);
        }
    };
    let (mut a, mut b) = (new(2), new(2));
    run(&mut a, 5);
    run(&mut b, 2);
    let saved = b.export();
    assert_ne!(saved.spectral, init_spectral(&shape(), 2).concat());
    let mut resumed = new(999);
    resumed.import(saved).unwrap();
    run(&mut resumed, 3);
    run(&mut b, 3);
    assert_eq!(bits(&a.export()), bits(&b.export()));
    assert_eq!(bits(&a.export()), bits(&resumed.export()));

    let mut inside = vec![false; a.flat().len];
    a.flat().tensors().for_each(|t| inside[t.offset..t.offset + t.len()].fill(true));
    let state = a.export();
    for vector in [&state.online, &state.target, &state.m, &state.v] {
        assert!(vector.iter().zip(&inside).all(|(x, inside)| *inside || x.to_bits() == 0));
    }
}

#[test]
fn a_norm_that_is_not_finite_in_one_group_skips_all_groups() {
    let mut parts = everything();
    parts.spectral.enabled = false;
    let good = narrow_batch::<f32>(&full_batch(&parts, 8));
    let mut learner = CpuLearner::from_config(&config(parts)).unwrap();
    learner.train_step(&good).unwrap();
    let before = learner.export();
    let mut bad = good.clone();
    bad.taus[3] = f32::NAN;
    let metrics = learner.train_step(&bad).unwrap();
    let norm = |name: &str| metrics.norms.iter().find(|(n, _)| *n == name).unwrap().1;
    assert!(
        metrics.skipped && norm("iqn").is_nan() && norm("c51").is_finite() && norm("iql_low").is_finite()
    );
    // Finite parameters whose products are not: only V_high overflows.
    let mut state = before.clone();
    let bias = learner.flat().find("iql.hi.0.bias").unwrap();
    state.online[bias.offset..bias.offset + bias.len()].fill(3e38);
    learner.import(state.clone()).unwrap();
    let metrics = learner.train_step(&good).unwrap();
    let norm = |name: &str| metrics.norms.iter().find(|(n, _)| *n == name).unwrap().1;
    assert!(metrics.skipped && !norm("iql_high").is_finite() && norm("iql_low").is_finite());
    assert_eq!(bits(&learner.export()), bits(&state));
    // The import brought the counters of a state without skipped steps.
    assert_eq!((learner.step(), learner.skipped()), (1, (1, 1)));
}

#[test]
fn the_spectral_norm_of_a_refused_step_stays_and_its_vectors_stay_finite() {
    let parts = everything();
    let good = narrow_batch::<f32>(&full_batch(&parts, 8));
    let mut learner = CpuLearner::from_config(&config(parts)).unwrap();
    let mut bad = good.clone();
    bad.rewards[0] = f32::NAN;
    let metrics = learner.train_step(&bad).unwrap();
    assert!(metrics.skipped && metrics.sigmas.iter().all(|s| s.is_finite()));
    let state = learner.export();
    assert!(state.spectral.iter().all(|u| u.is_finite()));
    assert!(state.m.iter().all(|m| *m == 0.0));
    assert!(!learner.train_step(&good).unwrap().skipped);
}

#[test]
fn the_singular_values_of_the_trunk_come_down_to_the_limit() {
    let parts = everything();
    let mut config = config(parts.clone());
    config.optimizer.lr = 0.0;
    let mut learner = CpuLearner::from_config(&config).unwrap();
    let batch = narrow_batch::<f32>(&full_batch(&parts, 8));
    let first = learner.train_step(&batch).unwrap().sigmas;
    let mut last = first.clone();
    for _ in 0..200 {
        last = learner.train_step(&batch).unwrap().sigmas;
    }
    // With lr = 0 the estimate rises to the largest singular value, and each excess is scaled away.
    assert!(first.iter().any(|s| *s > 0.7), "{first:?}");
    assert!(last.iter().all(|s| *s < 0.7 * (1.0 + 1e-5)), "{last:?}");
}

#[test]
fn a_batch_without_its_quantile_samples_names_them() {
    let parts = everything();
    let mut learner = CpuLearner::from_config(&config(parts.clone())).unwrap();
    let mut batch = narrow_batch::<f32>(&full_batch(&parts, 8));
    batch.taus.pop();
    let message = learner.train_step(&batch).unwrap_err().to_string();
    assert_eq!(message, "batch.taus [batch, samples] has 39 elements: expected 40");
    let mut plain = CpuLearner::new(&shape(), &optimizer(), 1).unwrap();
    batch.taus.push(0.5);
    let message = plain.train_step(&batch).unwrap_err().to_string();
    assert_eq!(message, "batch.taus [batch, samples] has 40 elements: expected 0");
}

#[test]
fn parts_that_cannot_work_are_refused() {
    let mut bad = config(everything());
    bad.attention.heads = 3;
    let message = CpuLearner::from_config(&bad).unwrap_err().to_string();
    assert!(message.starts_with("attention.heads = 3, model.trunk2 = 8: "), "{message}");
    let start = Start { online: init_flat(&shape(), 1), target: Vec::new(), spectral: Default::default() };
    let hyper = Hyper::from(&optimizer());
    let message = CpuLearner::with_parts(&shape(), &Parts::default(), hyper, start).unwrap_err().to_string();
    assert!(message.starts_with("flat target parameters has 0 elements"), "{message}");
}

#[test]
fn every_loss_on_a_fixed_batch_falls() {
    let parts = everything();
    let mut batch = narrow_batch::<f32>(&full_batch(&parts, 16));
    // No bootstrap: the quantile head's targets are the rewards, so its loss can go to 0.
    batch.discounts.fill(0.0);
    let mut config = config(parts);
    // The value networks' target is the target network's Q, which then stands still; the support is to stand still too.
    config.optimizer.tau = 0.0;
    config.iql.adaptive_support = false;
    let mut learner = CpuLearner::from_config(&config).unwrap();
    let first = learner.train_step(&batch).unwrap();
    let mut last = first.clone();
    for _ in 0..300 {
        last = learner.train_step(&batch).unwrap();
    }
    assert!(last.loss < first.loss, "c51: {} -> {}", first.loss, last.loss);
    for ((name, before), (_, after)) in first.losses.iter().zip(&last.losses) {
        // What the confidence head is to say changes with the median, and the variance is no loss.
        if matches!(*name, "confidence" | "uncertainty") {
            continue;
        }
        // The conservative term and C51 pull in different directions, and no cross-entropy falls below its target's
        // entropy; the others are alone with their networks.
        let share = if matches!(*name, "cql" | "ensemble") { 1.0 } else { 0.5 };
        assert!(*after < share * before, "{name}: {before} -> {after}");
    }
}
