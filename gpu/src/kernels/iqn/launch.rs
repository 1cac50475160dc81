//! The host's side: which tile size, how many blocks, what is in a launch, and what its contract checks.

use cuda_std::{Buf, Kernel};

use super::chunks::{self, Image, chunks_of_block};
use super::memory::Memory;
use super::pack::{self, Packed};
use super::plane::Plane;
use super::product;
use super::size::{
    ChunkMedium, ChunkSmall, Embed, GradEmbed, GradHide, GradOut, GroupMedium, GroupSmall, HalfLarge,
    HalfMedium, HalfSmall, Hide, Large, MAX_BRANCHES, MAX_OUTPUTS, Medium, OUTPUTS, Part, Quantiles, Size,
    Small, Split,
};
use super::tile::Elements;
use crate::action;

/// Arithmetic of the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// IEEE fp32.
    Fp32,
    /// tf32 on the tensor cores.
    Tf32,
    /// bf16 on the tensor cores.
    Bf16,
    /// fp16 on the tensor cores, with tf32's significant bits: tf32 by warpgroups, see `group`. There is no large size.
    Fp16,
}

/// Most trunk features.
pub const MAX_TRUNK: u32 = 1024;

/// Tile sizes. The rows of a block's tile in f32 (fp32 and tf32), and in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileSize {
    /// 128 or 256 rows, up to 128 hidden units and 64 cosines.
    Small,
    /// 64 or 128 rows, up to 256 hidden units and 64 cosines.
    Medium,
    /// 32 or 64 rows, up to 512 hidden units and 256 cosines.
    Large,
}

/// The smallest size for a head; `None` where no kernel is large enough: above 512 hidden units or 256 cosines.
pub fn choose(hidden: u32, cosines: u32) -> Option<TileSize> {
    let fits = |most_hidden, most_cosines| hidden <= most_hidden && cosines <= most_cosines;
    if fits(Small::HIDDEN, Small::COSINES) {
        Some(TileSize::Small)
    } else if fits(Medium::HIDDEN, Medium::COSINES) {
        Some(TileSize::Medium)
    } else if fits(Large::HIDDEN, Large::COSINES) {
        Some(TileSize::Large)
    } else {
        None
    }
}

/// Calls a function of the size's and the arithmetic's type.
macro_rules! by_type {
    ($size:expr, $arithmetic:expr, $function:ident($($argument:expr),*)) => {
        match ($size, $arithmetic) {
            (TileSize::Small, Arithmetic::Bf16 | Arithmetic::Fp16) => $function::<HalfSmall>($($argument),*),
            (TileSize::Medium, Arithmetic::Bf16 | Arithmetic::Fp16) => $function::<HalfMedium>($($argument),*),
            (TileSize::Large, Arithmetic::Bf16 | Arithmetic::Fp16) => $function::<HalfLarge>($($argument),*),
            (TileSize::Small, _) => $function::<Small>($($argument),*),
            (TileSize::Medium, _) => $function::<Medium>($($argument),*),
            (TileSize::Large, _) => $function::<Large>($($argument),*),
        }
    };
}

impl TileSize {
    /// Floats of one block's plane of gradients.
    pub fn plane(self, arithmetic: Arithmetic, trunk: u32, outputs: u32) -> usize {
        by_type!(self, arithmetic, plane(trunk, outputs)) as usize
    }

    /// Words of the packed weights.
    pub fn packed(self, arithmetic: Arithmetic, trunk: u32, outputs: u32) -> usize {
        by_type!(self, arithmetic, packed(trunk, outputs)) as usize
    }
}

/// Sizes of the head and of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// B.
    pub batch: u32,
    /// H2.
    pub trunk: u32,
    /// E.
    pub cosines: u32,
    /// Hq.
    pub hidden: u32,
    /// A: the sum of the branches' actions.
    pub outputs: u32,
    /// D.
    pub branches: u32,
    /// n_d, packed.
    pub sizes: u64,
    /// N.
    pub quantiles: u32,
    /// N'.
    pub targets: u32,
    /// Negative slope of the hidden layer, 0 to 1.
    pub slope: f32,
}

/// What a head's kernels read: the trunk's features, the weights as a pack kernel wrote them, the biases.
#[derive(Clone, Copy, Debug)]
pub struct HeadBuffers {
    /// [B, H2].
    pub h: Buf<f32>,
    /// [`TileSize::packed`] words.
    pub packed: Buf<f32>,
    /// [H2].
    pub cos_bias: Buf<f32>,
    /// [Hq].
    pub hid_bias: Buf<f32>,
    /// [A].
    pub out_bias: Buf<f32>,
}

impl HeadBuffers {
    /// Whether rows of h can be copied to shared memory in whole 16 bytes.
    pub fn vectors(&self, shape: &Shape) -> bool {
        whole_vectors(shape.trunk, self.h)
    }
}

/// A pack kernel's arguments; see there.
#[derive(Clone, Copy, Debug)]
pub struct PackArguments {
    /// Rounding of the operands.
    pub arithmetic: Arithmetic,
    /// [H2, E].
    pub cos_weight: Buf<f32>,
    /// [Hq, H2].
    pub hid_weight: Buf<f32>,
    /// [A, Hq], the branches' rows one after the other.
    pub out_weight: Buf<f32>,
    /// [`TileSize::packed`] words.
    pub packed: Buf<f32>,
}

impl PackArguments {
    /// The rounding as the kernels take it.
    pub fn rounding(&self) -> u32 {
        match self.arithmetic {
            Arithmetic::Fp32 => pack::FP32,
            Arithmetic::Tf32 => pack::TF32,
            Arithmetic::Bf16 => pack::BF16,
            Arithmetic::Fp16 => pack::FP16,
        }
    }
}

/// The rest of a target kernel's arguments; see there.
#[derive(Clone, Copy, Debug)]
pub struct TargetArguments {
    /// [`super::SELECT_AND_GATHER`], [`super::SELECT`] or [`super::GATHER`].
    pub mode: u32,
    /// Whether tau' is drawn.
    pub draw: bool,
    /// Most blocks.
    pub blocks: u32,
    /// Key of the draws.
    pub seed: u64,
    /// `clock`'s words.
    pub clock_words: Buf<u64>,
    /// [B, N'].
    pub taus: Buf<f32>,
    /// [B].
    pub greedy: Buf<u64>,
    /// [B, D, N'].
    pub next: Buf<f32>,
}

/// The activation that the trunk's last layer ends with, through which dh is taken.
#[derive(Clone, Copy, Debug)]
pub struct Below {
    /// What it gave [B, H2].
    pub output: Buf<f32>,
    /// Its negative slope, 0 to 1; with 1 dh is the gradient with respect to h itself.
    pub slope: f32,
}

/// The rest of a loss kernel's arguments; see there.
#[derive(Clone, Copy, Debug)]
pub struct LossArguments {
    /// Where the Huber loss becomes linear.
    pub kappa: f32,
    /// Whether tau is drawn.
    pub draw: bool,
    /// Most blocks.
    pub blocks: u32,
    /// Key of the draws.
    pub seed: u64,
    /// `clock`'s words.
    pub clock_words: Buf<u64>,
    /// [B, N].
    pub taus: Buf<f32>,
    /// [B, D, N'].
    pub next: Buf<f32>,
    /// [B].
    pub actions: Buf<u64>,
    /// [B].
    pub rewards: Buf<f32>,
    /// [B].
    pub discounts: Buf<f32>,
    /// [B].
    pub weights: Buf<f32>,
    /// [B].
    pub loss: Buf<f32>,
    /// The activation below h.
    pub below: Below,
    /// [B, H2].
    pub dh: Buf<f32>,
    /// [blocks, plane].
    pub planes: Buf<f32>,
    /// [`LossKernel::images`] words.
    pub images: Buf<f32>,
}

/// The arguments of the kernel behind a loss kernel of warpgroups; see `chunks`.
#[derive(Clone, Copy, Debug)]
pub struct ChunkArguments {
    /// Most blocks of all chunks together.
    pub blocks: u32,
    /// [`LossKernel::images`] words.
    pub images: Buf<f32>,
    /// The activation below h.
    pub below: Below,
    /// [B, H2].
    pub dh: Buf<f32>,
    /// [parts, plane].
    pub planes: Buf<f32>,
}

/// A reduction's arguments.
#[derive(Clone, Copy, Debug)]
pub struct ReduceArguments {
    /// [`LossKernel::blocks`].
    pub blocks: u32,
    /// [`LossKernel::parts`].
    pub parts: u32,
    /// [the larger of the two, plane].
    pub planes: Buf<f32>,
    /// dWc [H2, E], dbc [H2], dWh [Hq, H2], dbh [Hq], dWo [A, Hq], dbo [A].
    pub gradients: [Buf<f32>; 6],
}

/// The pack kernels.
pub trait PackKernel: Kernel {
    /// A launch; `check` says whether the arguments keep the contract.
    fn new(shape: &Shape, more: &PackArguments) -> Self;
}

/// The target kernels.
pub trait TargetKernel: Kernel {
    /// The kernel that lays out their weights.
    type Pack: PackKernel;
    /// What they compute in.
    const ARITHMETIC: Arithmetic;
    /// Their size.
    const SIZE: TileSize;
    /// A launch; `check` says whether the arguments keep the contract.
    fn new(shape: &Shape, head: &HeadBuffers, more: &TargetArguments) -> Self;
}

/// The loss kernels.
pub trait LossKernel: Kernel {
    /// The kernel that lays out their weights.
    type Pack: PackKernel;
    /// The kernel that adds up their planes.
    type Reduce: ReduceKernel;
    /// What they compute in.
    const ARITHMETIC: Arithmetic;
    /// Their size.
    const SIZE: TileSize;
    /// The kernel that makes the rest of the gradients, if there is one.
    type Chunks: Kernel;
    /// Blocks of a launch that may have up to `most`: none is without samples. As many planes hold the output layer's
    /// gradients.
    fn blocks(shape: &Shape, most: u32) -> u32;
    /// How many planes hold the others' gradients, if `chunks` may have up to `most` blocks.
    fn parts(shape: &Shape, most: u32) -> u32;
    /// Words of the images that the loss kernel leaves for `chunks`.
    fn images(shape: &Shape) -> usize;
    /// The launch behind this one, if there is one.
    fn chunks(shape: &Shape, head: &HeadBuffers, more: &ChunkArguments) -> Option<Self::Chunks>;
    /// A launch; `check` says whether the arguments keep the contract.
    fn new(shape: &Shape, head: &HeadBuffers, more: &LossArguments) -> Self;
}

/// The reductions.
pub trait ReduceKernel: Kernel {
    /// A launch; `check` says whether the arguments keep the contract.
    fn new(shape: &Shape, more: &ReduceArguments) -> Self;
}

/// Groups of samples that are worked on together: most blocks of a launch.
pub fn groups<S: Size>(batch: u32, quantiles: u32) -> u32 {
    Split::new::<S>(quantiles).groups(batch)
}

/// Blocks of a launch that may have up to `most`.
pub fn blocks<S: Size>(batch: u32, quantiles: u32, most: u32) -> u32 {
    groups::<S>(batch, quantiles).min(most)
}

/// Blocks that take all chunks of the trunk.
pub fn block_chunks<S: Size>(trunk: u32) -> u32 {
    trunk.div_ceil(S::CHUNK).div_ceil(chunks_of_block::<S>())
}

/// Parts of each chunk of the trunk, if all of them may have up to `most` blocks: none is without tiles.
pub fn parts<S: Size>(shape: &Shape, most: u32) -> u32 {
    let each = most / block_chunks::<S>(shape.trunk).max(1);
    groups::<S>(shape.batch, shape.quantiles).min(each.max(1))
}

/// Words of the images of all tiles; none where warps multiply.
pub fn images<S: Size>(batch: u32, quantiles: u32) -> u64 {
    if S::GROUPS { u64::from(groups::<S>(batch, quantiles)) * u64::from(Image::<S>::WORDS) } else { 0 }
}

/// Floats of a plane.
pub fn plane<S: Size>(trunk: u32, outputs: u32) -> u64 {
    if trunk > MAX_TRUNK || outputs > MAX_OUTPUTS {
        return u64::from(u32::MAX); // refused by another relation, but all of them may be evaluated
    }
    Plane::new::<S>(trunk, outputs).len.into()
}

/// Words of the packed weights.
pub fn packed<S: Size>(trunk: u32, outputs: u32) -> u64 {
    if trunk > MAX_TRUNK || outputs > MAX_OUTPUTS {
        return u64::from(u32::MAX); // as above
    }
    Packed::new::<S>(trunk, outputs).len.into()
}

/// Whether a rounding is the size's.
pub fn rounding_fits<S: Size>(rounding: u32) -> bool {
    match S::ELEMENTS {
        Elements::Single => rounding == pack::FP32 || rounding == pack::TF32,
        Elements::Bf16 => rounding == pack::BF16,
        Elements::Fp16 => rounding == pack::FP16,
    }
}

/// Whether the size's kernels can do the head.
pub fn head_size<S: Size>(trunk: u32, cosines: u32, hidden: u32, outputs: u32) -> bool {
    (1..=MAX_TRUNK).contains(&trunk)
        && (1..=S::COSINES).contains(&cosines)
        && (1..=S::HIDDEN).contains(&hidden)
        && (1..=MAX_OUTPUTS).contains(&outputs)
}

/// Whether the size's kernels can do the head and all buffers are as large and aligned as they say.
#[allow(clippy::too_many_arguments)] // a kernel's arguments one by one
pub fn head_fits<S: Size>(
    batch: u32,
    trunk: u32,
    cosines: u32,
    hidden: u32,
    outputs: u32,
    vectors: u32,
    h: Buf<f32>,
    weights: Buf<f32>,
    biases: [Buf<f32>; 3],
) -> bool {
    let h_len = batch as usize * trunk as usize;
    batch >= 1
        && head_size::<S>(trunk, cosines, hidden, outputs)
        && h.len() >= h_len
        && u32::try_from(h_len).is_ok()
        && weights.len() as u64 >= packed::<S>(trunk, outputs)
        && aligned(weights)
        && biases.iter().zip([trunk, hidden, outputs]).all(|(bias, len)| bias.len() >= len as usize)
        && match vectors {
            0 => true,
            1 => whole_vectors(trunk, h),
            _ => false,
        }
}

fn whole_vectors(columns: u32, buffer: Buf<f32>) -> bool {
    columns.is_multiple_of(4) && aligned(buffer)
}

/// Whether a buffer begins at whole 16 bytes.
pub fn aligned(buffer: Buf<f32>) -> bool {
    buffer.addr().is_multiple_of(16)
}

/// Whether there are 1 to 8 branches, each with an action, and their actions are the outputs.
pub fn branches_fit(branches: u32, sizes: u64, outputs: u32) -> bool {
    (1..=MAX_BRANCHES).contains(&branches)
        && (0..branches).all(|d| action::branch(sizes, d) > 0)
        && (0..branches).map(|d| action::branch(sizes, d)).sum::<u32>() == outputs
}

/// Tensor-core instructions of a product, all loops written out.
const fn mmas<E: product::Arithmetic, P: Part>(depth: u32) -> u32 {
    if P::GROUPS {
        // Up to four products, a fence before them, and two instructions to wait; again for the sums of rows.
        return 2 * (4 + 3) * depth.div_ceil(4 * E::MMA_DEPTH);
    }
    let matrices = if E::MATRICES { 2 * P::TM + P::TN } else { 0 };
    (P::TM * P::TN + matrices) as u32 * (depth / E::MMA_DEPTH)
}

/// Most tensor-core instructions of a target kernel.
pub const fn target_mmas<E: product::Arithmetic, S: Size>() -> u32 {
    mmas::<E, Embed<S>>(S::COSINES) + mmas::<E, Hide<S>>(S::CHUNK) + mmas::<E, Quantiles<S>>(S::HIDDEN)
}

/// Most tensor-core instructions of a loss kernel.
pub const fn loss_mmas<E: product::Arithmetic, S: Size>() -> u32 {
    let first = target_mmas::<E, S>() + mmas::<E, GradOut<S>>(S::ROWS) + mmas::<E, Hide<S>>(OUTPUTS);
    if S::GROUPS {
        return first;
    }
    first
        + mmas::<E, Embed<S>>(S::COSINES)
        + 2 * mmas::<E, GradHide<S>>(S::ROWS) // with and without the bias
        + mmas::<E, Embed<S>>(S::HIDDEN)
        + mmas::<E, GradEmbed<S>>(S::ROWS)
}

/// Most tensor-core instructions of a chunks' kernel: two times phi (of the larger size's two warpgroups each), dx, dWh, dWc, dbc;
/// and dbh. Four products, a fence before them and two instructions to wait.
pub const fn chunk_mmas<S: Size>() -> u32 {
    let pieces = S::HIDDEN / 64;
    (2 * (2 + 2 * pieces + 2) + 2 * pieces) * (4 + 3)
}

/// Most shuffles of a chunks' kernel: dh, wherever a sample may end.
pub const fn chunk_shuffles() -> u32 {
    4 * (2 * 4 + 1)
}

/// Most shuffles of a loss kernel: the samples' losses, the biases' gradients and dh.
pub const fn loss_shuffles<E: product::Arithmetic, S: Size>() -> u32 {
    let rows = 2 * (GradOut::<S>::TM + GradHide::<S>::TM + GradEmbed::<S>::TM) as u32;
    let dh = 3 * 2 * Embed::<S>::TN as u32;
    5 + rows * E::SHUFFLES + dh
}

const _: () = {
    // More is refused by every device.
    assert!(Memory::<Small>::BYTES <= 227 * 1024);
    assert!(Memory::<Medium>::BYTES <= 227 * 1024);
    assert!(Memory::<Large>::BYTES <= 227 * 1024);
    assert!(Memory::<HalfSmall>::BYTES <= 227 * 1024);
    assert!(Memory::<HalfMedium>::BYTES <= 227 * 1024);
    assert!(Memory::<HalfLarge>::BYTES <= 227 * 1024);
    // Two blocks of these share a multiprocessor, which keeps a kilobyte for each.
    assert!(Memory::<GroupSmall>::BYTES <= 113 * 1024);
    assert!(Memory::<GroupMedium>::BYTES <= 227 * 1024);
    assert!(chunks::bytes::<ChunkSmall>() <= 227 * 1024);
    assert!(chunks::bytes::<ChunkMedium>() <= 227 * 1024);
};
