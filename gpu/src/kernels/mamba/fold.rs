//! What depends on the parameters alone: the folded parameters, and the first trunk layer's matrix beside g Wout.

use cuda_std::prelude::*;

use super::{MAX_TAPS, Shape};

/// The folded parameters [networks, `Folded::len`] of one network or of two, from their parameters before Wout
/// (`Core`). One float a thread.
#[kernel(
    block = 256,
    grid = networks * Shape { features, bars: 1, width, state, heads }.folded().len.div_ceil(256),
    requires(
        networks >= 1,
        networks <= 2,
        taps >= 1,
        taps <= MAX_TAPS,
        Shape { features, bars: 1, width, state, heads }.fits(),
        online.len() >= Shape { features, bars: 1, width, state, heads }.core(taps).len as usize,
        networks == 1 || target.len() >= Shape { features, bars: 1, width, state, heads }.core(taps).len as usize,
        folded.len() >= (networks as usize) * (Shape { features, bars: 1, width, state, heads }.folded().len as usize),
    )
)]
pub fn mamba_fold(
    networks: u32,
    features: u32,
    width: u32,
    state: u32,
    heads: u32,
    /// Taps of the convolution's weight.
    taps: u32,
    online: In<f32>,
    target: In<f32>,
    folded: Out<f32>,
) {
    // Nothing here depends on the number of bars.
    let shape = Shape { features, bars: 1, width, state, heads };
    let (to, core) = (shape.folded(), shape.core(taps));
    let blocks = thread::grid_dim() / networks;
    let network = thread::block_idx() / blocks;
    let i = (thread::block_idx() % blocks) * 256 + thread::thread_idx();
    if i >= to.len {
        return;
    }
    let from = if network == 0 { online } else { target };
    let (channels, stride) = (shape.channels(), shape.row_stride());
    // Position in an array and its number of elements; what lies behind is padding.
    let value =
        |first: u32, len: u32, base: u32| if i - base < len { from.get(first + i - base) } else { 0.0 };
    let x = if i < to.taps {
        let (f, row) = (i / stride, i % stride);
        if row < shape.rows() {
            // Column f of We, or be.
            let (first, step) = if f < features { (f, features) } else { (core.emb_bias, 1) };
            let mut sum = 0.0;
            let mut u = 0;
            while u < width {
                sum = math::fma(from.get(core.in_weight + row * width + u), from.get(first + u * step), sum);
                u += 1;
            }
            sum
        } else {
            0.0
        }
    } else if i < to.conv_bias {
        let padded = channels.next_multiple_of(4);
        let (tap, channel) = ((i - to.taps) / padded, (i - to.taps) % padded);
        let missing = MAX_TAPS - taps;
        if channel < channels && tap >= missing {
            from.get(core.conv_weight + channel * taps + tap - missing)
        } else {
            0.0
        }
    } else if i < to.dt_bias {
        value(core.conv_bias, channels, to.conv_bias)
    } else if i < to.rate {
        value(core.dt_bias, heads, to.dt_bias)
    } else if i < to.skip {
        if i - to.rate < heads { math::exp(from.get(core.a_log + i - to.rate)) } else { 0.0 }
    } else if i < to.norm {
        value(core.skip, heads, to.skip)
    } else {
        value(core.norm, width, to.norm)
    };
    folded.set(network * to.len + i, x);
}

/// Floats of a network's joined layer: [hidden, width + inputs] and, at the next multiple of 4, [hidden] biases, padded.
pub const fn joined_len(hidden: u32, width: u32, inputs: u32) -> u32 {
    joined_bias(hidden, width, inputs) + hidden.next_multiple_of(4)
}

/// First bias of a joined layer.
pub const fn joined_bias(hidden: u32, width: u32, inputs: u32) -> u32 {
    (hidden * (width + inputs)).next_multiple_of(4)
}

/// The joined first layer \[g Wout, W1\] with biases b1 + g bo [networks, `joined_len`] of one network or of two: the
/// product of a row \[o, s\] with it is W1 s + b1 + g m. One float a thread.
#[kernel(
    block = 256,
    grid = networks * (hidden * (width + inputs + 1)).div_ceil(256),
    requires(
        networks >= 1,
        networks <= 2,
        hidden > 0,
        width > 0,
        inputs > 0,
        (hidden as usize) * (width as usize + inputs as usize + 1) <= 1 << 28,
        [trunk_weight.len(), if networks == 2 { target_trunk_weight.len() } else { usize::MAX }]
            .into_iter().all(|len| len >= (hidden as usize) * (inputs as usize)),
        [out_weight.len(), if networks == 2 { target_out_weight.len() } else { usize::MAX }]
            .into_iter().all(|len| len >= (hidden as usize) * (width as usize)),
        [trunk_bias.len(), out_bias.len()].into_iter().all(|len| len >= hidden as usize),
        networks == 1 || [target_trunk_bias.len(), target_out_bias.len()].into_iter().all(|len| len >= hidden as usize),
        gate.len() >= 1,
        networks == 1 || target_gate.len() >= 1,
        joined.len() >= (networks as usize) * (joined_len(hidden, width, inputs) as usize),
    )
)]
pub fn mamba_join(
    networks: u32,
    /// H1.
    hidden: u32,
    /// U.
    width: u32,
    /// S.
    inputs: u32,
    trunk_weight: In<f32>,
    trunk_bias: In<f32>,
    out_weight: In<f32>,
    out_bias: In<f32>,
    gate: In<f32>,
    target_trunk_weight: In<f32>,
    target_trunk_bias: In<f32>,
    target_out_weight: In<f32>,
    target_out_bias: In<f32>,
    target_gate: In<f32>,
    joined: Out<f32>,
) {
    let (columns, blocks) = (width + inputs, thread::grid_dim() / networks);
    let network = thread::block_idx() / blocks;
    let i = (thread::block_idx() % blocks) * 256 + thread::thread_idx();
    let (weight, bias, out, out_bias, gate) = if network == 0 {
        (trunk_weight, trunk_bias, out_weight, out_bias, gate)
    } else {
        (target_trunk_weight, target_trunk_bias, target_out_weight, target_out_bias, target_gate)
    };
    let to = network * joined_len(hidden, width, inputs);
    if i < hidden * columns {
        let (row, column) = (i / columns, i % columns);
        let x = if column < width {
            gate.get(0) * out.get(row * width + column)
        } else {
            weight.get(row * inputs + column - width)
        };
        joined.set(to + i, x);
    } else if i < hidden * (columns + 1) {
        let row = i - hidden * columns;
        let x = math::fma(gate.get(0), out_bias.get(row), bias.get(row));
        joined.set(to + joined_bias(hidden, width, inputs) + row, x);
    }
}
