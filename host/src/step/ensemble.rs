//! The ensemble in the step (SPEC section 3, `gpu::kernels::ensemble_loss`): value heads on the online network's h2',
//! forward as soon as the features are there, loss and backward after the C51 loss, whose targets they share; and the
//! exploration bonus that collection makes of their disagreement.

use cuda_std::Buf;
use gpu::kernels::ensemble_loss::{EnsembleLoss, EnsembleLossWide};
use gpu::kernels::exploration_bonus::{ExplorationBonus, ExplorationBonusWide};
use gpu::kernels::learner_signals::sample;
use gpu::kernels::term_reduce::GroupReduce;
use settings::Group;
use settings::model::pad4;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::network::{Network, Planes, View};
use crate::step::parts::PartBuffers;
use crate::step::shape::{Layer, StepShape};

/// Activations and gradients of all members side by side.
#[derive(Clone, Copy, Debug)]
pub struct EnsembleBuffers {
    /// Hidden layers `[B, M VH]`.
    hidden: Buf<f32>,
    /// Outputs `[B, M pad4(K)]`.
    logits: Buf<f32>,
    /// Mean over the branches of the C51 targets `[B, K]`; written by the C51 loss.
    pub target: Buf<f32>,
    /// d loss / d outputs `[B, M pad4(K)]`; the padding stays zero.
    d_logits: Buf<f32>,
    /// d loss / d (hidden's argument) `[B, M VH]`.
    d_hidden: Buf<f32>,
    /// Partial gradients `[splits, segment]`.
    parts: Buf<f32>,
}

/// Floats of a row of outputs.
fn columns(shape: &StepShape) -> usize {
    shape.parts.ensemble.members * pad4(shape.model.atoms)
}

/// Floats of a row of hidden layers.
fn width(shape: &StepShape) -> usize {
    shape.parts.ensemble.members * shape.model.value_hidden
}

impl EnsembleBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let (b, hidden, logits) = (shape.batch, width(shape), columns(shape));
        let mut alloc = |name: &str, len| memory.alloc(&format!("ensemble.{name}"), len);
        Ok(Self {
            hidden: alloc("hidden", b * hidden)?,
            logits: alloc("logits", b * logits)?,
            target: alloc("target", b * shape.model.atoms)?,
            d_logits: alloc("d_logits", b * logits)?,
            d_hidden: alloc("d_hidden", b * hidden)?,
            parts: alloc("parts", shape.splits * shape.segment(Group::Ensemble).1)?,
        })
    }
}

/// The members' hidden layers as one.
fn hidden_layer(shape: &StepShape) -> Layer {
    shape.layer("ensemble.hidden", "ens.hid.0", shape.model.trunk2, width(shape))
}

/// A member's output layer, its columns in a hidden row and in a row of outputs.
fn output_layer(shape: &StepShape, member: usize) -> (Layer, usize, usize) {
    let (vh, block) = (shape.model.value_hidden, pad4(shape.model.atoms));
    let layer = shape.layer("ensemble.output", &format!("ens.out.{member}"), vh, block);
    (layer, member * vh, member * block)
}

/// All members' outputs from the online network's features of s.
pub fn forward<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    buffers: &EnsembleBuffers,
) -> Result<(), ExecError> {
    let to = (buffers.hidden, buffers.logits);
    outputs(exec, shape, b.parameters.online, shape.batch, b.online.features, to)
}

/// All members' outputs of `rows` rows of features, by way of their hidden layers.
fn outputs<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    online: Buf<f32>,
    rows: usize,
    features: Buf<f32>,
    (hidden, logits): (Buf<f32>, Buf<f32>),
) -> Result<(), ExecError> {
    let (features, hidden) = (View::new(features, shape.model.trunk2), View::new(hidden, width(shape)));
    let logits = View::new(logits, columns(shape));
    let mut network = Network { exec, shape, parameters: online, copies: None };
    network.activated(Lane::AUX, rows, &[(hidden_layer(shape), features, hidden)])?;
    let outputs: Vec<_> = (0..shape.parts.ensemble.members)
        .map(|member| {
            let (layer, x, y) = output_layer(shape, member);
            (layer, hidden.column(x), logits.column(y))
        })
        .collect();
    network.linear(Lane::AUX, rows, &outputs)
}

/// The exploration bonus of collection (`gpu::kernels::exploration_bonus`).
#[derive(Clone, Copy, Debug)]
pub struct Bonus {
    /// E.
    environments: usize,
    /// Hidden layers `[E, M VH]`.
    hidden: Buf<f32>,
    /// Outputs `[E, M pad4(K)]`.
    logits: Buf<f32>,
}

impl Bonus {
    /// Allocates for `environments` states.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        environments: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        Ok(Self {
            environments,
            hidden: memory.alloc(&format!("{name}.hidden"), environments * width(shape))?,
            logits: memory.alloc(&format!("{name}.logits"), environments * columns(shape))?,
        })
    }

    /// The members' outputs for the states that are about to be left, beside the heads; from the features on the main lane.
    pub fn forward<E: Exec>(
        &self,
        exec: &mut E,
        shape: &StepShape,
        online: Buf<f32>,
        features: Buf<f32>,
    ) -> Result<(), ExecError> {
        exec.after(Lane::AUX, Lane::MAIN)?;
        outputs(exec, shape, online, self.environments, features, (self.hidden, self.logits))
    }

    /// Adds the bonus to the rewards of the single steps that the environments have just written.
    pub fn add<E: Exec>(
        &self,
        exec: &mut E,
        shape: &StepShape,
        ring: &Replay,
        support: Buf<f32>,
        clock: Buf<u64>,
    ) -> Result<(), ExecError> {
        exec.after(Lane::MAIN, Lane::AUX)?;
        let config = &shape.parts.ensemble;
        macro_rules! launch {
            ($kernel:ident) => {
                exec.launch(
                    Lane::MAIN,
                    &$kernel {
                        environments: self.environments as u32,
                        members: config.members as u32,
                        atoms: shape.model.atoms as u32,
                        stride: columns(shape) as u32,
                        capacity: ring.capacity as u32,
                        first: config.explore,
                        steps: config.explore_steps,
                        clock_words: clock.into(),
                        ring_words: ring.words.into(),
                        support: support.into(),
                        logits: self.logits.into(),
                        ring_rewards: ring.rewards.into(),
                    },
                )
            };
        }
        if shape.model.atoms <= 56 { launch!(ExplorationBonus) } else { launch!(ExplorationBonusWide) }
    }
}

/// Loss, the group's gradient with its norm, and d loss / d h2' into `d_features` `[B, H2]`; with `through_activation`
/// with respect to h2's argument.
pub fn backward<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    buffers: &EnsembleBuffers,
    (d_features, through_activation): (Buf<f32>, bool),
) -> Result<(), ExecError> {
    let config = &shape.parts.ensemble;
    macro_rules! launch {
        ($kernel:ident) => {
            exec.launch(
                Lane::AUX,
                &$kernel {
                    batch: shape.batch as u32,
                    members: config.members as u32,
                    atoms: shape.model.atoms as u32,
                    stride: columns(shape) as u32,
                    mask: config.mask,
                    lambda: config.lambda,
                    seed: shape.seed,
                    clock_words: b.clock.into(),
                    support: b.support.into(),
                    logits: buffers.logits.into(),
                    target: buffers.target.into(),
                    weights: b.loss_weights(shape).into(),
                    d_logits: buffers.d_logits.into(),
                    loss: parts.sample(shape, sample::ENSEMBLE, 1).into(),
                    uncertainty: parts.sample(shape, sample::UNCERTAINTY, 1).into(),
                },
            )
        };
    }
    if shape.model.atoms <= 64 {
        launch!(EnsembleLoss)?
    } else {
        launch!(EnsembleLossWide)?
    }
    let (rows, h2) = (shape.batch, shape.model.trunk2);
    let (hidden, d_hidden) =
        (View::new(buffers.hidden, width(shape)), View::new(buffers.d_hidden, width(shape)));
    let d_logits = View::new(buffers.d_logits, columns(shape));
    let (features, stored) = (View::new(b.online.features, h2), View::new(b.online.h2, h2));
    let (mut data, mut weights) = (Vec::new(), Vec::new());
    for member in 0..config.members {
        let (layer, x, y) = output_layer(shape, member);
        data.push((layer, d_logits.column(y), Some(hidden.column(x)), d_hidden.column(x)));
        weights.push((layer, d_logits.column(y), hidden.column(x)));
    }
    let joint = hidden_layer(shape);
    let mut network = Network { exec, shape, parameters: b.parameters.online, copies: None };
    network.backward(Lane::AUX, rows, &data)?;
    let below = through_activation.then_some(stored);
    network.backward(Lane::AUX, rows, &[(joint, d_hidden, below, View::new(d_features, h2))])?;
    let (first, len) = shape.segment(Group::Ensemble);
    let planes = Planes { data: buffers.parts, first, len };
    weights.push((joint, d_hidden, features));
    network.weight_gradients(Lane::AUX, rows, planes, &weights)?;
    let reduce = GroupReduce {
        len: len as u32,
        splits: shape.splits as u32,
        plane: len as u32,
        parts: buffers.parts.into(),
        grad: b.parameters.grad.slice(first, len).into(),
        squares: parts.squares_of((first, len)).into(),
    };
    exec.launch(Lane::AUX, &reduce)
}
