//! The Mamba-2 block's kernels at the sizes of the reference workloads P1 and P2 (SPEC section 9).

mod device;

use std::process::ExitCode;

use device::Bench;
use gpu::kernels::mamba::{
    MambaBackward, MambaFold, MambaForward, MambaJoin, MambaReduce, MambaUnfold, Shape, backward_blocks,
    joined_len, output_plane,
};
use host::error::ExecError;
use host::exec::Memory;

/// Planes of the output projection's gradient.
const SPLITS: u32 = 8;
/// Taps of the convolution.
const TAPS: u32 = 4;

/// What a workload needs to be known by.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    batch: u32,
    state: u32,
    hidden: u32,
    shape: Shape,
}

const fn shape(features: u32, bars: u32) -> Shape {
    Shape { features, bars, width: 32, state: 16, heads: 4 }
}

const P1: Workload = Workload { name: "P1", batch: 1024, state: 80, hidden: 256, shape: shape(9, 8) };
const P2: Workload = Workload { name: "P2", batch: 16384, state: 128, hidden: 512, shape: shape(10, 12) };

fn main() -> ExitCode {
    device::run(|bench| {
        for workload in [P1, P2] {
            forward(bench, &workload)?;
            backward(bench, &workload)?;
        }
        Ok(())
    })
}

/// Both networks on s and s'.
fn forward(bench: &mut Bench, w: &Workload) -> Result<(), ExecError> {
    let Workload { name, batch, state: inputs, hidden, shape } = *w;
    let Shape { features, bars, width, state, heads } = shape;
    let core = shape.core(TAPS).len as usize;
    let (online, target) = (bench.random("online", core)?, bench.random("target", core)?);
    let folded = bench.random("folded", 2 * shape.folded().len as usize)?;
    bench.kernel(
        name,
        online.bytes() + target.bytes() + folded.bytes(),
        MambaFold {
            networks: 2,
            features,
            width,
            state,
            heads,
            taps: TAPS,
            online: online.into(),
            target: target.into(),
            folded: folded.into(),
        },
    )?;
    let trunk = bench.random("trunk", (hidden * inputs) as usize)?;
    let out = bench.random("out", (hidden * width) as usize)?;
    let (bias, gate) = (bench.random("bias", hidden as usize)?, bench.random("gate", 1)?);
    let joined = bench.exec.alloc::<f32>("joined", 2 * joined_len(hidden, width, inputs) as usize)?;
    bench.kernel(
        name,
        2 * joined.bytes(),
        MambaJoin {
            networks: 2,
            hidden,
            width,
            inputs,
            trunk_weight: trunk.into(),
            trunk_bias: bias.into(),
            out_weight: out.into(),
            out_bias: bias.into(),
            gate: gate.into(),
            target_trunk_weight: trunk.into(),
            target_trunk_bias: bias.into(),
            target_out_weight: out.into(),
            target_out_bias: bias.into(),
            target_gate: gate.into(),
            joined: joined.into(),
        },
    )?;
    let states = bench.random("states", (2 * batch * inputs) as usize)?;
    let rows = bench.exec.alloc::<f32>("rows", (4 * batch * (width + inputs)) as usize)?;
    bench.kernel(
        name,
        2 * states.bytes() + rows.bytes(),
        MambaForward {
            rows: 2 * batch,
            second: 2 * batch,
            second_from: 0,
            stride: inputs,
            features,
            bars,
            width,
            state,
            heads,
            folded: folded.into(),
            states: states.into(),
            joined: rows.into(),
        },
    )
}

fn backward(bench: &mut Bench, w: &Workload) -> Result<(), ExecError> {
    let Workload { name, batch, state: inputs, hidden, shape } = *w;
    let Shape { features, bars, width, state, heads } = shape;
    let (blocks, plane) = (backward_blocks(batch), shape.plane());
    let folded = bench.random("folded", shape.folded().len as usize)?;
    let states = bench.random("states", (batch * inputs) as usize)?;
    let (gate, q) = (bench.random("gate", 1)?, bench.random("q", (batch * width) as usize)?);
    let planes = bench.exec.alloc::<f32>("planes", (blocks * plane) as usize)?;
    bench.kernel(
        name,
        states.bytes() + q.bytes() + planes.bytes(),
        MambaBackward {
            rows: batch,
            stride: inputs,
            features,
            bars,
            width,
            state,
            heads,
            folded: folded.into(),
            states: states.into(),
            gate: gate.into(),
            gradient: q.into(),
            planes: planes.into(),
        },
    )?;
    let parts = bench.random("parts", (SPLITS * output_plane(hidden, width)) as usize)?;
    let bias = bench.random("bias", hidden as usize)?;
    let sums = bench.exec.alloc::<f32>("sums", plane as usize + 4)?;
    bench.kernel(
        name,
        planes.bytes() + sums.bytes(),
        MambaReduce {
            blocks,
            plane,
            splits: SPLITS,
            hidden,
            width,
            planes: planes.into(),
            output_parts: parts.into(),
            output_bias: bias.into(),
            sums: sums.into(),
        },
    )?;
    let core_len = shape.core(TAPS).len;
    let core = bench.random("core", core_len as usize)?;
    let output = core_len.next_multiple_of(64);
    let output_bias = output + hidden * width;
    let gate_at = output_bias + hidden;
    let len = gate_at + 64;
    let gradient = bench.exec.alloc::<f32>("gradient", len as usize)?;
    let squares = bench.exec.alloc::<f32>("squares", len.div_ceil(1024) as usize)?;
    bench.kernel(
        name,
        parts.bytes() + gradient.bytes(),
        MambaUnfold {
            len,
            features,
            width,
            state,
            heads,
            taps: TAPS,
            hidden,
            splits: SPLITS,
            output,
            output_bias,
            gate_at,
            core: core.into(),
            sums: sums.into(),
            output_parts: parts.into(),
            gate: gate.into(),
            gradient: gradient.into(),
            squares: squares.into(),
        },
    )
}
