//! What several test files share: problems, conversions, comparisons with a stated bound.

use cpu_path::golden::{Golden, StepProblem};
use cpu_path::{C51Batch, Hyper, Learner, Real};
use serde_json::Value;
use settings::ModelShape;

/// The golden training step and its problem.
pub fn golden_step() -> (Golden, StepProblem) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/step.safetensors");
    let golden = Golden::read(file).unwrap();
    let problem = golden.step_problem().unwrap();
    (golden, problem)
}

/// A learner that stands at the start of the golden problem.
pub fn learner<T: Real>(problem: &StepProblem, hyper: &Hyper) -> Learner<T> {
    let (online, target) = (narrow(&problem.online), narrow(&problem.target));
    Learner::with_parameters(&problem.shape, hyper.clone(), online, target).unwrap()
}

pub fn narrow<T: Real>(values: &[f64]) -> Vec<T> {
    values.iter().map(|&x| T::from_f64(x)).collect()
}

pub fn widen<T: Real>(values: &[T]) -> Vec<f64> {
    values.iter().map(|x| x.to_f64()).collect()
}

pub fn narrow_batch<T: Real>(batch: &C51Batch<f64>) -> C51Batch<T> {
    C51Batch {
        states: narrow(&batch.states),
        next_states: narrow(&batch.next_states),
        actions: batch.actions.clone(),
        rewards: narrow(&batch.rewards),
        discounts: narrow(&batch.discounts),
        weights: narrow(&batch.weights),
        taus: narrow(&batch.taus),
        target_taus: narrow(&batch.target_taus),
        masks: batch.masks.clone(),
        noise: narrow(&batch.noise),
    }
}

/// A small shape with unequal branches, an uneven number of atoms and an asymmetric support.
pub fn small_shape() -> ModelShape {
    ModelShape {
        state: 5,
        trunk1: 9,
        trunk2: 7,
        value_hidden: 6,
        branch_hidden: 5,
        branches: vec![2, 4, 3],
        atoms: 11,
        v_min: -2.0,
        v_max: 3.0,
        leaky_slope: 0.01,
        ..ModelShape::default()
    }
}

/// A repeatable sequence on (-1, 1) for test data.
pub fn wave(len: usize, phase: f64) -> Vec<f64> {
    (0..len).map(|i| (phase + 1.7 * i as f64 + 0.01 * (i * i) as f64).sin()).collect()
}

/// A batch of `samples` transitions for a shape, with terminal ones among them.
pub fn batch(shape: &ModelShape, samples: usize) -> C51Batch<f64> {
    let action = |i: usize| {
        let (row, d) = (i / shape.branches.len(), i % shape.branches.len());
        ((3 * row + d) % shape.branches[d]) as u32
    };
    C51Batch {
        states: wave(samples * shape.state, 0.0),
        next_states: wave(samples * shape.state, 0.5),
        actions: (0..samples * shape.branches.len()).map(action).collect(),
        rewards: wave(samples, 2.0),
        discounts: (0..samples).map(|i| if i % 5 == 4 { 0.0 } else { 0.97 }).collect(),
        weights: (0..samples).map(|i| 1.0 / (1 + i % 3) as f64).collect(),
        ..C51Batch::default()
    }
}

/// Asserts |got - want| <= bound for every element.
#[track_caller]
pub fn assert_within<T: Real>(what: &str, got: &[T], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let difference = (g.to_f64() - w).abs();
        // Negated so that NaN fails.
        assert!(!(difference.is_nan() || difference > bound), "{what}[{i}] = {g}: want {w} within {bound:e}");
    }
}

pub fn max_abs(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, x| x.abs().max(max))
}

/// One file of `tests/cases`: input, expected values, tolerance, and what known defects would give.
pub struct Case(Value);

impl Case {
    pub fn read(id: &str) -> Self {
        let file = format!("{}/tests/cases/{id}.json", env!("CARGO_MANIFEST_DIR"));
        Self(serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    }

    pub fn input(&self, key: &str) -> &Value {
        &self.0["input"][key]
    }

    pub fn expected(&self, key: &str) -> &Value {
        &self.0["expected"][key]
    }

    pub fn known_wrong(&self, key: &str) -> &Value {
        &self.0["known_wrong"][key]
    }

    /// Asserts that `got` has the expected values and not those of the defect, by the case's own tolerance.
    #[track_caller]
    pub fn assert_values<T: Real>(&self, what: &str, got: &[T], expected: &Value, wrong: &[&Value]) {
        let got = widen(got);
        assert!(self.close(&got, &numbers(expected)), "{what} = {got:?}: want {expected}");
        for wrong in wrong {
            assert!(!self.close(&got, &numbers(wrong)), "{what} = {got:?} is what a known defect gives");
        }
    }

    /// Every element within atol + rtol * |expected|.
    pub fn close(&self, got: &[f64], expected: &[f64]) -> bool {
        let tolerance = |key: &str| self.0["tolerance"][key].as_f64().unwrap_or(0.0);
        let (rtol, atol) = (tolerance("rtol"), tolerance("atol"));
        assert_eq!(got.len(), expected.len());
        assert!(rtol > 0.0 || atol > 0.0, "the case states a tolerance");
        got.iter().zip(expected).all(|(g, e)| (g - e).abs() <= atol + rtol * e.abs())
    }
}

/// All numbers of nested arrays, in order; a single number counts as one.
#[track_caller]
pub fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(numbers).collect(),
        Value::Number(n) => vec![n.as_f64().unwrap()],
        other => panic!("expected numbers, got {other}"),
    }
}

/// The only number of a value.
#[track_caller]
pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("expected a number, got {value}"))
}
