//! The two value networks beside the step: S -> H -> H -> 1, expectile loss on the target network's Q(s, a_d), and what
//! they say of the batch: weights and scales of the other losses, support, exploration (`gpu::kernels::iql_derive`).

use cuda_std::Buf;
use gpu::kernels::iql_derive::{IqlDerive, IqlQuantiles, IqlState, derived, state};
use gpu::kernels::iql_loss::IqlLoss;
use gpu::kernels::learner_signals::sample;
use gpu::kernels::step_signals::signal;
use gpu::kernels::taken_q::{TakenQ, TakenQWide};
use gpu::kernels::term_reduce::GroupReduce;
use settings::Group;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::network::{Network, Planes, View};
use crate::step::parts::PartBuffers;
use crate::step::shape::{Layer, StepShape};
use crate::step::update::launch_on_columns;

/// Activations and gradients of both networks, the high expectile's first.
#[derive(Clone, Copy, Debug)]
pub struct IqlBuffers {
    /// First hidden layers `[2, B, H]`.
    pub h1: Buf<f32>,
    /// Second hidden layers `[2, B, H]`.
    pub h2: Buf<f32>,
    /// Target network's Q of the taken actions `[B, D]`.
    pub q: Buf<f32>,
    /// d loss / d V `[2, B]`.
    pub d_value: Buf<f32>,
    /// d loss / d (h2's argument) `[2, B, H]`.
    pub d_h2: Buf<f32>,
    /// d loss / d (h1's argument) `[2, B, H]`.
    pub d_h1: Buf<f32>,
    /// Partial gradients `[splits, both segments]`.
    pub parts: Buf<f32>,
    /// Importance weight times advantage weight `[B]`.
    pub loss_weights: Buf<f32>,
    /// Gap, size, quantiles and branch scales of the batch (`iql_derive::derived`).
    pub derived: Buf<f32>,
    /// Number of the step, one value.
    pub step: Buf<u64>,
    /// Averages kept from step to step (`iql_derive::state`).
    pub averages: Buf<f32>,
    /// Exploration by the value networks, one value, kept; collection reads it where it is on.
    pub epsilon: Buf<f32>,
}

/// Both networks' place in the flat buffer: first float, and floats up to the end of the second.
fn place(shape: &StepShape) -> (usize, usize) {
    let (high, low) = (shape.segment(Group::IqlHigh), shape.segment(Group::IqlLow));
    (high.0, low.0 + low.1 - high.0)
}

impl IqlBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let (b, h) = (shape.batch, shape.parts.iql.hidden);
        let step = memory.alloc("iql.step", 1)?;
        let mut alloc = |name: &str, len| memory.alloc(&format!("iql.{name}"), len);
        Ok(Self {
            h1: alloc("h1", 2 * b * h)?,
            h2: alloc("h2", 2 * b * h)?,
            q: alloc("q", b * shape.branches)?,
            d_value: alloc("d_value", 2 * b)?,
            d_h2: alloc("d_h2", 2 * b * h)?,
            d_h1: alloc("d_h1", 2 * b * h)?,
            parts: alloc("parts", shape.splits * place(shape).1)?,
            loss_weights: alloc("loss_weights", b)?,
            derived: alloc("derived", derived::WORDS as usize)?,
            step,
            averages: alloc("averages", state::WORDS as usize)?,
            epsilon: alloc("epsilon", 1)?,
        })
    }

    /// Scales of the branches' losses `[8]`.
    pub fn branch_scales(&self) -> Buf<f32> {
        self.derived.slice(derived::BRANCH_SCALE as usize, gpu::action::MAX_BRANCHES as usize)
    }
}

/// Layers of one network.
fn layers(shape: &StepShape, prefix: &str) -> [Layer; 3] {
    let h = shape.parts.iql.hidden;
    [
        shape.layer("iql.0", &format!("{prefix}.0"), shape.model.state, h),
        shape.layer("iql.1", &format!("{prefix}.1"), h, h),
        shape.layer("iql.2", &format!("{prefix}.2"), h, 1),
    ]
}

/// The networks' forward pass: needs the batch and the parameters alone.
pub fn forward<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    iql: &IqlBuffers,
) -> Result<(), ExecError> {
    let (high, low) = (layers(shape, "iql.hi"), layers(shape, "iql.lo"));
    let x = View::new(b.batch.x, shape.stride);
    let [h1, h2] = [iql.h1, iql.h2].map(|buf| halves(shape, buf));
    let mut network = Network { exec, shape, parameters: b.parameters.online, copies: None };
    network.activated(Lane::IQL, shape.batch, &[(high[0], x, h1[0]), (low[0], x, h1[1])])?;
    network.activated(Lane::IQL, shape.batch, &[(high[1], h1[0], h2[0]), (low[1], h1[1], h2[1])])
}

/// From the target network's logits on s to values, losses and what they say of the batch.
pub fn values<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    iql: &IqlBuffers,
) -> Result<(), ExecError> {
    taken_q(exec, shape, b, iql)?;
    let (high, low) = (layers(shape, "iql.hi"), layers(shape, "iql.lo"));
    let config = &shape.parts.iql;
    exec.launch(
        Lane::IQL,
        &IqlLoss {
            batch: shape.batch as u32,
            branches: shape.branches as u32,
            width: config.hidden as u32,
            slope: shape.model.leaky_slope,
            tau_high: config.tau_high,
            tau_low: config.tau_low,
            weight_high: high[2].weight as u32,
            bias_high: high[2].bias as u32,
            weight_low: low[2].weight as u32,
            bias_low: low[2].bias as u32,
            q: iql.q.into(),
            hidden: iql.h2.into(),
            parameters: b.parameters.online.into(),
            values: parts.sample(shape, sample::IQL_VALUE, 2).into(),
            loss: parts.sample(shape, sample::IQL_LOSS, 2).into(),
            d_value: iql.d_value.into(),
            d_hidden: iql.d_h2.into(),
        },
    )?;
    exec.launch(
        Lane::IQL,
        &IqlDerive {
            batch: shape.batch as u32,
            branches: shape.branches as u32,
            beta: config.beta,
            q: iql.q.into(),
            values: parts.sample(shape, sample::IQL_VALUE, 2).into(),
            weights: b.batch.weights.into(),
            clock_words: b.clock.into(),
            loss_weights: iql.loss_weights.into(),
            means: iql.derived.slice(derived::GAP as usize, 2).into(),
            branch_scales: iql.branch_scales().into(),
            step: iql.step.into(),
        },
    )
}

/// From the losses to the groups' gradients and their norms; beside them the quantiles that a support follows.
pub fn backward<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    iql: &IqlBuffers,
) -> Result<(), ExecError> {
    let (high, low) = (layers(shape, "iql.hi"), layers(shape, "iql.lo"));
    let x = View::new(b.batch.x, shape.stride);
    let [h1, h2, d_h1, d_h2] = [iql.h1, iql.h2, iql.d_h1, iql.d_h2].map(|buf| halves(shape, buf));
    let d_value = [0, 1].map(|n| View::new(iql.d_value.slice(n * shape.batch, shape.batch), 1));
    let (first, len) = place(shape);
    let planes = Planes { data: iql.parts, first, len };
    let rows = shape.batch;
    let mut network = Network { exec, shape, parameters: b.parameters.online, copies: None };
    network.backward(
        Lane::IQL,
        rows,
        &[(high[1], d_h2[0], Some(h1[0]), d_h1[0]), (low[1], d_h2[1], Some(h1[1]), d_h1[1])],
    )?;
    // One output is no shape for cuBLASLt.
    let outputs = [(high[2], d_value[0], h2[0]), (low[2], d_value[1], h2[1])];
    network.rust_weight_gradients(Lane::IQL, rows, planes, &outputs)?;
    let hidden =
        [(high[1], d_h2[0], h1[0]), (low[1], d_h2[1], h1[1]), (high[0], d_h1[0], x), (low[0], d_h1[1], x)];
    network.weight_gradients(Lane::IQL, rows, planes, &hidden)?;
    for group in [Group::IqlHigh, Group::IqlLow] {
        let (offset, own) = shape.segment(group);
        let reach = (shape.splits - 1) * len + own;
        let reduce = GroupReduce {
            len: own as u32,
            splits: shape.splits as u32,
            plane: len as u32,
            parts: iql.parts.slice(offset - first, reach).into(),
            grad: b.parameters.grad.slice(offset, own).into(),
            squares: parts.squares_of((offset, own)).into(),
        };
        exec.launch(Lane::IQL, &reduce)?;
    }
    if !shape.parts.iql.adaptive_support {
        return Ok(());
    }
    let quantiles = IqlQuantiles {
        batch: shape.batch as u32,
        values: parts.sample(shape, sample::IQL_VALUE, 2).into(),
        quantiles: iql.derived.slice(derived::QUANTILES as usize, 2).into(),
    };
    exec.launch(Lane::IQL, &quantiles)
}

/// Averages, epsilon and support once the update's scales are known, on the lane [`Lane::IQL`].
pub fn finish<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    iql: &IqlBuffers,
) -> Result<(), ExecError> {
    let config = &shape.parts.iql;
    launch_on_columns(
        exec,
        Lane::IQL,
        &IqlState {
            rows: shape.history as u32,
            rate: config.signal_rate,
            epsilon_min: config.epsilon_min,
            epsilon_max: config.epsilon_max,
            adaptive_support: config.adaptive_support.into(),
            support_rate: config.support_rate,
            support_margin: config.support_margin,
            support_floor: config.support_floor * (shape.model.v_max - shape.model.v_min),
            means: iql.derived.into(),
            scales: parts.scales.into(),
            step: iql.step.into(),
            averages: iql.averages.into(),
            epsilon: iql.epsilon.into(),
            support: b.support.into(),
            history: b.history.into(),
        },
        shape,
        b.history,
        (0..0, signal::IQL_GAP..signal::V_MAX + 1),
    )
}

/// The two networks' rows.
fn halves(shape: &StepShape, buf: Buf<f32>) -> [View; 2] {
    let len = shape.batch * shape.parts.iql.hidden;
    [0, 1].map(|n| View::new(buf.slice(n * len, len), shape.parts.iql.hidden))
}

fn taken_q<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    iql: &IqlBuffers,
) -> Result<(), ExecError> {
    macro_rules! launch {
        ($kernel:ident) => {
            exec.launch(
                Lane::IQL,
                &$kernel {
                    rows: shape.batch as u32,
                    branches: shape.branches as u32,
                    sizes: shape.sizes,
                    atoms: shape.model.atoms as u32,
                    stride: shape.logits as u32,
                    support: b.support.into(),
                    logits: b.target.logits.slice(0, shape.batch * shape.logits).into(),
                    actions: b.batch.actions.into(),
                    q: iql.q.into(),
                },
            )
        };
    }
    if shape.model.atoms <= 64 { launch!(TakenQ) } else { launch!(TakenQWide) }
}
