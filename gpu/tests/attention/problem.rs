//! A block with its parameters and samples, and what the definition gives for it.

use gpu::kernels::attention::reference::folded::Folded;
use gpu::kernels::attention::reference::{Forward, Parameters, Shape, backward, forward, tensor_sizes};
use gpu::reference::Bounded;

use super::pipeline::SPLITS;

use super::random::Random;

/// One network's block and a batch.
#[derive(Clone)]
pub struct Problem {
    pub shape: Shape,
    pub rows: usize,
    pub parameters: Parameters<f32>,
    /// [rows, W F]
    pub windows: Vec<f32>,
    /// [rows, d]
    pub hidden: Vec<f32>,
    /// dh2', [rows, d]
    pub gradient: Vec<f32>,
}

/// What the definition gives for a batch.
pub struct Expected {
    pub forward: Vec<Forward>,
    pub gradient: Parameters<f64>,
}

/// The same with bounds on what the kernels may give.
pub struct Bounds {
    /// [rows][heads][W]
    pub probabilities: Vec<Vec<Vec<Bounded>>>,
    /// [rows][d]
    pub o: Vec<Vec<Bounded>>,
    pub gradient: Parameters<Bounded>,
}

/// The definition's value with the folded computation's bound. Their values must be the same but for f64's rounding,
/// which is 2^-29 of f32's.
fn same(what: &str, definition: f64, folded: Bounded) -> Bounded {
    let apart = (definition - folded.value).abs();
    assert!(apart <= 1e-7 * folded.tolerance(), "{what}: folded {folded:?}, defined {definition}");
    Bounded { value: definition, ..folded }
}

impl Problem {
    /// Weights and inputs such that probabilities are neither equal nor one-hot.
    pub fn random(shape: Shape, rows: usize, gate: f32, seed: u64) -> Problem {
        let mut random = Random::new(seed);
        let inner = (3.0 / shape.width as f32).sqrt();
        let tensors = tensor_sizes(shape).map(|(name, len)| match name {
            "gate" => vec![gate],
            "emb.weight" => random.vector(len, (3.0 / shape.features as f32).sqrt()),
            name if name.ends_with("weight") => random.vector(len, inner),
            "pos" => random.vector(len, 0.5),
            _ => random.vector(len, 0.2),
        });
        Problem {
            shape,
            rows,
            parameters: Parameters::from_tensors(tensors),
            windows: random.vector(rows * shape.bars * shape.features, 1.5),
            hidden: random.vector(rows * shape.width, 1.0),
            gradient: random.vector(rows * shape.width, 1.0 / rows as f32),
        }
    }

    /// The definition over the whole batch.
    pub fn expected(&self) -> Expected {
        let numbers = |x: &[f32]| x.iter().map(|&x| x.into()).collect::<Vec<f64>>();
        let parameters = Parameters::from_tensors(self.parameters.tensors().map(|tensor| numbers(tensor)));
        let mut gradient = Parameters::zero(self.shape);
        let windows = self.windows.chunks_exact(self.shape.bars * self.shape.features);
        let forward = windows
            .zip(self.gradient.chunks_exact(self.shape.width))
            .map(|(window, dy)| {
                let window = numbers(window);
                let of = forward(self.shape, &parameters, &window);
                backward(self.shape, &parameters, &window, &of, &numbers(dy), &mut gradient);
                of
            })
            .collect();
        Expected { forward, gradient }
    }

    /// The definition's values with the bounds on what the kernels may give.
    pub fn bounds(&self) -> Bounds {
        let expected = self.expected();
        let folded = Folded::new(self.shape, &self.parameters);
        let windows = self.windows.chunks_exact(self.shape.bars * self.shape.features);
        let samples: Vec<_> = windows.map(|window| folded.sample(&self.parameters, window)).collect();
        let gradient = folded.gradient(&self.parameters, &samples, &self.gradient, SPLITS);
        let row = |what: &str, defined: &[f64], folded: &[Bounded]| -> Vec<Bounded> {
            assert_eq!(defined.len(), folded.len());
            defined.iter().zip(folded).map(|(&defined, &folded)| same(what, defined, folded)).collect()
        };
        let both = || expected.forward.iter().zip(&samples);
        let probabilities = both().map(|(defined, folded)| {
            let heads = defined.probabilities.iter().zip(&folded.probabilities);
            heads.map(|(defined, folded)| row("a", defined, folded)).collect()
        });
        let o = both().map(|(defined, folded)| row("o", &defined.o, &folded.o));
        let mut tensors = expected.gradient.tensors().into_iter().zip(gradient.tensors());
        let tensors = tensor_sizes(self.shape).map(|(name, _)| {
            let (defined, folded) = tensors.next().expect("twelve tensors");
            row(name, defined, folded)
        });
        Bounds {
            probabilities: probabilities.collect(),
            o: o.collect(),
            gradient: Parameters::from_tensors(tensors),
        }
    }
}
