//! The reference itself: its gradient against differences of its own forward pass.

use gpu::kernels::mamba::Shape;
use gpu::kernels::mamba::reference::{forward, tensor_sizes};

use super::problem::Problem;

#[test]
fn gradients_are_central_differences() {
    for (taps, shape) in [
        (4, Shape { features: 3, bars: 6, width: 8, state: 3, heads: 2 }),
        (2, Shape { features: 2, bars: 1, width: 4, state: 2, heads: 4 }),
    ] {
        let problem = Problem::random(shape, taps, 3, 2, 0.7, 5);
        let (_, gradient) = problem.expected::<f64>();
        let loss = |parameters| {
            let samples = problem.windows().zip(problem.gradient.chunks_exact(3));
            let of = |(window, dh): (&[f32], &[f32])| {
                let addend = forward::<f64>(shape, &parameters, window).addend;
                addend.iter().zip(dh).map(|(a, &d)| a * f64::from(d)).sum::<f64>()
            };
            samples.map(of).sum::<f64>()
        };
        let h = 1e-5;
        for (t, (name, len)) in tensor_sizes(shape, taps, 3).into_iter().enumerate() {
            for i in (0..len).step_by(3) {
                let at = |change: f64| {
                    let mut parameters = problem.parameters.map(f64::from);
                    parameters.tensors[t][i] += change;
                    loss(parameters)
                };
                let difference = (at(h) - at(-h)) / (2.0 * h);
                // Off by h^2 |f'''| / 6 and by 2 eps |loss| / h.
                let error = (gradient.tensors[t][i] - difference).abs();
                assert!(error < 1e-8, "{name}[{i}]: {} against {difference}", gradient.tensors[t][i]);
            }
        }
    }
}
