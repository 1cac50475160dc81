//! The attention's backward pass in the step.

use gpu::kernels::attention::{
    AttentionContextBackward, AttentionReduce, AttentionUnfoldHeads, AttentionUnfoldWeights,
};

use super::{SPLITS, Sizes, buffers, tensor};
use crate::error::ExecError;
use crate::exec::{Epilogue, Exec, Form, Lane, Product};
use crate::gemm::{self, WeightGradient};
use crate::step::buffers::StepBuffers;
use crate::step::shape::StepShape;

/// The group's gradient and its norm from `d_features`, on the attention's lane.
pub fn backward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((parts, a)) = buffers(b) else { return Ok(()) };
    let lane = Lane::ATTENTION;
    exec.after(lane, Lane::MAIN)?;
    let s = Sizes::of(shape);
    let Sizes { width, features, bars, heads } = s;
    let (rows, d, c, plane) = (shape.batch, width as usize, s.context(), s.plane());
    let (mix, x) = (a.folded.of(a.folded.mix, 0), b.batch.x.slice(0, rows * shape.stride));
    let (online, grad) = (
        |name: &str| tensor(shape, b.parameters.online, name),
        |name: &str| tensor(shape, b.parameters.grad, name),
    );
    let context_gradient = Product {
        label: "attention.context",
        form: Form::Nn,
        m: rows,
        n: c,
        k: d,
        a: a.d_features,
        lda: d,
        b: mix,
        ldb: c,
        c: a.context_gradient,
        ldc: c,
        epilogue: Epilogue::None,
        precision: shape.precision,
    };
    gemm::group(exec, lane, &[context_gradient])?;
    exec.launch(
        lane,
        &AttentionContextBackward {
            rows: rows as u32,
            stride: shape.stride as u32,
            features,
            bars,
            heads,
            states: x.into(),
            probabilities: a.online.probabilities.into(),
            gate: online("att.gate").into(),
            context_gradient: a.context_gradient.into(),
            score_tokens: a.score_tokens.into(),
        },
    )?;
    let last = ((bars - 1) * features) as usize;
    let sums = [
        WeightGradient {
            label: "attention.output",
            rows,
            outputs: d,
            inputs: c,
            d_y: a.d_features,
            ldy: d,
            x: a.online.context,
            ldx: c,
            weight: 0,
            bias: plane.output as usize,
            precision: shape.precision,
        },
        WeightGradient {
            label: "attention.scores",
            rows,
            outputs: heads as usize * s.token(),
            inputs: features as usize,
            d_y: a.score_tokens,
            ldy: c,
            x: x.slice(last, x.len() - last),
            ldx: shape.stride,
            weight: plane.scores as usize,
            bias: plane.last as usize,
            precision: shape.precision,
        },
    ];
    gemm::weight_gradients(exec, lane, &sums, a.parts, SPLITS, plane.len as usize)?;
    exec.launch(
        lane,
        &AttentionReduce {
            splits: SPLITS as u32,
            width,
            features,
            bars,
            heads,
            parts: a.parts.into(),
            gate: online("att.gate").into(),
            mix: mix.into(),
            output_bias: online("att.o.bias").into(),
            sums: a.sums.into(),
            output_bias_gradient: grad("att.o.bias").into(),
            gate_sums: a.gate_sums.into(),
        },
    )?;
    exec.launch(
        lane,
        &AttentionUnfoldHeads {
            width,
            features,
            bars,
            heads,
            sums: a.sums.into(),
            gate_sums: a.gate_sums.into(),
            query: a.folded.of(a.folded.query, 0).into(),
            key: a.folded.of(a.folded.key, 0).into(),
            output: online("att.o.weight").into(),
            query_gradient: a.query_gradient.into(),
            key_gradient: a.key_gradient.into(),
            value_gradient: a.value_gradient.into(),
            gate_gradient: grad("att.gate").into(),
        },
    )?;
    exec.launch(
        lane,
        &AttentionUnfoldWeights {
            width,
            features,
            bars,
            heads,
            embedding: online("att.emb.weight").into(),
            embedding_bias: online("att.emb.bias").into(),
            positions: online("att.pos").into(),
            query_weight: online("att.q.weight").into(),
            key_weight: online("att.k.weight").into(),
            value_weight: online("att.v.weight").into(),
            value: a.folded.of(a.folded.value, 0).into(),
            sums: a.sums.into(),
            query_gradient: a.query_gradient.into(),
            key_gradient: a.key_gradient.into(),
            value_gradient: a.value_gradient.into(),
            output_bias_gradient: grad("att.o.bias").into(),
            gate_gradient: grad("att.gate").into(),
            d_embedding: grad("att.emb.weight").into(),
            d_embedding_bias: grad("att.emb.bias").into(),
            d_positions: grad("att.pos").into(),
            d_query: grad("att.q.weight").into(),
            d_query_bias: grad("att.q.bias").into(),
            d_key: grad("att.k.weight").into(),
            d_key_bias: grad("att.k.bias").into(),
            d_value: grad("att.v.weight").into(),
            d_value_bias: grad("att.v.bias").into(),
            d_output: grad("att.o.weight").into(),
            squares: parts.attention_squares(shape).into(),
        },
    )
}
