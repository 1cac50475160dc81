//! The IQN head in the step.

use cuda_std::Buf;

use crate::error::ExecError;
use crate::exec::{Exec, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::parts::PartBuffers;
use crate::step::shape::StepShape;

/// Buffers.
#[derive(Clone, Copy, Debug)]
pub struct IqnBuffers {
    /// Quantile fractions `[B, N]`.
    pub taus: Buf<f32>,
}

impl IqnBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        Ok(Self { taus: memory.alloc("iqn.taus", shape.batch * shape.parts.iqn.samples)? })
    }
}

pub fn head<E: Exec>(
    _: &mut E,
    _: &StepShape,
    _: &StepBuffers,
    _: &PartBuffers,
    _: &IqnBuffers,
    _: bool,
) -> Result<(), ExecError> {
    Ok(())
}
pub fn trunk<E: Exec>(
    _: &mut E,
    _: &StepShape,
    _: &StepBuffers,
    _: &PartBuffers,
    _: &IqnBuffers,
) -> Result<(), ExecError> {
    Ok(())
}
