//! The checks of what the kernels gave.

use gpu::kernels::attention::reference::{Parameters, Shape, tensor_sizes};
use gpu::reference::{Bounded, UNIT};

use super::pipeline::Applied;
use super::problem::{Bounds, Problem};

/// h2 + g o with its bound.
fn applied(problem: &Problem, expected: &Bounds, row: usize, column: usize) -> Bounded {
    let o = expected.o[row][column];
    let gate = Bounded::exact(problem.parameters.gate[0]);
    Bounded::exact(problem.hidden[row * problem.shape.width + column]) + gate * o
}

/// Probabilities of the first `kept` rows and h2' of all, element by element.
pub fn check_forward(problem: &Problem, expected: &Bounds, got: &Applied, kept: usize) {
    let Shape { width, bars, heads, .. } = problem.shape;
    for (i, &a) in got.probabilities.iter().enumerate() {
        let (row, head, bar) = (i / (heads * bars), i / bars % heads, i % bars);
        let expected = expected.probabilities[row][head][bar];
        assert!(
            expected.accepts(a),
            "{:?}: a[{row}, {head}, {bar}] = {a}, expected {expected:?}",
            problem.shape
        );
    }
    assert_eq!(got.probabilities.len(), kept * heads * bars);
    for (i, &h) in got.hidden.iter().enumerate() {
        let expected = applied(problem, expected, i / width, i % width);
        assert!(expected.accepts(h), "{:?}: h2' {i} = {h}, expected {expected:?}", problem.shape);
    }
}

/// Every element within the rounding's bound, and every tensor within SPEC section 8's: 1e-3 of its norm, or of a
/// thousandth of the group's.
pub fn check_gradient(problem: &Problem, expected: &Parameters<Bounded>, got: &Parameters<f32>) {
    let norm = |x: &[Bounded]| x.iter().map(|x| x.value * x.value).sum::<f64>().sqrt();
    let group = expected.tensors().map(|t| norm(t)).iter().map(|x| x * x).sum::<f64>().sqrt();
    for (((name, len), expected), got) in
        tensor_sizes(problem.shape).into_iter().zip(expected.tensors()).zip(got.tensors())
    {
        assert_eq!((len, len), (expected.len(), got.len()));
        for (i, (expected, &got)) in expected.iter().zip(got).enumerate() {
            assert!(
                expected.accepts(got),
                "{:?}: d {name} [{i}] = {got}, expected {expected:?}",
                problem.shape
            );
        }
        let error =
            expected.iter().zip(got).map(|(e, &g)| (e.value - f64::from(g)).powi(2)).sum::<f64>().sqrt();
        let most = 1e-3 * norm(expected).max(1e-3 * group);
        assert!(error <= most, "{:?}: d {name} is off by {error} of at most {most}", problem.shape);
    }
}

/// SPEC section 8's bound on Q values, 1e-5 of the largest value, for probabilities and o: the bounds above assume that no
/// two roundings cancel, and are wide where the folds' sums are long.
pub fn check_largest(expected: &Bounds, got: &Applied, problem: &Problem) {
    let expected_a = expected.probabilities.iter().flatten().flatten();
    for (i, (expected, &a)) in expected_a.zip(&got.probabilities).enumerate() {
        assert!((expected.value - f64::from(a)).abs() <= 1e-5, "a {i} = {a}, expected {expected:?}");
    }
    let largest = expected.o.iter().flatten().fold(0.0, |most: f64, o| most.max(o.value.abs()));
    let gate = f64::from(problem.parameters.gate[0]);
    for (i, (o, &h)) in expected.o.iter().flatten().zip(&got.hidden).enumerate() {
        let before = f64::from(problem.hidden[i]);
        let error = (before + gate * o.value - f64::from(h)).abs();
        // h2' itself is rounded once.
        let most = 1e-5 * largest * gate.abs() + UNIT * f64::from(h).abs();
        assert!(error <= most, "h2' {i} = {h} is off by {error} of at most {most}");
    }
}
