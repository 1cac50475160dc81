//! What the value networks feed back into the step, the ensemble and the confidence head.

use cpu_path::{C51Batch, LearnerState};
use settings::Group;

use crate::parts::{everything, full_batch, oracle, shape};

/// What the value networks say of a batch multiplies the losses' weights and the branches' losses, nothing else.
#[test]
fn advantage_weights_and_branch_scales_are_factors() {
    let mut parts = everything();
    let batch = full_batch(&parts, 8);
    let fed = oracle(&parts).evaluate(&batch).unwrap();
    let derived = &fed.iql.as_ref().unwrap().derived;
    assert!(derived.branch_scales.iter().any(|s| *s != 1.0));
    let (samples, branches) = (batch.len(), shape().branches.len());
    let mut want = 0.0;
    for i in 0..samples {
        for d in 0..branches {
            let ce = fed.cross_entropy_per_branch[i * branches + d];
            want += batch.weights[i] * derived.weights[i] * derived.branch_scales[d] * ce;
        }
    }
    want /= (samples * branches) as f64;
    assert!((fed.loss - want).abs() < 1e-14 * samples as f64 * want, "{}, want {want}", fed.loss);

    // The same weights from outside, without the value networks' say.
    parts.iql.advantage_weighting = false;
    let weights = batch.weights.iter().zip(&derived.weights).map(|(w, a)| w * a).collect();
    let outside = oracle(&parts).evaluate(&C51Batch { weights, ..batch.clone() }).unwrap();
    assert_eq!(outside.loss, fed.loss);
    assert_eq!(outside.terms, fed.terms);
    assert_eq!(outside.ensemble, fed.ensemble);
    let mean = derived.weights.iter().sum::<f64>() / samples as f64;
    assert!((mean - 1.0).abs() < 1e-14, "{mean}");
}

/// The support that a step uses is the one that the step before left; a skipped step leaves everything as it was.
#[test]
fn what_is_kept_moves_at_the_end_of_an_accepted_step() {
    let mut parts = everything();
    // It would change the trunk before the step, also of a skipped one.
    parts.spectral.enabled = false;
    let mut learner = oracle(&parts);
    let batch = full_batch(&parts, 8);
    let start = learner.support();
    assert_eq!((start, learner.epsilon()), ([f64::from(shape().v_min), f64::from(shape().v_max)], None));
    let before = learner.evaluate(&batch).unwrap();
    let mut bad = batch.clone();
    bad.rewards[0] = f64::NAN;
    let state = learner.export();
    assert!(learner.train_step(&bad).unwrap().skipped);
    let kept = |state: &LearnerState<f64>| (state.iql.clone(), state.confidence.clone());
    assert_eq!(kept(&learner.export()), kept(&state));
    assert!(!learner.train_step(&batch).unwrap().skipped);
    assert_ne!(learner.support(), start);
    let range = [parts.iql.epsilon_min, parts.iql.epsilon_max].map(f64::from);
    let epsilon = learner.epsilon().unwrap();
    assert!(epsilon >= range[0] - 1e-7 && epsilon <= range[1] + 1e-7, "{epsilon}");
    // Median and mean start at the batch's mean td, the signals at the batch's values.
    let td = before.td.iter().sum::<f64>() / batch.len() as f64;
    let confidence = &learner.export().confidence;
    assert!((confidence[0] - td).abs() < 1e-9 && (confidence[1] - td).abs() < 1e-9 && confidence[2] == 1.0);
    let signals = [before.loss, td, before.mean_q, before.mean_next_q];
    for (kept, x) in confidence[3..].iter().zip(signals) {
        assert!((kept.signum() * kept.abs().exp_m1() - x).abs() < 1e-9, "{kept} of {x}");
    }
}

/// The gradients of ensemble and confidence head against differences of their losses.
#[test]
fn auxiliary_heads_match_central_differences() {
    let parts = everything();
    let base = oracle(&parts);
    let batch = full_batch(&parts, 6);
    let e = base.evaluate(&batch).unwrap();
    let state = base.export();
    let h = 1e-6;
    for (group, prefix) in [(Group::Ensemble, "ens."), (Group::Confidence, "conf.")] {
        let segment = base.flat().segment(group).unwrap().clone();
        let own = e.own.iter().find(|g| g.group == group).unwrap();
        assert!(segment.layout.tensors.iter().all(|t| t.name.starts_with(prefix)));
        for t in &segment.layout.tensors {
            for i in (t.offset..t.offset + t.len()).step_by(7) {
                let at = |x: f64| {
                    let mut moved = state.clone();
                    moved.online[segment.offset + i] = x;
                    let mut learner = oracle(&parts);
                    learner.import(moved).unwrap();
                    let e = learner.evaluate(&batch).unwrap();
                    e.ensemble.unwrap().loss + e.confidence.unwrap().loss
                };
                let x = state.online[segment.offset + i];
                let difference = (own.gradient[i] - (at(x + h) - at(x - h)) / (2.0 * h)).abs();
                assert!(difference < 5e-9, "{} {i}: {difference:e}", t.name);
            }
        }
    }
}

/// A held-out gradient along the step's changes nothing; one against it leaves an update that is not against it; one that
/// is not finite refuses the step.
#[test]
fn the_vaccine_takes_away_what_is_against_the_held_out_gradient() {
    let parts = everything();
    let batch = full_batch(&parts, 8);
    let plain = |batch: &C51Batch<f64>| C51Batch {
        taus: Vec::new(),
        target_taus: Vec::new(),
        masks: Vec::new(),
        ..batch.clone()
    };
    let cosine = |metrics: &cpu_path::StepMetrics<f64>| {
        metrics.kept.iter().find(|(name, _)| *name == "vaccine_cosine").unwrap().1
    };
    let mut without = oracle(&parts);
    without.train_step(&batch).unwrap();
    let mut along = oracle(&parts);
    let metrics = along.train_step_against(&batch, Some(&plain(&batch))).unwrap();
    assert!(cosine(&metrics) > 0.0);
    assert_eq!(along.export(), without.export());

    // Certain returns at the other end of the support, in the same states.
    let end = |batch: &C51Batch<f64>, reward: f64| C51Batch {
        rewards: vec![reward; batch.len()],
        discounts: vec![0.0; batch.len()],
        ..batch.clone()
    };
    let (high, low) = (end(&batch, 3.0), plain(&end(&batch, -2.0)));
    let mut against = oracle(&parts);
    let metrics = against.train_step_against(&high, Some(&low)).unwrap();
    assert!(cosine(&metrics) < -0.1 && !metrics.skipped);
    let mut without = oracle(&parts);
    without.train_step(&high).unwrap();
    assert_ne!(against.export().online, without.export().online);

    let bad = C51Batch { rewards: vec![f64::NAN; low.len()], ..low };
    let before = against.export();
    assert!(against.train_step_against(&high, Some(&bad)).unwrap().skipped);
    assert_eq!(against.export().m, before.m);
}
