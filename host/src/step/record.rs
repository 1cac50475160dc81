//! The training step as a sequence of launches on lanes: what one graph holds.

use gpu::kernels::adam_ema::AdamEma;
use gpu::kernels::c51_loss::{C51Loss, C51LossWide};
use gpu::kernels::gradient_norm::{GradientNorm, GradientReduce};
use gpu::kernels::sample_gather::SampleGather;
use gpu::kernels::step_signals::StepSignals;

use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::network::{Network, View};
use crate::step::shape::StepShape;

/// Sections of the step, in order; `profile` times them one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Index sampling and gather.
    Sample,
    /// Online on s and s', target on s'.
    Forward,
    /// C51 loss and the gradient of the logits.
    Loss,
    /// Data and weight gradients.
    Backward,
    /// Norm, Adam, EMA, signals.
    Update,
}

impl Section {
    /// All sections.
    pub const ALL: [Section; 5] =
        [Section::Sample, Section::Forward, Section::Loss, Section::Backward, Section::Update];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Section::Sample => "sample",
            Section::Forward => "forward",
            Section::Loss => "loss",
            Section::Backward => "backward",
            Section::Update => "update",
        }
    }
}

/// The whole step from index sampling to EMA. With `replay` absent the batch buffers are taken as they are (tests
/// upload a fixed batch).
pub fn record<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    buffers: &StepBuffers,
    replay: Option<&Replay>,
) -> Result<(), ExecError> {
    for section in Section::ALL {
        record_section(exec, shape, buffers, replay, section)?;
    }
    Ok(())
}

/// One section; each begins and ends on the main lane.
pub fn record_section<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    buffers: &StepBuffers,
    replay: Option<&Replay>,
    section: Section,
) -> Result<(), ExecError> {
    match section {
        Section::Sample => replay.map_or(Ok(()), |replay| sample(exec, shape, buffers, replay)),
        Section::Forward => forward(exec, shape, buffers),
        Section::Loss => loss(exec, shape, buffers),
        Section::Backward => backward(exec, shape, buffers),
        Section::Update => update(exec, shape, buffers),
    }
}

fn sample<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: &Replay,
) -> Result<(), ExecError> {
    exec.launch(
        Lane::MAIN,
        &SampleGather {
            batch: shape.batch as u32,
            stride: shape.stride as u32,
            capacity: replay.capacity as u32,
            seed: shape.seed,
            clock_words: b.clock.into(),
            ring_words: replay.words.into(),
            states: replay.states.into(),
            next_states: replay.next_states.into(),
            ring_actions: replay.actions.into(),
            ring_rewards: replay.rewards.into(),
            ring_discounts: replay.discounts.into(),
            x: b.batch.x.into(),
            actions: b.batch.actions.into(),
            rewards: b.batch.rewards.into(),
            discounts: b.batch.discounts.into(),
            weights: b.batch.weights.into(),
            indices: b.batch.indices.into(),
        },
    )
}

fn forward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let x = b.batch.x;
    let next = x.slice(shape.batch * shape.stride, shape.batch * shape.stride);
    exec.after(Lane::TARGET, Lane::MAIN)?;
    Network { exec, shape, parameters: b.parameters.target }.forward(
        Lane::TARGET,
        View::new(next, shape.stride),
        &b.target,
    )?;
    Network { exec, shape, parameters: b.parameters.online }.forward(
        Lane::MAIN,
        View::new(x, shape.stride),
        &b.online,
    )?;
    exec.after(Lane::MAIN, Lane::TARGET)
}

fn loss<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    macro_rules! launch {
        ($kernel:ident) => {
            exec.launch(
                Lane::MAIN,
                &$kernel {
                    batch: shape.batch as u32,
                    branches: shape.branches as u32,
                    sizes: shape.sizes,
                    atoms: shape.model.atoms as u32,
                    stride: shape.logits as u32,
                    support: b.support.into(),
                    online: b.online.logits.into(),
                    target: b.target.logits.into(),
                    actions: b.batch.actions.into(),
                    rewards: b.batch.rewards.into(),
                    discounts: b.batch.discounts.into(),
                    weights: b.batch.weights.into(),
                    gradient: b.d_logits.into(),
                    stats: b.stats.into(),
                    cross_entropy: b.cross_entropy.into(),
                    td_error: b.td_error.into(),
                },
            )
        };
    }
    if shape.model.atoms <= 64 { launch!(C51Loss) } else { launch!(C51LossWide) }
}

/// The data-gradient chain on the main lane; each layer's weight gradient beside it as soon as its dY is there.
fn backward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let (rows, parts) = (shape.batch, b.parameters.parts);
    let x = View::new(b.batch.x, shape.stride);
    let h1 = View::new(b.online.h1, shape.model.trunk1);
    let h2 = View::new(b.online.h2, shape.model.trunk2);
    let hidden = View::new(b.online.hidden, shape.hidden);
    let d_logits = View::new(b.d_logits, shape.logits);
    let d_hidden = View::new(b.d_hidden, shape.hidden);
    let d_h2 = View::new(b.d_h2, shape.model.trunk2);
    let d_h1 = View::new(b.d_h1, shape.model.trunk1);
    let mut network = Network { exec, shape, parameters: b.parameters.online };

    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let outputs: Vec<_> =
        shape.outputs.iter().map(|o| (o.layer, d_logits.column(o.column), hidden.column(o.hidden))).collect();
    network.weight_gradients(Lane::GRADIENT, rows, parts, &outputs)?;

    network.backward_outputs(Lane::MAIN, rows, d_logits, hidden, d_hidden)?;
    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    network.weight_gradients(Lane::GRADIENT, rows, parts, &[(shape.heads1, d_hidden, h2)])?;

    network.backward(Lane::MAIN, shape.heads1, rows, d_hidden, h2, d_h2)?;
    network.exec.after(Lane::GRADIENT, Lane::MAIN)?;
    network.weight_gradients(Lane::GRADIENT, rows, parts, &[(shape.trunk2, d_h2, h1)])?;

    network.backward(Lane::MAIN, shape.trunk2, rows, d_h2, h1, d_h1)?;
    network.weight_gradients(Lane::MAIN, rows, parts, &[(shape.trunk1, d_h1, x)])?;
    network.exec.after(Lane::MAIN, Lane::GRADIENT)
}

fn update<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let (len, p) = (shape.layout.len as u32, &b.parameters);
    if shape.splits == 1 {
        let norm = GradientNorm {
            len,
            grad: p.grad.into(),
            sums: b.sums.into(),
            clock_words: b.clock.into(),
            adam_words: b.adam.into(),
        };
        exec.launch(Lane::MAIN, &norm)?;
    } else {
        let reduce = GradientReduce {
            len,
            splits: shape.splits as u32,
            parts: p.parts.into(),
            grad: p.grad.into(),
            sums: b.sums.into(),
            clock_words: b.clock.into(),
            adam_words: b.adam.into(),
        };
        exec.launch(Lane::MAIN, &reduce)?;
    }
    exec.after(Lane::GRADIENT, Lane::MAIN)?;
    let signals = StepSignals {
        batch: shape.batch as u32,
        len,
        rows: shape.history as u32,
        stats: b.stats.into(),
        sums: b.sums.into(),
        history: b.history.into(),
        clock_words: b.clock.into(),
    };
    exec.launch(Lane::GRADIENT, &signals)?;
    let adam = AdamEma {
        len,
        hypers: b.hyper.into(),
        adam_words: b.adam.into(),
        sums: b.sums.into(),
        grad: p.grad.into(),
        params: p.online.into(),
        m: p.m.into(),
        v: p.v.into(),
        target: p.target.into(),
    };
    exec.launch(Lane::MAIN, &adam)?;
    exec.after(Lane::MAIN, Lane::GRADIENT)
}
