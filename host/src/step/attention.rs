//! Temporal attention in the step (SPEC section 2, `gpu::kernels::attention`): folded once a step beside the trunk, the
//! context of every row beside the trunk too, h2' = h2 + g o before the heads, and the group's gradient from the C51
//! term's gradient of h2', beside the trunk's backward pass.

use cuda_std::Buf;
use gpu::kernels::attention::{
    AttentionApply, AttentionApplyTf32, AttentionContext, AttentionFoldHeads, AttentionFoldProjections,
    Plane, columns, context_columns, gate_parts,
};
use settings::Precision;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::{Activations, StepBuffers};
use crate::step::parts::PartBuffers;
use crate::step::shape::StepShape;
use crate::step::stored::Copies;

mod backward;

pub use backward::backward;

/// Parts into which the sums over the batch are split; they run on the Rust kernels whatever computes the rest.
const SPLITS: usize = 8;

/// d, F, W, heads, as the kernels take them.
#[derive(Clone, Copy)]
struct Sizes {
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
}

impl Sizes {
    fn of(shape: &StepShape) -> Self {
        Self {
            width: shape.model.trunk2 as u32,
            features: shape.model.bar_features as u32,
            bars: shape.model.window as u32,
            heads: shape.parts.attention.heads as u32,
        }
    }

    /// E.
    fn token(&self) -> usize {
        columns(self.features, self.bars) as usize
    }

    /// C.
    fn context(&self) -> usize {
        context_columns(self.features, self.bars, self.heads) as usize
    }

    fn plane(&self) -> Plane {
        Plane::new(self.width, self.features, self.bars, self.heads)
    }
}

/// Sums of squares that the group's gradient comes with.
pub fn square_parts(shape: &StepShape) -> usize {
    let s = Sizes::of(shape);
    gpu::kernels::attention::square_parts(s.width, s.heads) as usize
}

/// The folded matrices of one or two networks, the online network's first.
#[derive(Clone, Copy, Debug)]
pub struct Folded {
    networks: usize,
    query: Buf<f32>,
    key: Buf<f32>,
    value: Buf<f32>,
    scores: Buf<f32>,
    mix: Buf<f32>,
}

impl Folded {
    /// Allocates for `networks` networks.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        networks: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        let s = Sizes::of(shape);
        let (d, f, heads) = (s.width as usize, s.features as usize, s.heads as usize);
        let mut alloc = |part: &str, len| memory.alloc(&format!("{name}.{part}"), networks * len);
        Ok(Self {
            networks,
            query: alloc("query", d * (f + 1))?,
            key: alloc("key", d * s.token())?,
            value: alloc("value", d * s.token())?,
            scores: alloc("scores", heads * (f + 1) * s.token())?,
            mix: alloc("mix", d * s.context())?,
        })
    }

    fn of(&self, buf: Buf<f32>, network: usize) -> Buf<f32> {
        let len = buf.len() / self.networks;
        buf.slice(network * len, len)
    }
}

/// Context of one network's rows.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// c `[rows, C]`.
    context: Buf<f32>,
    /// a `[kept, heads, W]` of the rows that the backward pass needs.
    probabilities: Buf<f32>,
    kept: usize,
}

impl Context {
    /// Allocates for `rows` rows.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        rows: usize,
        kept: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        let s = Sizes::of(shape);
        let probabilities = kept.max(1) * s.heads as usize * s.bars as usize;
        Ok(Self {
            context: memory.alloc(&format!("{name}.context"), rows * s.context())?,
            probabilities: memory.alloc(&format!("{name}.probabilities"), probabilities)?,
            kept,
        })
    }
}

/// Everything of the attention in a training step.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBuffers {
    folded: Folded,
    online: Context,
    target: Context,
    /// d C51 loss / d h2' `[B, H2]`.
    pub d_features: Buf<f32>,
    /// d_features U `[B, C]`.
    context_gradient: Buf<f32>,
    /// r `[B, C]`.
    score_tokens: Buf<f32>,
    /// Partial sums over the batch `[SPLITS, plane]`, and their sum.
    parts: Buf<f32>,
    sums: Buf<f32>,
    gate_sums: Buf<f32>,
    query_gradient: Buf<f32>,
    key_gradient: Buf<f32>,
    value_gradient: Buf<f32>,
}

impl AttentionBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let s = Sizes::of(shape);
        let (b, d, plane) = (shape.batch, s.width as usize, s.plane().len);
        let folded = Folded::alloc(memory, shape, 2, "attention.folded")?;
        let online = Context::alloc(memory, shape, 2 * b, b, "attention.online")?;
        let target = Context::alloc(memory, shape, shape.target_rows(), 0, "attention.target")?;
        let mut alloc = |name: &str, len| memory.alloc(&format!("attention.{name}"), len);
        Ok(Self {
            folded,
            online,
            target,
            d_features: alloc("d_features", b * d)?,
            context_gradient: alloc("context_gradient", b * s.context())?,
            score_tokens: alloc("score_tokens", b * s.context())?,
            parts: alloc("parts", SPLITS * plane as usize)?,
            sums: alloc("sums", plane as usize)?,
            gate_sums: alloc("gate_sums", gate_parts(plane) as usize)?,
            query_gradient: alloc("query_gradient", d * (s.features as usize + 1))?,
            key_gradient: alloc("key_gradient", d * s.token())?,
            value_gradient: alloc("value_gradient", d * s.token())?,
        })
    }
}

/// A tensor of the group in a flat buffer.
fn tensor(shape: &StepShape, flat: Buf<f32>, name: &str) -> Buf<f32> {
    let t = shape.flat.find(name).unwrap_or_else(|| panic!("no tensor {name} in the networks"));
    flat.slice(t.offset, t.len())
}

/// The step's attention buffers, where attention is on.
fn buffers(b: &StepBuffers) -> Option<(&PartBuffers, &AttentionBuffers)> {
    let parts = b.parts.as_ref()?;
    Some((parts, parts.attention.as_ref()?))
}

/// Folds both networks' parameters, on the attention's lane.
pub fn fold<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, a)) = buffers(b) else { return Ok(()) };
    exec.after(Lane::ATTENTION, Lane::MAIN)?;
    fold_networks(exec, shape, Lane::ATTENTION, &a.folded, b.parameters.online, b.parameters.target)
}

/// Folds one network, or two.
pub fn fold_networks<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    folded: &Folded,
    online: Buf<f32>,
    target: Buf<f32>,
) -> Result<(), ExecError> {
    let Sizes { width, features, bars, heads } = Sizes::of(shape);
    let (on, at) = (|name: &str| tensor(shape, online, name), |name: &str| tensor(shape, target, name));
    let networks = folded.networks as u32;
    exec.launch(
        lane,
        &AttentionFoldProjections {
            networks,
            width,
            features,
            bars,
            online_embedding: on("att.emb.weight").into(),
            online_embedding_bias: on("att.emb.bias").into(),
            online_positions: on("att.pos").into(),
            online_query: on("att.q.weight").into(),
            online_query_bias: on("att.q.bias").into(),
            online_key: on("att.k.weight").into(),
            online_key_bias: on("att.k.bias").into(),
            online_value: on("att.v.weight").into(),
            online_value_bias: on("att.v.bias").into(),
            target_embedding: at("att.emb.weight").into(),
            target_embedding_bias: at("att.emb.bias").into(),
            target_positions: at("att.pos").into(),
            target_query: at("att.q.weight").into(),
            target_query_bias: at("att.q.bias").into(),
            target_key: at("att.k.weight").into(),
            target_key_bias: at("att.k.bias").into(),
            target_value: at("att.v.weight").into(),
            target_value_bias: at("att.v.bias").into(),
            query: folded.query.into(),
            key: folded.key.into(),
            value: folded.value.into(),
        },
    )?;
    exec.launch(
        lane,
        &AttentionFoldHeads {
            networks,
            width,
            features,
            bars,
            heads,
            query: folded.query.into(),
            key: folded.key.into(),
            value: folded.value.into(),
            online_output: on("att.o.weight").into(),
            target_output: at("att.o.weight").into(),
            scores: folded.scores.into(),
            mix: folded.mix.into(),
        },
    )
}

/// Contexts of both networks' rows, side by side; the batch is there.
pub fn context<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, a)) = buffers(b) else { return Ok(()) };
    exec.after(Lane::ATTENTION, Lane::MAIN)?;
    let (rows, x) = (shape.target_rows(), b.batch.x);
    let skipped = (2 * shape.batch - rows) * shape.stride;
    let target_x = x.slice(skipped, x.len() - skipped);
    exec.after(Lane::CONTEXT, Lane::ATTENTION)?;
    context_of(exec, shape, Lane::CONTEXT, &a.folded, 1, &a.target, rows, target_x)?;
    context_of(exec, shape, Lane::ATTENTION, &a.folded, 0, &a.online, 2 * shape.batch, x)
}

/// Context of `rows` rows of `x` with the matrices of network `network`.
#[allow(clippy::too_many_arguments)] // a struct would only rename them
pub fn context_of<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    folded: &Folded,
    network: usize,
    context: &Context,
    rows: usize,
    x: Buf<f32>,
) -> Result<(), ExecError> {
    let Sizes { features, bars, heads, .. } = Sizes::of(shape);
    exec.launch(
        lane,
        &AttentionContext {
            rows: rows as u32,
            kept: context.kept as u32,
            stride: shape.stride as u32,
            features,
            bars,
            heads,
            states: x.into(),
            scores: folded.of(folded.scores, network).into(),
            probabilities: context.probabilities.into(),
            context: context.context.into(),
        },
    )
}

/// h2' of both networks, each on its own lane.
pub fn apply<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, a)) = buffers(b) else { return Ok(()) };
    for (lane, beside, network, context, activations, parameters) in [
        (Lane::MAIN, Lane::ATTENTION, 0, &a.online, &b.online, b.parameters.online),
        (Lane::TARGET, Lane::CONTEXT, 1, &a.target, &b.target, b.parameters.target),
    ] {
        exec.after(lane, beside)?;
        apply_to(exec, shape, lane, &a.folded, network, context, activations, parameters, b.copies.as_ref())?;
    }
    Ok(())
}

/// h2' of one network's rows.
#[allow(clippy::too_many_arguments)] // a struct would only rename them
pub fn apply_to<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    folded: &Folded,
    network: usize,
    context: &Context,
    activations: &Activations,
    parameters: Buf<f32>,
    copies: Option<&Copies>,
) -> Result<(), ExecError> {
    let Sizes { width, features, bars, heads } = Sizes::of(shape);
    macro_rules! launch {
        ($kernel:ident $($more:tt)*) => {
            exec.launch(
                lane,
                &$kernel {
                    rows: activations.rows as u32,
                    width,
                    features,
                    bars,
                    heads,
                    hidden: activations.h2.into(),
                    context: context.context.into(),
                    mix: folded.of(folded.mix, network).into(),
                    output_bias: tensor(shape, parameters, "att.o.bias").into(),
                    gate: tensor(shape, parameters, "att.gate").into(),
                    applied: activations.features.into(),
                    $($more)*
                },
            )
        };
    }
    let copy = copies.and_then(|copies| copies.of(activations.features));
    // A buffer has an address even where nothing is copied.
    let place = copy.unwrap_or(activations.features.slice(0, 0));
    match shape.precision {
        Precision::Fp32 => launch!(AttentionApply),
        Precision::Tf32 | Precision::Bf16 => {
            launch!(AttentionApplyTf32 copied: u32::from(copy.is_some()), copy: place.into(),)
        }
    }
}
