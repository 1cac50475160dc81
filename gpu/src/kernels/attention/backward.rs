//! The host's side of the backward: the products that compute its sums over samples.

use cuda_std::Buf;

use super::{Plane, columns, context_columns};
use crate::kernels::gemm::Product;

/// Shape and buffers of the backward's matrix products.
#[derive(Clone, Copy, Debug)]
pub struct Backward {
    /// B: samples.
    pub rows: u32,
    /// d.
    pub width: u32,
    /// F.
    pub features: u32,
    /// W.
    pub bars: u32,
    /// Heads.
    pub heads: u32,
    /// Row stride of the states.
    pub stride: u32,
    /// [B, stride]
    pub states: Buf<f32>,
    /// y = dh2', [B, d].
    pub applied_gradient: Buf<f32>,
    /// c, [B, C], from `attention_context`.
    pub context: Buf<f32>,
    /// U, [d, C].
    pub mix: Buf<f32>,
    /// y U, [B, C]: what `attention_context_backward` reads.
    pub context_gradient: Buf<f32>,
    /// r, [B, C]: what `attention_context_backward` writes.
    pub score_tokens: Buf<f32>,
    /// [splits, plane]: what `attention_reduce` reads.
    pub parts: Buf<f32>,
}

impl Backward {
    /// Where the sums lie in each plane of `parts`.
    pub const fn plane(&self) -> Plane {
        Plane::new(self.width, self.features, self.bars, self.heads)
    }

    /// y U as a product NN without extra operand.
    pub fn context_product(&self) -> Product {
        let padded = context_columns(self.features, self.bars, self.heads) as usize;
        Product {
            m: self.rows as usize,
            n: padded,
            k: self.width as usize,
            a: (self.applied_gradient, self.width as usize),
            b: (self.mix, padded),
            c: (self.context_gradient, padded),
            extra: None,
        }
    }

    /// The sums over samples as products TN with row sums, for one launch after `attention_context_backward` in planes of
    /// `plane().len` floats.
    ///
    /// # Panics
    /// When `parts` or `states` is shorter than one plane or one window, as slicing does.
    pub fn products(&self) -> [Product; 2] {
        let padded = context_columns(self.features, self.bars, self.heads) as usize;
        let plane = self.plane();
        let from = |buffer: Buf<f32>, first: u32| buffer.slice(first as usize, buffer.len() - first as usize);
        let output = Product {
            m: self.width as usize,
            n: padded,
            k: self.rows as usize,
            a: (self.applied_gradient, self.width as usize),
            b: (self.context, padded),
            c: (self.parts, padded),
            extra: Some(from(self.parts, plane.output)),
        };
        let scores = Product {
            m: (self.heads * columns(self.features, self.bars)) as usize,
            n: self.features as usize,
            k: self.rows as usize,
            a: (self.score_tokens, padded),
            b: (from(self.states, (self.bars - 1) * self.features), self.stride as usize),
            c: (from(self.parts, plane.scores), self.features as usize),
            extra: Some(from(self.parts, plane.last)),
        };
        [output, scores]
    }
}
