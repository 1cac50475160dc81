//! Spectral norm of weight matrices by one power iteration a step. SPEC section 3; Miyato, Kataoka, Koyama and Yoshida,
//! "Spectral Normalization for Generative Adversarial Networks" (2018), algorithm 1.
//!
//! v = W^T u / |W^T u|, u' = W v / |W v|, sigma = u' . W v = |W v|, then W *= min(1, sigma_max / sigma) in place.
//! sigma uses the fresh u and v (with the old u it would be too small), and u stays in memory for the next step.
//!
//! Three launches, each over all matrices and over many blocks, because each waits for a norm over all of the one
//! before: one block for each matrix would need no launch in between, but reads W through one multiprocessor three
//! times, which at 256 x 256 takes longer than the two launches and at 512 x 512 several times as long.
//! 1. `spectral_columns`: y = W^T u;
//! 2. `spectral_rows`: v = y / |y|, z = W v = W y / |y|, every block adding up |y| for itself in the same order;
//! 3. `spectral_scale`: sigma = |z|, u = z / sigma, W *= min(1, sigma_max / sigma), likewise.
//!
//! W = 0 gives v = 0 and sigma = 0 and leaves u and W alone. Where a norm is not finite, sigma shows it (NaN or
//! infinity) and u and W are left alone: a W with NaN makes the step's gradient norm NaN, which skips the step. The
//! squares of elements below 1e-22 or so vanish, which is far from any sigma_max.

use cuda_std::prelude::*;

#[cfg(not(target_arch = "nvptx64"))]
pub mod reference;

/// Most matrices of a launch.
pub const MAX_MATRICES: usize = 4;

/// Describes a matrix [rows, columns] whose first element is element `first` of the parameters; None where rows or
/// columns need more than 16 bits or `first` more than 32. 0 stands for no matrix.
pub fn matrix(first: usize, rows: usize, columns: usize) -> Option<u64> {
    let (first, rows, columns) =
        (u32::try_from(first).ok()?, u16::try_from(rows).ok()?, u16::try_from(columns).ok()?);
    Some(u64::from(first) << 32 | u64::from(columns) << 16 | u64::from(rows))
}

/// A matrix [rows, columns] at `first` of the flat parameters.
#[derive(Clone, Copy)]
struct Matrix {
    first: u32,
    rows: u32,
    columns: u32,
}

impl Matrix {
    #[inline(always)]
    fn unpack(word: u64) -> Matrix {
        Matrix {
            first: (word >> 32) as u32,
            rows: (word & 0xffff) as u32,
            columns: (word >> 16 & 0xffff) as u32,
        }
    }

    /// The matrix of this block.
    #[inline(always)]
    fn of_block(words: [u64; MAX_MATRICES]) -> Matrix {
        let word = match thread::block_idx_y() {
            0 => words[0],
            1 => words[1],
            2 => words[2],
            _ => words[3],
        };
        Matrix::unpack(word)
    }
}

/// Matrices of a launch: those before the first 0.
#[cfg(not(target_arch = "nvptx64"))]
fn used(words: [u64; MAX_MATRICES]) -> impl Iterator<Item = Matrix> {
    words.into_iter().take_while(|&word| word != 0).map(Matrix::unpack)
}

/// Number of matrices of a launch.
#[cfg(not(target_arch = "nvptx64"))]
fn count(words: [u64; MAX_MATRICES]) -> u32 {
    used(words).count() as u32
}

/// Largest of a quantity over the matrices of a launch, for grids.
#[cfg(not(target_arch = "nvptx64"))]
fn largest(words: [u64; MAX_MATRICES], quantity: impl Fn(Matrix) -> u32) -> u32 {
    used(words).map(quantity).max().unwrap_or(0)
}

/// Whether every matrix has elements, lies inside `len` parameters and starts at a 16-byte boundary, and its vectors fit
/// a row of `stride` floats.
#[cfg(not(target_arch = "nvptx64"))]
fn fits(words: [u64; MAX_MATRICES], stride: u32, len: usize) -> bool {
    used(words).all(|Matrix { first, rows, columns }| {
        let end = first as usize + rows as usize * columns as usize;
        // Elements are numbered in 32 bits, and the last thread's may be 1024 further.
        rows > 0
            && columns > 0
            && rows.max(columns) <= stride
            && end <= len
            && end <= u32::MAX as usize - 1024
            && first.is_multiple_of(4)
    })
}

/// y [matrices, stride] gets W^T u, u [matrices, stride]; elements behind a matrix's rows and columns are not touched.
/// A block owns 32 columns; each of its 32 warps adds every 32nd row, then one warp adds the 32 sums in order.
///
/// Matrices are described by [`matrix`], the last ones 0 where there are fewer than four.
#[kernel(
    block = 1024,
    grid = (largest([matrix0, matrix1, matrix2, matrix3], |m| m.columns).div_ceil(32), count([matrix0, matrix1, matrix2, matrix3])),
    shared = 32 * 32 * 4,
    barriers = 1,
    requires(
        count([matrix0, matrix1, matrix2, matrix3]) >= 1,
        fits([matrix0, matrix1, matrix2, matrix3], stride, params.len()),
        u.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
        y.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
    )
)]
pub fn spectral_columns(
    matrix0: u64,
    matrix1: u64,
    matrix2: u64,
    matrix3: u64,
    stride: u32,
    params: In<f32>,
    u: In<f32>,
    y: Out<f32>,
) {
    let Matrix { first, rows, columns } = Matrix::of_block([matrix0, matrix1, matrix2, matrix3]);
    let vectors = thread::block_idx_y() * stride;
    let partial = shared::array::<f32>(0, 32 * 32);
    let (warp, lane) = (thread::warp(), thread::lane());
    let column = thread::block_idx() * 32 + lane;
    let mut sum = [0.0f32; 4];
    if column < columns {
        let mut row = warp;
        // Four independent sums keep four loads in flight; their order is fixed.
        while row + 96 < rows {
            let mut i = 0;
            while i < 4 {
                let r = row + 32 * i as u32;
                sum[i] = math::fma(params.get(first + r * columns + column), u.get(vectors + r), sum[i]);
                i += 1;
            }
            row += 128;
        }
        while row < rows {
            sum[0] = math::fma(params.get(first + row * columns + column), u.get(vectors + row), sum[0]);
            row += 32;
        }
    }
    partial.set(warp * 32 + lane, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    thread::sync(); // all 32 sums of a column are written before warp 0 adds them
    if warp == 0 && column < columns {
        let mut total = 0.0;
        let mut w = 0;
        while w < 32 {
            total += partial.get(w * 32 + lane);
            w += 1;
        }
        y.set(vectors + column, total);
    }
}

/// v [matrices, stride] gets y / |y|, z [matrices, stride] gets W v = W y / |y|; y is what `spectral_columns` wrote. One warp a row.
#[kernel(
    block = 256,
    grid = (largest([matrix0, matrix1, matrix2, matrix3], |m| m.rows).div_ceil(8), count([matrix0, matrix1, matrix2, matrix3])),
    shared = 8 * 4,
    barriers = 1,
    shuffles = 10,
    requires(
        count([matrix0, matrix1, matrix2, matrix3]) >= 1,
        fits([matrix0, matrix1, matrix2, matrix3], stride, params.len()),
        y.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
        v.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
        z.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
    )
)]
pub fn spectral_rows(
    matrix0: u64,
    matrix1: u64,
    matrix2: u64,
    matrix3: u64,
    stride: u32,
    params: In<f32>,
    y: In<f32>,
    v: Out<f32>,
    z: Out<f32>,
) {
    let Matrix { first, rows, columns } = Matrix::of_block([matrix0, matrix1, matrix2, matrix3]);
    let vectors = thread::block_idx_y() * stride;
    let row = thread::block_idx() * 8 + thread::warp();
    // W y first: it needs no norm, so it is under way while the norm is added up.
    let mut sum = [0.0f32; 4];
    if row < rows {
        let from = first + row * columns;
        let mut c = thread::lane();
        while c + 96 < columns {
            let mut i = 0;
            while i < 4 {
                let c = c + 32 * i as u32;
                sum[i] = math::fma(params.get(from + c), y.get(vectors + c), sum[i]);
                i += 1;
            }
            c += 128;
        }
        while c < columns {
            sum[0] = math::fma(params.get(from + c), y.get(vectors + c), sum[0]);
            c += 32;
        }
    }
    let product = warp::sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    let norm = block_norm(&y, vectors, columns);
    let unit = |x: f32| {
        if norm == 0.0 {
            0.0
        } else if norm < f32::INFINITY {
            x / norm
        } else {
            // Finite elements over an infinite norm would be a v of zeros and a sigma of 0.
            f32::NAN
        }
    };
    if row < rows && thread::lane() == 0 {
        z.set(vectors + row, unit(product));
    }
    if thread::block_idx() == 0 {
        let mut c = thread::thread_idx();
        while c < columns {
            v.set(vectors + c, unit(y.get(vectors + c)));
            c += 256;
        }
    }
}

/// sigma [matrices] gets |z|, u [matrices, stride] gets z / sigma, and W is multiplied by min(1, sigma_max / sigma); z is
/// what `spectral_rows` wrote. Four elements of W a thread.
#[kernel(
    block = 256,
    grid = (largest([matrix0, matrix1, matrix2, matrix3], |m| (m.rows * m.columns).div_ceil(1024)), count([matrix0, matrix1, matrix2, matrix3])),
    shared = 8 * 4,
    barriers = 1,
    shuffles = 5,
    requires(
        count([matrix0, matrix1, matrix2, matrix3]) >= 1,
        fits([matrix0, matrix1, matrix2, matrix3], stride, params.len()),
        sigma_max > 0.0,
        z.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
        u.len() >= (count([matrix0, matrix1, matrix2, matrix3]) as usize) * (stride as usize),
        sigma.len() >= count([matrix0, matrix1, matrix2, matrix3]) as usize,
    )
)]
pub fn spectral_scale(
    matrix0: u64,
    matrix1: u64,
    matrix2: u64,
    matrix3: u64,
    stride: u32,
    sigma_max: f32,
    params: InOut<f32>,
    z: In<f32>,
    u: Out<f32>,
    sigma: Out<f32>,
) {
    let Matrix { first, rows, columns } = Matrix::of_block([matrix0, matrix1, matrix2, matrix3]);
    let (len, vectors) = (rows * columns, thread::block_idx_y() * stride);
    let at = 4 * thread::global_index();
    let whole = at + 4 <= len;
    // In flight while the norm is added up.
    let mut w = if whole { params.get4(first + at) } else { [0.0; 4] };
    let norm = block_norm(&z, vectors, rows);
    let finite = norm < f32::INFINITY; // false for NaN too
    if thread::block_idx() == 0 {
        if thread::thread_idx() == 0 {
            sigma.set(thread::block_idx_y(), norm);
        }
        if norm > 0.0 && finite {
            let mut r = thread::thread_idx();
            while r < rows {
                u.set(vectors + r, z.get(vectors + r) / norm);
                r += 256;
            }
        }
    }
    if norm > sigma_max && finite {
        let factor = sigma_max / norm;
        if whole {
            let mut e = 0;
            while e < 4 {
                w[e] *= factor;
                e += 1;
            }
            params.set4(first + at, w);
        } else {
            let mut i = at;
            while i < len {
                params.set(first + i, params.get(first + i) * factor);
                i += 1;
            }
        }
    }
}

/// |x| over `len` elements from `first`, by 256 threads: each adds every 256th square, then the warp, then the eight warps
/// in order. Every thread of every block gets the same bits.
#[inline(always)]
fn block_norm(x: &In<f32>, first: u32, len: u32) -> f32 {
    let sums = shared::array::<f32>(0, 8);
    let mut square = 0.0;
    let mut i = thread::thread_idx();
    while i < len {
        let value = x.get(first + i);
        square = math::fma(value, value, square);
        i += 256;
    }
    let square = warp::sum(square);
    if thread::lane() == 0 {
        sums.set(thread::warp(), square);
    }
    thread::sync(); // the eight warps' sums are written before all threads add them
    let mut total = 0.0;
    let mut w = 0;
    while w < 8 {
        total += sums.get(w);
        w += 1;
    }
    math::sqrt(total)
}
