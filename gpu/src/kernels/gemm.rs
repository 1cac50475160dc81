//! Tiled matrix products: C = A B, with the transposes and the epilogues that a network's step needs.
//!
//! | form | C[m, n] = | use | A, B | fused |
//! |---|---|---|---|---|
//! | NT | sum_k A[m, k] B[n, k] | forward, y = x W^T | activations [B, in], weight [out, in] | bias, LeakyReLU |
//! | NN | sum_k A[m, k] B[k, n] | data gradient, dx = dy W | dy [B, out], weight [out, in] | LeakyReLU's derivative |
//! | TN | sum_k A[k, m] B[k, n] | weight gradient, dW = dy^T x | dy [B, out], x [B, in] | bias gradient |
//!
//! All matrices are row-major with a row stride. One launch computes up to [`MAX_PRODUCTS`] independent products of one
//! form. Every kernel handles every shape; 16-byte copies are used where address and stride allow them.
//!
//! Kernels are named `gemm_FORM_ARITHMETIC_TILE`. Arithmetic: `fp32` is IEEE (fused multiply-adds); `tf32` and `bf16`
//! round the operands to 10 and 7 bits of mantissa (nearest, ties to even) and sum exact products in f32 on the tensor
//! cores. `gemm_FORM_bf16_group` is the largest tile by the tensor-core instruction of warpgroups (`warpgroups`), which only
//! the image of target sm_90a has. Tiles: see [`Tile`]; [`choose`] picks one by shape. The order of summation is fixed by shape, arithmetic and
//! tile.

use cuda_std::prelude::*;

#[macro_use]
mod engine;
mod block;
mod data;
mod group;
pub(in crate::kernels) mod mma;
mod panel;
pub(in crate::kernels) mod round;
mod simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
mod stored;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
mod warpgroups;
mod weight;

#[cfg(not(target_arch = "nvptx64"))]
mod choose;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

use block::{Huge, Large, Medium, Small};
use engine::{Nn, Nt, Tn};
use simt::Fp32;
#[cfg(not(target_arch = "nvptx64"))]
use {
    block::Plan,
    data::{ACTIVATIONS, BIAS},
};

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{
    DataKernel, Destination, Extra, Group, GroupError, Product, StoredKernel, StoredProduct, TileSize,
    WeightKernel,
};
#[cfg(not(target_arch = "nvptx64"))]
pub use {
    choose::{Arithmetic, choose, choose_forward},
    engine::Tile,
    group::{MAX_PRODUCTS, MAX_SIZE, MAX_STRIDE, MAX_TILES},
};

/// Tensor-core engines by precision.
type Tf32 = mma::TensorCores<mma::Tf32, 2>;
type Tf32Tall = mma::TensorCores<mma::Tf32, 4>;
type Bf16 = mma::TensorCores<mma::Bf16, 2>;
type Bf16Tall = mma::TensorCores<mma::Bf16, 4>;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
type Bf16Groups = warpgroups::Groups;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
type Bf16Stored = stored::Stored;

/// Declares a kernel for each product's arguments, numbered 0 to 8.
macro_rules! for_each_product {
    ($declare:ident $($given:tt)*) => {
        $declare! {
            $($given)*
            (a0 b0 c0 x0 h0 sizes0 strides0 0) (a1 b1 c1 x1 h1 sizes1 strides1 1) (a2 b2 c2 x2 h2 sizes2 strides2 2)
            (a3 b3 c3 x3 h3 sizes3 strides3 3) (a4 b4 c4 x4 h4 sizes4 strides4 4) (a5 b5 c5 x5 h5 sizes5 strides5 5)
            (a6 b6 c6 x6 h6 sizes6 strides6 6) (a7 b7 c7 x7 h7 sizes7 strides7 7) (a8 b8 c8 x8 h8 sizes8 strides8 8)
        }
    };
}

/// NT and NN kernels.
macro_rules! data_kernel {
    (
        $name:ident $launch:ident $engine:ident $form:ident $size:ident [$($only:literal)?]
        ($a0:ident $b0:ident $c0:ident $x0:ident $h0:ident $sizes0:ident $strides0:ident 0)
        $(($a:ident $b:ident $c:ident $x:ident $h:ident $sizes:ident $strides:ident $p:tt))*
    ) => {
        /// Products of one form with fused epilogue; see the module.
        #[kernel(
            block = Plan::<$engine, $form, $size>::THREADS,
            grid = launch::tiles([ends0, ends1, ends2]),
            shared = Plan::<$engine, $form, $size>::SHARED,
            barriers = Plan::<$engine, $form, $size>::BARRIERS,
            mmas = Plan::<$engine, $form, $size>::MMAS,
            resident = Plan::<$engine, $form, $size>::RESIDENT,
            $(only = $only,)?
            requires(
                mode == BIAS || mode == ACTIVATIONS,
                launch::numbered(
                    Plan::<$engine, $form, $size>::TILE, [ends0, ends1, ends2], [($sizes0, $strides0), $(($sizes, $strides)),*]
                ),
                launch::data_fits::<$engine, $form>(mode, $sizes0, $strides0, [$a0.buf(), $b0.buf(), $c0.buf(), $x0.buf()]),
                $(launch::data_fits::<$engine, $form>(mode, $sizes, $strides, [$a.buf(), $b.buf(), $c.buf(), $x.buf()]),)*
            )
        )]
        pub fn $name(
            mode: u32,
            slope: f32,
            ends0: u64,
            ends1: u64,
            ends2: u64,
            $a0: In<f32>, $b0: In<f32>, $c0: Out<f32>, $x0: In<f32>, $sizes0: u64, $strides0: u64,
            $($a: In<f32>, $b: In<f32>, $c: Out<f32>, $x: In<f32>, $sizes: u64, $strides: u64,)*
        ) {
            let (product, tile) = data::place([ends0, ends1, ends2]);
            let of = match product {
                $($p => data::Arguments { a: $a, b: $b, c: $c, extra: $x, sizes: $sizes, strides: $strides },)*
                _ => data::Arguments {
                    a: $a0, b: $b0, c: $c0, extra: $x0, sizes: $sizes0, strides: $strides0
                },
            };
            data::run::<$engine, $form, $size>(&of, tile, mode, slope, &data::Floats);
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl DataKernel for $launch {
            const TILE: TileSize = Plan::<$engine, $form, $size>::TILE;

            fn new(mode: u32, slope: f32, group: &Group) -> $launch {
                let [ends0, ends1, ends2] = group.ends;
                let ([$a0, $b0, $c0, $x0], ($sizes0, $strides0)) = (group.buffers[0], group.words[0]);
                $(let ([$a, $b, $c, $x], ($sizes, $strides)) = (group.buffers[$p], group.words[$p]);)*
                $launch {
                    mode, slope, ends0, ends1, ends2,
                    $a0: $a0.into(), $b0: $b0.into(), $c0: $c0.into(), $x0: $x0.into(), $sizes0, $strides0,
                    $($a: $a.into(), $b: $b.into(), $c: $c.into(), $x: $x.into(), $sizes, $strides,)*
                }
            }
        }
    };
}

/// NT and NN kernels of operands in bf16, whose result may be stored a second time in bf16.
macro_rules! stored_kernel {
    (
        $name:ident $launch:ident $engine:ident $form:ident $size:ident [$($only:literal)?]
        ($a0:ident $b0:ident $c0:ident $x0:ident $h0:ident $sizes0:ident $strides0:ident 0)
        $(($a:ident $b:ident $c:ident $x:ident $h:ident $sizes:ident $strides:ident $p:tt))*
    ) => {
        /// Products of one form with fused epilogue, operands in bf16; see `stored`.
        #[kernel(
            block = Plan::<$engine, $form, $size>::THREADS,
            grid = launch::tiles([ends0, ends1, ends2]),
            shared = Plan::<$engine, $form, $size>::SHARED,
            barriers = Plan::<$engine, $form, $size>::BARRIERS,
            mmas = Plan::<$engine, $form, $size>::MMAS,
            resident = Plan::<$engine, $form, $size>::RESIDENT,
            $(only = $only,)?
            requires(
                mode == BIAS || mode == ACTIVATIONS,
                launch::numbered(
                    Plan::<$engine, $form, $size>::TILE, [ends0, ends1, ends2], [($sizes0, $strides0), $(($sizes, $strides)),*]
                ),
                launch::data_fits::<$engine, $form>(mode, $sizes0, $strides0, [$a0.buf(), $b0.buf(), $c0.buf(), $x0.buf()]),
                $(launch::data_fits::<$engine, $form>(mode, $sizes, $strides, [$a.buf(), $b.buf(), $c.buf(), $x.buf()]),)*
                launch::copy_fits(mode, $sizes0, $strides0, $x0.buf(), $h0.buf()),
                $(launch::copy_fits(mode, $sizes, $strides, $x.buf(), $h.buf()),)*
            )
        )]
        pub fn $name(
            mode: u32,
            slope: f32,
            ends0: u64,
            ends1: u64,
            ends2: u64,
            $a0: In<f32>, $b0: In<f32>, $c0: Out<f32>, $x0: In<f32>, $h0: Out<f32>, $sizes0: u64, $strides0: u64,
            $($a: In<f32>, $b: In<f32>, $c: Out<f32>, $x: In<f32>, $h: Out<f32>, $sizes: u64, $strides: u64,)*
        ) {
            let (product, tile) = data::place([ends0, ends1, ends2]);
            let (of, copy) = match product {
                $(
                    $p => {
                        (data::Arguments { a: $a, b: $b, c: $c, extra: $x, sizes: $sizes, strides: $strides }, $h)
                    }
                )*
                _ => (
                    data::Arguments { a: $a0, b: $b0, c: $c0, extra: $x0, sizes: $sizes0, strides: $strides0 },
                    $h0,
                ),
            };
            data::run::<$engine, $form, $size>(&of, tile, mode, slope, &stored::Halves { copy });
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl StoredKernel for $launch {
            const TILE: TileSize = Plan::<$engine, $form, $size>::TILE;

            fn new(mode: u32, slope: f32, group: &Group, copies: &launch::Copies) -> $launch {
                let [ends0, ends1, ends2] = group.ends;
                let ([$a0, $b0, $c0, $x0], ($sizes0, $strides0)) = (group.buffers[0], group.words[0]);
                $(let ([$a, $b, $c, $x], ($sizes, $strides)) = (group.buffers[$p], group.words[$p]);)*
                $launch {
                    mode, slope, ends0, ends1, ends2,
                    $a0: $a0.into(), $b0: $b0.into(), $c0: $c0.into(), $x0: $x0.into(), $h0: copies[0].into(), $sizes0, $strides0,
                    $($a: $a.into(), $b: $b.into(), $c: $c.into(), $x: $x.into(), $h: copies[$p].into(), $sizes, $strides,)*
                }
            }
        }
    };
}

/// TN kernels.
macro_rules! weight_kernel {
    (
        $name:ident $launch:ident $engine:ident $form:ident $size:ident [$($only:literal)?]
        ($a0:ident $b0:ident $c0:ident $x0:ident $h0:ident $sizes0:ident $strides0:ident 0)
        $(($a:ident $b:ident $c:ident $x:ident $h:ident $sizes:ident $strides:ident $p:tt))*
    ) => {
        /// Weight and bias gradients in `splits` planes, `plane` floats apart; see the module.
        #[kernel(
            block = Plan::<$engine, $form, $size>::THREADS,
            grid = (launch::tiles([ends0, ends1, ends2]), splits),
            shared = Plan::<$engine, $form, $size>::SHARED,
            barriers = Plan::<$engine, $form, $size>::BARRIERS,
            shuffles = Plan::<$engine, $form, $size>::SHUFFLES,
            mmas = Plan::<$engine, $form, $size>::MMAS,
            resident = Plan::<$engine, $form, $size>::RESIDENT,
            $(only = $only,)?
            requires(
                splits > 0,
                launch::numbered(
                    Plan::<$engine, $form, $size>::TILE, [ends0, ends1, ends2], [($sizes0, $strides0), $(($sizes, $strides)),*]
                ),
                launch::weight_fits::<$engine, $form>(
                    splits, plane, $sizes0, $strides0, [$a0.buf(), $b0.buf(), $c0.buf(), $x0.buf()]
                ),
                $(
                    launch::weight_fits::<$engine, $form>(
                        splits, plane, $sizes, $strides, [$a.buf(), $b.buf(), $c.buf(), $x.buf()]
                    ),
                )*
            )
        )]
        pub fn $name(
            splits: u32,
            plane: u32,
            ends0: u64,
            ends1: u64,
            ends2: u64,
            $a0: In<f32>, $b0: In<f32>, $c0: Out<f32>, $x0: Out<f32>, $sizes0: u64, $strides0: u64,
            $($a: In<f32>, $b: In<f32>, $c: Out<f32>, $x: Out<f32>, $sizes: u64, $strides: u64,)*
        ) {
            let (product, tile) = data::place([ends0, ends1, ends2]);
            let of = match product {
                $($p => weight::Arguments { a: $a, b: $b, c: $c, extra: $x, sizes: $sizes, strides: $strides },)*
                _ => weight::Arguments {
                    a: $a0, b: $b0, c: $c0, extra: $x0, sizes: $sizes0, strides: $strides0
                },
            };
            weight::run::<$engine, $form, $size>(&of, tile, thread::block_idx_y(), splits, plane);
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl WeightKernel for $launch {
            const TILE: TileSize = Plan::<$engine, $form, $size>::TILE;

            fn new(splits: u32, plane: u32, group: &Group) -> $launch {
                let [ends0, ends1, ends2] = group.ends;
                let ([$a0, $b0, $c0, $x0], ($sizes0, $strides0)) = (group.buffers[0], group.words[0]);
                $(let ([$a, $b, $c, $x], ($sizes, $strides)) = (group.buffers[$p], group.words[$p]);)*
                $launch {
                    splits, plane, ends0, ends1, ends2,
                    $a0: $a0.into(), $b0: $b0.into(), $c0: $c0.into(), $x0: $x0.into(), $sizes0, $strides0,
                    $($a: $a.into(), $b: $b.into(), $c: $c.into(), $x: $x.into(), $sizes, $strides,)*
                }
            }
        }
    };
}

for_each_product!(data_kernel gemm_nt_fp32_huge GemmNtFp32Huge Fp32 Nt Huge []);
for_each_product!(data_kernel gemm_nt_fp32_large GemmNtFp32Large Fp32 Nt Large []);
for_each_product!(data_kernel gemm_nt_fp32_medium GemmNtFp32Medium Fp32 Nt Medium []);
for_each_product!(data_kernel gemm_nt_fp32_small GemmNtFp32Small Fp32 Nt Small []);
for_each_product!(data_kernel gemm_nn_fp32_huge GemmNnFp32Huge Fp32 Nn Huge []);
for_each_product!(data_kernel gemm_nn_fp32_large GemmNnFp32Large Fp32 Nn Large []);
for_each_product!(data_kernel gemm_nn_fp32_medium GemmNnFp32Medium Fp32 Nn Medium []);
for_each_product!(data_kernel gemm_nn_fp32_small GemmNnFp32Small Fp32 Nn Small []);
for_each_product!(weight_kernel gemm_tn_fp32_huge GemmTnFp32Huge Fp32 Tn Huge []);
for_each_product!(weight_kernel gemm_tn_fp32_large GemmTnFp32Large Fp32 Tn Large []);
for_each_product!(weight_kernel gemm_tn_fp32_medium GemmTnFp32Medium Fp32 Tn Medium []);
for_each_product!(weight_kernel gemm_tn_fp32_small GemmTnFp32Small Fp32 Tn Small []);

for_each_product!(data_kernel gemm_nt_tf32_huge GemmNtTf32Huge Tf32Tall Nt Huge []);
for_each_product!(data_kernel gemm_nt_tf32_large GemmNtTf32Large Tf32Tall Nt Large []);
for_each_product!(data_kernel gemm_nt_tf32_medium GemmNtTf32Medium Tf32 Nt Medium []);
for_each_product!(data_kernel gemm_nt_tf32_small GemmNtTf32Small Tf32 Nt Small []);
for_each_product!(data_kernel gemm_nn_tf32_huge GemmNnTf32Huge Tf32Tall Nn Huge []);
for_each_product!(data_kernel gemm_nn_tf32_large GemmNnTf32Large Tf32Tall Nn Large []);
for_each_product!(data_kernel gemm_nn_tf32_medium GemmNnTf32Medium Tf32 Nn Medium []);
for_each_product!(data_kernel gemm_nn_tf32_small GemmNnTf32Small Tf32 Nn Small []);
for_each_product!(weight_kernel gemm_tn_tf32_huge GemmTnTf32Huge Tf32Tall Tn Huge []);
for_each_product!(weight_kernel gemm_tn_tf32_large GemmTnTf32Large Tf32Tall Tn Large []);
for_each_product!(weight_kernel gemm_tn_tf32_medium GemmTnTf32Medium Tf32 Tn Medium []);
for_each_product!(weight_kernel gemm_tn_tf32_small GemmTnTf32Small Tf32 Tn Small []);

for_each_product!(data_kernel gemm_nt_bf16_huge GemmNtBf16Huge Bf16Tall Nt Huge []);
for_each_product!(data_kernel gemm_nt_bf16_large GemmNtBf16Large Bf16Tall Nt Large []);
for_each_product!(data_kernel gemm_nt_bf16_medium GemmNtBf16Medium Bf16 Nt Medium []);
for_each_product!(data_kernel gemm_nt_bf16_small GemmNtBf16Small Bf16 Nt Small []);
for_each_product!(data_kernel gemm_nn_bf16_huge GemmNnBf16Huge Bf16Tall Nn Huge []);
for_each_product!(data_kernel gemm_nn_bf16_large GemmNnBf16Large Bf16Tall Nn Large []);
for_each_product!(data_kernel gemm_nn_bf16_medium GemmNnBf16Medium Bf16 Nn Medium []);
for_each_product!(data_kernel gemm_nn_bf16_small GemmNnBf16Small Bf16 Nn Small []);
for_each_product!(data_kernel gemm_nt_bf16_group GemmNtBf16Group Bf16Groups Nt Huge ["sm_90a"]);
for_each_product!(data_kernel gemm_nn_bf16_group GemmNnBf16Group Bf16Groups Nn Huge ["sm_90a"]);
for_each_product!(weight_kernel gemm_tn_bf16_group GemmTnBf16Group Bf16Groups Tn Huge ["sm_90a"]);
for_each_product!(stored_kernel gemm_nt_bf16_stored GemmNtBf16Stored Bf16Stored Nt Huge ["sm_90a"]);
for_each_product!(stored_kernel gemm_nn_bf16_stored GemmNnBf16Stored Bf16Stored Nn Huge ["sm_90a"]);
for_each_product!(weight_kernel gemm_tn_bf16_stored GemmTnBf16Stored Bf16Stored Tn Huge ["sm_90a"]);
for_each_product!(weight_kernel gemm_tn_bf16_huge GemmTnBf16Huge Bf16Tall Tn Huge []);
for_each_product!(weight_kernel gemm_tn_bf16_large GemmTnBf16Large Bf16Tall Tn Large []);
for_each_product!(weight_kernel gemm_tn_bf16_medium GemmTnBf16Medium Bf16 Tn Medium []);
for_each_product!(weight_kernel gemm_tn_bf16_small GemmTnBf16Small Bf16 Tn Small []);
