//! Buffers of the parts beside the C51 loss: several terms on the main parameters, groups with a norm of their own.

use cuda_std::Buf;
use gpu::kernels::learner_signals::sample;
use gpu::kernels::spectral_norm::MAX_MATRICES;
use gpu::kernels::term_reduce::{PAIRS, TERMS};
use gpu::kernels::update_scales::scale;
use settings::{Group, Optimizer};

use crate::error::ExecError;
use crate::exec::{Exec, Memory};
use crate::step::attention::{self, AttentionBuffers};
use crate::step::auxiliary::AuxiliaryBuffers;
use crate::step::buffers::TermBuffers;
use crate::step::iql::IqlBuffers;
use crate::step::iqn::IqnBuffers;
use crate::step::mamba::MambaBuffers;
use crate::step::shape::StepShape;
use crate::step::vaccine::VaccineBuffers;

/// What the parts beside the C51 loss need.
#[derive(Clone, Copy, Debug)]
pub struct PartBuffers {
    /// Gradients of the CQL term.
    pub cql: Option<TermBuffers>,
    /// logsumexp_a Q - Q(s, a_d) per branch `[B, D]`, without alpha.
    pub cql_excess: Buf<f32>,
    /// The IQN head.
    pub iqn: Option<IqnBuffers>,
    /// The value networks.
    pub iql: Option<IqlBuffers>,
    /// Ensemble and confidence head.
    pub auxiliary: Option<AuxiliaryBuffers>,
    /// Gradient of held-out data.
    pub vaccine: Option<VaccineBuffers>,
    /// Temporal attention.
    pub attention: Option<AttentionBuffers>,
    /// The Mamba-2 block.
    pub mamba: Option<MambaBuffers>,
    /// Partial gradients of the full terms `[full_terms, splits, layout.len]`.
    pub partial: Buf<f32>,
    /// Gradient of each full term `[full_terms, layout.len]`.
    pub grads: Buf<f32>,
    /// Partial gradients of each trunk term `[trunk_terms, splits, trunk_len]`.
    pub trunk_parts: Buf<f32>,
    /// Gradient of each trunk term `[trunk_terms, trunk_len]`.
    pub trunk_grads: Buf<f32>,
    /// Blocks' inner products of the terms `[PAIRS, blocks]` (`term_reduce`).
    pub sums: Buf<f32>,
    /// Sums of squares of the other groups: of their blocks, in their places, then the attention's of its own parts.
    pub squares: Buf<f32>,
    /// Where each group's are, first and end `[groups, 2]`.
    pub ranges: Buf<u32>,
    /// First block after each group.
    pub ends: Buf<u32>,
    /// f_t max_grad_norm of each term.
    pub budgets: Buf<f32>,
    /// Factors and norms of the step (`update_scales::scale`).
    pub scales: Buf<f32>,
    /// Per-sample values `[sample::ROWS, B]` (`learner_signals::sample`); rows of parts that are off stay zero.
    pub samples: Buf<f32>,
}

impl PartBuffers {
    /// Allocates; `partial` are the full terms' partial gradients `[full_terms, splits, layout.len]`.
    pub fn alloc(
        memory: &mut (impl Memory + Exec),
        shape: &StepShape,
        optimizer: &Optimizer,
        partial: Buf<f32>,
    ) -> Result<Self, ExecError> {
        let (main, trunk) = (shape.layout.len, shape.trunk_len());
        let plane = shape.splits * main;
        let blocks = |floats: usize| floats.div_ceil(settings::Flat::SEGMENT);
        let ends: Vec<u32> = shape.flat.segments.iter().map(|s| blocks(s.offset + s.len) as u32).collect();
        let parts = &shape.parts;
        let all = blocks(shape.flat.len);
        let own = if parts.attention.enabled { attention::square_parts(shape) } else { 0 };
        let range = |s: &settings::Segment| match s.group {
            Group::Attention => [all, all + own],
            _ => [blocks(s.offset), blocks(s.offset + s.len)],
        };
        let ranges: Vec<u32> = shape.flat.segments.iter().flat_map(range).map(|at| at as u32).collect();
        let buffers = Self {
            cql: match parts.cql.enabled {
                true => Some(TermBuffers::alloc(memory, shape, partial.slice(plane, plane), "cql")?),
                false => None,
            },
            cql_excess: memory.alloc("cql.excess", shape.batch * shape.branches)?,
            iqn: match parts.iqn.enabled {
                true => Some(IqnBuffers::alloc(memory, shape)?),
                false => None,
            },
            iql: match parts.iql.enabled {
                true => Some(IqlBuffers::alloc(memory, shape)?),
                false => None,
            },
            auxiliary: match parts.auxiliary() {
                true => Some(AuxiliaryBuffers::alloc(memory, shape)?),
                false => None,
            },
            vaccine: match parts.vaccine.enabled {
                true => Some(VaccineBuffers::alloc(memory, shape)?),
                false => None,
            },
            attention: match parts.attention.enabled {
                true => Some(AttentionBuffers::alloc(memory, shape)?),
                false => None,
            },
            mamba: match parts.mamba.enabled {
                true => Some(MambaBuffers::alloc(memory, shape)?),
                false => None,
            },
            partial,
            grads: memory.alloc("terms.grads", shape.full_terms() * main)?,
            // A buffer has an address even where there is no such term.
            trunk_parts: memory
                .alloc("terms.trunk_parts", (shape.trunk_terms() * shape.splits * trunk).max(4))?,
            trunk_grads: memory.alloc("terms.trunk_grads", (shape.trunk_terms() * trunk).max(4))?,
            sums: memory.alloc("terms.sums", PAIRS as usize * blocks(main))?,
            squares: memory.alloc("groups.squares", all + own)?,
            ranges: memory.alloc("groups.ranges", ranges.len())?,
            ends: memory.alloc("groups.ends", ends.len())?,
            budgets: memory.alloc("terms.budgets", TERMS as usize)?,
            scales: memory.alloc("update.scales", scale::WORDS as usize)?,
            samples: memory.alloc("samples", sample::ROWS as usize * shape.batch)?,
        };
        memory.upload(buffers.ends, &ends)?;
        memory.upload(buffers.ranges, &ranges)?;
        memory.upload(buffers.budgets, &budgets(shape, optimizer))?;
        Ok(buffers)
    }

    /// A row of the per-sample buffer.
    pub fn sample(&self, shape: &StepShape, row: u32, rows: usize) -> Buf<f32> {
        self.samples.slice(row as usize * shape.batch, rows * shape.batch)
    }

    /// The attention's sums of squares.
    pub fn attention_squares(&self, shape: &StepShape) -> Buf<f32> {
        let first = shape.flat.len.div_ceil(settings::Flat::SEGMENT);
        self.squares.slice(first, self.squares.len() - first)
    }

    /// The blocks' sums of squares of a segment of the flat buffer.
    pub fn squares_of(&self, (offset, len): (usize, usize)) -> Buf<f32> {
        self.squares.slice(offset / settings::Flat::SEGMENT, len.div_ceil(settings::Flat::SEGMENT))
    }
}

/// f_t c in the order of the terms. With one term on the main parameters there is no budget but the clip.
pub fn budgets(shape: &StepShape, optimizer: &Optimizer) -> [f32; TERMS as usize] {
    if !shape.parts.budgeted() {
        return [f32::INFINITY; TERMS as usize];
    }
    let b = &shape.parts.budgets;
    // The terms on the trunk alone take the places behind the full ones, in the order of `StepShape::trunk_terms`.
    let trunk = if shape.parts.iqn.enabled { [b.iqn, b.aux] } else { [b.aux, 0.0] };
    [b.c51, b.cql, trunk[0], trunk[1]].map(|f| f * optimizer.max_grad_norm)
}

/// Power iteration of the trunk's two matrices.
#[derive(Clone, Copy, Debug)]
pub struct SpectralBuffers {
    /// Floats of each vector below.
    pub stride: usize,
    /// The matrices as `spectral_norm::matrix` describes them.
    pub matrices: [u64; MAX_MATRICES],
    /// u `[2, stride]`, kept from step to step.
    pub u: Buf<f32>,
    /// v `[2, stride]`.
    pub v: Buf<f32>,
    /// W^T u `[2, stride]`.
    pub y: Buf<f32>,
    /// W v `[2, stride]`.
    pub z: Buf<f32>,
    /// sigma `[2]`.
    pub sigma: Buf<f32>,
}

impl SpectralBuffers {
    /// Allocates, and starts the iterations.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let layers = [shape.trunk1, shape.trunk2];
        let stride = layers.iter().map(|l| l.inputs.max(l.outputs)).max().unwrap_or(0).next_multiple_of(4);
        let mut matrices = [0; MAX_MATRICES];
        for (word, layer) in matrices.iter_mut().zip(layers) {
            *word = gpu::kernels::spectral_norm::matrix(layer.weight, layer.outputs, layer.inputs)
                .ok_or_else(|| ExecError::Product {
                    label: layer.label,
                    problem: format!(
                        "{} x {} is too large for the spectral norm",
                        layer.outputs, layer.inputs
                    ),
                })?;
        }
        let mut alloc = |name: &str, len| memory.alloc(&format!("spectral.{name}"), len);
        let buffers = Self {
            stride,
            matrices,
            u: alloc("u", 2 * stride)?,
            v: alloc("v", 2 * stride)?,
            y: alloc("y", 2 * stride)?,
            z: alloc("z", 2 * stride)?,
            sigma: alloc("sigma", 2)?,
        };
        buffers.start(memory, shape)?;
        Ok(buffers)
    }

    /// Starts the power iterations anew, from the vectors that a run with this seed starts from.
    pub fn start(&self, memory: &mut impl Memory, shape: &StepShape) -> Result<(), ExecError> {
        let mut u = vec![0.0; 2 * self.stride];
        let initial = cpu_path::init_spectral(&shape.model, shape.seed);
        for (row, values) in u.chunks_exact_mut(self.stride).zip(&initial) {
            row[..values.len()].copy_from_slice(values);
        }
        memory.upload(self.u, &u)
    }
}
