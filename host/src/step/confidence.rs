//! The confidence head in the step (SPEC section 3, `gpu::kernels::confidence_loss`): after the C51 loss, whose td it
//! predicts, and at the end of the step what it keeps for the next one.

use cuda_std::Buf;
use gpu::kernels::confidence_loss::{ConfidenceLoss, ConfidenceReduce, ConfidenceState, state};
use gpu::kernels::learner_signals::sample;
use gpu::kernels::step_signals::signal;
use gpu::kernels::term_reduce::GroupSquares;
use settings::Group;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::parts::PartBuffers;
use crate::step::shape::StepShape;
use crate::step::update::launch_on_columns;

/// Buffers of the head.
#[derive(Clone, Copy, Debug)]
pub struct ConfidenceBuffers {
    /// Median, mean and signals, kept from step to step (`confidence_loss::state`).
    pub kept: Buf<f32>,
    /// d loss / d logit `[B]`.
    d_logit: Buf<f32>,
}

impl ConfidenceBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        Ok(Self {
            kept: memory.alloc("confidence.kept", state::WORDS as usize)?,
            d_logit: memory.alloc("confidence.d_logit", shape.batch)?,
        })
    }
}

/// One of the head's tensors in a flat buffer.
fn tensor(shape: &StepShape, flat: Buf<f32>, name: &str) -> Buf<f32> {
    let t = shape.flat.find(name).unwrap_or_else(|| panic!("no tensor {name} in the networks"));
    flat.slice(t.offset, t.len())
}

/// Loss, the group's gradient with its norm, and the gradient with respect to h2's argument added to `d_hidden`
/// `[B, H2]`, which holds the ensemble's gradient of h2' if `accumulate`.
pub fn backward<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    buffers: &ConfidenceBuffers,
    (d_hidden, accumulate): (Buf<f32>, bool),
) -> Result<(), ExecError> {
    let (batch, width) = (shape.batch, shape.model.trunk2);
    let (online, grad) = (b.parameters.online, b.parameters.grad);
    let features = b.online.features.slice(0, batch * width);
    exec.launch(
        Lane::AUX,
        &ConfidenceLoss {
            batch: batch as u32,
            width: width as u32,
            slope: shape.model.leaky_slope,
            accumulate: accumulate.into(),
            features: features.into(),
            hidden: b.online.h2.slice(0, batch * width).into(),
            stats: b.stats.into(),
            weight: tensor(shape, online, "conf.features.weight").into(),
            signal_weight: tensor(shape, online, "conf.signals.weight").into(),
            bias: tensor(shape, online, "conf.bias").into(),
            kept: buffers.kept.into(),
            loss: parts.sample(shape, sample::CONFIDENCE, 1).into(),
            d_logit: buffers.d_logit.into(),
            d_hidden: d_hidden.into(),
        },
    )?;
    exec.launch(
        Lane::AUX,
        &ConfidenceReduce {
            batch: batch as u32,
            width: width as u32,
            features: features.into(),
            d_logit: buffers.d_logit.into(),
            kept: buffers.kept.into(),
            d_weight: tensor(shape, grad, "conf.features.weight").into(),
            d_signal_weight: tensor(shape, grad, "conf.signals.weight").into(),
            d_bias: tensor(shape, grad, "conf.bias").into(),
        },
    )?;
    let (offset, len) = shape.segment(Group::Confidence);
    let squares = GroupSquares {
        len: len as u32,
        grad: grad.slice(offset, len).into(),
        squares: parts.squares_of((offset, len)).into(),
    };
    exec.launch(Lane::AUX, &squares)
}

/// Median, mean and signals after the step, on `lane`, behind the step's history row, the value networks' columns of it among it.
pub fn finish<E: Exec>(
    exec: &mut E,
    lane: Lane,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    buffers: &ConfidenceBuffers,
) -> Result<(), ExecError> {
    launch_on_columns(
        exec,
        lane,
        &ConfidenceState {
            batch: shape.batch as u32,
            rows: shape.history as u32,
            rate: shape.parts.confidence.rate,
            stats: b.stats.into(),
            scales: parts.scales.into(),
            clock_words: b.clock.into(),
            kept: buffers.kept.into(),
            history: b.history.into(),
        },
        shape,
        b.history,
        (0..signal::IQL_GAP + 1, signal::TD_MEDIAN..signal::TD_ABOVE + 1),
    )
}
