//! Temporal attention, spectral norm and gated units at the sizes of the reference workloads P1 and P2 (SPEC section 9).

mod device;

use std::process::ExitCode;

use criterion::Throughput;
use cuda_std::Buf;
use device::Bench;
use gpu::kernels::attention::{
    AttentionApply, AttentionApplyTf32, AttentionContext, AttentionContextBackward, AttentionFoldHeads,
    AttentionFoldProjections, AttentionReduce, AttentionUnfoldHeads, AttentionUnfoldWeights, Backward, Plane,
    columns, context_columns, gate_parts, square_parts,
};
use gpu::kernels::gemm::{
    DataKernel, Extra, GemmNnFp32Small, GemmNnTf32Medium, GemmTnFp32Medium, GemmTnTf32Medium, WeightKernel,
};
use gpu::kernels::glu::{GluBackward, GluBackwardHalves, GluForward, hidden_width};
use gpu::kernels::spectral_norm::{SpectralColumns, SpectralRows, SpectralScale, matrix};
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};

/// Planes of the attention's sums over samples.
const SPLITS: u32 = 16;

/// What a workload needs to be known by.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    batch: u32,
    state: u32,
    trunk: [u32; 2],
    features: u32,
    bars: u32,
    heads: u32,
}

const P1: Workload =
    Workload { name: "P1", batch: 1024, state: 80, trunk: [256, 256], features: 9, bars: 8, heads: 4 };
const P2: Workload =
    Workload { name: "P2", batch: 16384, state: 128, trunk: [512, 512], features: 10, bars: 12, heads: 4 };

fn main() -> ExitCode {
    device::run(|bench| {
        for workload in [P1, P2] {
            spectral(bench, &workload)?;
            forward(bench, &workload)?;
            backward(bench, &workload)?;
        }
        // P2's heads; the widths of P1's for comparison.
        gated(bench, 16384, 32, 32, 4)?;
        gated(bench, 1024, 128, 128, 3)
    })
}

fn spectral(bench: &mut Bench, w: &Workload) -> Result<(), ExecError> {
    let [first, second] = w.trunk;
    let (len1, len2) = ((first * w.state) as usize, (second * first) as usize);
    let word =
        |at, rows: u32, columns: u32| matrix(at, rows as usize, columns as usize).expect("a small matrix");
    let (matrix0, matrix1) = (word(0, first, w.state), word(len1, second, first));
    let (matrix2, matrix3, stride) = (0, 0, first.max(second).max(w.state));
    let params = bench.random("trunk", len1 + len2)?;
    let [u, v, y, z] = ["u", "v", "y", "z"].map(|label| bench.random(label, 2 * stride as usize));
    let (u, v, y, z) = (u?, v?, y?, z?);
    let sigma: Buf<f32> = bench.exec.alloc("sigma", 2)?;
    let bytes = params.bytes();
    bench.kernel(
        w.name,
        bytes,
        SpectralColumns {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            params: params.into(),
            u: u.into(),
            y: y.into(),
        },
    )?;
    bench.kernel(
        w.name,
        bytes,
        SpectralRows {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            params: params.into(),
            y: y.into(),
            v: v.into(),
            z: z.into(),
        },
    )?;
    bench.kernel(
        w.name,
        bytes,
        SpectralScale {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            sigma_max: 3.0,
            params: params.into(),
            z: z.into(),
            u: u.into(),
            sigma: sigma.into(),
        },
    )
}

/// Parameters in the order of the definition: embedding, positions, then weight and bias of q, k, v, o, then the gate.
fn parameters(bench: &mut Bench, w: &Workload) -> Result<Vec<Buf<f32>>, ExecError> {
    let d = w.trunk[1] as usize;
    let (features, bars) = (w.features as usize, w.bars as usize);
    let sizes = [d * features, d, bars * d, d * d, d, d * d, d, d * d, d, d * d, d, 1];
    sizes.into_iter().map(|len| bench.random("parameter", len)).collect()
}

fn forward(bench: &mut Bench, w: &Workload) -> Result<(), ExecError> {
    let Workload { batch, state, trunk: [_, width], features, bars, heads, .. } = *w;
    let (d, e) = (width as usize, columns(features, bars) as usize);
    let c = context_columns(features, bars, heads) as usize;
    let (online, target) = (parameters(bench, w)?, parameters(bench, w)?);
    let query = bench.random("query", 2 * d * (features as usize + 1))?;
    let (key, value) = (bench.random("key", 2 * d * e)?, bench.random("value", 2 * d * e)?);
    let scores = bench.random("scores", 2 * heads as usize * (features as usize + 1) * e)?;
    let mix = bench.random("mix", 2 * d * c)?;
    let weights = 4 * 2 * (d * d) as u64;
    bench.kernel(
        w.name,
        3 * weights,
        AttentionFoldProjections {
            networks: 2,
            width,
            features,
            bars,
            online_embedding: online[0].into(),
            online_embedding_bias: online[1].into(),
            online_positions: online[2].into(),
            online_query: online[3].into(),
            online_query_bias: online[4].into(),
            online_key: online[5].into(),
            online_key_bias: online[6].into(),
            online_value: online[7].into(),
            online_value_bias: online[8].into(),
            target_embedding: target[0].into(),
            target_embedding_bias: target[1].into(),
            target_positions: target[2].into(),
            target_query: target[3].into(),
            target_query_bias: target[4].into(),
            target_key: target[5].into(),
            target_key_bias: target[6].into(),
            target_value: target[7].into(),
            target_value_bias: target[8].into(),
            query: query.into(),
            key: key.into(),
            value: value.into(),
        },
    )?;
    bench.kernel(
        w.name,
        weights,
        AttentionFoldHeads {
            networks: 2,
            width,
            features,
            bars,
            heads,
            query: query.into(),
            key: key.into(),
            value: value.into(),
            online_output: online[9].into(),
            target_output: target[9].into(),
            scores: scores.into(),
            mix: mix.into(),
        },
    )?;
    let rows = 2 * batch as usize;
    let states = bench.random("states", rows * state as usize)?;
    let probabilities: Buf<f32> =
        bench.exec.alloc("probabilities", batch as usize * (heads * bars) as usize)?;
    let context = bench.random("context", rows * c)?;
    bench.kernel(
        w.name,
        states.bytes() + context.bytes(),
        AttentionContext {
            rows: rows as u32,
            kept: batch,
            stride: state,
            features,
            bars,
            heads,
            states: states.into(),
            scores: scores.into(),
            probabilities: probabilities.into(),
            context: context.into(),
        },
    )?;
    let (hidden, applied) = (bench.random("h2", rows * d)?, bench.random("h2'", rows * d)?);
    macro_rules! apply {
        ($kernel:ident $($more:tt)*) => {
            bench.kernel(
                w.name,
                context.bytes() + 2 * hidden.bytes(),
                $kernel {
                    rows: rows as u32,
                    width,
                    features,
                    bars,
                    heads,
                    hidden: hidden.into(),
                    context: context.into(),
                    mix: mix.into(),
                    output_bias: online[10].into(),
                    gate: online[11].into(),
                    applied: applied.into(),
                    $($more)*
                },
            )
        };
    }
    apply!(AttentionApply)?;
    apply!(AttentionApplyTf32 copied: 0, copy: applied.slice(0, 0).into(),)
}

fn backward(bench: &mut Bench, w: &Workload) -> Result<(), ExecError> {
    let Workload { batch, state, trunk: [_, width], features, bars, heads, .. } = *w;
    let (d, rows, e) = (width as usize, batch as usize, columns(features, bars) as usize);
    let c = context_columns(features, bars, heads) as usize;
    let p = parameters(bench, w)?;
    let plane = Plane::new(width, features, bars, heads).len;
    let of = Backward {
        rows: batch,
        width,
        features,
        bars,
        heads,
        stride: state,
        states: bench.random("states", rows * state as usize)?,
        applied_gradient: bench.random("dh2'", rows * d)?,
        context: bench.random("context", rows * c)?,
        mix: bench.random("mix", d * c)?,
        context_gradient: bench.random("dc", rows * c)?,
        score_tokens: bench.random("score tokens", rows * c)?,
        parts: bench.random("parts", (SPLITS * plane) as usize)?,
    };
    let probabilities = bench.random("probabilities", rows * (heads * bars) as usize)?;
    let product = of.context_product();
    let operations = Throughput::Elements(2 * (rows * d * c) as u64);
    macro_rules! context_product {
        ($($kernel:ident)*) => { $(
            let kernel = $kernel::of(Extra::Bias(1.0), &[product]).expect("sizes that fit");
            let name = concat!("attention context gradient, ", stringify!($kernel));
            bench.sequence(name, w.name, operations.clone(), move |exec, _| exec.launch(Lane::MAIN, &kernel))?;
        )* };
    }
    context_product!(GemmNnFp32Small GemmNnTf32Medium);
    bench.kernel(
        w.name,
        2 * of.context.bytes(),
        AttentionContextBackward {
            rows: batch,
            stride: state,
            features,
            bars,
            heads,
            states: of.states.into(),
            probabilities: probabilities.into(),
            gate: p[11].into(),
            context_gradient: of.context_gradient.into(),
            score_tokens: of.score_tokens.into(),
        },
    )?;
    macro_rules! products {
        ($($kernel:ident)*) => { $(
            let kernel = $kernel::of(SPLITS, plane, &of.products()).expect("sizes that fit");
            let name = concat!("attention sums over samples, ", stringify!($kernel));
            bench.sequence(name, w.name, operations.clone(), move |exec, _| exec.launch(Lane::MAIN, &kernel))?;
        )* };
    }
    products!(GemmTnFp32Medium GemmTnTf32Medium);
    let sums = bench.random("sums", plane as usize)?;
    let gate_sums = bench.random("gate sums", gate_parts(plane) as usize)?;
    // Gradients have the shapes of the parameters.
    let g = parameters(bench, w)?;
    bench.kernel(
        w.name,
        of.parts.bytes(),
        AttentionReduce {
            splits: SPLITS,
            width,
            features,
            bars,
            heads,
            parts: of.parts.into(),
            gate: p[11].into(),
            mix: of.mix.into(),
            output_bias: p[10].into(),
            sums: sums.into(),
            output_bias_gradient: g[10].into(),
            gate_sums: gate_sums.into(),
        },
    )?;
    let narrow = d * (features as usize + 1);
    let (query, query_gradient) = (bench.random("query", narrow)?, bench.random("dquery", narrow)?);
    let (key, key_gradient) = (bench.random("key", d * e)?, bench.random("dkey", d * e)?);
    let (value, value_gradient) = (bench.random("value", d * e)?, bench.random("dvalue", d * e)?);
    let squares: Buf<f32> = bench.exec.alloc("squares", square_parts(width, heads) as usize)?;
    let weights = 4 * (d * d) as u64;
    bench.kernel(
        w.name,
        weights,
        AttentionUnfoldHeads {
            width,
            features,
            bars,
            heads,
            sums: sums.into(),
            gate_sums: gate_sums.into(),
            query: query.into(),
            key: key.into(),
            output: p[9].into(),
            query_gradient: query_gradient.into(),
            key_gradient: key_gradient.into(),
            value_gradient: value_gradient.into(),
            gate_gradient: g[11].into(),
        },
    )?;
    bench.kernel(
        w.name,
        7 * weights,
        AttentionUnfoldWeights {
            width,
            features,
            bars,
            heads,
            embedding: p[0].into(),
            embedding_bias: p[1].into(),
            positions: p[2].into(),
            query_weight: p[3].into(),
            key_weight: p[5].into(),
            value_weight: p[7].into(),
            value: value.into(),
            sums: sums.into(),
            query_gradient: query_gradient.into(),
            key_gradient: key_gradient.into(),
            value_gradient: value_gradient.into(),
            output_bias_gradient: g[10].into(),
            gate_gradient: g[11].into(),
            d_embedding: g[0].into(),
            d_embedding_bias: g[1].into(),
            d_positions: g[2].into(),
            d_query: g[3].into(),
            d_query_bias: g[4].into(),
            d_key: g[5].into(),
            d_key_bias: g[6].into(),
            d_value: g[7].into(),
            d_value_bias: g[8].into(),
            d_output: g[9].into(),
            squares: squares.into(),
        },
    )
}

fn gated(
    bench: &mut Bench,
    rows: u32,
    value_width: u32,
    branch_width: u32,
    branches: u32,
) -> Result<(), ExecError> {
    let width = hidden_width(value_width, branch_width, branches);
    let len = (rows * width) as usize;
    let (pre, d_pre) = (bench.random("pre", 2 * len)?, bench.random("d pre", 2 * len)?);
    let (hidden, d_hidden) = (bench.random("hidden", len)?, bench.random("d hidden", len)?);
    let shape = format!("{rows} x {width}");
    bench.kernel(
        &shape,
        pre.bytes() + hidden.bytes(),
        GluForward { rows, value_width, branch_width, branches, pre: pre.into(), hidden: hidden.into() },
    )?;
    macro_rules! backward {
        ($kernel:ident, $bytes:expr) => {
            bench.kernel(
                &shape,
                $bytes,
                $kernel {
                    rows,
                    value_width,
                    branch_width,
                    branches,
                    d_hidden: d_hidden.into(),
                    pre: pre.into(),
                    d_pre: d_pre.into(),
                },
            )
        };
    }
    backward!(GluBackward, 2 * pre.bytes() + hidden.bytes())?;
    backward!(GluBackwardHalves, 3 * pre.bytes() / 2 + hidden.bytes())
}
