//! The implicit quantile head in the step (SPEC section 3, `gpu::kernels::iqn`), on a lane of its own: target quantiles,
//! then forward, quantile Huber loss and backward in one kernel or two, the reduction of its partial gradients, and the
//! trunk's gradient from d loss / d h2.

use cuda_std::{Buf, Kernel};
use gpu::kernels::halve::HalveLrelu;
use gpu::kernels::iqn::{
    self, Arithmetic, Below, ChunkArguments, HeadBuffers, LossArguments, LossKernel, PackArguments,
    PackKernel,
};
use gpu::kernels::iqn::{GATHER, SELECT, SELECT_AND_GATHER, TargetArguments, TargetKernel, TileSize};
use gpu::kernels::iqn::{ReduceArguments, ReduceKernel, Shape};
use gpu::kernels::learner_signals::sample;
use gpu::kernels::term_reduce::GroupSquares;
use settings::{Group, Precision};

use crate::error::ExecError;
use crate::exec::{Exec, Lane, Memory};
use crate::step::buffers::StepBuffers;
use crate::step::network::{Network, Planes, View};
use crate::step::parts::PartBuffers;
use crate::step::shape::StepShape;

/// Most blocks of the head's kernels. The number belongs to the order of sums, so it is not taken from the GPU: it is
/// that of an H100's multiprocessors.
const BLOCKS: u32 = 132;

/// Most blocks of a kernel, of those that share a multiprocessor as many as are there.
fn most<K: Kernel>() -> u32 {
    BLOCKS * K::DECL.resident.max(1)
}

/// Most blocks of the kernel behind the loss. Where a block would have a few tiles, all of them on every multiprocessor would
/// keep the rest of the step from running beside it: P1 takes 212 us a step with 64 of them, 217 with 86, 223 with 110
/// (docs/BENCHMARKS.md).
fn chunk_blocks<K: LossKernel>(s: &Shape) -> u32 {
    if K::blocks(s, u32::MAX) <= 2 * BLOCKS { 64 } else { BLOCKS }
}

/// Buffers of the head.
#[derive(Clone, Copy, Debug)]
pub struct IqnBuffers {
    /// tau `[B, N]`; drawn in the step, or uploaded by a test.
    pub taus: Buf<f32>,
    /// tau' `[B, N']`.
    pub target_taus: Buf<f32>,
    /// Greedy next actions, one byte a branch `[B]`.
    pub greedy: Buf<u64>,
    /// Target network's quantiles of them `[B, D, N']`.
    pub next: Buf<f32>,
    /// d loss / d (h2's argument), or where it has a copy in bf16 d loss / d h2' `[B, H2]`.
    pub d_h2: Buf<f32>,
    /// d loss / d (h1's argument) `[B, H1]`.
    pub d_h1: Buf<f32>,
    /// Blocks' partial gradients of the head `[blocks, plane]`.
    pub planes: Buf<f32>,
    /// What the loss kernel of warpgroups leaves for the rest of the backward pass (`LossKernel::images`).
    pub images: Buf<f32>,
    /// The online head's weights as the kernels read them (`TileSize::packed`).
    pub packed: Buf<f32>,
    /// The target head's.
    pub target_packed: Buf<f32>,
}

/// The head as its kernels take it.
fn kernel_shape(shape: &StepShape) -> Shape {
    let c = &shape.parts.iqn;
    Shape {
        batch: shape.batch as u32,
        trunk: shape.model.trunk2 as u32,
        cosines: c.cosines as u32,
        hidden: c.hidden as u32,
        outputs: shape.actions as u32,
        branches: shape.branches as u32,
        sizes: shape.sizes,
        quantiles: c.samples as u32,
        targets: c.target_samples as u32,
        slope: shape.model.leaky_slope,
    }
}

fn tile(shape: &StepShape) -> Result<TileSize, ExecError> {
    let c = &shape.parts.iqn;
    iqn::choose(c.hidden as u32, c.cosines as u32).ok_or_else(|| ExecError::Product {
        label: "iqn",
        problem: format!("no kernel takes iqn.hidden = {}, iqn.cosines = {}", c.hidden, c.cosines),
    })
}

/// Which kernels a head takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernels {
    Fp32,
    Tf32,
    Bf16,
    /// In bf16, by warpgroups.
    Bf16Groups,
    /// In fp16, by warpgroups: tf32's.
    Fp16Groups,
}

impl Kernels {
    fn arithmetic(self) -> Arithmetic {
        match self {
            Kernels::Fp32 => Arithmetic::Fp32,
            Kernels::Tf32 => Arithmetic::Tf32,
            Kernels::Bf16 | Kernels::Bf16Groups => Arithmetic::Bf16,
            Kernels::Fp16Groups => Arithmetic::Fp16,
        }
    }
}

/// The precision's kernels: those of warpgroups where the size and the loaded image have them.
fn kernels<E: Exec>(exec: &E, shape: &StepShape) -> Result<Kernels, ExecError> {
    let groups = match tile(shape)? {
        TileSize::Small => exec.has(&iqn::IqnLossBf16GroupSmall::DECL),
        TileSize::Medium => exec.has(&iqn::IqnLossBf16GroupMedium::DECL),
        TileSize::Large => false,
    };
    Ok(match (shape.precision, groups) {
        (Precision::Fp32, _) => Kernels::Fp32,
        (Precision::Tf32, false) => Kernels::Tf32,
        (Precision::Tf32, true) => Kernels::Fp16Groups,
        (Precision::Bf16, false) => Kernels::Bf16,
        (Precision::Bf16, true) => Kernels::Bf16Groups,
    })
}

/// Runs `$launch` with `$kernel` the kernel of the arithmetic and the size.
macro_rules! by_size {
    ($kernels:expr, $tile:expr, $names:tt, |$kernel:ident| $launch:expr) => {
        by_size!(@rows $kernels, $tile, $names, $kernel, $launch)
    };
    (@rows $kernels:expr, $tile:expr, {
        $($variant:ident => [$small:ident, $medium:ident, $large:ident];)*
    }, $kernel:ident, $launch:expr) => {
        match ($kernels, $tile) {
            $(
                (Kernels::$variant, TileSize::Small) => {
                    type $kernel = iqn::$small;
                    $launch
                }
                (Kernels::$variant, TileSize::Medium) => {
                    type $kernel = iqn::$medium;
                    $launch
                }
                (Kernels::$variant, TileSize::Large) => {
                    type $kernel = iqn::$large;
                    $launch
                }
            )*
        }
    };
}

/// The same with `$kernel` the loss kernel, to which the packing and the reduction belong.
macro_rules! by_loss {
    ($exec:expr, $shape:expr, |$kernel:ident| $launch:expr) => {
        by_size!(kernels($exec, $shape)?, tile($shape)?, {
            Fp32 => [IqnLossFp32Small, IqnLossFp32Medium, IqnLossFp32Large];
            Tf32 => [IqnLossTf32Small, IqnLossTf32Medium, IqnLossTf32Large];
            Bf16 => [IqnLossBf16Small, IqnLossBf16Medium, IqnLossBf16Large];
            Bf16Groups => [IqnLossBf16GroupSmall, IqnLossBf16GroupMedium, IqnLossBf16Large];
            Fp16Groups => [IqnLossFp16GroupSmall, IqnLossFp16GroupMedium, IqnLossTf32Large];
        }, |$kernel| $launch)
    };
}

impl IqnBuffers {
    /// Allocates what the kernels of the loaded image take.
    pub fn alloc(memory: &mut (impl Memory + Exec), shape: &StepShape) -> Result<Self, ExecError> {
        let (b, c, s) = (shape.batch, &shape.parts.iqn, kernel_shape(shape));
        let (planes, packed, images) = by_loss!(memory, shape, |K| {
            let planes = K::blocks(&s, most::<K>()).max(K::parts(&s, chunk_blocks::<K>(&s))) as usize;
            (
                planes * K::SIZE.plane(K::ARITHMETIC, s.trunk, s.outputs),
                K::SIZE.packed(K::ARITHMETIC, s.trunk, s.outputs),
                K::images(&s),
            )
        });
        Ok(Self {
            taus: memory.alloc("iqn.taus", b * c.samples)?,
            target_taus: memory.alloc("iqn.target_taus", b * c.target_samples)?,
            greedy: memory.alloc("iqn.greedy", b)?,
            next: memory.alloc("iqn.next", b * shape.branches * c.target_samples)?,
            d_h2: memory.alloc("iqn.d_h2", b * shape.model.trunk2)?,
            d_h1: memory.alloc("iqn.d_h1", b * shape.model.trunk1)?,
            planes: memory.alloc("iqn.planes", planes)?,
            // A buffer has an address even where the loss is one kernel.
            images: memory.alloc("iqn.images", images.max(4))?,
            packed: memory.alloc("iqn.packed", packed)?,
            target_packed: memory.alloc("iqn.target_packed", packed)?,
        })
    }
}

/// The head's six tensors in a flat buffer; the branches' outputs lie one behind the other.
fn tensors(shape: &StepShape, flat: Buf<f32>) -> [Buf<f32>; 6] {
    let hidden = shape.parts.iqn.hidden;
    let view = |name: &str, len| flat.slice(shape.flat.offset(name), len);
    let (h2, e) = (shape.model.trunk2, shape.parts.iqn.cosines);
    [
        view("iqn.cos.weight", h2 * e),
        view("iqn.cos.bias", h2),
        view("iqn.hid.weight", hidden * h2),
        view("iqn.hid.bias", hidden),
        view("iqn.out.0.weight", shape.actions * hidden),
        view("iqn.out.0.bias", shape.actions),
    ]
}

fn head_buffers(shape: &StepShape, h: Buf<f32>, flat: Buf<f32>, packed: Buf<f32>) -> HeadBuffers {
    let [_, cos_bias, _, hid_bias, _, out_bias] = tensors(shape, flat);
    HeadBuffers { h, packed, cos_bias, hid_bias, out_bias }
}

/// Lays out the target head's weights as the kernels read them. Waits for nothing but the last step.
pub fn pack_target<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    buffers: &IqnBuffers,
) -> Result<(), ExecError> {
    pack(exec, shape, b.parameters.target, buffers.target_packed)
}

/// The online head's.
pub fn pack_online<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    buffers: &IqnBuffers,
) -> Result<(), ExecError> {
    pack(exec, shape, b.parameters.online, buffers.packed)
}

fn pack<E: Exec>(exec: &mut E, shape: &StepShape, flat: Buf<f32>, packed: Buf<f32>) -> Result<(), ExecError> {
    let [cos_weight, _, hid_weight, _, out_weight, _] = tensors(shape, flat);
    let arithmetic = kernels(exec, shape)?.arithmetic();
    let arguments = PackArguments { arithmetic, cos_weight, hid_weight, out_weight, packed };
    by_loss!(exec, shape, |K| {
        let pack = <K as LossKernel>::Pack::new(&kernel_shape(shape), &arguments);
        exec.launch(Lane::IQN, &pack)
    })
}

fn target<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    head: &HeadBuffers,
    arguments: &TargetArguments,
) -> Result<(), ExecError> {
    by_size!(kernels(exec, shape)?, tile(shape)?, {
        Fp32 => [IqnTargetFp32Small, IqnTargetFp32Medium, IqnTargetFp32Large];
        Tf32 => [IqnTargetTf32Small, IqnTargetTf32Medium, IqnTargetTf32Large];
        Bf16 => [IqnTargetBf16Small, IqnTargetBf16Medium, IqnTargetBf16Large];
        Bf16Groups => [IqnTargetBf16GroupSmall, IqnTargetBf16GroupMedium, IqnTargetBf16Large];
        Fp16Groups => [IqnTargetFp16GroupSmall, IqnTargetFp16GroupMedium, IqnTargetTf32Large];
    }, |K| {
        let arguments = TargetArguments { blocks: most::<K>(), ..*arguments };
        exec.launch(Lane::IQN, &K::new(&kernel_shape(shape), head, &arguments))
    })
}

/// Target quantiles of the next states, from both networks' features.
pub fn next<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    buffers: &IqnBuffers,
    draw: bool,
) -> Result<(), ExecError> {
    let rows = shape.batch * shape.model.trunk2;
    let (online, all) = (b.online.features, b.target.features);
    let next =
        head_buffers(shape, all.slice(all.len() - rows, rows), b.parameters.target, buffers.target_packed);
    let mut arguments = TargetArguments {
        mode: SELECT_AND_GATHER,
        draw,
        blocks: BLOCKS,
        seed: shape.seed,
        clock_words: b.clock,
        taus: buffers.target_taus,
        greedy: buffers.greedy,
        next: buffers.next,
    };
    if shape.parts.iqn.double {
        // The online head selects on the same fractions, which the first of the two draws.
        let select = head_buffers(shape, online.slice(rows, rows), b.parameters.online, buffers.packed);
        target(exec, shape, &select, &TargetArguments { mode: SELECT, ..arguments })?;
        arguments = TargetArguments { mode: GATHER, draw: false, ..arguments };
    }
    target(exec, shape, &next, &arguments)
}

/// Loss, the head's gradient and d loss / d h2', from the target quantiles and the losses' weights.
pub fn loss<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    buffers: &IqnBuffers,
    draw: bool,
) -> Result<(), ExecError> {
    let rows = shape.batch * shape.model.trunk2;
    let here = head_buffers(shape, b.online.features.slice(0, rows), b.parameters.online, buffers.packed);
    let loss = LossArguments {
        kappa: shape.parts.iqn.kappa,
        draw,
        blocks: BLOCKS,
        seed: shape.seed,
        clock_words: b.clock,
        taus: buffers.taus,
        next: buffers.next,
        actions: b.batch.actions,
        rewards: b.batch.rewards,
        discounts: b.batch.discounts,
        weights: b.loss_weights(shape),
        loss: parts.sample(shape, sample::IQN, 1),
        below: Below {
            output: b.online.h2.slice(0, rows),
            // A copy is made with the activation's slope.
            slope: if d_h2_copy(b, buffers).is_some() { 1.0 } else { shape.model.leaky_slope },
        },
        dh: buffers.d_h2,
        planes: buffers.planes,
        images: buffers.images,
    };
    let LossArguments { images, below, dh, planes, .. } = loss;
    by_loss!(exec, shape, |K| {
        let s = kernel_shape(shape);
        let loss = LossArguments { blocks: most::<K>(), ..loss };
        let behind = ChunkArguments { blocks: chunk_blocks::<K>(&s), images, below, dh, planes };
        exec.launch(Lane::IQN, &K::new(&s, &here, &loss))?;
        if let Some(chunks) = K::chunks(&s, &here, &behind) {
            exec.launch(Lane::IQN, &chunks)?;
        }
        Ok(())
    })
}

/// The lane of the head's gradient, beside the trunk's: the one of the target's attention, which is behind the head.
pub const HEAD: Lane = Lane::CONTEXT;

/// The head's gradient from the blocks' planes, and its norm, behind the loss on [`HEAD`].
pub fn head<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    buffers: &IqnBuffers,
) -> Result<(), ExecError> {
    exec.after(HEAD, Lane::IQN)?;
    let s = kernel_shape(shape);
    by_loss!(exec, shape, |K| {
        let arguments = ReduceArguments {
            blocks: K::blocks(&s, most::<K>()),
            parts: K::parts(&s, chunk_blocks::<K>(&s)),
            planes: buffers.planes,
            gradients: tensors(shape, b.parameters.grad),
        };
        exec.launch(HEAD, &<K as LossKernel>::Reduce::new(&s, &arguments))
    })?;
    let (offset, len) = shape.segment(Group::Iqn);
    let squares = GroupSquares {
        len: len as u32,
        grad: b.parameters.grad.slice(offset, len).into(),
        squares: parts.squares_of((offset, len)).into(),
    };
    exec.launch(HEAD, &squares)
}

/// Where d loss / d h2' is copied in bf16, if it is.
fn d_h2_copy(b: &StepBuffers, buffers: &IqnBuffers) -> Option<Buf<f32>> {
    b.copies.as_ref().and_then(|copies| copies.of(buffers.d_h2))
}

/// The trunk's gradient from d loss / d h2', which has gone through h2's activation or goes there now.
pub fn trunk<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    parts: &PartBuffers,
    buffers: &IqnBuffers,
) -> Result<(), ExecError> {
    let (lane, rows, h1, h2) = (Lane::IQN, shape.batch, shape.model.trunk1, shape.model.trunk2);
    let (slope, stored2) = (shape.model.leaky_slope, b.online.h2.slice(0, rows * h2));
    if let Some(copy) = d_h2_copy(b, buffers) {
        let halve = HalveLrelu {
            len: (rows * h2) as u32,
            slope,
            d: buffers.d_h2.into(),
            h: stored2.into(),
            to: copy.into(),
        };
        exec.launch(lane, &halve)?;
    }
    let (stored1, d_h1) = (View::new(b.online.h1, h1), View::new(buffers.d_h1, h1));
    let (d_h2, x) = (View::new(buffers.d_h2, h2), View::new(b.batch.x, shape.stride));
    let planes = Planes { data: parts.trunk_parts, first: 0, len: shape.trunk_len() };
    let mut network = Network { exec, shape, parameters: b.parameters.online, copies: b.copies.as_ref() };
    network.backward(lane, rows, &[(shape.trunk2, d_h2, Some(stored1), d_h1)])?;
    network.weight_gradients(lane, rows, planes, &[(shape.trunk2, d_h2, stored1), (shape.trunk1, d_h1, x)])
}
