//! Random blocks of many shapes against the definition, element by element.

use gpu::kernels::attention::reference::{Parameters, Shape, tensor_sizes};
use gpu::reference::{Bounded, UNIT};

use crate::pipeline::{Applied, Pipeline};
use crate::problem::{Bounds, Problem};

const fn shape(width: usize, features: usize, bars: usize, heads: usize) -> Shape {
    Shape { width, features, bars, heads }
}

/// h2 + g o with its bound.
fn applied(problem: &Problem, expected: &Bounds, row: usize, column: usize) -> Bounded {
    let o = expected.o[row][column];
    let gate = Bounded::exact(problem.parameters.gate[0]);
    Bounded::exact(problem.hidden[row * problem.shape.width + column]) + gate * o
}

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
fn check_largest(expected: &Bounds, got: &Applied, problem: &Problem) {
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

fn check(shape: Shape, rows: usize, seed: u64) {
    let problem = Problem::random(shape, rows, 0.7, seed);
    // The target network has other parameters, and more rows than the online one needs probabilities of.
    let target = Problem::random(shape, rows / 2 + 3, -1.3, seed + 100);
    let mut pipeline = Pipeline::new(shape, seed);
    let folded = pipeline.fold(&problem.parameters, &target.parameters);
    let of_target = pipeline.apply(&folded, 1, &target, 2);
    let bounds = target.bounds();
    check_forward(&target, &bounds, &of_target, 2);
    check_largest(&bounds, &of_target, &target);
    let online = pipeline.apply(&folded, 0, &problem, rows);
    let expected = problem.bounds();
    check_forward(&problem, &expected, &online, rows);
    check_largest(&expected, &online, &problem);
    check_gradient(&problem, &expected.gradient, &pipeline.backward(&folded, &online, &problem));
}

#[test]
fn default_shape_with_a_narrower_trunk() {
    check(shape(64, 9, 8, 4), 40, 1);
}

#[test]
fn one_bar() {
    check(shape(16, 1, 1, 1), 5, 2);
    check(shape(12, 3, 1, 2), 9, 3);
}

#[test]
fn long_window_many_heads() {
    check(shape(40, 16, 24, 8), 70, 4);
}

#[test]
fn odd_sizes() {
    check(shape(21, 5, 7, 3), 67, 5);
    check(shape(35, 2, 3, 5), 1, 6);
}

/// More summed indices than a stage of the folds holds, heads wider than a tile.
#[test]
fn wide_trunk() {
    check(shape(272, 2, 3, 2), 3, 7);
}

/// A gate of 0 leaves h2 as it is, and still learns.
#[test]
fn closed_gate() {
    let problem = Problem::random(shape(24, 4, 5, 4), 11, 0.0, 8);
    let mut pipeline = Pipeline::new(problem.shape, 8);
    let folded = pipeline.fold(&problem.parameters, &problem.parameters);
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows);
    assert_eq!(forward.hidden, problem.hidden);
    let gradient = pipeline.backward(&folded, &forward, &problem);
    let expected = problem.bounds();
    check_gradient(&problem, &expected.gradient, &gradient);
    assert!(gradient.gate[0].abs() > 1e-3, "the gate's gradient is {}", gradient.gate[0]);
    let others = &gradient.tensors()[..11];
    assert!(others.iter().all(|tensor| tensor.iter().all(|&x| x == 0.0)), "only the gate learns at first");
}

/// Large scores: the maximum is subtracted, and probabilities become one-hot.
#[test]
fn large_scores() {
    let mut problem = Problem::random(shape(24, 4, 6, 2), 9, 0.5, 9);
    for weight in [&mut problem.parameters.query, &mut problem.parameters.key] {
        weight.iter_mut().for_each(|w| *w *= 12.0);
    }
    let mut pipeline = Pipeline::new(problem.shape, 9);
    let folded = pipeline.fold(&problem.parameters, &problem.parameters);
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows);
    check_forward(&problem, &problem.bounds(), &forward, problem.rows);
    assert!(forward.probabilities.iter().any(|&a| a > 0.999_99), "scores are large");
}

/// A NaN in one sample's window stays in that sample and shows there.
#[test]
fn nan_shows() {
    let mut problem = Problem::random(shape(24, 4, 5, 4), 7, 0.5, 10);
    problem.windows[2 * 20 + 3] = f32::NAN;
    let mut pipeline = Pipeline::new(problem.shape, 10);
    let folded = pipeline.fold(&problem.parameters, &problem.parameters);
    let forward = pipeline.apply(&folded, 0, &problem, problem.rows);
    for (row, hidden) in forward.hidden.chunks_exact(24).enumerate() {
        assert!(hidden.iter().all(|x| x.is_nan() == (row == 2)), "row {row}");
    }
    let gradient = pipeline.backward(&folded, &forward, &problem);
    assert!(gradient.key.iter().chain(&gradient.output).chain(&gradient.gate).all(|x| x.is_nan()));
}

/// The same launches give the same bits whatever the interleaving.
#[test]
fn reproducible() {
    let problem = Problem::random(shape(20, 3, 4, 2), 35, 0.4, 11);
    let run = |seed| {
        let mut pipeline = Pipeline::new(problem.shape, seed);
        let folded = pipeline.fold(&problem.parameters, &problem.parameters);
        let forward = pipeline.apply(&folded, 0, &problem, problem.rows);
        let gradient = pipeline.backward(&folded, &forward, &problem);
        let all = gradient.tensors().into_iter().flatten().chain(&forward.hidden);
        all.map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let first = run(1);
    assert!((2..5).all(|seed| run(seed) == first));
}
