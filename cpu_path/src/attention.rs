//! Temporal attention over the window's bars (SPEC section 2): one query, the newest bar's.
//!
//! Written with the full K and V projections of every token. A step that folds projections into one another is
//! compared with this.

use candle_core::{D, Result, Tensor};
use settings::ModelShape;

use crate::group::Weights;
use crate::ops::log_softmax;
use crate::real::Real;

/// What the attention gives.
#[derive(Clone, Debug)]
pub struct Attended {
    /// softmax(q K^T / sqrt(d_h)), [batch, heads, window].
    pub probabilities: Tensor,
    /// o = Wo concat_heads(P V) + bo, before the gate, [batch, d].
    pub output: Tensor,
    /// g * o: what is added to h2, [batch, d].
    pub gated: Tensor,
}

/// Attends with one query per row and head: `q` [rows, heads, d_h], `k` and `v` [rows, heads, keys, d_h].
///
/// Gives the probabilities [rows, heads, keys] and the weighted sums of `v` [rows, heads, d_h]. There is no mask: the
/// keys of a row are those that it may see. The softmax subtracts the maximum.
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    let width = q.dim(D::Minus1)?;
    let scores = q.unsqueeze(2)?.matmul(&k.transpose(2, 3)?.contiguous()?)?;
    let probabilities = log_softmax(&(scores / (width as f64).sqrt())?)?.exp()?;
    let mixed = probabilities.matmul(&v.contiguous()?)?;
    Ok((probabilities.squeeze(2)?, mixed.squeeze(2)?))
}

/// Runs the attention on states [batch, S] whose first W*F entries are the window, oldest bar first.
pub fn attention<T: Real>(
    weights: &Weights,
    shape: &ModelShape,
    heads: usize,
    states: &Tensor,
) -> Result<Attended> {
    let (batch, _) = states.dims2()?;
    let (window, features, d) = (shape.window, shape.bar_features, shape.trunk2);
    let bars = states.narrow(1, 0, window * features)?.reshape((batch * window, features))?;
    let embedded = weights.linear::<T>("att.emb", &bars)?.reshape((batch, window, d))?;
    let tokens = embedded.broadcast_add(weights.get("att.pos")?)?;
    let newest = tokens.narrow(1, window - 1, 1)?.reshape((batch, d))?;
    let tokens = tokens.reshape((batch * window, d))?;
    let by_head = |x: Tensor| x.reshape((batch, window, heads, d / heads))?.transpose(1, 2);
    let q = weights.linear::<T>("att.q", &newest)?.reshape((batch, heads, d / heads))?;
    let k = by_head(weights.linear::<T>("att.k", &tokens)?)?;
    let v = by_head(weights.linear::<T>("att.v", &tokens)?)?;
    let (probabilities, mixed) = attend(&q, &k, &v)?;
    let output = weights.linear::<T>("att.o", &mixed.reshape((batch, d))?)?;
    let gated = output.broadcast_mul(weights.get("att.gate")?)?;
    Ok(Attended { probabilities, output, gated })
}
