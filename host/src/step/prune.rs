//! Magnitude pruning in the step (SPEC section 3, `gpu::kernels::prune`): launches that the graph variant of a pruning
//! step begins with. The masks are the gradient's factors, so the other steps need no launch of their own.

use cuda_std::Buf;
use gpu::kernels::prune::{
    DIGITS, PruneApply, PruneBegin, PruneDigits, PruneTies, ROUNDS, WARPS, matrix as word,
};
use settings::Pruning;

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::{Replay, StepBuffers};
use crate::step::record::record;
use crate::step::shape::StepShape;

/// Most blocks that share a matrix.
const BLOCKS: usize = 32;

/// Buffers of a pruning.
#[derive(Clone, Copy, Debug)]
pub struct PruneBuffers {
    /// Weight matrices.
    matrices: usize,
    /// Blocks that share one.
    blocks: usize,
    /// Their descriptions `[matrices, matrix::WORDS]`.
    table: Buf<u32>,
    /// How many elements shall be zero `[matrices]`.
    targets: Buf<u32>,
    /// How many are `[matrices]`.
    pub zeros: Buf<u32>,
    /// Counts of digits `[ROUNDS, matrices, DIGITS]`.
    digits: Buf<u32>,
    /// Counts of equal magnitudes `[matrices, blocks, WARPS]`.
    ties: Buf<u32>,
}

impl PruneBuffers {
    /// Allocates.
    pub fn alloc(memory: &mut impl Memory, shape: &StepShape) -> Result<Self, ExecError> {
        let pruned = || Pruning::matrices(&shape.layout);
        let words: Vec<u32> = pruned().flat_map(|t| [t.offset as u32, t.len() as u32]).collect();
        let matrices = words.len() / word::WORDS as usize;
        // Four elements a thread or more.
        let longest = pruned().map(|t| t.len()).max().unwrap_or(0);
        let blocks = longest.div_ceil(4 * 32 * WARPS as usize).clamp(1, BLOCKS);
        let buffers = Self {
            matrices,
            blocks,
            table: memory.alloc("prune.table", words.len())?,
            targets: memory.alloc("prune.targets", matrices)?,
            zeros: memory.alloc("prune.zeros", matrices)?,
            digits: memory.alloc("prune.digits", (ROUNDS * DIGITS) as usize * matrices)?,
            ties: memory.alloc("prune.ties", matrices * blocks * WARPS as usize)?,
        };
        memory.upload(buffers.table, &words)?;
        Ok(buffers)
    }

    /// First float and length of every matrix in the main network's flat layout.
    fn ranges(&self, memory: &mut impl Memory) -> Result<Vec<(usize, usize)>, ExecError> {
        let words = memory.download(self.table)?;
        Ok(words.chunks_exact(word::WORDS as usize).map(|of| (of[0] as usize, of[1] as usize)).collect())
    }
}

/// The masks in checkpoints (`Kept`).
impl StepBuffers {
    /// 0 for every pruned float of the main network's flat layout, 1 for the others; empty without pruning.
    pub(super) fn masks(&self, memory: &mut impl Memory) -> Result<Vec<f32>, ExecError> {
        let Some(pruning) = &self.pruning else { return Ok(Vec::new()) };
        let factors = memory.download(self.factors)?;
        // Between the matrices the factors are of other things, the noise of noisy heads among them.
        let mut masks = vec![1.0; factors.len()];
        for (offset, len) in pruning.ranges(memory)? {
            masks[offset..offset + len].copy_from_slice(&factors[offset..offset + len]);
        }
        Ok(masks)
    }

    /// Goes on with these masks; without any, or of another length, with those that are there.
    pub(super) fn set_masks(&self, memory: &mut impl Memory, masks: &[f32]) -> Result<(), ExecError> {
        let Some(pruning) = self.pruning.as_ref().filter(|_| masks.len() == self.factors.len()) else {
            return Ok(());
        };
        for (offset, len) in pruning.ranges(memory)? {
            memory.upload(self.factors.slice(offset, len), &masks[offset..offset + len])?;
        }
        Ok(())
    }
}

/// Pruning, then the step: the variant of the steps at which `Pruning::due` says so.
pub fn record_pruning<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    replay: Option<&Replay>,
) -> Result<(), ExecError> {
    prune(exec, shape, b)?;
    record(exec, shape, b, replay)
}

/// The pruning alone, on the main lane. Nothing where it is off.
pub fn prune<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some(p) = &b.pruning else { return Ok(()) };
    let (lane, settings, len) = (Lane::MAIN, &shape.pruning, shape.layout.len);
    let (blocks, matrices) = (p.blocks as u32, p.matrices as u32);
    let main = |buffer: Buf<f32>| buffer.slice(0, len);
    let begin = PruneBegin {
        matrices,
        begin: settings.begin,
        end: settings.end,
        sparsity: settings.sparsity,
        table: p.table.into(),
        clock_words: b.clock.into(),
        targets: p.targets.into(),
        zeros: p.zeros.into(),
        digits: p.digits.into(),
    };
    exec.launch(lane, &begin)?;
    for round in 0..ROUNDS {
        let digits = PruneDigits {
            blocks,
            matrices,
            round,
            len: len as u32,
            table: p.table.into(),
            targets: p.targets.into(),
            params: main(b.parameters.online).into(),
            mask: b.factors.into(),
            digits: p.digits.into(),
        };
        exec.launch(lane, &digits)?;
    }
    let ties = PruneTies {
        blocks,
        matrices,
        len: len as u32,
        table: p.table.into(),
        targets: p.targets.into(),
        params: main(b.parameters.online).into(),
        mask: b.factors.into(),
        digits: p.digits.into(),
        ties: p.ties.into(),
    };
    exec.launch(lane, &ties)?;
    let apply = PruneApply {
        blocks,
        matrices,
        len: len as u32,
        table: p.table.into(),
        targets: p.targets.into(),
        digits: p.digits.into(),
        ties: p.ties.into(),
        params: main(b.parameters.online).into(),
        m: main(b.parameters.m).into(),
        v: main(b.parameters.v).into(),
        mask: b.factors.into(),
        zeros: p.zeros.into(),
    };
    exec.launch(lane, &apply)
}
