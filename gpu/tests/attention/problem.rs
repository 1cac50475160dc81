//! A block with its parameters and samples, and what the definition gives for it.

use gpu::kernels::attention::reference::{
    Forward, Number, Parameters, Shape, Term, backward, forward, tensor_sizes,
};

/// A deterministic stream of numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Uniform in (-1, 1): SplitMix64 (Steele, Lea, Flood 2014).
    pub fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn vector(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| scale * self.uniform()).collect()
    }
}

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
pub struct Expected<T> {
    pub forward: Vec<Forward<T>>,
    pub gradient: Parameters<T>,
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
    pub fn expected<T: Number>(&self) -> Expected<T> {
        let numbers = |x: &[f32]| x.iter().map(|&x| T::exact(x.into())).collect::<Vec<T>>();
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

    /// The bounds on what the kernels may give.
    pub fn bounds(&self) -> Expected<Term> {
        self.expected()
    }
}
