//! One IQN term of a complete training step, computed in f64 by an independent program: `full_t1.json` (three branches, N =
//! N') and `full_t2.json` (four branches, N != N', three-step returns) are extracts of its files.

use std::collections::HashMap;

use gpu::action;
use gpu::kernels::iqn::{IqnLossFp32Small, IqnTargetFp32Small, SELECT_AND_GATHER};
use serde_json::Value;

use crate::case::{Case, Dims, Draw, Head, distance, norm};

/// Arrays by name.
struct Golden(HashMap<String, Value>);

impl Golden {
    fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or_else(|| panic!("{name} is no number"))
    }

    fn size(&self, name: &str) -> usize {
        self.number(name) as usize
    }

    fn array(&self, name: &str) -> Vec<f64> {
        let values = self.0[name].as_array().unwrap_or_else(|| panic!("{name} is no array"));
        values.iter().map(|v| v.as_f64().expect("a number")).collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.array(name).into_iter().map(|x| x as f32).collect()
    }

    fn head(&self, network: &str) -> Head {
        Head(LAYERS.map(|layer| self.floats(&format!("{network}.{layer}"))))
    }

    /// Rows of one number a branch.
    fn actions(&self, name: &str, branches: usize) -> Vec<Vec<usize>> {
        self.array(name).chunks(branches).map(|row| row.iter().map(|&a| a as usize).collect()).collect()
    }
}

const LAYERS: [&str; 6] = ["cos.weight", "cos.bias", "hid.weight", "hid.bias", "out.weight", "out.bias"];

fn check(text: &str, actions: &'static [usize]) {
    let golden = Golden(serde_json::from_str(text).expect("an object"));
    let branches = actions.len();
    assert_eq!(golden.array("branches"), actions.iter().map(|&n| n as f64).collect::<Vec<_>>());
    let dims = Dims {
        batch: golden.size("B"),
        trunk: golden.size("H2"),
        cosines: golden.size("iqn_cos"),
        hidden: golden.size("iqn_hidden"),
        actions,
        quantiles: golden.size("N"),
        targets: golden.size("N_target"),
        offset: 0,
    };
    let discount = golden.number("discount");
    let mut case = Case {
        dims,
        kappa: golden.number("kappa") as f32,
        slope: golden.number("leaky_slope") as f32,
        online: golden.head("target0"),
        h: golden.floats("h_next"),
        below: golden.floats("h2"),
        below_slope: golden.number("leaky_slope") as f32,
        taus: golden.floats("taus_target"),
        next: vec![0.0; dims.batch * branches * dims.targets],
        actions: golden.actions("actions", branches),
        rewards: golden.floats("rewards"),
        discounts: golden.array("dones").iter().map(|done| ((1.0 - done) * discount) as f32).collect(),
        weights: golden.floats("weights"),
    };

    let greedy = vec![0; dims.batch];
    let (_, greedy, next) = case.targets::<IqnTargetFp32Small>(SELECT_AND_GATHER, &greedy, 2, Draw::Given, 1);
    for (b, expected) in golden.actions("next_actions", branches).iter().enumerate() {
        assert_eq!(greedy[b], action::pack(expected), "greedy actions of sample {b}");
    }
    let targets = golden.array("targets");
    let largest = targets.iter().fold(0.0f64, |most, t| most.max(t.abs()));
    for (i, (&z, target)) in next.iter().zip(&targets).enumerate() {
        let b = i / (branches * dims.targets);
        let got = f64::from(case.rewards[b]) + f64::from(case.discounts[b]) * f64::from(z);
        // As SPEC section 8 bounds Q values: 1e-5 of the largest.
        assert!((got - target).abs() <= 1e-5 * largest, "target {i}: {got}, expected {target}");
    }

    case.next = next;
    case.online = golden.head("online0");
    case.h = golden.floats("h");
    case.taus = golden.floats("taus");
    let got = case.losses::<IqnLossFp32Small>(2, Draw::Given, 1);
    for (b, expected) in golden.array("per_sample").into_iter().enumerate() {
        // SPEC section 8.
        let error = (f64::from(got.loss[b]) - expected).abs();
        assert!(error <= 1e-4 * expected, "loss[{b}] = {}, expected {expected}", got.loss[b]);
    }
    let expected = LAYERS.map(|layer| golden.array(&format!("grad.{layer}")));
    let group = norm(&expected.each_ref().map(|g| norm(g)));
    for (i, layer) in LAYERS.into_iter().enumerate() {
        let error = distance(&got.gradients[i], &expected[i], 1e-3 * group);
        assert!(error <= 1e-3, "gradient of {layer} off by {error}");
    }

    // dh, which has gone through lrelu'(h2), through the trunk's second layer: its gradients are sums over the batch.
    let h1 = golden.array("h1");
    let (trunk, below) = (dims.trunk, golden.size("H1"));
    let (mut weight, mut bias) = (vec![0.0f64; trunk * below], vec![0.0f64; trunk]);
    for b in 0..dims.batch {
        for c in 0..trunk {
            let d = f64::from(got.dh[b * trunk + c]);
            bias[c] += d;
            for k in 0..below {
                weight[c * below + k] += d * h1[b * below + k];
            }
        }
    }
    for (name, got) in [("weight", weight), ("bias", bias)] {
        let got: Vec<f32> = got.into_iter().map(|x| x as f32).collect();
        let error = distance(&got, &golden.array(&format!("grad.trunk2.{name}")), 0.0);
        assert!(error <= 1e-3, "gradient of trunk2.{name} off by {error}");
    }
}

#[test]
fn three_branches() {
    check(include_str!("full_t1.json"), &[3, 2, 2]);
}

#[test]
fn four_branches_and_other_numbers_of_targets() {
    check(include_str!("full_t2.json"), &[3, 2, 2, 4]);
}
