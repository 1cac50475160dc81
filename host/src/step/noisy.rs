//! Noisy heads in the step (SPEC section 2, `gpu::kernels::noisy`): the factors of a step and the weights that its
//! products read, made beside the trunk.

use cuda_std::Buf;
use gpu::kernels::noisy::{NoisyCompose, NoisyFactors, piece};
use settings::NoisyLayout;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::shape::StepShape;

/// Where a training step's noise is made: the lane of the CQL loss, which begins later.
pub const LANE: Lane = Lane::CQL;

/// Noise of one network, or of two.
#[derive(Clone, Copy, Debug)]
pub struct NoiseBuffers {
    /// Networks: online, or online and target.
    networks: usize,
    /// Factors of a network.
    count: usize,
    /// Tensors of the heads.
    pieces: usize,
    /// Their descriptions `[pieces, piece::WORDS]`.
    table: Buf<u32>,
    /// f(e) of every layer `[networks, count]`, as `settings::NoisyLayout` lays them out; drawn in the step, or uploaded
    /// by a test.
    pub factors: Buf<f32>,
    /// Noisy weights and biases `[networks, layout.sigma]` in the main network's layout; the trunk's part is not used.
    effective: Buf<f32>,
}

impl NoiseBuffers {
    /// Allocates.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        networks: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        let count = NoisyLayout::new(&shape.model).factors;
        let words = table(shape);
        let buffers = Self {
            networks,
            count,
            pieces: words.len() / piece::WORDS as usize,
            table: memory.alloc(&format!("{name}.table"), words.len())?,
            factors: memory.alloc(&format!("{name}.factors"), networks * count)?,
            effective: memory.alloc(&format!("{name}.effective"), networks * shape.layout.sigma)?,
        };
        memory.upload(buffers.table, &words)?;
        Ok(buffers)
    }

    /// The online network's noisy heads, in the flat layout.
    pub fn online(&self) -> Buf<f32> {
        self.effective.slice(0, self.effective.len() / self.networks)
    }

    /// The target network's; of a training step.
    pub fn target(&self) -> Buf<f32> {
        let len = self.effective.len() / self.networks;
        self.effective.slice(self.effective.len() - len, len)
    }

    /// The online network's noisy heads of a collection step, on `lane`.
    pub fn acting<E: Exec>(
        &self,
        exec: &mut E,
        lane: Lane,
        shape: &StepShape,
        clock: Buf<u64>,
        online: Buf<f32>,
    ) -> Result<(), ExecError> {
        self.draw(exec, lane, shape, clock, 1)?;
        self.compose(exec, lane, shape, [online, online], None)
    }

    fn draw<E: Exec>(
        &self,
        exec: &mut E,
        lane: Lane,
        shape: &StepShape,
        clock: Buf<u64>,
        acting: u32,
    ) -> Result<(), ExecError> {
        let factors = NoisyFactors {
            count: self.count as u32,
            networks: self.networks as u32,
            acting,
            seed: shape.seed,
            clock_words: clock.into(),
            out: self.factors.into(),
        };
        exec.launch(lane, &factors)
    }

    /// The noisy heads of the networks; `noise` takes the online network's products of factors.
    fn compose<E: Exec>(
        &self,
        exec: &mut E,
        lane: Lane,
        shape: &StepShape,
        [online, target]: [Buf<f32>; 2],
        noise: Option<Buf<f32>>,
    ) -> Result<(), ExecError> {
        let (first, heads) = (shape.trunk_len(), shape.heads_len());
        let compose = NoisyCompose {
            heads: heads as u32,
            first: first as u32,
            networks: self.networks as u32,
            keep: u32::from(noise.is_some()),
            pieces: self.pieces as u32,
            count: self.count as u32,
            table: self.table.into(),
            factors: self.factors.into(),
            online: online.slice(first, 2 * heads).into(),
            target: target.slice(first, 2 * heads).into(),
            effective: self.effective.into(),
            // Not written without `noise`.
            noise: noise.unwrap_or(self.effective).into(),
        };
        exec.launch(lane, &compose)
    }
}

/// A training step's noise, on [`LANE`]: both networks' noisy heads, and the factors of sigma's gradient. Without `draw`
/// the factors f(e) are taken as they are. Nothing where the heads are not noisy.
pub fn step<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers, draw: bool) -> Result<(), ExecError> {
    let Some(noise) = &b.noise else { return Ok(()) };
    exec.after(LANE, Lane::MAIN)?;
    if draw {
        noise.draw(exec, LANE, shape, b.clock, 0)?;
    }
    let sigma = b.factors.slice(shape.layout.sigma - shape.scaled(), shape.heads_len());
    noise.compose(exec, LANE, shape, [b.parameters.online, b.parameters.target], Some(sigma))
}

/// The heads' tensors as `noisy_compose` takes them, in the order of the layout.
fn table(shape: &StepShape) -> Vec<u32> {
    let noise = NoisyLayout::new(&shape.model);
    let mut pieces: Vec<[u32; piece::WORDS as usize]> = Vec::new();
    for layer in &noise.layers {
        let mut piece = |tensor: &str, inputs: usize, input_factors: u32| {
            let first = shape.layout.offset(&format!("{}.{tensor}", layer.name)) - shape.trunk_len();
            let mut words = [0; piece::WORDS as usize];
            words[piece::FIRST as usize] = first as u32;
            words[piece::END as usize] = (first + layer.outputs * inputs) as u32;
            words[piece::INPUTS as usize] = inputs as u32;
            words[piece::INPUT_FACTORS as usize] = input_factors;
            words[piece::OUTPUT_FACTORS as usize] = layer.output_factors as u32;
            pieces.push(words);
        };
        piece("weight", layer.inputs, layer.input_factors as u32);
        piece("bias", 1, piece::BIAS);
    }
    pieces.sort_by_key(|words| words[piece::FIRST as usize]);
    pieces.concat()
}
