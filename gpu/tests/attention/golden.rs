//! Extracts of complete training steps that an independent program computed in f64. The gradient with respect to h2' is
//! not among its values: it was derived in f64 from the stored distributions, targets and heads (it reproduces the stored
//! gradient of the output bias to the last digits) and rounded to nine digits.

use gpu::kernels::attention::reference::{Parameters, Shape, tensor_sizes};

use super::check::{check_forward, check_gradient};
use super::machine::Machine;
use super::pipeline::Pipeline;
use super::problem::Problem;

/// Lines of a name and numbers.
struct File(&'static str);

impl File {
    fn numbers(&self, name: &str) -> Vec<f64> {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let line = line.unwrap_or_else(|| panic!("no {name} in the file"));
        line.split(' ').map(|word| word.parse().expect("a number")).collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.numbers(name).into_iter().map(|x| x as f32).collect()
    }
}

/// |got - expected| within a few units of the file's rounding, relative to the largest of the tensor.
#[track_caller]
fn near(what: &str, got: impl IntoIterator<Item = f64>, expected: &[f64]) {
    // Nine digits in the file; the rounded gradient of h2' passes 2^-24 of every term on.
    let most = 1e-6 * expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
    let mut count = 0;
    for (i, (got, &expected)) in got.into_iter().zip(expected).enumerate() {
        assert!((got - expected).abs() <= most, "{what}[{i}]: {got}, expected {expected}");
        count += 1;
    }
    assert_eq!(count, expected.len(), "{what}");
}

fn golden<M: Machine>(machine: &mut M, text: &'static str) -> Result<(), M::Error> {
    let file = File(text);
    let sizes: Vec<usize> = file.numbers("shape").into_iter().map(|x| x as usize).collect();
    let [rows, bars, features, heads, width] = sizes[..] else { panic!("five sizes") };
    let shape = Shape { width, features, bars, heads };
    let tensors = tensor_sizes(shape).map(|(name, len)| {
        let tensor = file.floats(name);
        assert_eq!(tensor.len(), len, "{name}");
        tensor
    });
    let problem = Problem {
        shape,
        rows,
        parameters: Parameters::from_tensors(tensors),
        windows: file.floats("windows"),
        hidden: file.floats("h2"),
        gradient: file.floats("d_h2p"),
    };

    // The reference is the independent program's function.
    let reference = problem.expected();
    let probabilities = reference.forward.iter().flat_map(|f| f.probabilities.iter().flatten().copied());
    near("probabilities", probabilities, &file.numbers("probs.expected"));
    near("o", reference.forward.iter().flat_map(|f| f.o.iter().copied()), &file.numbers("o.expected"));
    for ((name, _), got) in tensor_sizes(shape).into_iter().zip(reference.gradient.tensors()) {
        near(name, got.iter().copied(), &file.numbers(&format!("{name}.gradient")));
    }

    // The kernels are the reference's.
    let mut pipeline = Pipeline::new(machine, shape);
    let folded = pipeline.fold(&problem.parameters, None)?;
    let forward = pipeline.apply(&folded, 0, &problem, rows)?;
    let bounds = problem.bounds();
    check_forward(&problem, &bounds, &forward, rows);
    let gradient = pipeline.backward(&folded, &forward, &problem)?;
    check_gradient(&problem, &bounds.gradient, &gradient);

    // And the kernels' values are the program's, within SPEC section 8.
    let expected = file.numbers("h2p.expected");
    let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    for (i, (&got, expected)) in forward.hidden.iter().zip(&expected).enumerate() {
        assert!((f64::from(got) - expected).abs() <= 1e-5 * largest, "h2'[{i}] {got}, expected {expected}");
    }
    let stored = tensor_sizes(shape).map(|(name, _)| file.numbers(&format!("{name}.gradient")));
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let group = norm(&stored.each_ref().map(|t| norm(t)));
    for (((name, _), expected), got) in tensor_sizes(shape).iter().zip(&stored).zip(gradient.tensors()) {
        let errors: Vec<f64> = expected.iter().zip(got).map(|(e, &g)| e - f64::from(g)).collect();
        let most = 1e-3 * norm(expected).max(1e-3 * group);
        assert!(norm(&errors) <= most, "d {name} is off by {} of at most {most}", norm(&errors));
    }
    Ok(())
}

/// Three bars of four features, four bars of three features.
pub fn golden_steps<M: Machine>(machine: &mut M) -> Result<(), M::Error> {
    golden(machine, include_str!("t1.txt"))?;
    golden(machine, include_str!("t2.txt"))
}
