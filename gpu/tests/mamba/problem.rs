//! A block with its parameters and samples, and what the definition gives for it.

use gpu::kernels::mamba::Shape;
use gpu::kernels::mamba::reference::{Forward, Number, Parameters, backward, forward};

use super::random::Random;

/// One network's block and a batch.
#[derive(Clone)]
pub struct Problem {
    pub shape: Shape,
    pub taps: usize,
    /// H1.
    pub hidden: usize,
    /// S.
    pub inputs: usize,
    pub rows: usize,
    pub parameters: Parameters<f32>,
    /// W1 [H1, S] and b1 [H1].
    pub trunk: [Vec<f32>; 2],
    /// [rows, stride], zero behind S.
    pub states: Vec<f32>,
    /// Gradient of h1's argument [rows, H1].
    pub gradient: Vec<f32>,
}

impl Problem {
    /// Parameters as after some training: D between 0.05 and 1, decays that reach over a few bars.
    pub fn random(shape: Shape, taps: usize, hidden: usize, rows: usize, gate: f32, seed: u64) -> Problem {
        let mut random = Random::new(seed);
        let width = shape.width as f32;
        // Two features behind the window, as a portfolio's.
        let inputs = (shape.bars * shape.features) as usize + 2;
        let parameters = Parameters::new(shape, taps, hidden, |name, len| match name {
            "gate" => vec![gate],
            "emb.weight" => random.vector(len, (3.0 / shape.features as f32).sqrt()),
            "in.weight" | "out.weight" => random.vector(len, (3.0 / width).sqrt()),
            "conv.weight" => random.vector(len, 0.8),
            "skip" | "norm" => random.vector(len, 0.4).iter().map(|x| 1.0 + x).collect(),
            "dt_bias" => random.vector(len, 1.5).iter().map(|x| x - 1.5).collect(),
            "a_log" => random.vector(len, 1.0),
            _ => random.vector(len, 0.3),
        });
        let trunk = [random.vector(hidden * inputs, 0.3), random.vector(hidden, 0.3)];
        let mut states = random.vector(rows * inputs.next_multiple_of(4), 1.5);
        for row in states.chunks_exact_mut(inputs.next_multiple_of(4)) {
            row[inputs..].fill(0.0);
        }
        let gradient = random.vector(rows * hidden, 1.0 / rows as f32);
        Problem { shape, taps, hidden, inputs, rows, parameters, trunk, states, gradient }
    }

    pub fn stride(&self) -> usize {
        self.inputs.next_multiple_of(4)
    }

    /// The samples' windows [W, F].
    pub fn windows(&self) -> impl Iterator<Item = &[f32]> {
        let len = (self.shape.bars * self.shape.features) as usize;
        self.states.chunks_exact(self.stride()).map(move |row| &row[..len])
    }

    /// Every sample's block, and the gradient of the batch.
    pub fn expected<T: Number>(&self) -> (Vec<Forward<T>>, Parameters<T>) {
        let parameters = self.parameters.map(T::exact);
        let mut gradient = parameters.map(|_| T::exact(0.0));
        let samples = self.windows().zip(self.gradient.chunks_exact(self.hidden)).map(|(window, dh)| {
            let of = forward(self.shape, &parameters, window);
            backward(self.shape, &parameters, window, &of, dh, &mut gradient);
            of
        });
        (samples.collect(), gradient)
    }
}
