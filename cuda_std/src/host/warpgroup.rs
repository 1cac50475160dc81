//! Matrix products by the tensor cores of four warps at once, operands in shared memory: `wgmma`. Only the target sm_90a
//! has it: kernels that call these are declared with `only = "sm_90a"`.

use std::marker::PhantomData;
use std::panic::Location;

use half::{bf16, f16};

use crate::emulator::shared_access as memory;
use crate::emulator::sync::{self, Operation};

pub use crate::halves::Halves;

/// An operand of [`multiply`] in shared memory, in tiles whose rows are 128 bytes, the octet q of row r at octet q ^ (r % 8).
/// A plain handle.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// First byte.
    start: u32,
    /// Bytes to 64 further rows (of B: columns).
    next: u32,
}

/// The operand whose first element is `start` bytes into the block's dynamic shared memory, a multiple of 16 in rows that
/// are aligned as the tiles, to 1,024 bytes for eight. Where the operand is stored `[summed index, row]` and has more than
/// 64 rows (of B: columns), 64 further ones are `next` bytes away, a multiple of 16.
#[track_caller]
pub fn operand(start: u32, next: u32) -> Operand {
    for bytes in [start, next] {
        memory::check_alignment(bytes / 4, bytes / 4, 4, Location::caller());
    }
    Operand { start, next }
}

impl Operand {
    /// The operand `bytes` bytes further on, a multiple of 16.
    #[track_caller]
    pub fn advance(self, bytes: u32) -> Operand {
        operand(self.start + bytes, self.next)
    }

    /// The two halves of one word: of row `row` (of B: column), summed indices k and k + 1 (k even), or where it is stored
    /// `across` the summed index, of the even row `row` and the next one, summed index k. The octets of a row are permuted by
    /// the bits of its address, as the device does it.
    fn pair<P: Product>(&self, across: bool, row: u32, k: u32, at: &'static Location<'static>) -> [f64; 2] {
        let (line, column) = if across { (k, row % 64) } else { (row, k) };
        let block = if across { row / 64 * self.next } else { 0 };
        let address = self.start + block + 128 * line + 2 * column;
        let word = memory::read_for_product((address ^ ((address >> 7) % 8 * 16)) / 4, at);
        numbers::<P>(word)
    }

    /// One row's (of B: column's) first `depth` elements.
    fn row<P: Product>(
        &self,
        across: bool,
        row: u32,
        depth: u32,
        at: &'static Location<'static>,
    ) -> Vec<f64> {
        if across {
            (0..depth).map(|k| self.pair::<P>(true, row & !1, k, at)[row as usize % 2]).collect()
        } else {
            (0..depth).step_by(2).flat_map(|k| self.pair::<P>(false, row, k, at)).collect()
        }
    }
}

/// What is known of a product when the kernel is compiled.
pub trait Product {
    /// Octets of columns of B and C: 1, 2, 4, 8 or 16.
    const OCTETS: usize;
    /// Whether A is stored across the summed index, `[summed index, row]`, rather than along it, `[row, summed index]`.
    const ACROSS_A: bool;
    /// Whether B is stored across the summed index, `[summed index, column]`, rather than `[column, summed index]`.
    const ACROSS_B: bool;
    /// What A's and B's elements are.
    const HALVES: Halves;
}

/// What this thread has written to shared memory, and the copies that it has waited for, become visible to products after
/// the next block barrier.
pub fn publish() {
    memory::publish();
}

/// A word's two halves, the lower first.
fn numbers<P: Product>(word: u32) -> [f64; 2] {
    [word as u16, (word >> 16) as u16].map(|bits| match P::HALVES {
        Halves::Bf16 => bf16::from_bits(bits).into(),
        Halves::Fp16 => f16::from_bits(bits).into(),
    })
}

/// C += A B for A (64 x 16 STEPS), B (16 STEPS x 8 OCTETS), C (64 x 8 OCTETS) in f32: STEPS (1, 2 or 4) times
/// `wgmma.mma_async.sync.aligned.m64nNk16` of the product's halves, and the wait for them.
///
/// Warp w of the four, whose first thread is a multiple of 128, gets rows 16 w to 16 w + 15:
/// with g = lane / 4 and t = lane % 4 c[j] are C[g, 8j + 2t], C[g, 8j + 2t + 1], C[g + 8, 8j + 2t], C[g + 8, 8j + 2t + 1] of
/// these. What is read has been made visible by [`publish`] and a block barrier. All 128 threads call, with the same
/// operands, in control flow that is the same for all of them.
///
/// Each element is the exact sum with C rounded once, as in [`crate::warp::mma_bf16`].
#[track_caller]
pub fn multiply<P: Product, const STEPS: usize>(a: Operand, b: Operand, c: &mut [[f32; 4]; 16]) {
    const { assert!(matches!(P::OCTETS, 1 | 2 | 4 | 8 | 16) && matches!(STEPS, 1 | 2 | 4)) };
    let at = Location::caller();
    // The lanes meet, and that they have the same operands is checked there; each then computes its own elements.
    sync::collective(Operation::GroupProduct, 0, &[a.start, a.next, b.start, b.next], at);
    let (warp, lane) = (crate::thread::warp() % 4, crate::thread::lane());
    let depth = 16 * STEPS as u32;
    let rows = [0, 8].map(|high| a.row::<P>(P::ACROSS_A, 16 * warp + lane / 4 + high, depth, at));
    add_products::<P>(&rows, b, c, at);
}

/// Adds to a lane's elements of C its two rows of A times B.
fn add_products<P: Product>(
    rows: &[Vec<f64>; 2],
    b: Operand,
    c: &mut [[f32; 4]; 16],
    at: &'static Location<'static>,
) {
    let depth = rows[0].len() as u32;
    for (j, c) in c.iter_mut().take(P::OCTETS).enumerate() {
        let column = 8 * j as u32 + 2 * (crate::thread::lane() % 4);
        let columns: [Vec<f64>; 2] = if P::ACROSS_B {
            let pairs: Vec<[f64; 2]> = (0..depth).map(|k| b.pair::<P>(true, column, k, at)).collect();
            [0, 1].map(|e| pairs.iter().map(|pair| pair[e]).collect())
        } else {
            [0, 1].map(|e| b.row::<P>(false, column + e, depth, at))
        };
        for (i, c) in c.iter_mut().enumerate() {
            let products = rows[i / 2].iter().zip(&columns[i % 2]).map(|(a, b)| a * b);
            *c = products.fold(f64::from(*c), |sum, product| sum + product) as f32;
        }
    }
}

/// As [`multiply`] for 64 summed indices, A in registers: of 16 step to 16 step + 15 of them a[step] are, two a word, the lower
/// half first, A[g, 2t + e], A[g + 8, 2t + e], A[g, 2t + 8 + e], A[g + 8, 2t + 8 + e] of the warp's rows, e = 0, 1. As C's
/// elements lie in the lanes, with two octets of columns a step. For 1, 4, 8 or 16 octets; `ACROSS_A` does not matter.
#[track_caller]
pub fn multiply_rows<P: Product>(a: &[[u32; 4]; 4], b: Operand, c: &mut [[f32; 4]; 16]) {
    const { assert!(matches!(P::OCTETS, 1 | 4 | 8 | 16)) };
    let at = Location::caller();
    sync::collective(Operation::GroupProduct, 0, &[0, 0, b.start, b.next], at);
    let mut rows = [0, 0].map(|_: u32| vec![0.0; 64]);
    for (step, words) in a.iter().enumerate() {
        // The four lanes that share a row give each other what they have of it.
        for (t, words) in sync::quad(words, at).into_iter().enumerate() {
            for (i, word) in words.into_iter().enumerate() {
                let k = 16 * step + 2 * t + 8 * (i / 2);
                [rows[i % 2][k], rows[i % 2][k + 1]] = numbers::<P>(word);
            }
        }
    }
    add_products::<P>(&rows, b, c, at);
}

/// What is known of a chain of products when the kernel is compiled.
pub trait Chain {
    /// What the operands' elements are.
    const HALVES: Halves;
    /// 64s of summed indices of the second product: 2 or 4.
    const PIECES: usize;
}

/// The two products that a chain ends with, of operands in shared memory: C += A B for A (64 x 64) and B (64 x 64), both stored
/// along the summed index, and D += A' B' for A' (64 x 64 PIECES) stored across it and B' (64 PIECES x 64) stored along it.
#[derive(Clone, Copy)]
pub struct Two {
    /// A and B.
    pub first: [Operand; 2],
    /// A' and B'.
    pub second: [Operand; 2],
    /// Bytes from 64 summed indices of B' to the next, a multiple of 16 from 128 on. Those of A' follow each other.
    pub next: u32,
}

/// The products that a chain begins with, with an operand in registers as in [`multiply_rows`]: their B, of 64 summed indices, and
/// C. The third has eight columns and B stored along the summed index, of the others it is stored across.
pub struct Rows<'a> {
    /// A.
    pub a: &'a [[u32; 4]; 4],
    /// B.
    pub b: Operand,
    /// C.
    pub c: &'a mut [[f32; 4]; 16],
}

/// One product of a chain as [`multiply`] and [`multiply_rows`] know it.
struct Link<P, const OCTETS: usize, const ACROSS_A: bool, const ACROSS_B: bool>(PhantomData<P>);

impl<P: Chain, const OCTETS: usize, const ACROSS_A: bool, const ACROSS_B: bool> Product
    for Link<P, OCTETS, ACROSS_A, ACROSS_B>
{
    const OCTETS: usize = OCTETS;
    const ACROSS_A: bool = ACROSS_A;
    const ACROSS_B: bool = ACROSS_B;
    const HALVES: Halves = P::HALVES;
}

/// The first of the two.
#[track_caller]
fn first<P: Chain>(two: &Two, c: &mut [[f32; 4]; 16]) {
    let [a, b] = two.first;
    multiply::<Link<P, 8, false, false>, 4>(a, b, c);
}

/// The two products, with one wait for them; otherwise as [`multiply`].
#[track_caller]
pub fn multiply_two<P: Chain>(two: &Two, c: &mut [[f32; 4]; 16], d: &mut [[f32; 4]; 16]) {
    const { assert!(matches!(P::PIECES, 2 | 4)) };
    first::<P>(two, c);
    let [mut a, mut b] = two.second;
    for _ in 0..P::PIECES {
        multiply::<Link<P, 8, true, false>, 4>(a, b, d);
        (a, b) = (a.advance(64 * 128), b.advance(two.next));
    }
}

/// Products of rows with 128, 64 and 8 columns, then the two, with one wait for all of them; otherwise as [`multiply_rows`] and
/// [`multiply`]. The second of the two has 128 summed indices. The last two products of rows have the same ones.
#[track_caller]
pub fn multiply_rows_and_two<P: Chain>(
    [first, second, third]: [Rows; 3],
    two: &Two,
    c: &mut [[f32; 4]; 16],
    d: &mut [[f32; 4]; 16],
) {
    assert_eq!(P::PIECES, 2, "with so many columns the second of the two has 128 summed indices");
    multiply_rows::<Link<P, 16, false, true>>(first.a, first.b, first.c);
    multiply_narrow_rows_and_two::<P>([second, third], two, c, d);
}

/// The same without the first.
#[track_caller]
pub fn multiply_narrow_rows_and_two<P: Chain>(
    [second, third]: [Rows; 2],
    two: &Two,
    c: &mut [[f32; 4]; 16],
    d: &mut [[f32; 4]; 16],
) {
    assert_eq!(second.a, third.a, "the narrow products have the same rows");
    multiply_rows::<Link<P, 8, false, true>>(second.a, second.b, second.c);
    multiply_rows::<Link<P, 1, false, false>>(third.a, third.b, third.c);
    multiply_two::<P>(two, c, d);
}

/// Two products of rows with 128 columns each, then the first of the two, with one wait for all of them.
#[track_caller]
pub fn multiply_wide_rows_and_one<P: Chain>([first, second]: [Rows; 2], two: &Two, c: &mut [[f32; 4]; 16]) {
    assert_eq!(first.a, second.a, "the wide products have the same rows");
    for Rows { a, b, c } in [first, second] {
        multiply_rows::<Link<P, 16, false, true>>(a, b, c);
    }
    self::first::<P>(two, c);
}
