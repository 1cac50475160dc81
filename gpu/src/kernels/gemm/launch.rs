//! The host's side: products with their buffers become a launch, and launches are checked.

use std::fmt;

use cuda_std::{Buf, Kernel};

use super::block::{Plan, Size};
use super::data::{ACTIVATIONS, BIAS};
use super::engine::{Engine, Form};
use super::group::{Ends, MAX_PRODUCTS, MAX_SIZE, MAX_STRIDE, MAX_TILES, Sizes, end, extent, number_tiles};
use super::panel::{DEPTH, Order};

/// What a product's extra operand is, the same for all products of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extra {
    /// Forward: bias [n], added to each row, then LeakyReLU with this negative slope; 1 for none.
    Bias(f32),
    /// Data gradient: the layer's stored output h [m, n] with row stride ldc; C is multiplied by 1 where h > 0 and by
    /// this slope elsewhere.
    Activations(f32),
}

/// One matrix product with its buffers, each starting at the first element.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Summed indices.
    pub k: usize,
    /// A with its row stride.
    pub a: (Buf<f32>, usize),
    /// B with its row stride.
    pub b: (Buf<f32>, usize),
    /// C with its row stride. In a weight gradient with several splits the buffer reaches to the last plane.
    pub c: (Buf<f32>, usize),
    /// Bias, stored activations or, in a weight gradient, the bias gradient [m].
    pub extra: Option<Buf<f32>>,
}

/// Why products do not make a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// No product, or more than a launch takes.
    Count {
        /// Products given.
        count: usize,
    },
    /// A size that does not fit its argument.
    Size {
        /// Index of the product.
        product: usize,
        /// m, n, k, lda, ldb or ldc.
        quantity: &'static str,
        /// Its value.
        value: usize,
        /// Largest value.
        limit: u32,
    },
    /// More tiles than the numbering holds.
    Tiles {
        /// The tile.
        tile: TileSize,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            GroupError::Count { count } => {
                write!(f, "{count} products in one launch: 1 to {MAX_PRODUCTS} are possible")
            }
            GroupError::Size { product, quantity, value, limit } => {
                write!(f, "product {product}: {quantity} = {value} is not in 1 to {limit}")
            }
            GroupError::Tiles { tile: TileSize { rows, columns } } => {
                write!(f, "the products have more than {MAX_TILES} tiles of {rows} x {columns}")
            }
        }
    }
}

impl std::error::Error for GroupError {}

/// Rows and columns of C that a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSize {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

/// What a kernel declares.
impl<E: Engine, F: Form, S: Size> Plan<E, F, S> {
    /// Rows and columns of the tile.
    pub const TILE: TileSize = TileSize { rows: Self::ROWS, columns: Self::COLUMNS };
    /// Bytes of shared memory.
    pub const SHARED: u32 = 4 * Self::FLOATS;
    /// Most barriers in the kernel.
    pub const BARRIERS: u32 = E::BARRIERS;
    /// Blocks that are to share a multiprocessor.
    pub const RESIDENT: u32 = E::RESIDENT;
    /// Most shuffles in the kernel.
    pub const SHUFFLES: u32 = if F::ROW_SUMS { E::SUM_SHUFFLES } else { 0 };
    /// Most tensor-core instructions in the kernel.
    pub const MMAS: u32 = E::MMAS;
}

/// Products as kernel arguments.
pub struct Group {
    pub(super) ends: Ends,
    /// A, B, C, extra; empty where there is no product.
    pub(super) buffers: [[Buf<f32>; 4]; MAX_PRODUCTS],
    pub(super) words: [(u64, u64); MAX_PRODUCTS],
}

/// A kernel for products NT or NN.
pub trait DataKernel: Kernel {
    /// Its tile.
    const TILE: TileSize;

    /// The launch of products that are numbered already.
    fn new(mode: u32, slope: f32, group: &Group) -> Self;

    /// The launch of up to [`MAX_PRODUCTS`] products; their extra operands, where there are any, are `extra`.
    fn of(extra: Extra, products: &[Product]) -> Result<Self, GroupError> {
        let (mode, slope) = match extra {
            Extra::Bias(slope) => (BIAS, slope),
            Extra::Activations(slope) => (ACTIVATIONS, slope),
        };
        Ok(Self::new(mode, slope, &Group::new(Self::TILE, products)?))
    }
}

/// A kernel for products TN.
pub trait WeightKernel: Kernel {
    /// Its tile.
    const TILE: TileSize;

    /// The launch of products that are numbered already.
    fn new(splits: u32, plane: u32, group: &Group) -> Self;

    /// The launch of up to [`MAX_PRODUCTS`] products in `splits` planes, `plane` floats apart; their extra operands,
    /// where there are any, are the bias gradients of plane 0.
    fn of(splits: u32, plane: u32, products: &[Product]) -> Result<Self, GroupError> {
        Ok(Self::new(splits, plane, &Group::new(Self::TILE, products)?))
    }
}

/// Where the results of a launch's products are stored in bf16.
pub type Copies = [Buf<f32>; MAX_PRODUCTS];

/// In which form a product's result is stored.
#[derive(Clone, Copy, Debug, Default)]
pub enum Destination {
    /// In f32.
    #[default]
    Floats,
    /// In f32, and in bf16 here.
    Both(Buf<f32>),
    /// In bf16 here.
    Halves(Buf<f32>),
    /// The product itself in f32, what follows it in bf16 here.
    BareAndHalves(Buf<f32>),
}

/// A product of operands in bf16.
#[derive(Clone, Copy, Debug)]
pub struct StoredProduct {
    /// Sizes; A and B in bf16, two elements a float, their strides in elements; the result in f32; the extra operand.
    pub product: Product,
    /// How the result is stored. In bf16 it has the stride of C.
    pub result: Destination,
    /// Whether the stored activations are in bf16, with the stride of C.
    pub halved_activations: bool,
}

/// A kernel for products NT or NN of operands that lie in memory as bf16, two a float, see `stored`.
pub trait StoredKernel: Kernel {
    /// Its tile.
    const TILE: TileSize;

    /// The launch of products that are numbered already.
    fn new(mode: u32, slope: f32, group: &Group, copies: &Copies) -> Self;

    /// The launch of up to [`MAX_PRODUCTS`] products; their extra operands, where there are any, are `extra`.
    fn of(extra: Extra, products: &[StoredProduct]) -> Result<Self, GroupError> {
        let (mode, slope) = match extra {
            Extra::Bias(slope) => (BIAS, slope),
            Extra::Activations(slope) => (ACTIVATIONS, slope),
        };
        let plain: Vec<Product> = products.iter().map(|stored| stored.product).collect();
        let mut group = Group::new(Self::TILE, &plain)?;
        // A buffer has an address even where nothing is copied.
        let mut copies = [group.buffers[0][2].slice(0, 0); MAX_PRODUCTS];
        for (p, stored) in products.iter().enumerate() {
            let (sizes, strides) = group.words[p];
            let mut sizes = Sizes::unpack(sizes, strides);
            sizes.halved_extra = stored.halved_activations && sizes.extra && mode == ACTIVATIONS;
            if let Destination::Both(copy) | Destination::Halves(copy) | Destination::BareAndHalves(copy) =
                stored.result
            {
                sizes.copied = true;
                sizes.copied_only = matches!(stored.result, Destination::Halves(_));
                sizes.bare = matches!(stored.result, Destination::BareAndHalves(_));
                copies[p] = copy;
            }
            group.words[p] = sizes.pack();
        }
        Ok(Self::new(mode, slope, &group, &copies))
    }
}

impl Group {
    fn new(tile: TileSize, products: &[Product]) -> Result<Group, GroupError> {
        if products.is_empty() || products.len() > MAX_PRODUCTS {
            return Err(GroupError::Count { count: products.len() });
        }
        let (mut sizes, mut buffers) = ([Sizes::default(); MAX_PRODUCTS], [[Buf::NULL; 4]; MAX_PRODUCTS]);
        for (p, product) in products.iter().enumerate() {
            sizes[p] = product.sizes(p)?;
            let extra = product.extra.unwrap_or(product.c.0.slice(0, 0));
            buffers[p] = [product.a.0, product.b.0, product.c.0, extra];
        }
        // Without a product there are no tiles; the buffers are empty, but at a valid address.
        let nothing = buffers[0].map(|buffer| buffer.slice(0, 0));
        buffers[products.len()..].fill(nothing);
        let ends = number_tiles(&sizes, tile.rows, tile.columns).ok_or(GroupError::Tiles { tile })?;
        Ok(Group { ends, buffers, words: sizes.map(|sizes| sizes.pack()) })
    }
}

impl Product {
    /// The sizes as argument of product number `product`.
    fn sizes(&self, product: usize) -> Result<Sizes, GroupError> {
        let limited = |quantity, value: usize, limit: u32| match u32::try_from(value) {
            Ok(small) if (1..=limit).contains(&small) => Ok(small),
            _ => Err(GroupError::Size { product, quantity, value, limit }),
        };
        Ok(Sizes {
            m: limited("m", self.m, MAX_SIZE)?,
            n: limited("n", self.n, MAX_SIZE)?,
            k: limited("k", self.k, MAX_SIZE)?,
            lda: limited("lda", self.a.1, MAX_STRIDE)?,
            ldb: limited("ldb", self.b.1, MAX_STRIDE)?,
            ldc: limited("ldc", self.c.1, MAX_STRIDE)?,
            a_vectors: aligned(self.a.0) && self.a.1.is_multiple_of(4),
            b_vectors: aligned(self.b.0) && self.b.1.is_multiple_of(4),
            c_vectors: aligned(self.c.0) && self.c.1.is_multiple_of(4) && self.extra.is_none_or(aligned),
            extra: self.extra.is_some(),
            ..Sizes::default()
        })
    }
}

fn aligned(buffer: Buf<f32>) -> bool {
    buffer.addr().is_multiple_of(16)
}

/// Blocks of a launch.
pub fn tiles(ends: Ends) -> u32 {
    end(&ends, MAX_PRODUCTS - 1)
}

/// Whether the tiles are numbered as the sizes say.
pub fn numbered(tile: TileSize, ends: Ends, words: [(u64, u64); MAX_PRODUCTS]) -> bool {
    let sizes = words.map(|(sizes, strides)| Sizes::unpack(sizes, strides));
    number_tiles(&sizes, tile.rows, tile.columns) == Some(ends)
}

/// Whether A, B, C and the bias or the activations of an NT or NN product are as large and aligned as it says.
pub fn data_fits<E: Engine, F: Form>(
    mode: u32,
    sizes: u64,
    strides: u64,
    [a, b, c, extra]: [Buf<f32>; 4],
) -> bool {
    let sizes = Sizes::unpack(sizes, strides);
    let Sizes { m, n, ldc, .. } = sizes;
    let extra_len = if mode == BIAS { n as usize } else { extent(m, n, ldc) };
    // What is in bf16 is `copy_fits`'s.
    operands_fit::<E, F>(&sizes, a, b)
        && ldc >= n
        && (sizes.copied_only || holds(c, extent(m, n, ldc), sizes.c_vectors, ldc))
        && (!sizes.extra || sizes.halved_extra || holds(extra, extra_len, sizes.c_vectors, ldc))
}

/// Whether A, B and all planes of C and the bias gradient of a TN product are as large and aligned as it says.
pub fn weight_fits<E: Engine, F: Form>(
    splits: u32,
    plane: u32,
    sizes: u64,
    strides: u64,
    [a, b, c, extra]: [Buf<f32>; 4],
) -> bool {
    let sizes = Sizes::unpack(sizes, strides);
    let Sizes { m, n, ldc, .. } = sizes;
    if m == 0 || n == 0 {
        return true;
    }
    let before = (splits as usize - 1) * plane as usize;
    // Ranges are whole stages, and splits * DEPTH is computed in 32 bits.
    splits <= u32::MAX / DEPTH
        && operands_fit::<E, F>(&sizes, a, b)
        && ldc >= n
        && holds(c, before + extent(m, n, ldc), sizes.c_vectors, ldc | plane)
        && (splits == 1 || plane as usize >= extent(m, n, ldc))
        && (!sizes.extra || holds(extra, before + m as usize, false, 0))
}

/// Whether C's copy in bf16 and activations in bf16, where there are any, are as large and aligned as the epilogue's pieces of
/// four need it, and the result is stored at all.
pub fn copy_fits(mode: u32, sizes: u64, strides: u64, extra: Buf<f32>, copy: Buf<f32>) -> bool {
    let sizes = Sizes::unpack(sizes, strides);
    let Sizes { m, n, ldc, .. } = sizes;
    let pieces = sizes.c_vectors && n.is_multiple_of(4);
    let halves = |buffer: Buf<f32>| pieces && aligned(buffer) && 2 * buffer.len() >= extent(m, n, ldc);
    (!sizes.copied || halves(copy))
        && (!sizes.copied_only || sizes.copied)
        && (!sizes.halved_extra || (sizes.extra && mode != BIAS && halves(extra)))
}

fn operands_fit<E: Engine, F: Form>(sizes: &Sizes, a: Buf<f32>, b: Buf<f32>) -> bool {
    let &Sizes { m, n, k, lda, ldb, .. } = sizes;
    let a_shape = if F::A::ALONG_K { (m, k) } else { (k, m) };
    let b_shape = if F::B::ALONG_K { (n, k) } else { (k, n) };
    if E::HALVES {
        return halves(a, a_shape, lda) && halves(b, b_shape, ldb);
    }
    lda >= a_shape.1
        && ldb >= b_shape.1
        && holds(a, extent(a_shape.0, a_shape.1, lda), sizes.a_vectors, lda)
        && holds(b, extent(b_shape.0, b_shape.1, ldb), sizes.b_vectors, ldb)
}

/// Whether the buffer holds a matrix of bf16 that can be read in pieces of eight.
fn halves(buffer: Buf<f32>, (rows, columns): (u32, u32), stride: u32) -> bool {
    let len = extent(rows, columns, stride);
    stride >= columns
        && columns.is_multiple_of(8)
        && stride.is_multiple_of(8)
        && aligned(buffer)
        && 2 * buffer.len() >= len
        && u32::try_from(len).is_ok()
}

/// Whether the buffer has `len` elements that 32 bits can number, and is aligned where vectors are used.
fn holds(buffer: Buf<f32>, len: usize, vectors: bool, stride: u32) -> bool {
    buffer.len() >= len
        && u32::try_from(len).is_ok()
        && (!vectors || (aligned(buffer) && stride.is_multiple_of(4)))
}
