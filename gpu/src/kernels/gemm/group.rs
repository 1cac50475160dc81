//! Several products in one launch: what the kernels' arguments hold, and which tile of which product a block has.
//!
//! A launch takes up to [`MAX_PRODUCTS`] independent products of one form. Each has its own buffers and two words of
//! sizes; the tiles of all products are numbered through, and a block finds its product by its number. All of it is
//! kernel arguments, which lie in constant memory: no block waits for a table in device memory.

/// Most products in one launch.
pub const MAX_PRODUCTS: usize = 9;
/// Largest m, n, k.
pub const MAX_SIZE: u32 = (1 << 21) - 1;
/// Largest row stride.
pub const MAX_STRIDE: u32 = (1 << 19) - 1;
/// Most tiles of one launch.
pub const MAX_TILES: u32 = (1 << 21) - 1;

/// Sizes of one product, C [m, n] = A B summed over k, and how its operands may be accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of C.
    pub m: u32,
    /// Columns of C.
    pub n: u32,
    /// Summed indices.
    pub k: u32,
    /// Row stride of A in floats.
    pub lda: u32,
    /// Row stride of B in floats.
    pub ldb: u32,
    /// Row stride of C (and of the stored activations of the backward epilogue) in floats.
    pub ldc: u32,
    /// Address and stride of A are multiples of 16 bytes.
    pub a_vectors: bool,
    /// The same for B.
    pub b_vectors: bool,
    /// The same for C and, where it has columns, the extra operand.
    pub c_vectors: bool,
    /// There is an extra operand: bias, stored activations, or bias gradient.
    pub extra: bool,
    /// The result is stored rounded to bf16 (`stored`).
    pub copied: bool,
    /// It is not stored in f32.
    pub copied_only: bool,
    /// In f32 the product itself is stored, without what follows it.
    pub bare: bool,
    /// The stored activations are bf16.
    pub halved_extra: bool,
}

impl Sizes {
    /// The two argument words: m, n, k of 21 bits each and a flag; lda, ldb, ldc of 19 bits each and seven flags.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const fn pack(&self) -> (u64, u64) {
        let sizes = self.m as u64 | (self.n as u64) << 21 | (self.k as u64) << 42;
        let flags = self.a_vectors as u64
            | (self.b_vectors as u64) << 1
            | (self.c_vectors as u64) << 2
            | (self.extra as u64) << 3
            | (self.copied as u64) << 4
            | (self.copied_only as u64) << 5
            | (self.bare as u64) << 6;
        (
            sizes | (self.halved_extra as u64) << 63,
            self.lda as u64 | (self.ldb as u64) << 19 | (self.ldc as u64) << 38 | flags << 57,
        )
    }

    /// Inverse of [`Sizes::pack`].
    #[inline(always)]
    pub const fn unpack(sizes: u64, strides: u64) -> Sizes {
        Sizes {
            m: sizes as u32 & MAX_SIZE,
            n: (sizes >> 21) as u32 & MAX_SIZE,
            k: (sizes >> 42) as u32 & MAX_SIZE,
            lda: strides as u32 & MAX_STRIDE,
            ldb: (strides >> 19) as u32 & MAX_STRIDE,
            ldc: (strides >> 38) as u32 & MAX_STRIDE,
            a_vectors: strides >> 57 & 1 != 0,
            b_vectors: strides >> 58 & 1 != 0,
            c_vectors: strides >> 59 & 1 != 0,
            extra: strides >> 60 & 1 != 0,
            copied: strides >> 61 & 1 != 0,
            copied_only: strides >> 62 & 1 != 0,
            bare: strides >> 63 != 0,
            halved_extra: sizes >> 63 != 0,
        }
    }

    /// Tiles of C of `rows` by `columns`.
    #[cfg(not(target_arch = "nvptx64"))]
    pub const fn tiles(&self, rows: u32, columns: u32) -> u64 {
        self.m.div_ceil(rows) as u64 * self.n.div_ceil(columns) as u64
    }
}

/// Where each product's tiles end, three 21-bit numbers a word; products that are not there end where the last does.
pub type Ends = [u64; MAX_PRODUCTS.div_ceil(3)];

/// End of product p's tiles.
#[inline(always)]
pub const fn end(ends: &Ends, p: usize) -> u32 {
    (ends[p / 3] >> (21 * (p % 3))) as u32 & MAX_TILES
}

/// Numbers the tiles through; None when there are more than [`MAX_TILES`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn number_tiles(products: &[Sizes; MAX_PRODUCTS], rows: u32, columns: u32) -> Option<Ends> {
    let (mut ends, mut total) = (Ends::default(), 0u64);
    for (p, sizes) in products.iter().enumerate() {
        total += sizes.tiles(rows, columns);
        if total > MAX_TILES as u64 {
            return None;
        }
        ends[p / 3] |= total << (21 * (p % 3));
    }
    Some(ends)
}

/// The product of tile number `tile`, and the tile's number within the product.
#[inline(always)]
pub fn locate(ends: Ends, tile: u32) -> (u32, u32) {
    let (mut product, mut first) = (0, 0);
    let mut p = 0;
    while p < MAX_PRODUCTS - 1 {
        let end = end(&ends, p);
        if tile >= end {
            (product, first) = (p as u32 + 1, end);
        }
        p += 1;
    }
    (product, tile - first)
}

/// Floats that a row-major matrix takes: its last row ends with its last column.
#[cfg(not(target_arch = "nvptx64"))]
pub const fn extent(rows: u32, columns: u32, stride: u32) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows as usize - 1) * stride as usize + columns as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_survive_packing() {
        let largest = Sizes {
            m: MAX_SIZE,
            n: MAX_SIZE,
            k: MAX_SIZE,
            lda: MAX_STRIDE,
            ldb: MAX_STRIDE,
            ldc: MAX_STRIDE,
            a_vectors: true,
            b_vectors: true,
            c_vectors: true,
            extra: true,
            copied: true,
            copied_only: true,
            bare: true,
            halved_extra: true,
        };
        let mixed = Sizes {
            m: 2048,
            n: 459,
            k: 81,
            lda: 512,
            ldb: 128,
            ldc: 824,
            b_vectors: true,
            ..Sizes::default()
        };
        let flags = [
            Sizes { a_vectors: true, ..mixed },
            Sizes { extra: true, ..mixed },
            Sizes { copied: true, ..mixed },
            Sizes { copied_only: true, ..mixed },
            Sizes { bare: true, ..mixed },
            Sizes { halved_extra: true, ..mixed },
        ];
        for sizes in [largest, mixed, Sizes::default()].into_iter().chain(flags) {
            let (a, b) = sizes.pack();
            assert_eq!(Sizes::unpack(a, b), sizes);
        }
    }

    #[test]
    fn each_tile_belongs_to_one_product() {
        let mut products = [Sizes::default(); MAX_PRODUCTS];
        for (p, (m, n)) in
            [(63, 65), (1, 1), (129, 64), (64, 32), (200, 200), (5, 300), (1, 64)].into_iter().enumerate()
        {
            products[p] = Sizes { m, n, ..Sizes::default() };
        }
        let ends = number_tiles(&products, 64, 64).unwrap();
        let mut expected = Vec::new();
        for (p, sizes) in products.iter().enumerate() {
            expected.extend((0..sizes.tiles(64, 64) as u32).map(|t| (p as u32, t)));
        }
        assert_eq!(end(&ends, MAX_PRODUCTS - 1) as usize, expected.len());
        let found: Vec<_> = (0..expected.len() as u32).map(|tile| locate(ends, tile)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn too_many_tiles_are_refused() {
        let mut products = [Sizes::default(); MAX_PRODUCTS];
        products[0] = Sizes { m: 64 * 2047, n: 64 * 1024, ..Sizes::default() };
        assert!(number_tiles(&products, 64, 64).is_some());
        products[8] = products[0];
        assert_eq!(number_tiles(&products, 64, 64), None);
    }
}
