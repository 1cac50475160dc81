//! The reference's backward against finite differences of its own forward, in f64.

use gpu::kernels::attention::reference::{Parameters, Shape, forward, tensor_sizes};

use super::problem::Problem;

/// sum over samples of <dy, h2 + g o>, whose gradient is what the backward computes.
fn loss(problem: &Problem, tensors: &[Vec<f64>; 12]) -> f64 {
    let shape = problem.shape;
    let parameters = Parameters::from_tensors(tensors.clone());
    let samples = problem.windows.chunks_exact(shape.bars * shape.features);
    samples
        .zip(problem.gradient.chunks_exact(shape.width))
        .map(|(window, dy)| {
            let window: Vec<f64> = window.iter().map(|&x| x.into()).collect();
            let o = forward(shape, &parameters, &window).o;
            o.iter().zip(dy).map(|(o, &dy)| tensors[11][0] * o * f64::from(dy)).sum::<f64>()
        })
        .sum()
}

#[test]
fn the_backward_is_the_derivative_of_the_forward() {
    let shape = Shape { width: 6, features: 2, bars: 3, heads: 2 };
    let problem = Problem::random(shape, 3, 0.8, 1);
    let gradient = problem.expected().gradient;
    let mut tensors: [Vec<f64>; 12] =
        problem.parameters.tensors().map(|tensor| tensor.iter().map(|&x| x.into()).collect());
    let largest = gradient.tensors().into_iter().flatten().fold(0.0, |most: f64, x| most.max(x.abs()));
    let step = 1e-5;
    for (t, (name, len)) in tensor_sizes(shape).into_iter().enumerate() {
        for i in 0..len {
            let value = tensors[t][i];
            let mut at = |x: f64| {
                tensors[t][i] = x;
                loss(&problem, &tensors)
            };
            let difference = (at(value + step) - at(value - step)) / (2.0 * step);
            tensors[t][i] = value;
            let got = gradient.tensors()[t][i];
            // Central differences: third derivatives times 1e-10, and 1e-16 / 1e-5 from rounding.
            assert!((got - difference).abs() <= 1e-8 * largest.max(1.0), "{name}[{i}]: {got}, {difference}");
        }
    }
}
