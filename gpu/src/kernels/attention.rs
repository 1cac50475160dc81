//! Temporal attention with one query over the W bars of a state. SPEC section 2; Vaswani et al., "Attention Is All You
//! Need" (2017), section 3.2.2, for the heads.
//!
//! With f_w [F] the features of bar w (oldest first), d the width and d_h = d / heads:
//! x_w = We f_w + be + pos_w; q = Wq x_{W-1} + bq, k_w = Wk x_w + bk, v_w = Wv x_w + bv;
//! o = Wo concat_h(sum_w a_hw v_hw) + bo, a_h = softmax_w(q_h . k_hw / sqrt(d_h)); h2' = h2 + g o, g one number.
//!
//! Tokens are linear in e_w = [f_w; onehot_w], of E = F + W numbers: x_w = M e_w, M = [We | be + pos_w] (d x E). So
//! everything between tokens and scores, and between probabilities and o, folds into matrices of the parameters alone,
//! once a step and beside the trunk:
//!
//! | | shape | |
//! |---|---|---|
//! | query | [d, F + 1] | Aq = Wq \[We, be + pos_{W-1}\], bq added to the last column |
//! | key | [d, E] | Ak = Wk M, bk added to the columns of the bars |
//! | value | [d, E] | Av = Wv M, bv likewise |
//! | scores | [heads, F + 1, E] | G_h = Aq_h^T Ak_h / sqrt(d_h) |
//! | mix | [d, C] | U = [Wo_0 Av_0, Wo_1 Av_1, ..] |
//!
//! C = heads E rounded up to a multiple of 4; the padding is zero here and in every [.., C]. A sample then costs
//! t_h = G_h^T [f_{W-1}; 1], score_hw = t_h . e_w, c_h = sum_w a_hw e_w (`attention_context`) and o = U c + bo
//! (`attention_apply`), some twenty thousand multiply-adds instead of 4 d^2.
//!
//! Backward, from y = dh2' [B, d]: P = y^T c and s = sum y give dU = g P, dbo = g s and dg = <U, P> + <bo, s> (not from
//! o = (h2' - h2) / g, since g starts at 0). y U is the gradient of c before the gate; `attention_context_backward`
//! makes g y U into r_h = sum_w ds_hw e_w, and dG_h = sum over samples of [f_{W-1}; 1] r_h^T. The three sums over samples
//! and y U are products that `gemm` computes ([`Backward::products`], [`Backward::context_product`]).
//! `attention_reduce` adds their planes, `attention_unfold_heads` goes back through U and G, `attention_unfold_weights`
//! through Aq, Ak, Av to the parameters.

use core::cmp::min;

use cuda_std::prelude::*;

#[macro_use]
mod tile;
mod apply;
mod context;
mod fold;
mod reduce;
mod unfold;

#[cfg(not(target_arch = "nvptx64"))]
mod backward;
#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

pub use apply::*;
pub use context::*;
pub use fold::*;
pub use reduce::*;
pub use unfold::*;

#[cfg(not(target_arch = "nvptx64"))]
pub use backward::Backward;

/// Most columns F + W of an embedded token.
pub const MAX_COLUMNS: u32 = tile::MAX_COLUMNS;

/// E = F + W: numbers of e_w.
pub const fn columns(features: u32, bars: u32) -> u32 {
    features + bars
}

/// C: columns of the context, heads (F + W) rounded up to a multiple of 4.
pub const fn context_columns(features: u32, bars: u32, heads: u32) -> u32 {
    (heads * columns(features, bars)).next_multiple_of(4)
}

/// Whether heads divide the width and a token is not too wide.
#[cfg(not(target_arch = "nvptx64"))]
fn shape_fits(width: u32, features: u32, bars: u32, heads: u32) -> bool {
    // The limits on width and heads keep every index below in 32 bits.
    let small = |x: u32, most: u32| x >= 1 && x <= most;
    small(width, 1 << 14)
        && small(heads, 64)
        && small(features, MAX_COLUMNS)
        && small(bars, MAX_COLUMNS)
        && columns(features, bars) <= MAX_COLUMNS
        && width.is_multiple_of(heads)
}

/// M = [We | be + pos_w].
#[derive(Clone, Copy)]
struct Embedding {
    weight: In<f32>,
    bias: In<f32>,
    positions: In<f32>,
    width: u32,
    features: u32,
    bars: u32,
}

impl Embedding {
    /// Copies `rows` rows of M from row `first` into shared memory, with the bars from `first_bar` only (W - 1 for the
    /// query's [We | be + pos_{W-1}]); rows after the last repeat it. The features arrive at the next `copy_wait`.
    #[inline(always)]
    fn copy(&self, tile: Shared<f32>, stride: u32, first: u32, rows: u32, first_bar: u32) {
        let existing = |row: u32| min(first + row, self.width - 1);
        tile::walk(rows, self.features, |row, feature| {
            let from = existing(row) * self.features + feature;
            shared::copy_async4(tile, row * stride + feature, &self.weight, from, 4);
        });
        // A thread has a row, and every bar of it or, of few rows, every fourth.
        let groups = if rows <= tile::THREADS / 4 { 4 } else { 1 };
        let lanes = tile::THREADS / groups;
        let bars = self.bars - first_bar;
        let mut row = thread::thread_idx() % lanes;
        while row < rows {
            let from = first_bar * self.width + existing(row);
            let to = row * stride + self.features;
            let bias = self.bias.get(existing(row));
            let mut bar = thread::thread_idx() / lanes;
            while bar < bars {
                // Eight loads before eight stores: they are in flight together.
                let mut staged = [[0.0f32; 2]; 4];
                repeat4!(j => {
                    repeat2!(i => {
                        let bar = min(bar + groups * (2 * j + i) as u32, bars - 1);
                        staged[j][i] = self.positions.get(from + bar * self.width);
                    });
                });
                repeat4!(j => {
                    repeat2!(i => {
                        let bar = bar + groups * (2 * j + i) as u32;
                        if bar < bars {
                            tile.set(to + bar, bias + staged[j][i]);
                        }
                    });
                });
                bar += 8 * groups;
            }
            row += lanes;
        }
    }
}
