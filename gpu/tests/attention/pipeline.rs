//! The launches of one step, in the order in which a step makes them.

use cuda_std::Kernel;
use cuda_std::emulator::{Emulator, HostBuf};
use gpu::kernels::attention::reference::{Parameters, Shape, tensor_sizes};
use gpu::kernels::attention::{
    AttentionApply, AttentionContext, AttentionContextBackward, AttentionFoldHeads, AttentionFoldProjections,
    AttentionReduce, AttentionUnfoldHeads, AttentionUnfoldWeights, Backward, columns, context_columns,
    gate_parts,
};
use gpu::kernels::gemm::{DataKernel, Extra, GemmNnFp32Small, GemmTnFp32Small, WeightKernel};

use crate::problem::Problem;

/// Content of memory that a kernel must not write.
pub const UNTOUCHED: f32 = -77.0;
/// Floats behind each output that must stay untouched.
const GUARD: usize = 4;
/// Planes of the sums over samples.
pub const SPLITS: usize = 6;

/// An output with untouchable floats behind it.
fn output(len: usize) -> HostBuf<f32> {
    HostBuf::from(vec![UNTOUCHED; len + GUARD])
}

/// Its content; everything behind must be as before.
#[track_caller]
fn written(buffer: &HostBuf<f32>) -> Vec<f32> {
    let mut values = buffer.to_vec();
    let guard = values.split_off(values.len() - GUARD);
    assert!(guard.iter().all(|&x| x == UNTOUCHED), "a kernel wrote behind its output");
    values
}

/// The sizes as kernels take them.
#[derive(Clone, Copy)]
struct Sizes {
    width: u32,
    features: u32,
    bars: u32,
    heads: u32,
}

impl Sizes {
    fn of(shape: Shape) -> Sizes {
        let [width, features, bars, heads] =
            [shape.width, shape.features, shape.bars, shape.heads].map(|x| x as u32);
        Sizes { width, features, bars, heads }
    }

    fn columns(self) -> usize {
        columns(self.features, self.bars) as usize
    }

    fn padded(self) -> usize {
        context_columns(self.features, self.bars, self.heads) as usize
    }
}

/// The folded matrices of both networks.
pub struct Folded {
    query: HostBuf<f32>,
    key: HostBuf<f32>,
    value: HostBuf<f32>,
    scores: HostBuf<f32>,
    mix: HostBuf<f32>,
}

/// Launches kernels on one emulator.
pub struct Pipeline {
    emulator: Emulator,
    shape: Shape,
    sizes: Sizes,
}

/// What the forward of one network over some rows gives.
pub struct Applied {
    /// [kept, heads, W]
    pub probabilities: Vec<f32>,
    /// [rows, d]
    pub hidden: Vec<f32>,
    context: HostBuf<f32>,
    kept: HostBuf<f32>,
}

impl Pipeline {
    pub fn new(shape: Shape, seed: u64) -> Pipeline {
        Pipeline { emulator: Emulator::new(seed).watch_global(), shape, sizes: Sizes::of(shape) }
    }

    fn launch<K: Kernel>(&mut self, kernel: &K) {
        self.emulator.launch(kernel).unwrap_or_else(|fault| panic!("{:?}: {fault}", self.shape));
    }

    /// Both folds for the online and the target network.
    pub fn fold(&mut self, online: &Parameters<f32>, target: &Parameters<f32>) -> Folded {
        let Sizes { width, features, bars, heads } = self.sizes;
        let (d, e) = (self.shape.width, self.sizes.columns());
        let of = |p: &Parameters<f32>| p.tensors().map(|tensor| HostBuf::from(tensor.as_slice()));
        let (online, target) = (of(online), of(target));
        let folded = Folded {
            query: output(2 * d * (self.shape.features + 1)),
            key: output(2 * d * e),
            value: output(2 * d * e),
            scores: output(2 * self.shape.heads * (self.shape.features + 1) * e),
            mix: output(2 * d * self.sizes.padded()),
        };
        self.launch(&AttentionFoldProjections {
            networks: 2,
            width,
            features,
            bars,
            online_embedding: online[0].buf().into(),
            online_embedding_bias: online[1].buf().into(),
            online_positions: online[2].buf().into(),
            online_query: online[3].buf().into(),
            online_query_bias: online[4].buf().into(),
            online_key: online[5].buf().into(),
            online_key_bias: online[6].buf().into(),
            online_value: online[7].buf().into(),
            online_value_bias: online[8].buf().into(),
            target_embedding: target[0].buf().into(),
            target_embedding_bias: target[1].buf().into(),
            target_positions: target[2].buf().into(),
            target_query: target[3].buf().into(),
            target_query_bias: target[4].buf().into(),
            target_key: target[5].buf().into(),
            target_key_bias: target[6].buf().into(),
            target_value: target[7].buf().into(),
            target_value_bias: target[8].buf().into(),
            query: folded.query.buf().into(),
            key: folded.key.buf().into(),
            value: folded.value.buf().into(),
        });
        self.launch(&AttentionFoldHeads {
            networks: 2,
            width,
            features,
            bars,
            heads,
            query: folded.query.buf().into(),
            key: folded.key.buf().into(),
            value: folded.value.buf().into(),
            online_output: online[9].buf().into(),
            target_output: target[9].buf().into(),
            scores: folded.scores.buf().into(),
            mix: folded.mix.buf().into(),
        });
        for buffer in [&folded.query, &folded.key, &folded.value, &folded.scores, &folded.mix] {
            let values = written(buffer);
            assert!(values.iter().all(|&x| x != UNTOUCHED), "a folded matrix is not whole");
        }
        folded
    }

    /// States with other features behind the window, and some floats between rows.
    fn states(&self, windows: &[f32]) -> (HostBuf<f32>, usize) {
        let window = self.shape.bars * self.shape.features;
        let stride = (window + 3).next_multiple_of(4);
        let mut states = vec![f32::NAN; windows.len() / window * stride];
        for (row, window) in states.chunks_exact_mut(stride).zip(windows.chunks_exact(window)) {
            row[..window.len()].copy_from_slice(window);
        }
        (HostBuf::from(states), stride)
    }

    /// Context and h2' of network 0 (online) or 1 (target), probabilities of the first `kept` rows.
    pub fn apply(&mut self, folded: &Folded, network: usize, problem: &Problem, kept: usize) -> Applied {
        let Sizes { width, features, bars, heads } = self.sizes;
        let (rows, padded) = (problem.rows, self.sizes.padded());
        let (states, stride) = self.states(&problem.windows);
        let probabilities = output(kept * self.shape.heads * self.shape.bars);
        let (context, applied) = (output(rows * padded), output(rows * self.shape.width));
        let scores = self.shape.heads * (self.shape.features + 1) * self.sizes.columns();
        self.launch(&AttentionContext {
            rows: rows as u32,
            kept: kept as u32,
            stride: stride as u32,
            features,
            bars,
            heads,
            states: states.buf().into(),
            scores: folded.scores.buf().slice(network * scores, scores).into(),
            probabilities: probabilities.buf().into(),
            context: context.buf().into(),
        });
        let tokens = self.shape.heads * self.sizes.columns();
        for row in written(&context).chunks_exact(padded) {
            assert!(row[tokens..].iter().all(|&x| x == 0.0), "the padding of the context is zero");
        }
        let hidden = HostBuf::from(problem.hidden.as_slice());
        let gate = HostBuf::from(problem.parameters.gate.as_slice());
        let output_bias = HostBuf::from(problem.parameters.output_bias.as_slice());
        let mix = self.shape.width * padded;
        self.launch(&AttentionApply {
            rows: rows as u32,
            width,
            features,
            bars,
            heads,
            hidden: hidden.buf().into(),
            context: context.buf().into(),
            mix: folded.mix.buf().slice(network * mix, mix).into(),
            output_bias: output_bias.buf().into(),
            gate: gate.buf().into(),
            applied: applied.buf().into(),
        });
        Applied {
            probabilities: written(&probabilities),
            hidden: written(&applied),
            context,
            kept: probabilities,
        }
    }

    /// The gradients of all parameters of the online network; `forward` was over at least the problem's rows.
    pub fn backward(&mut self, folded: &Folded, forward: &Applied, problem: &Problem) -> Parameters<f32> {
        let Sizes { width, features, bars, heads } = self.sizes;
        let (rows, padded) = (problem.rows, self.sizes.padded());
        let (states, stride) = self.states(&problem.windows);
        let gradient = HostBuf::from(problem.gradient.as_slice());
        let (context_gradient, score_tokens) = (output(rows * padded), output(rows * padded));
        let mut of = Backward {
            rows: rows as u32,
            width,
            features,
            bars,
            heads,
            stride: stride as u32,
            states: states.buf(),
            applied_gradient: gradient.buf(),
            context: forward.context.buf(),
            mix: folded.mix.buf(),
            context_gradient: context_gradient.buf(),
            score_tokens: score_tokens.buf(),
            parts: states.buf(),
        };
        let plane = of.plane().len;
        // What no product writes is NaN: nothing may read it.
        let parts = HostBuf::from(vec![f32::NAN; SPLITS * plane as usize]);
        of.parts = parts.buf();
        let p = problem.parameters.tensors().map(|tensor| HostBuf::from(tensor.as_slice()));
        let d = tensor_sizes(self.shape).map(|(_, len)| output(len));
        let (sums, gate_sums) = (output(plane as usize), output(gate_parts(plane) as usize));
        let e = self.sizes.columns();
        let query_gradient = output(self.shape.width * (self.shape.features + 1));
        let (key_gradient, value_gradient) = (output(self.shape.width * e), output(self.shape.width * e));

        let product = of.context_product();
        self.launch(&GemmNnFp32Small::of(Extra::Bias(1.0), &[product]).expect("a product"));
        self.launch(&AttentionContextBackward {
            rows: rows as u32,
            stride: stride as u32,
            features,
            bars,
            heads,
            states: states.buf().into(),
            probabilities: forward.kept.buf().into(),
            gate: p[11].buf().into(),
            context_gradient: context_gradient.buf().into(),
            score_tokens: score_tokens.buf().into(),
        });
        self.launch(&GemmTnFp32Small::of(SPLITS as u32, plane, &of.products()).expect("products"));
        self.launch(&AttentionReduce {
            splits: SPLITS as u32,
            width,
            features,
            bars,
            heads,
            parts: parts.buf().into(),
            gate: p[11].buf().into(),
            mix: folded.mix.buf().into(),
            output_bias: p[10].buf().into(),
            sums: sums.buf().into(),
            output_bias_gradient: d[10].buf().into(),
            gate_sums: gate_sums.buf().into(),
        });
        self.launch(&AttentionUnfoldHeads {
            width,
            features,
            bars,
            heads,
            sums: sums.buf().into(),
            gate_sums: gate_sums.buf().into(),
            query: folded.query.buf().into(),
            key: folded.key.buf().into(),
            output: p[9].buf().into(),
            query_gradient: query_gradient.buf().into(),
            key_gradient: key_gradient.buf().into(),
            value_gradient: value_gradient.buf().into(),
            gate_gradient: d[11].buf().into(),
        });
        self.launch(&AttentionUnfoldWeights {
            width,
            features,
            bars,
            heads,
            embedding: p[0].buf().into(),
            embedding_bias: p[1].buf().into(),
            positions: p[2].buf().into(),
            query_weight: p[3].buf().into(),
            key_weight: p[5].buf().into(),
            value_weight: p[7].buf().into(),
            value: folded.value.buf().into(),
            sums: sums.buf().into(),
            query_gradient: query_gradient.buf().into(),
            key_gradient: key_gradient.buf().into(),
            value_gradient: value_gradient.buf().into(),
            d_embedding: d[0].buf().into(),
            d_embedding_bias: d[1].buf().into(),
            d_positions: d[2].buf().into(),
            d_query: d[3].buf().into(),
            d_query_bias: d[4].buf().into(),
            d_key: d[5].buf().into(),
            d_key_bias: d[6].buf().into(),
            d_value: d[7].buf().into(),
            d_value_bias: d[8].buf().into(),
            d_output: d[9].buf().into(),
        });
        for buffer in [
            &context_gradient,
            &score_tokens,
            &sums,
            &gate_sums,
            &query_gradient,
            &key_gradient,
            &value_gradient,
        ] {
            written(buffer);
        }
        Parameters::from_tensors(d.each_ref().map(written))
    }
}
