//! What is per sample: probabilities and contexts, and back from the contexts' gradient to that of the scores. One warp a
//! sample.

use core::cmp::min;

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
use super::shape_fits;
use super::{columns, context_columns};

/// Samples of a block.
const WARPS: u32 = 8;

/// Samples that a warp of `attention_context` takes one after the other: more than one where a wave of blocks has done
/// before the last begin, so that G is copied less often.
const fn rows_of_warp(rows: u32) -> u32 {
    if rows >= 1 << 14 { 4 } else { 1 }
}

/// Floats of shared memory of one warp: the window [W, F], [heads, E] and twice [heads, W].
const fn warp_floats(features: u32, bars: u32, heads: u32) -> u32 {
    bars * features + heads * (columns(features, bars) + 2 * bars)
}

/// A warp's part of the shared memory.
#[derive(Clone, Copy)]
struct Sample {
    memory: Shared<f32>,
    /// Where the window [W, F] starts.
    window: u32,
    /// Where [heads, E] starts.
    wide: u32,
    /// Where the first and the second [heads, W] start.
    narrow: [u32; 2],
    features: u32,
    bars: u32,
    heads: u32,
}

impl Sample {
    /// The warp's part, after `before` floats that the block shares.
    #[inline(always)]
    fn of_warp(before: u32, features: u32, bars: u32, heads: u32) -> Sample {
        let floats = warp_floats(features, bars, heads);
        let window = before + thread::warp() * floats;
        let wide = window + bars * features;
        let first = wide + heads * columns(features, bars);
        Sample {
            memory: shared::array::<f32>(0, before + WARPS * floats),
            window,
            wide,
            narrow: [first, first + heads * bars],
            features,
            bars,
            heads,
        }
    }

    /// Copies the window from its row of `states`; it is there after the next `copy_wait` and barrier.
    #[inline(always)]
    fn read_window(&self, states: &In<f32>, first: u32) {
        let mut i = thread::lane();
        while i < self.bars * self.features {
            shared::copy_async4(self.memory, self.window + i, states, first + i, 4);
            i += 32;
        }
        shared::copy_commit();
    }

    /// wide\[head\] . e_bar: a sum over the features, then the bar's own column.
    #[inline(always)]
    fn dot_token(&self, head: u32, bar: u32) -> f32 {
        let from = self.wide + head * columns(self.features, self.bars);
        let feature = self.window + bar * self.features;
        let mut sum = self.memory.get(from + self.features + bar);
        let mut f = 0;
        while f < self.features {
            sum = math::fma(self.memory.get(from + f), self.memory.get(feature + f), sum);
            f += 1;
        }
        sum
    }

    /// Element `i` of [heads, E] of sum over bars of x\[head, bar\] e_bar, x being the `which` [heads, W]; 0 for padding.
    #[inline(always)]
    fn mix_tokens(&self, i: u32, which: usize) -> f32 {
        let outputs = columns(self.features, self.bars);
        let (head, column) = (i / outputs, i % outputs);
        if head >= self.heads {
            return 0.0;
        }
        let from = self.narrow[which] + head * self.bars;
        if column >= self.features {
            return self.memory.get(from + column - self.features);
        }
        let mut sum = 0.0;
        let mut bar = 0;
        while bar < self.bars {
            let feature = self.memory.get(self.window + bar * self.features + column);
            sum = math::fma(self.memory.get(from + bar), feature, sum);
            bar += 1;
        }
        sum
    }
}

/// Probabilities and contexts of `rows` samples: probabilities [kept, heads, W] of the first `kept` rows only (what the
/// backward needs), context [rows, C]. The window is the first W F entries of each row of states [rows, `stride`], oldest
/// bar first; scores [heads, F + 1, E] is one network's G.
#[kernel(
    block = 256,
    grid = rows.div_ceil(WARPS * rows_of_warp(rows)),
    shared = 4 * (heads * (features + 1) * columns(features, bars) + WARPS * warp_floats(features, bars, heads)),
    barriers = 1,
    votes = 6, // warp barriers
    requires(
        rows > 0,
        kept <= rows,
        shape_fits(heads, features, bars, heads),
        stride >= bars * features,
        states.len() >= (rows as usize - 1) * (stride as usize) + (bars * features) as usize,
        scores.len() >= (heads * (features + 1) * columns(features, bars)) as usize,
        probabilities.len() >= (kept as usize) * (heads as usize) * (bars as usize),
        context.len() >= (rows as usize) * (context_columns(features, bars, heads) as usize),
        (rows as usize) * (context_columns(features, bars, heads).max(stride) as usize) <= u32::MAX as usize,
    )
)]
pub fn attention_context(
    rows: u32,
    kept: u32,
    stride: u32,
    features: u32,
    bars: u32,
    heads: u32,
    states: In<f32>,
    scores: In<f32>,
    probabilities: Out<f32>,
    context: Out<f32>,
) {
    let outputs = columns(features, bars);
    let folded = heads * (features + 1) * outputs;
    let sample = Sample::of_warp(folded, features, bars, heads);
    let memory = sample.memory;
    let of_block = WARPS * rows_of_warp(rows);
    let mut row = thread::block_idx() * of_block + thread::warp();
    let end = min(rows, (thread::block_idx() + 1) * of_block);
    let mut i = thread::thread_idx();
    while i < folded {
        shared::copy_async4(memory, i, &scores, i, 4);
        i += 256;
    }
    if row < end {
        sample.read_window(&states, row * stride);
    }
    shared::copy_commit();
    shared::copy_wait::<0>();
    thread::sync(); // G and the windows are in shared memory
    while row < end {
        let lane = thread::lane();
        let last = sample.window + (bars - 1) * features;
        // t = G^T [f_last; 1].
        let mut i = lane;
        while i < heads * outputs {
            let from = i / outputs * (features + 1) * outputs + i % outputs;
            let mut t = memory.get(from + features * outputs);
            let mut f = 0;
            while f < features {
                t = math::fma(memory.get(from + f * outputs), memory.get(last + f), t);
                f += 1;
            }
            memory.set(sample.wide + i, t);
            i += 32;
        }
        warp::sync(); // t is whole before scores are taken
        let [score, weight] = sample.narrow;
        let mut i = lane;
        while i < heads * bars {
            memory.set(score + i, sample.dot_token(i / bars, i % bars));
            i += 32;
        }
        warp::sync(); // scores are whole before their maximum is taken
        let mut i = lane;
        while i < heads * bars {
            let head = score + i / bars * bars;
            let mut most = memory.get(head);
            let mut bar = 1;
            while bar < bars {
                most = math::max(most, memory.get(head + bar));
                bar += 1;
            }
            memory.set(weight + i, math::exp(memory.get(score + i) - most));
            i += 32;
        }
        warp::sync(); // exponentials are whole before they are added; nobody reads scores any more
        let mut i = lane;
        while i < heads * bars {
            let head = weight + i / bars * bars;
            let mut sum = 0.0;
            let mut bar = 0;
            while bar < bars {
                sum += memory.get(head + bar);
                bar += 1;
            }
            let probability = memory.get(weight + i) / sum;
            memory.set(score + i, probability);
            if row < kept {
                probabilities.set(row * heads * bars + i, probability);
            }
            i += 32;
        }
        warp::sync(); // probabilities are whole before tokens are mixed with them
        let padded = context_columns(features, bars, heads);
        let mut i = lane;
        while i < padded {
            context.set(row * padded + i, sample.mix_tokens(i, 0));
            i += 32;
        }
        row += WARPS;
        if row < end {
            warp::sync(); // the window and the probabilities are read before the next sample's overwrite them
            sample.read_window(&states, row * stride);
            shared::copy_wait::<0>();
            warp::sync(); // the window is whole before it is multiplied
        }
    }
}

/// score_tokens [rows, C] gets r_h = sum_w ds_hw e_w per head (padding 0), ds the gradient of the scores, from context_gradient
/// [rows, C] = dh2' U, which this kernel multiplies by the gate [1], and the stored probabilities [rows, heads, W].
#[kernel(
    block = 256,
    grid = rows.div_ceil(WARPS),
    shared = 4 * WARPS * warp_floats(features, bars, heads),
    votes = 3, // warp barriers
    requires(
        rows > 0,
        shape_fits(heads, features, bars, heads),
        stride >= bars * features,
        states.len() >= (rows as usize - 1) * (stride as usize) + (bars * features) as usize,
        probabilities.len() >= (rows as usize) * (heads as usize) * (bars as usize),
        gate.len() >= 1,
        context_gradient.len() >= (rows as usize) * (context_columns(features, bars, heads) as usize),
        score_tokens.len() >= (rows as usize) * (context_columns(features, bars, heads) as usize),
        (rows as usize) * (context_columns(features, bars, heads).max(stride) as usize) <= u32::MAX as usize,
    )
)]
pub fn attention_context_backward(
    rows: u32,
    stride: u32,
    features: u32,
    bars: u32,
    heads: u32,
    states: In<f32>,
    probabilities: In<f32>,
    gate: In<f32>,
    context_gradient: In<f32>,
    score_tokens: Out<f32>,
) {
    let outputs = columns(features, bars);
    let padded = context_columns(features, bars, heads);
    let sample = Sample::of_warp(0, features, bars, heads);
    let memory = sample.memory;
    let row = thread::block_idx() * WARPS + thread::warp();
    if row < rows {
        let lane = thread::lane();
        sample.read_window(&states, row * stride);
        let gate = gate.get(0);
        let mut i = lane;
        while i < heads * outputs {
            memory.set(sample.wide + i, gate * context_gradient.get(row * padded + i));
            i += 32;
        }
        shared::copy_wait::<0>();
        warp::sync(); // window and gradient are whole before they are multiplied
        let [probability_gradient, score_gradient] = sample.narrow;
        let mut i = lane;
        while i < heads * bars {
            memory.set(probability_gradient + i, sample.dot_token(i / bars, i % bars));
            i += 32;
        }
        warp::sync(); // da is whole before a head's mean of it is taken
        let mut i = lane;
        while i < heads * bars {
            let head = i / bars * bars;
            let from = row * heads * bars;
            let mut mean = 0.0;
            let mut bar = 0;
            while bar < bars {
                let a = probabilities.get(from + head + bar);
                mean = math::fma(a, memory.get(probability_gradient + head + bar), mean);
                bar += 1;
            }
            let a = probabilities.get(from + i);
            memory.set(score_gradient + i, a * (memory.get(probability_gradient + i) - mean));
            i += 32;
        }
        warp::sync(); // ds is whole before tokens are mixed with it
        let mut i = lane;
        while i < padded {
            score_tokens.set(row * padded + i, sample.mix_tokens(i, 1));
            i += 32;
        }
    }
}
