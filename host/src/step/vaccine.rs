//! The vaccine in the step (SPEC section 3, `gpu::kernels::vaccine`), in the steps that have it: first the C51 gradient of a
//! held-out batch, drawn uniformly, with the step's own activations and gradients, which the step's batch then takes over; at the end the
//! projection, between the factors and the optimizer.

use cuda_std::Buf;
use gpu::kernels::term_reduce::{PAIRS, TermReduce};
use gpu::kernels::vaccine::{PRODUCTS, VaccineApply, VaccineProducts};

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::attention;
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::losses::losses;
use crate::step::parts::PartBuffers;
use crate::step::passes::{backward, beside_backward, features, heads};
use crate::step::replay::sample_batch;
use crate::step::shape::StepShape;
use crate::step::{mamba, noisy, spectral};

/// Buffers of the vaccine.
#[derive(Clone, Copy, Debug)]
pub struct VaccineBuffers {
    /// g_v over the main parameters `[layout.len]`.
    pub gradient: Buf<f32>,
    /// Blocks' sums of its squares, as the reduction writes them `[PAIRS, blocks]`; nothing reads them.
    sums: Buf<f32>,
    /// Blocks' inner products `[PRODUCTS, blocks]`.
    products: Buf<f32>,
}

impl VaccineBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let blocks = shape.sums();
        Ok(Self {
            gradient: memory.alloc("vaccine.gradient", shape.layout.len)?,
            sums: memory.alloc("vaccine.sums", PAIRS as usize * blocks)?,
            products: memory.alloc("vaccine.products", PRODUCTS as usize * blocks)?,
        })
    }
}

/// Spectral norm, then g_v of a batch from `held_out`; begins and ends on the main lane.
pub fn gradient<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    (parts, vaccine): (&PartBuffers, &VaccineBuffers),
    held_out: &Replay,
) -> Result<(), ExecError> {
    // The C51 term alone, and the attention and the block that its features come from.
    let alone = PartBuffers { cql: None, iqn: None, iql: None, auxiliary: None, ..*parts };
    let alone = StepBuffers { parts: Some(alone), ..*b };
    attention::fold(exec, shape, &alone)?;
    mamba::fold(exec, shape, &alone)?;
    noisy::step(exec, shape, &alone, true)?;
    spectral::scale_trunk(exec, shape, &alone, Lane::MAIN)?;
    mamba::join(exec, shape, &alone)?;
    sample_batch(exec, shape, &alone, held_out)?;
    mamba::block(exec, shape, &alone)?;
    attention::context(exec, shape, &alone)?;
    features(exec, shape, &alone)?;
    heads(exec, shape, &alone)?;
    losses(exec, shape, &alone)?;
    backward(exec, shape, &alone)?;
    beside_backward(shape).into_iter().try_for_each(|lane| exec.after(Lane::MAIN, lane))?;
    let reduce = TermReduce {
        len: shape.layout.len as u32,
        trunk: shape.trunk_len() as u32,
        full: 1,
        partial: 0,
        splits: shape.splits as u32,
        products: shape.layout.sigma as u32,
        scaled: shape.scaled() as u32,
        factors: b.factors.into(),
        parts: b.c51.parts.into(),
        trunk_parts: parts.trunk_parts.into(),
        grads: vaccine.gradient.into(),
        trunk_grads: parts.trunk_grads.into(),
        sums: vaccine.sums.into(),
    };
    exec.launch(Lane::MAIN, &reduce)
}

/// Inner products with the terms, before their factors are made.
pub fn products<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    parts: &PartBuffers,
    vaccine: &VaccineBuffers,
) -> Result<(), ExecError> {
    exec.launch(
        Lane::MAIN,
        &VaccineProducts {
            len: shape.layout.len as u32,
            trunk: shape.trunk_len() as u32,
            full: shape.full_terms() as u32,
            partial: shape.trunk_terms() as u32,
            grads: parts.grads.into(),
            trunk_grads: parts.trunk_grads.into(),
            vaccine: vaccine.gradient.into(),
            sums: parts.sums.into(),
            products: vaccine.products.into(),
        },
    )
}

/// The projection, before the optimizer and before the step's number is advanced.
pub fn apply<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    vaccine: &VaccineBuffers,
) -> Result<(), ExecError> {
    let len = shape.layout.len;
    exec.launch(
        Lane::MAIN,
        &VaccineApply {
            len: len as u32,
            rows: shape.history as u32,
            products: vaccine.products.into(),
            scales: parts.scales.into(),
            clock_words: b.clock.into(),
            vaccine: vaccine.gradient.into(),
            gradient: parts.grads.slice(0, len).into(),
            history: b.history.into(),
        },
    )
}
