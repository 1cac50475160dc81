//! The launches of a step, in order; what `gemm` computes in between is computed here.

use cuda_std::Buf;
use gpu::kernels::mamba::reference::{Parameters, tensor_sizes};
use gpu::kernels::mamba::{
    MambaBackward, MambaFold, MambaForward, MambaJoin, MambaReduce, MambaUnfold, backward_blocks,
    joined_bias, joined_len, output_plane,
};

use super::machine::Machine;
use super::problem::Problem;

/// Parts of the sums that `gemm` computes.
pub const SPLITS: usize = 3;

/// A network's parameters on the machine.
#[derive(Clone, Copy)]
pub struct Network {
    pub core: Buf<f32>,
    pub out: Buf<f32>,
    pub out_bias: Buf<f32>,
    pub gate: Buf<f32>,
    trunk: Buf<f32>,
    trunk_bias: Buf<f32>,
}

impl Network {
    pub fn put<M: Machine>(machine: &mut M, problem: &Problem) -> Result<Network, M::Error> {
        let t = &problem.parameters.tensors;
        Ok(Network {
            core: machine.put(&t[..9].concat())?,
            out: machine.put(&t[9])?,
            out_bias: machine.put(&t[10])?,
            gate: machine.put(&t[11])?,
            trunk: machine.put(&problem.trunk[0])?,
            trunk_bias: machine.put(&problem.trunk[1])?,
        })
    }
}

/// The folded parameters of one or two networks of one shape, as they are in memory, and where.
pub fn fold<M: Machine>(
    machine: &mut M,
    problem: &Problem,
    networks: &[Network],
) -> Result<(Buf<f32>, Vec<f32>), M::Error> {
    let shape = problem.shape;
    let folded = machine.output(networks.len() * shape.folded().len as usize)?;
    machine.launch(MambaFold {
        networks: networks.len() as u32,
        features: shape.features,
        width: shape.width,
        state: shape.state,
        heads: shape.heads,
        taps: problem.taps as u32,
        online: networks[0].core.into(),
        target: networks[networks.len() - 1].core.into(),
        folded: folded.into(),
    })?;
    let values = machine.written(folded)?;
    Ok((folded, values))
}

/// Weights [H1, U + S] and biases [H1] of each network.
pub fn join<M: Machine>(
    machine: &mut M,
    problem: &Problem,
    networks: &[Network],
) -> Result<Vec<[Vec<f32>; 2]>, M::Error> {
    let (hidden, width, inputs) = (problem.hidden as u32, problem.shape.width, problem.inputs as u32);
    let len = joined_len(hidden, width, inputs) as usize;
    let joined = machine.output(networks.len() * len)?;
    let (online, target) = (networks[0], networks[networks.len() - 1]);
    machine.launch(MambaJoin {
        networks: networks.len() as u32,
        hidden,
        width,
        inputs,
        trunk_weight: online.trunk.into(),
        trunk_bias: online.trunk_bias.into(),
        out_weight: online.out.into(),
        out_bias: online.out_bias.into(),
        gate: online.gate.into(),
        target_trunk_weight: target.trunk.into(),
        target_trunk_bias: target.trunk_bias.into(),
        target_out_weight: target.out.into(),
        target_out_bias: target.out_bias.into(),
        target_gate: target.gate.into(),
        joined: joined.into(),
    })?;
    let bias = joined_bias(hidden, width, inputs) as usize;
    let values = machine.written(joined)?;
    let split = |part: &[f32]| {
        [part[..problem.hidden * (width + inputs) as usize].to_vec(), part[bias..][..problem.hidden].to_vec()]
    };
    Ok(values.chunks_exact(len).map(split).collect())
}

/// The rows [o, s] of the first network's `rows` states and of the `second` states from `second_from` on.
pub fn forward<M: Machine>(
    machine: &mut M,
    problem: &Problem,
    folded: Buf<f32>,
    [rows, second, second_from]: [usize; 3],
) -> Result<Vec<f32>, M::Error> {
    let shape = problem.shape;
    let joined = machine.output((rows + second) * (shape.width as usize + problem.stride()))?;
    let states = machine.put(&problem.states)?;
    machine.launch(MambaForward {
        rows: rows as u32,
        second: second as u32,
        second_from: second_from as u32,
        stride: problem.stride() as u32,
        features: shape.features,
        bars: shape.bars,
        width: shape.width,
        state: shape.state,
        heads: shape.heads,
        folded: folded.into(),
        states: states.into(),
        joined: joined.into(),
    })?;
    machine.written(joined)
}

/// The group's gradient, and the sum of its squares; `o` are the forward pass's rows.
pub fn backward<M: Machine>(
    machine: &mut M,
    problem: &Problem,
    network: &Network,
    folded: Buf<f32>,
    joined: &[f32],
) -> Result<(Parameters<f32>, f64), M::Error> {
    let Problem { shape, taps, hidden, rows, .. } = *problem;
    let width = shape.width as usize;
    let (stride, out) = (width + problem.stride(), &problem.parameters.tensors[9]);
    let dh = |row: usize, r: usize| f64::from(problem.gradient[row * hidden + r]);
    // q = d Wout.
    let q: Vec<f32> = (0..rows * width)
        .map(|i| {
            (0..hidden).map(|r| dh(i / width, r) * f64::from(out[r * width + i % width])).sum::<f64>() as f32
        })
        .collect();
    // P = d^T o and s.
    let plane = output_plane(hidden as u32, shape.width) as usize;
    let mut parts = vec![0.0f32; SPLITS * plane];
    for (split, part) in parts.chunks_exact_mut(plane).enumerate() {
        let of_split = || (0..rows).filter(move |row| row * SPLITS / rows == split);
        for (i, x) in part.iter_mut().take(hidden * (width + 1)).enumerate() {
            *x = if i < hidden * width {
                of_split()
                    .map(|row| dh(row, i / width) * f64::from(joined[row * stride + i % width]))
                    .sum::<f64>()
            } else {
                of_split().map(|row| dh(row, i - hidden * width)).sum::<f64>()
            } as f32;
        }
    }
    let (states, q) = (machine.put(&problem.states)?, machine.put(&q)?);
    let parts = machine.put(&parts)?;
    let (blocks, plane) = (backward_blocks(rows as u32), shape.plane());
    let planes = machine.output((blocks * plane) as usize)?;
    machine.launch(MambaBackward {
        rows: rows as u32,
        stride: problem.stride() as u32,
        features: shape.features,
        bars: shape.bars,
        width: shape.width,
        state: shape.state,
        heads: shape.heads,
        folded: folded.into(),
        states: states.into(),
        gate: network.gate.into(),
        gradient: q.into(),
        planes: planes.into(),
    })?;
    machine.written(planes)?;
    let sums = machine.output(plane as usize + 4)?;
    machine.launch(MambaReduce {
        blocks,
        plane,
        splits: SPLITS as u32,
        hidden: hidden as u32,
        width: shape.width,
        planes: planes.into(),
        output_parts: parts.into(),
        output_bias: network.out_bias.into(),
        sums: sums.into(),
    })?;
    machine.written(sums)?;
    let core = shape.core(taps as u32).len as usize;
    let output = core.next_multiple_of(64);
    let output_bias = (output + hidden * width).next_multiple_of(64);
    let gate_at = (output_bias + hidden).next_multiple_of(64);
    let len = gate_at + 64;
    let gradient = machine.output(len)?;
    let squares = machine.output(len.div_ceil(1024))?;
    machine.launch(MambaUnfold {
        len: len as u32,
        features: shape.features,
        width: shape.width,
        state: shape.state,
        heads: shape.heads,
        taps: taps as u32,
        hidden: hidden as u32,
        splits: SPLITS as u32,
        output: output as u32,
        output_bias: output_bias as u32,
        gate_at: gate_at as u32,
        core: network.core.into(),
        sums: sums.into(),
        output_parts: parts.into(),
        gate: network.gate.into(),
        gradient: gradient.into(),
        squares: squares.into(),
    })?;
    let gradient = machine.written(gradient)?;
    let squares = machine.written(squares)?.iter().map(|&x| f64::from(x)).sum();
    let mut at = 0;
    let places = tensor_sizes(shape, taps, hidden).map(|(name, len)| {
        let from = match name {
            "out.weight" => output,
            "out.bias" => output_bias,
            "gate" => gate_at,
            _ => at,
        };
        at = from + len;
        from..at
    });
    let outside = |i: usize| !places.iter().any(|place| place.contains(&i));
    assert!(
        (0..gradient.len()).filter(|&i| outside(i)).all(|i| gradient[i].to_bits() == 0),
        "padding is zero"
    );
    let mut places = places.into_iter();
    let tensors = Parameters::new(shape, taps, hidden, |_, _| {
        gradient[places.next().expect("a place for each tensor")].to_vec()
    });
    Ok((tensors, squares))
}
