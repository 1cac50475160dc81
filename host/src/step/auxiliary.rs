//! The heads whose gradients share the budget `budgets.aux`: ensemble and confidence head. They have a lane of their own;
//! the gradient of h2 that they have together goes through the trunk once.

use cuda_std::Buf;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::confidence::{self, ConfidenceBuffers};
use crate::step::ensemble::{self, EnsembleBuffers};
use crate::step::network::{Network, Planes, View};
use crate::step::parts::PartBuffers;
use crate::step::shape::StepShape;

/// Buffers of the heads and of their way through the trunk.
#[derive(Clone, Copy, Debug)]
pub struct AuxiliaryBuffers {
    /// The ensemble.
    pub ensemble: Option<EnsembleBuffers>,
    /// The confidence head.
    pub confidence: Option<ConfidenceBuffers>,
    /// d loss / d (h2's argument) `[B, H2]`; between the two heads with respect to h2'.
    pub(super) d_h2: Buf<f32>,
    /// d loss / d (h1's argument) `[B, H1]`.
    pub(super) d_h1: Buf<f32>,
}

impl AuxiliaryBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        Ok(Self {
            ensemble: match shape.parts.ensemble.enabled {
                true => Some(EnsembleBuffers::alloc(memory, shape)?),
                false => None,
            },
            confidence: match shape.parts.confidence.enabled {
                true => Some(ConfidenceBuffers::alloc(memory, shape)?),
                false => None,
            },
            d_h2: memory.alloc("auxiliary.d_h2", shape.batch * shape.model.trunk2)?,
            d_h1: memory.alloc("auxiliary.d_h1", shape.batch * shape.model.trunk1)?,
        })
    }
}

/// What needs the online network's features alone.
pub fn forward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let ensemble = b.parts.as_ref().and_then(|parts| parts.auxiliary?.ensemble);
    let Some(ensemble) = ensemble else { return Ok(()) };
    exec.after(Lane::AUX, Lane::MAIN)?;
    ensemble::forward(exec, shape, b, &ensemble)
}

/// Losses, the groups' gradients and the trunk's, after the C51 loss on the main lane.
pub fn backward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some(parts) = &b.parts else { return Ok(()) };
    let Some(auxiliary) = &parts.auxiliary else { return Ok(()) };
    let (lane, rows) = (Lane::AUX, shape.batch);
    exec.after(lane, Lane::MAIN)?;
    if let Some(ensemble) = &auxiliary.ensemble {
        let last = auxiliary.confidence.is_none();
        ensemble::backward(exec, shape, b, parts, ensemble, (auxiliary.d_h2, last))?;
    }
    if let Some(confidence) = &auxiliary.confidence {
        let accumulate = auxiliary.ensemble.is_some();
        confidence::backward(exec, shape, b, parts, confidence, (auxiliary.d_h2, accumulate))?;
    }
    trunk(exec, shape, b, parts, auxiliary, lane, rows)
}

fn trunk<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    auxiliary: &AuxiliaryBuffers,
    lane: Lane,
    rows: usize,
) -> Result<(), ExecError> {
    let (h1, h2) = (shape.model.trunk1, shape.model.trunk2);
    let (stored1, d_h1) = (View::new(b.online.h1, h1), View::new(auxiliary.d_h1, h1));
    let (d_h2, x) = (View::new(auxiliary.d_h2, h2), View::new(b.batch.x, shape.stride));
    // The IQN head's partial gradients come first, where there are any.
    let plane = shape.splits * shape.trunk_len();
    let data = parts.trunk_parts.slice((shape.trunk_terms() - 1) * plane, plane);
    let planes = Planes { data, first: 0, len: shape.trunk_len() };
    let mut network = Network { exec, shape, parameters: b.parameters.online, copies: b.copies.as_ref() };
    if let Some(copies) = &b.copies {
        copies.refresh(network.exec, lane, auxiliary.d_h2, rows * h2)?;
    }
    network.backward(lane, rows, &[(shape.trunk2, d_h2, Some(stored1), d_h1)])?;
    network.weight_gradients(lane, rows, planes, &[(shape.trunk2, d_h2, stored1), (shape.trunk1, d_h1, x)])
}
