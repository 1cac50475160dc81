//! Temporal attention in the step.

use cuda_std::Buf;

use crate::error::ExecError;
use crate::exec::{Exec, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::shape::StepShape;

/// Buffers.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBuffers {
    /// d C51 loss / d h2' `[B, H2]`.
    pub d_features: Buf<f32>,
}

impl AttentionBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        Ok(Self { d_features: memory.alloc("att.d_features", shape.batch * shape.model.trunk2)? })
    }
}

pub fn fold<E: Exec>(_: &mut E, _: &StepShape, _: &StepBuffers) -> Result<(), ExecError> {
    Ok(())
}
pub fn context<E: Exec>(_: &mut E, _: &StepShape, _: &StepBuffers) -> Result<(), ExecError> {
    Ok(())
}
pub fn apply<E: Exec>(_: &mut E, _: &StepShape, _: &StepBuffers) -> Result<(), ExecError> {
    Ok(())
}
pub fn backward<E: Exec>(_: &mut E, _: &StepShape, _: &StepBuffers) -> Result<(), ExecError> {
    Ok(())
}
