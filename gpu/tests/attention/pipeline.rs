//! The launches of one step, in the order in which a step makes them.

use cuda_std::Buf;
use gpu::kernels::attention::reference::{Parameters, Shape, tensor_sizes};
use gpu::kernels::attention::{
    AttentionApply, AttentionApplyTf32, AttentionContext, AttentionContextBackward, AttentionFoldHeads,
    AttentionFoldProjections, AttentionReduce, AttentionUnfoldHeads, AttentionUnfoldWeights, Backward,
    columns, context_columns, gate_parts, square_parts,
};
use gpu::kernels::gemm::{DataKernel, Extra, GemmNnFp32Small, GemmTnFp32Small, WeightKernel};
use gpu::kernels::halve::reference::bf16;

use super::machine::{Machine, UNTOUCHED};
use super::problem::Problem;

/// Planes of the sums over samples.
pub const SPLITS: usize = 6;

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
    query: Buf<f32>,
    key: Buf<f32>,
    value: Buf<f32>,
    scores: Buf<f32>,
    mix: Buf<f32>,
}

/// Launches kernels on a machine.
pub struct Pipeline<'m, M> {
    machine: &'m mut M,
    shape: Shape,
    sizes: Sizes,
}

/// What the forward of one network over some rows gives.
pub struct Applied {
    /// [kept, heads, W]
    pub probabilities: Vec<f32>,
    /// [rows, d]
    pub hidden: Vec<f32>,
    context: Buf<f32>,
    kept: Buf<f32>,
}

impl<'m, M: Machine> Pipeline<'m, M> {
    pub fn new(machine: &'m mut M, shape: Shape) -> Self {
        Pipeline { machine, shape, sizes: Sizes::of(shape) }
    }

    /// All tensors of a network.
    fn put(&mut self, parameters: &Parameters<f32>) -> Result<Vec<Buf<f32>>, M::Error> {
        parameters.tensors().into_iter().map(|tensor| self.machine.put(tensor)).collect()
    }

    /// Both folds for the online and, where there is one, the target network.
    pub fn fold(
        &mut self,
        online: &Parameters<f32>,
        target: Option<&Parameters<f32>>,
    ) -> Result<Folded, M::Error> {
        let Sizes { width, features, bars, heads } = self.sizes;
        let (d, e) = (self.shape.width, self.sizes.columns());
        let networks = 1 + target.is_some() as usize;
        let target = self.put(target.unwrap_or(online))?;
        let online = self.put(online)?;
        let folded = Folded {
            query: self.machine.output(networks * d * (self.shape.features + 1))?,
            key: self.machine.output(networks * d * e)?,
            value: self.machine.output(networks * d * e)?,
            scores: self.machine.output(networks * self.shape.heads * (self.shape.features + 1) * e)?,
            mix: self.machine.output(networks * d * self.sizes.padded())?,
        };
        self.machine.launch(AttentionFoldProjections {
            networks: networks as u32,
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
            query: folded.query.into(),
            key: folded.key.into(),
            value: folded.value.into(),
        })?;
        self.machine.launch(AttentionFoldHeads {
            networks: networks as u32,
            width,
            features,
            bars,
            heads,
            query: folded.query.into(),
            key: folded.key.into(),
            value: folded.value.into(),
            online_output: online[9].into(),
            target_output: target[9].into(),
            scores: folded.scores.into(),
            mix: folded.mix.into(),
        })?;
        for buffer in [folded.query, folded.key, folded.value, folded.scores, folded.mix] {
            let values = self.machine.written(buffer)?;
            assert!(values.iter().all(|&x| x != UNTOUCHED), "a folded matrix is not whole");
        }
        Ok(folded)
    }

    /// States with other features behind the window, and some floats between rows.
    fn states(&mut self, windows: &[f32]) -> Result<(Buf<f32>, usize), M::Error> {
        let window = self.shape.bars * self.shape.features;
        let stride = (window + 3).next_multiple_of(4);
        let mut states = vec![f32::NAN; windows.len() / window * stride];
        for (row, window) in states.chunks_exact_mut(stride).zip(windows.chunks_exact(window)) {
            row[..window.len()].copy_from_slice(window);
        }
        Ok((self.machine.put(&states)?, stride))
    }

    /// Context and h2' of network 0 (online) or 1 (target), probabilities of the first `kept` rows.
    pub fn apply(
        &mut self,
        folded: &Folded,
        network: usize,
        problem: &Problem,
        kept: usize,
    ) -> Result<Applied, M::Error> {
        let Sizes { features, bars, heads, .. } = self.sizes;
        let (rows, padded) = (problem.rows, self.sizes.padded());
        let (states, stride) = self.states(&problem.windows)?;
        let probabilities = self.machine.output(kept * self.shape.heads * self.shape.bars)?;
        let context = self.machine.output(rows * padded)?;
        let scores = self.shape.heads * (self.shape.features + 1) * self.sizes.columns();
        self.machine.launch(AttentionContext {
            rows: rows as u32,
            kept: kept as u32,
            stride: stride as u32,
            features,
            bars,
            heads,
            states: states.into(),
            scores: folded.scores.slice(network * scores, scores).into(),
            probabilities: probabilities.into(),
            context: context.into(),
        })?;
        let tokens = self.shape.heads * self.sizes.columns();
        for row in self.machine.written(context)?.chunks_exact(padded) {
            assert!(row[tokens..].iter().all(|&x| x == 0.0), "the padding of the context is zero");
        }
        let kernel = self.apply_kernel(folded, network, problem, context)?;
        self.machine.launch(kernel)?;
        let applied = kernel.applied.buf();
        Ok(Applied {
            probabilities: self.machine.written(probabilities)?,
            hidden: self.machine.written(applied)?,
            context,
            kept: probabilities,
        })
    }

    /// The launch that applies a context of `network`, with its own copies of the other operands.
    fn apply_kernel(
        &mut self,
        folded: &Folded,
        network: usize,
        problem: &Problem,
        context: Buf<f32>,
    ) -> Result<AttentionApply, M::Error> {
        let Sizes { width, features, bars, heads } = self.sizes;
        let mix = self.shape.width * self.sizes.padded();
        Ok(AttentionApply {
            rows: problem.rows as u32,
            width,
            features,
            bars,
            heads,
            hidden: self.machine.put(&problem.hidden)?.into(),
            context: context.into(),
            mix: folded.mix.slice(network * mix, mix).into(),
            output_bias: self.machine.put(&problem.parameters.output_bias)?.into(),
            gate: self.machine.put(&problem.parameters.gate)?.into(),
            applied: self.machine.output(problem.rows * self.shape.width)?.into(),
        })
    }

    /// h2' of network 0 by the tensor cores, with the context [rows, C] and U [d, C] that it is made of.
    pub fn apply_tf32(
        &mut self,
        folded: &Folded,
        problem: &Problem,
        forward: &Applied,
    ) -> Result<[Vec<f32>; 3], M::Error> {
        let kernel = self.apply_kernel(folded, 0, problem, forward.context)?;
        let AttentionApply {
            rows,
            width,
            features,
            bars,
            heads,
            hidden,
            context,
            mix,
            output_bias,
            gate,
            applied,
        } = kernel;
        // Rounded to bf16 beside it, where its columns come in pieces of four.
        let copied = width.is_multiple_of(4);
        let copy = self.machine.output((rows * width) as usize / 2)?;
        self.machine.launch(AttentionApplyTf32 {
            rows,
            width,
            features,
            bars,
            heads,
            hidden,
            context,
            mix,
            output_bias,
            gate,
            applied,
            copied: u32::from(copied),
            copy: copy.into(),
        })?;
        let context = self.machine.written(forward.context)?;
        let (result, copy) = (self.machine.written(applied.buf())?, self.machine.written(copy)?);
        for (i, word) in copy.into_iter().map(f32::to_bits).enumerate() {
            for (half, e) in [word as u16, (word >> 16) as u16].into_iter().zip([2 * i, 2 * i + 1]) {
                match bf16(result[e]) {
                    Some(bits) if copied => assert_eq!(half, bits, "copy of element {e} of h2'"),
                    None if copied => assert!(f32::from_bits(u32::from(half) << 16).is_nan()),
                    _ => assert_eq!(word, UNTOUCHED.to_bits()),
                }
            }
        }
        Ok([result, context, self.machine.written(folded.mix)?])
    }

    /// The gradients of all parameters of the online network; `forward` was over at least the problem's rows.
    pub fn backward(
        &mut self,
        folded: &Folded,
        forward: &Applied,
        problem: &Problem,
    ) -> Result<Parameters<f32>, M::Error> {
        let Sizes { width, features, bars, heads } = self.sizes;
        let (rows, padded) = (problem.rows, self.sizes.padded());
        let (states, stride) = self.states(&problem.windows)?;
        let gradient = self.machine.put(&problem.gradient)?;
        let (context_gradient, score_tokens) =
            (self.machine.output(rows * padded)?, self.machine.output(rows * padded)?);
        let mut of = Backward {
            rows: rows as u32,
            width,
            features,
            bars,
            heads,
            stride: stride as u32,
            states,
            applied_gradient: gradient,
            context: forward.context,
            mix: folded.mix,
            context_gradient,
            score_tokens,
            parts: states,
        };
        let plane = of.plane().len;
        // What no product writes is NaN: nothing may read it.
        let parts = self.machine.put(&vec![f32::NAN; SPLITS * plane as usize])?;
        of.parts = parts;
        let p = self.put(&problem.parameters)?;
        let d: Vec<Buf<f32>> = tensor_sizes(self.shape)
            .into_iter()
            .map(|(_, len)| self.machine.output(len))
            .collect::<Result<_, _>>()?;
        let (sums, gate_sums) =
            (self.machine.output(plane as usize)?, self.machine.output(gate_parts(plane) as usize)?);
        let e = self.sizes.columns();
        let squares = self.machine.output(square_parts(width, heads) as usize)?;
        let query_gradient = self.machine.output(self.shape.width * (self.shape.features + 1))?;
        let (key_gradient, value_gradient) =
            (self.machine.output(self.shape.width * e)?, self.machine.output(self.shape.width * e)?);

        let product = of.context_product();
        self.machine.launch(GemmNnFp32Small::of(Extra::Bias(1.0), &[product]).expect("a product"))?;
        self.machine.launch(AttentionContextBackward {
            rows: rows as u32,
            stride: stride as u32,
            features,
            bars,
            heads,
            states: states.into(),
            probabilities: forward.kept.into(),
            gate: p[11].into(),
            context_gradient: context_gradient.into(),
            score_tokens: score_tokens.into(),
        })?;
        self.machine.launch(GemmTnFp32Small::of(SPLITS as u32, plane, &of.products()).expect("products"))?;
        self.machine.launch(AttentionReduce {
            splits: SPLITS as u32,
            width,
            features,
            bars,
            heads,
            parts: parts.into(),
            gate: p[11].into(),
            mix: folded.mix.into(),
            output_bias: p[10].into(),
            sums: sums.into(),
            output_bias_gradient: d[10].into(),
            gate_sums: gate_sums.into(),
        })?;
        self.machine.launch(AttentionUnfoldHeads {
            width,
            features,
            bars,
            heads,
            sums: sums.into(),
            gate_sums: gate_sums.into(),
            query: folded.query.into(),
            key: folded.key.into(),
            output: p[9].into(),
            query_gradient: query_gradient.into(),
            key_gradient: key_gradient.into(),
            value_gradient: value_gradient.into(),
            gate_gradient: d[11].into(),
        })?;
        self.machine.launch(AttentionUnfoldWeights {
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
            value: folded.value.into(),
            sums: sums.into(),
            query_gradient: query_gradient.into(),
            key_gradient: key_gradient.into(),
            value_gradient: value_gradient.into(),
            output_bias_gradient: d[10].into(),
            gate_gradient: d[11].into(),
            d_embedding: d[0].into(),
            d_embedding_bias: d[1].into(),
            d_positions: d[2].into(),
            d_query: d[3].into(),
            d_query_bias: d[4].into(),
            d_key: d[5].into(),
            d_key_bias: d[6].into(),
            d_value: d[7].into(),
            d_value_bias: d[8].into(),
            d_output: d[9].into(),
            squares: squares.into(),
        })?;
        let between =
            [context_gradient, score_tokens, sums, gate_sums, query_gradient, key_gradient, value_gradient];
        for buffer in between {
            self.machine.written(buffer)?;
        }
        let gradients: Vec<Vec<f32>> =
            d.into_iter().map(|tensor| self.machine.written(tensor)).collect::<Result<_, _>>()?;
        let squares = self.machine.written(squares)?;
        assert!(squares.iter().all(|&x| x != UNTOUCHED), "a sum of squares is missing");
        let got: f64 = squares.into_iter().map(f64::from).sum();
        let expected: f64 = gradients.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
        // Sums of positive numbers: at most some tens of roundings each. A NaN among the gradients shows.
        let near = (got - expected).abs() <= 1e-5 * expected || (got.is_nan() && expected.is_nan());
        assert!(near, "squares {got} instead of {expected}");
        Ok(Parameters::from_tensors(gradients.try_into().expect("twelve tensors")))
    }
}
