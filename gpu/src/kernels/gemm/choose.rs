//! Which tile a launch uses, from shapes alone, so that the same products are always summed in the same order, whatever
//! the device.
//!
//! Products whose blocks are few take the largest tile that still gives the multiprocessors a block each. On an H200
//! that took a step of P1-core in tf32 from 126 to 115 us beside the estimate below, in fp32 from 200 to 183 us: a
//! network's products are so short that latency, which the estimate does not know, decides. Weight gradients in tf32,
//! whose splits give blocks enough, follow the estimate of each tile's time (35 against 38 us for the backward pass).
//!
//! Larger tiles read less (a tile of r rows and c columns reads (r + c) k floats for r c k products), smaller ones spread
//! over more multiprocessors. Three things bound a launch: the multiplications on the busiest multiprocessor, what the
//! multiprocessors can get from the L2 cache together, and what one of them can get. The numbers are for an H200 in
//! clock cycles; those of the stages come from instruction counts of the machine code.

use super::engine::Tile;
use super::panel::DEPTH;

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arithmetic {
    /// fp32 on the vector units.
    Fp32,
    /// tf32 or bf16 on the tensor cores.
    TensorCores,
}

/// Multiprocessors of an H200 or H100.
const MULTIPROCESSORS: f64 = 132.0;
/// Bytes that all multiprocessors together get from the L2 cache a cycle: 6 TB/s at 1.85 GHz.
const L2_BYTES: f64 = 3240.0;
/// Bytes that one multiprocessor gets from it a cycle.
const OWN_BYTES: f64 = 50.0;
/// Start, first copies' latency, and store of a block.
const BLOCK_CYCLES: f64 = 1000.0;

/// A tile and its costs.
struct Cost {
    tile: Tile,
    rows: u64,
    columns: u64,
    /// Cycles of a stage when the multiprocessor has more blocks to switch to.
    busy: f64,
    /// The same for a block alone, which waits at each stage's barrier.
    alone: f64,
    /// Blocks that fit on a multiprocessor.
    resident: f64,
}

const fn cost(tile: Tile, (rows, columns): (u64, u64), busy: f64, alone: f64, resident: f64) -> Cost {
    Cost { tile, rows, columns, busy, alone, resident }
}

const FP32: [Cost; Tile::COUNT] = [
    cost(Tile::Huge, (128, 128), 4550.0, 4600.0, 1.0),
    cost(Tile::Large, (128, 64), 2330.0, 2400.0, 2.0),
    cost(Tile::Medium, (64, 64), 1200.0, 1280.0, 2.0),
    cost(Tile::Small, (64, 32), 640.0, 720.0, 2.0),
];

const TENSOR_CORES: [Cost; Tile::COUNT] = [
    cost(Tile::Huge, (128, 128), 1024.0, 1100.0, 1.0),
    cost(Tile::Large, (128, 64), 576.0, 680.0, 2.0),
    cost(Tile::Medium, (64, 64), 384.0, 460.0, 2.0),
    cost(Tile::Small, (64, 32), 224.0, 330.0, 3.0),
];

impl Cost {
    /// Estimated cycles of a launch.
    fn cycles(&self, splits: u64, products: impl Iterator<Item = (usize, usize, usize)>) -> f64 {
        let (mut blocks, mut stages, mut most, mut written) = (0.0, 0.0, 0.0f64, 0.0);
        for (m, n, k) in products {
            let (m, n, k) = (m as u64, n as u64, k as u64);
            let tiles = (m.div_ceil(self.rows) * n.div_ceil(self.columns) * splits) as f64;
            let depth = k.div_ceil(u64::from(DEPTH)).div_ceil(splits) as f64;
            blocks += tiles;
            stages += tiles * depth;
            most = most.max(depth);
            written += (m * n * splits) as f64 * 4.0;
        }
        let read = stages * f64::from(4 * DEPTH) * (self.rows + self.columns) as f64;
        let each = (blocks / MULTIPROCESSORS).ceil();
        let multiply = if each <= 1.0 {
            most * self.alone
        } else {
            (stages / MULTIPROCESSORS).max(most * each.min(self.resident)) * self.busy
        };
        let shared = (read + written) / L2_BYTES;
        let own = read / blocks.min(MULTIPROCESSORS) / OWN_BYTES;
        multiply.max(shared).max(own) + BLOCK_CYCLES * (each / self.resident).ceil()
    }
}

/// Blocks that give nearly every multiprocessor one.
const ONE_WAVE: u64 = 120;
/// Blocks from which the largest tile, of which one fits on a multiprocessor, leaves none idle for long.
const TWO_WAVES: u64 = 264;

/// The same for forward products in bf16 where the largest tile is multiplied by warpgroups: P1 in bf16 takes 209.0 us a step
/// instead of 211.3, P1-core, which has nothing beside it that would take the multiprocessors' second place, 100.7 instead of 99.6.
/// (Data gradients with it are slower: 220 us.)
const FORWARD: u64 = 130;

/// Blocks of a tile.
fn blocks(cost: &Cost, splits: u64, products: impl Iterator<Item = (usize, usize, usize)>) -> u64 {
    products
        .map(|(m, n, _)| (m as u64).div_ceil(cost.rows) * (n as u64).div_ceil(cost.columns) * splits)
        .sum()
}

/// The largest tile that gives the multiprocessors work, the smallest if none does.
fn largest_filling(
    costs: &[Cost; Tile::COUNT],
    splits: u64,
    products: impl Iterator<Item = (usize, usize, usize)> + Clone,
) -> Tile {
    for cost in costs {
        if blocks(cost, splits, products.clone())
            >= if cost.tile == Tile::Huge { TWO_WAVES } else { ONE_WAVE }
        {
            return cost.tile;
        }
    }
    Tile::Small
}

/// The tile for products (m, n, k) in one launch, each cut into `splits` ranges of k.
pub fn choose(
    arithmetic: Arithmetic,
    splits: usize,
    products: impl Iterator<Item = (usize, usize, usize)> + Clone,
) -> Tile {
    let costs = match arithmetic {
        Arithmetic::Fp32 => &FP32,
        Arithmetic::TensorCores => &TENSOR_CORES,
    };
    if splits == 1 || arithmetic == Arithmetic::Fp32 {
        return largest_filling(costs, splits as u64, products);
    }
    let mut best = (f64::INFINITY, Tile::Small);
    for cost in costs {
        let cycles = cost.cycles(splits as u64, products.clone());
        if cycles < best.0 {
            best = (cycles, cost.tile);
        }
    }
    best.1
}

/// The tile for forward products in bf16 whose largest tile is multiplied by warpgroups, in one launch.
pub fn choose_forward(products: impl Iterator<Item = (usize, usize, usize)> + Clone) -> Tile {
    match blocks(&TENSOR_CORES[0], 1, products.clone()) {
        FORWARD.. => Tile::Huge,
        _ => choose(Arithmetic::TensorCores, 1, products),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arithmetic::{Fp32, TensorCores};

    fn one(arithmetic: Arithmetic, splits: usize, product: (usize, usize, usize)) -> Tile {
        choose(arithmetic, splits, [product].into_iter())
    }

    #[test]
    fn many_products_take_large_tiles_and_few_take_small_ones() {
        assert_eq!(one(TensorCores, 1, (16384, 512, 512)), Tile::Huge);
        assert_eq!(one(Fp32, 1, (1024, 256, 80)), Tile::Small);
        assert_eq!(one(Fp32, 1, (16, 32, 12)), Tile::Small);
        assert_eq!(one(TensorCores, 1, (16, 32, 12)), Tile::Small);
        // Sixteen tiles of 128 x 128 would leave most multiprocessors idle.
        assert_ne!(one(TensorCores, 1, (1024, 256, 256)), Tile::Huge);
        // Splits are blocks too: the same product cut into ranges takes the tile that reads less.
        assert_eq!(one(TensorCores, 8, (512, 256, 1024)), Tile::Huge);
    }

    #[test]
    fn forward_products_by_warpgroups_take_the_largest_tile_sooner() {
        // P1's heads: value 51, branches of 9, 3 and 3 actions, on the rows of s and s'.
        let heads = [51, 459, 153, 153].map(|n| (2048, n, 128));
        assert_eq!(choose(TensorCores, 1, heads.into_iter()), Tile::Large);
        assert_eq!(choose_forward(heads.into_iter()), Tile::Huge);
        let few = [(1024, 256, 256)];
        assert_eq!(choose_forward(few.into_iter()), choose(TensorCores, 1, few.into_iter()));
    }

    #[test]
    fn the_costs_are_those_of_the_tiles() {
        for costs in [&FP32, &TENSOR_CORES] {
            let tiles: Vec<_> = costs.iter().map(|c| c.tile).collect();
            assert_eq!(tiles, [Tile::Huge, Tile::Large, Tile::Medium, Tile::Small]);
        }
        use crate::kernels::gemm::{DataKernel, GemmNtFp32Huge, GemmNtTf32Large, GemmNtTf32Small, TileSize};
        let size = |cost: &Cost| TileSize { rows: cost.rows as u32, columns: cost.columns as u32 };
        assert_eq!(size(&FP32[0]), GemmNtFp32Huge::TILE);
        assert_eq!(size(&TENSOR_CORES[1]), GemmNtTf32Large::TILE);
        assert_eq!(size(&TENSOR_CORES[3]), GemmNtTf32Small::TILE);
    }
}
