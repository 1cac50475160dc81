//! The Mamba-2 block in the step (SPEC section 2, `gpu::kernels::mamba`): parameters folded once a step beside the
//! sampling, the first trunk layer's matrix joined with the block's output projection beside the block itself, the first
//! layer on the rows [o, s], and the group's gradient from the C51 term's gradient of h1's argument, beside the trunk's
//! weight gradients.

use cuda_std::Buf;
use gpu::kernels::mamba::{
    MambaBackward, MambaFold, MambaForward, MambaJoin, MambaReduce, MambaUnfold, Shape, backward_blocks,
    joined_bias, joined_len, output_plane,
};
use settings::{Group, Mamba};

use crate::error::ExecError;
use crate::exec::{Epilogue, Exec, Form, Lane, Memory, Product};
use crate::gemm::{self, WeightGradient};
use crate::step::buffers::{Activations, StepBuffers};
use crate::step::network::{Network, View};
use crate::step::parts::PartBuffers;
use crate::step::shape::{Layer, StepShape};

/// Parts into which the output projection's gradient splits the batch; it runs on the Rust kernels whatever computes the
/// rest.
const SPLITS: usize = 8;

/// The block as its kernels take it.
pub fn kernel_shape(model: &settings::ModelShape, mamba: &Mamba) -> Shape {
    Shape {
        features: model.bar_features as u32,
        bars: model.window as u32,
        width: mamba.width as u32,
        state: mamba.state as u32,
        heads: mamba.heads as u32,
    }
}

fn sizes(shape: &StepShape) -> Shape {
    kernel_shape(&shape.model, &shape.parts.mamba)
}

/// What the forward pass of one or two networks needs, the online network's first.
#[derive(Clone, Copy, Debug)]
pub struct MambaForwardBuffers {
    networks: usize,
    /// Rows of each network, and the first row of the states that the second one takes.
    rows: [usize; 2],
    second_from: usize,
    /// Folded parameters of each network.
    folded: Buf<f32>,
    /// Joined first layer of each network.
    joined: Buf<f32>,
    /// Rows [o, s] of the first network, then of the second `[rows, width + stride]`.
    inputs: Buf<f32>,
}

impl MambaForwardBuffers {
    /// Allocates for `rows` rows of one network and as many rows of a second one's, which end with the last state.
    pub fn alloc(
        memory: &mut impl Memory,
        shape: &StepShape,
        rows: usize,
        second: usize,
        name: &str,
    ) -> Result<Self, ExecError> {
        let s = sizes(shape);
        let networks = if second > 0 { 2 } else { 1 };
        let (hidden, inputs) = (shape.model.trunk1 as u32, shape.model.state as u32);
        let joined = joined_len(hidden, s.width, inputs) as usize;
        let row = s.width as usize + shape.stride;
        let mut alloc = |part: &str, len| memory.alloc(&format!("{name}.{part}"), len);
        Ok(Self {
            networks,
            rows: [rows, second],
            second_from: rows - second,
            folded: alloc("folded", networks * s.folded().len as usize)?,
            joined: alloc("joined", networks * joined)?,
            inputs: alloc("inputs", (rows + second) * row)?,
        })
    }

    /// Rows [o, s] of a network.
    fn rows_of(&self, shape: &StepShape, network: usize) -> View {
        let row = shape.parts.mamba.width + shape.stride;
        let first = if network == 0 { 0 } else { self.rows[0] };
        View::new(self.inputs.slice(first * row, self.rows[network] * row), row)
    }
}

/// Everything of the block in a training step.
#[derive(Clone, Copy, Debug)]
pub struct MambaBuffers {
    forward: MambaForwardBuffers,
    /// d Wout `[B, width]`, d the C51 term's gradient of h1's argument.
    gradient: Buf<f32>,
    /// Blocks' sums over the batch, and their sum.
    planes: Buf<f32>,
    sums: Buf<f32>,
    /// d^T o and sum of d, in parts `[SPLITS, output_plane]`.
    output: Buf<f32>,
}

impl MambaBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let (s, b) = (sizes(shape), shape.batch);
        let forward = MambaForwardBuffers::alloc(memory, shape, 2 * b, shape.target_rows(), "mamba")?;
        let plane = s.plane() as usize;
        let output = output_plane(shape.model.trunk1 as u32, s.width) as usize;
        Ok(Self {
            forward,
            gradient: memory.alloc("mamba.gradient", b * s.width as usize)?,
            planes: memory.alloc("mamba.planes", backward_blocks(b as u32) as usize * plane)?,
            sums: memory.alloc("mamba.sums", plane + 4)?,
            output: memory.alloc("mamba.output", SPLITS * output)?,
        })
    }
}

/// A tensor of a flat buffer.
fn tensor(shape: &StepShape, flat: Buf<f32>, name: &str) -> Buf<f32> {
    let t = shape.flat.find(name).unwrap_or_else(|| panic!("no tensor {name} in the networks"));
    flat.slice(t.offset, t.len())
}

/// The parameters before the output projection, which are one block.
fn core(shape: &StepShape, flat: Buf<f32>) -> Buf<f32> {
    let len = sizes(shape).core(shape.parts.mamba.conv as u32).len as usize;
    flat.slice(shape.flat.offset("mamba.emb.weight"), len)
}

/// The step's buffers of the block, where it is on.
fn buffers(b: &StepBuffers) -> Option<(&PartBuffers, &MambaBuffers)> {
    let parts = b.parts.as_ref()?;
    Some((parts, parts.mamba.as_ref()?))
}

/// Folds both networks' parameters, on the block's lane.
pub fn fold<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, m)) = buffers(b) else { return Ok(()) };
    exec.after(Lane::MAMBA, Lane::MAIN)?;
    fold_networks(exec, shape, Lane::MAMBA, &m.forward, b.parameters.online, b.parameters.target)
}

/// Folds one network, or two.
pub fn fold_networks<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    forward: &MambaForwardBuffers,
    online: Buf<f32>,
    target: Buf<f32>,
) -> Result<(), ExecError> {
    let s = sizes(shape);
    let fold = MambaFold {
        networks: forward.networks as u32,
        features: s.features,
        width: s.width,
        state: s.state,
        heads: s.heads,
        taps: shape.parts.mamba.conv as u32,
        online: core(shape, online).into(),
        target: core(shape, target).into(),
        folded: forward.folded.into(),
    };
    exec.launch(lane, &fold)
}

/// Joins both networks' first layers; on the gradients' lane, which has the spectral norm before it.
pub fn join<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, m)) = buffers(b) else { return Ok(()) };
    exec.after(Lane::GRADIENT, Lane::MAIN)?;
    join_networks(exec, shape, Lane::GRADIENT, &m.forward, b.parameters.online, b.parameters.target)
}

/// Joins the first layer of one network, or of two.
pub fn join_networks<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    forward: &MambaForwardBuffers,
    online: Buf<f32>,
    target: Buf<f32>,
) -> Result<(), ExecError> {
    let (on, at) = (|name: &str| tensor(shape, online, name), |name: &str| tensor(shape, target, name));
    let join = MambaJoin {
        networks: forward.networks as u32,
        hidden: shape.model.trunk1 as u32,
        width: shape.parts.mamba.width as u32,
        inputs: shape.model.state as u32,
        trunk_weight: on("trunk1.weight").into(),
        trunk_bias: on("trunk1.bias").into(),
        out_weight: on("mamba.out.weight").into(),
        out_bias: on("mamba.out.bias").into(),
        gate: on("mamba.gate").into(),
        target_trunk_weight: at("trunk1.weight").into(),
        target_trunk_bias: at("trunk1.bias").into(),
        target_out_weight: at("mamba.out.weight").into(),
        target_out_bias: at("mamba.out.bias").into(),
        target_gate: at("mamba.gate").into(),
        joined: forward.joined.into(),
    };
    exec.launch(lane, &join)
}

/// The block of both networks' rows; the batch is there.
pub fn block<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, m)) = buffers(b) else { return Ok(()) };
    exec.after(Lane::MAMBA, Lane::MAIN)?;
    block_of(exec, shape, Lane::MAMBA, &m.forward, b.batch.x)
}

/// The block of all rows of `x`.
pub fn block_of<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    forward: &MambaForwardBuffers,
    x: Buf<f32>,
) -> Result<(), ExecError> {
    let s = sizes(shape);
    let launch = MambaForward {
        rows: forward.rows[0] as u32,
        second: forward.rows[1] as u32,
        second_from: forward.second_from as u32,
        stride: shape.stride as u32,
        features: s.features,
        bars: s.bars,
        width: s.width,
        state: s.state,
        heads: s.heads,
        folded: forward.folded.into(),
        states: x.into(),
        joined: forward.inputs.into(),
    };
    exec.launch(lane, &launch)
}

/// h1 and h2 of both networks, each on its own lane; the caller ordered the target's after the main one.
pub fn trunks<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((_, m)) = buffers(b) else { return Ok(()) };
    for (lane, network, activations, parameters) in
        [(Lane::TARGET, 1, &b.target, b.parameters.target), (Lane::MAIN, 0, &b.online, b.parameters.online)]
    {
        exec.after(lane, Lane::MAMBA)?;
        exec.after(lane, Lane::GRADIENT)?;
        trunk(exec, shape, lane, &m.forward, network, parameters, activations)?;
    }
    Ok(())
}

/// h1 and h2 of one network's rows: the first layer on [o, s].
pub fn trunk<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    lane: Lane,
    forward: &MambaForwardBuffers,
    network: usize,
    parameters: Buf<f32>,
    activations: &Activations,
) -> Result<(), ExecError> {
    let (width, state) = (shape.parts.mamba.width, shape.model.state);
    let (hidden, len) = (shape.trunk1.outputs, forward.joined.len() / forward.networks);
    let first = Layer {
        label: "trunk1.joined",
        weight: 0,
        bias: joined_bias(hidden as u32, width as u32, state as u32) as usize,
        inputs: width + state,
        outputs: hidden,
    };
    let joined = forward.joined.slice(network * len, len);
    let (h1, h2) = (View::new(activations.h1, hidden), View::new(activations.h2, shape.trunk2.outputs));
    Network { exec: &mut *exec, shape, parameters: joined, copies: None }.activated(
        lane,
        activations.rows,
        &[(first, forward.rows_of(shape, network), h1)],
    )?;
    Network { exec, shape, parameters, copies: None }.activated(
        lane,
        activations.rows,
        &[(shape.trunk2, h1, h2)],
    )
}

/// The group's gradient and its norm from the C51 term's gradient of h1's argument, on the block's lane; the output
/// projection's part beside the gradients of the main parameters.
pub fn backward<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some((parts, m)) = buffers(b) else { return Ok(()) };
    let (s, lane, rows, hidden) = (sizes(shape), Lane::MAMBA, shape.batch, shape.model.trunk1);
    let (width, d) = (s.width as usize, b.c51.d_h1);
    let online = |name: &str| tensor(shape, b.parameters.online, name);
    exec.after(lane, Lane::MAIN)?;
    let o = m.forward.rows_of(shape, 0);
    let outer = output_plane(hidden as u32, s.width) as usize;
    let projection = WeightGradient {
        label: "mamba.out",
        rows,
        outputs: hidden,
        inputs: width,
        d_y: d,
        ldy: hidden,
        x: o.data,
        ldx: o.stride,
        weight: 0,
        bias: hidden * width,
        precision: shape.precision,
    };
    exec.after(Lane::GRADIENT, Lane::MAIN)?;
    gemm::weight_gradients(exec, Lane::GRADIENT, &[projection], m.output, SPLITS, outer)?;
    let back = Product {
        label: "mamba.back",
        form: Form::Nn,
        m: rows,
        n: width,
        k: hidden,
        a: d,
        lda: hidden,
        b: online("mamba.out.weight"),
        ldb: width,
        c: m.gradient,
        ldc: width,
        epilogue: Epilogue::None,
        precision: shape.precision,
    };
    gemm::group(exec, lane, &[back])?;
    exec.launch(
        lane,
        &MambaBackward {
            rows: rows as u32,
            stride: shape.stride as u32,
            features: s.features,
            bars: s.bars,
            width: s.width,
            state: s.state,
            heads: s.heads,
            folded: m.forward.folded.slice(0, s.folded().len as usize).into(),
            states: b.batch.x.slice(0, rows * shape.stride).into(),
            gate: online("mamba.gate").into(),
            gradient: m.gradient.into(),
            planes: m.planes.into(),
        },
    )?;
    exec.after(lane, Lane::GRADIENT)?;
    exec.launch(
        lane,
        &MambaReduce {
            blocks: backward_blocks(rows as u32),
            plane: s.plane(),
            splits: SPLITS as u32,
            hidden: hidden as u32,
            width: s.width,
            planes: m.planes.into(),
            output_parts: m.output.into(),
            output_bias: online("mamba.out.bias").into(),
            sums: m.sums.into(),
        },
    )?;
    let (offset, len) = shape.segment(Group::Mamba);
    let place = |name: &str| (shape.flat.offset(name) - offset) as u32;
    exec.launch(
        lane,
        &MambaUnfold {
            len: len as u32,
            features: s.features,
            width: s.width,
            state: s.state,
            heads: s.heads,
            taps: shape.parts.mamba.conv as u32,
            hidden: hidden as u32,
            splits: SPLITS as u32,
            output: place("mamba.out.weight"),
            output_bias: place("mamba.out.bias"),
            gate_at: place("mamba.gate"),
            core: core(shape, b.parameters.online).into(),
            sums: m.sums.into(),
            output_parts: m.output.into(),
            gate: online("mamba.gate").into(),
            gradient: b.parameters.grad.slice(offset, len).into(),
            squares: parts.squares_of((offset, len)).into(),
        },
    )
}

#[cfg(test)]
mod tests {
    use settings::Config;

    use super::*;
    use crate::step::Matmul;

    #[test]
    fn a_block_too_large_for_shared_memory_is_refused_by_its_keys() {
        let mut config = Config::default();
        (config.model.state, config.model.window, config.model.bar_features) = (600, 64, 9);
        config.mamba.enabled = true;
        StepShape::check_supported(&config).unwrap();
        (config.mamba.width, config.mamba.state) = (128, 128);
        config.check().unwrap();
        let message = StepShape::check_supported(&config).unwrap_err().to_string();
        assert!(
            message.starts_with("model.window = 64, mamba.width = 128, mamba.state = 128: "),
            "{message}"
        );
    }

    #[test]
    fn the_kernels_and_the_layout_agree_on_where_parameters_lie() {
        let mut config = Config::default();
        (config.model.state, config.model.window, config.model.bar_features) = (30, 5, 3);
        (config.mamba.enabled, config.mamba.width, config.mamba.heads) = (true, 12, 3);
        (config.mamba.state, config.mamba.conv) = (7, 3);
        let shape = StepShape::new(&config, Matmul::Rust);
        let core = sizes(&shape).core(3);
        let first = shape.flat.offset("mamba.emb.weight");
        for (name, at) in [
            ("mamba.emb.bias", core.emb_bias),
            ("mamba.in.weight", core.in_weight),
            ("mamba.conv.weight", core.conv_weight),
            ("mamba.conv.bias", core.conv_bias),
            ("mamba.dt_bias", core.dt_bias),
            ("mamba.a_log", core.a_log),
            ("mamba.skip", core.skip),
            ("mamba.norm", core.norm),
        ] {
            assert_eq!(shape.flat.offset(name) - first, at as usize, "{name}");
        }
        let norm = shape.flat.find("mamba.norm").unwrap();
        assert_eq!(norm.offset + norm.len() - first, core.len as usize);
        assert_eq!(first, shape.segment(Group::Mamba).0);
    }
}
