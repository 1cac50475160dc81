//! The implicit quantile head: forward, quantile Huber loss and backward in one launch. SPEC section 3; Dabney,
//! Ostrovski, Silver and Munos, "Implicit Quantile Networks for Distributional Reinforcement Learning" (2018), with the
//! cosines from 1 as in Dopamine (the paper sums from 0).
//!
//! | letter | what | shape |
//! |---|---|---|
//! | tau | quantile fractions, N (N' for targets) a sample | [B, N] |
//! | phi | relu(Wc cos(pi j tau) + bc), j = 1 .. E | [B N, H2] |
//! | x | h * phi, h the sample's trunk features h2' | [B N, H2] |
//! | u1 | lrelu(Wh x + bh) | [B N, Hq] |
//! | z | Wo u1 + bo: one output for each action of every branch, A in all | [B N, A] |
//!
//! Target (`iqn_target_*`): a*_d = argmax_a mean_j z_a(tau'_j), the first of equal ones; next_dj = z_{a*_d}(tau'_j).
//!
//! Loss (`iqn_loss_*`): u_ij = r + discount next_dj - z_{a_d}(tau_i); l = 1/D sum_d sum_i mean_j |tau_i - 1[u < 0]|
//! huber_kappa(u) / kappa, not weighted; the gradients are those of mean_b w_b l_b. Only dz of the actions taken differ
//! from zero; the rest is `backward`'s.
//!
//! None of the matrices over B N rows exists in device memory (but for du1 and the cosines of warpgroups, in halves). A block takes tiles of 32 to 256 rows (pairs of a sample and
//! a quantile), one after the other; of x it holds a chunk of columns, which the backward pass computes again; weights
//! stream through shared memory, as a first launch has laid them out; the parameters' gradients grow in a plane of device memory for each block, which
//! `iqn_reduce_*` adds up. The order of all sums is fixed by the shapes and the number of blocks.
//!
//! Kernels are named `iqn_WHAT_ARITHMETIC_SIZE`. Arithmetic as in `gemm`: `fp32` is IEEE; `tf32` and `bf16` round the
//! operands of the six products (not the loss or dh); bias gradients sum the rounded operands. Sizes: see [`TileSize`];
//! [`choose`] picks one. `iqn_pack_*` of the weights come first (`half` for `bf16`), `iqn_reduce_*` last.
//!
//! `iqn_*_group_*` do what the kernels without the word do, for bf16 and for tf32 and the two smaller sizes, by the tensor-core
//! instruction of warpgroups (see `group`), which only GPUs of compute capability 9.0 have: the image of target sm_90a holds
//! them beside the others. In place of tf32 they have `fp16`, which has its significant bits, see `group`. Those of bf16 take
//! the same packed weights as `half`; planes are as large, in an order of their own. Their backward pass is two kernels
//! (`chunks`). The two kinds
//! add a product's terms in different orders: their results differ by f32's rounding, and by the operands that it tips over.

use cuda_std::prelude::*;

use crate::{clock, philox};

mod size;
mod tile;
#[macro_use]
mod declare;
#[macro_use]
mod product;
mod backward;
mod bf16;
#[cfg_attr(all(target_arch = "nvptx64", not(target_feature = "sm_90a")), allow(unused))]
mod chunks;
mod cosines;
mod forward;
mod fp32;
// Off the target that has the instruction nothing of it is used.
#[cfg_attr(all(target_arch = "nvptx64", not(target_feature = "sm_90a")), allow(unused))]
mod group;
mod loss;
mod memory;
mod pack;
mod plane;
mod reduce;
mod target;
mod trunk;

#[cfg(not(target_arch = "nvptx64"))]
mod launch;
#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

use bf16::Bf16;
use cosines::Taus;
use forward::Head;
use fp32::Fp32;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use group::{Bf16Groups, Fp16Groups};
use loss::Loss;
use product::Tf32;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use size::{ChunkMedium, ChunkSmall, Fp16ChunkMedium, Fp16ChunkSmall};
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use size::{Fp16Medium, Fp16Small, GroupMedium, GroupSmall};
use size::{HalfLarge, HalfMedium, HalfSmall, Large, Medium, Small};
use target::Target;
#[cfg(not(target_arch = "nvptx64"))]
use {memory::Memory, size::Size};

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{
    Arithmetic, Below, ChunkArguments, HeadBuffers, LossArguments, LossKernel, PackArguments, PackKernel,
    ReduceArguments, ReduceKernel, Shape, TargetArguments, TargetKernel, TileSize, choose,
};
#[cfg(not(target_arch = "nvptx64"))]
pub use size::{MAX_BRANCHES, MAX_OUTPUTS, MAX_QUANTILES};
pub use target::{GATHER, SELECT, SELECT_AND_GATHER};

pack_kernels! {
    iqn_pack_small IqnPackSmall Small;
    iqn_pack_medium IqnPackMedium Medium;
    iqn_pack_large IqnPackLarge Large;
    iqn_pack_half_small IqnPackHalfSmall HalfSmall;
    iqn_pack_half_medium IqnPackHalfMedium HalfMedium;
    iqn_pack_half_large IqnPackHalfLarge HalfLarge;
    iqn_pack_fp16_small IqnPackFp16Small Fp16Small only "sm_90a";
    iqn_pack_fp16_medium IqnPackFp16Medium Fp16Medium only "sm_90a";
}

target_kernels! {
    iqn_target_fp32_small IqnTargetFp32Small Fp32 Small Small IqnPackSmall;
    iqn_target_fp32_medium IqnTargetFp32Medium Fp32 Medium Medium IqnPackMedium;
    iqn_target_fp32_large IqnTargetFp32Large Fp32 Large Large IqnPackLarge;
    iqn_target_tf32_small IqnTargetTf32Small Tf32 Small Small IqnPackSmall;
    iqn_target_tf32_medium IqnTargetTf32Medium Tf32 Medium Medium IqnPackMedium;
    iqn_target_tf32_large IqnTargetTf32Large Tf32 Large Large IqnPackLarge;
    iqn_target_bf16_small IqnTargetBf16Small Bf16 HalfSmall Small IqnPackHalfSmall;
    iqn_target_bf16_medium IqnTargetBf16Medium Bf16 HalfMedium Medium IqnPackHalfMedium;
    iqn_target_bf16_large IqnTargetBf16Large Bf16 HalfLarge Large IqnPackHalfLarge;
    iqn_target_bf16_group_small IqnTargetBf16GroupSmall Bf16Groups GroupSmall Small IqnPackHalfSmall only "sm_90a";
    iqn_target_bf16_group_medium IqnTargetBf16GroupMedium Bf16Groups GroupMedium Medium IqnPackHalfMedium only "sm_90a";
    iqn_target_fp16_group_small IqnTargetFp16GroupSmall Fp16Groups Fp16Small Small IqnPackFp16Small only "sm_90a";
    iqn_target_fp16_group_medium IqnTargetFp16GroupMedium Fp16Groups Fp16Medium Medium IqnPackFp16Medium only "sm_90a";
}

loss_kernels! {
    iqn_loss_fp32_small IqnLossFp32Small Fp32 Small Small IqnPackSmall IqnReduceSmall;
    iqn_loss_fp32_medium IqnLossFp32Medium Fp32 Medium Medium IqnPackMedium IqnReduceMedium;
    iqn_loss_fp32_large IqnLossFp32Large Fp32 Large Large IqnPackLarge IqnReduceLarge;
    iqn_loss_tf32_small IqnLossTf32Small Tf32 Small Small IqnPackSmall IqnReduceSmall;
    iqn_loss_tf32_medium IqnLossTf32Medium Tf32 Medium Medium IqnPackMedium IqnReduceMedium;
    iqn_loss_tf32_large IqnLossTf32Large Tf32 Large Large IqnPackLarge IqnReduceLarge;
    iqn_loss_bf16_small IqnLossBf16Small Bf16 HalfSmall Small IqnPackHalfSmall IqnReduceHalfSmall;
    iqn_loss_bf16_medium IqnLossBf16Medium Bf16 HalfMedium Medium IqnPackHalfMedium IqnReduceHalfMedium;
    iqn_loss_bf16_large IqnLossBf16Large Bf16 HalfLarge Large IqnPackHalfLarge IqnReduceHalfLarge;
    iqn_loss_bf16_group_small IqnLossBf16GroupSmall Bf16Groups GroupSmall Small IqnPackHalfSmall IqnReduceGroupSmall
        chunks IqnChunksBf16Small ChunkSmall only "sm_90a";
    iqn_loss_bf16_group_medium IqnLossBf16GroupMedium Bf16Groups GroupMedium Medium IqnPackHalfMedium IqnReduceGroupMedium
        chunks IqnChunksBf16Medium ChunkMedium only "sm_90a";
    iqn_loss_fp16_group_small IqnLossFp16GroupSmall Fp16Groups Fp16Small Small IqnPackFp16Small IqnReduceGroupSmall
        chunks IqnChunksFp16Small Fp16ChunkSmall only "sm_90a";
    iqn_loss_fp16_group_medium IqnLossFp16GroupMedium Fp16Groups Fp16Medium Medium IqnPackFp16Medium IqnReduceGroupMedium
        chunks IqnChunksFp16Medium Fp16ChunkMedium only "sm_90a";
}

chunk_kernels! {
    iqn_chunks_bf16_small ChunkSmall only "sm_90a";
    iqn_chunks_bf16_medium ChunkMedium only "sm_90a";
    iqn_chunks_fp16_small Fp16ChunkSmall only "sm_90a";
    iqn_chunks_fp16_medium Fp16ChunkMedium only "sm_90a";
}

reduce_kernels! {
    iqn_reduce_small IqnReduceSmall Small Small;
    iqn_reduce_medium IqnReduceMedium Medium Medium;
    iqn_reduce_large IqnReduceLarge Large Large;
    iqn_reduce_half_small IqnReduceHalfSmall HalfSmall HalfSmall;
    iqn_reduce_half_medium IqnReduceHalfMedium HalfMedium HalfMedium;
    iqn_reduce_half_large IqnReduceHalfLarge HalfLarge HalfLarge;
    iqn_reduce_group_small IqnReduceGroupSmall GroupSmall ChunkSmall only "sm_90a";
    iqn_reduce_group_medium IqnReduceGroupMedium GroupMedium ChunkMedium only "sm_90a";
}
