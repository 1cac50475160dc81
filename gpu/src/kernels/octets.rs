//! Pieces of the loss kernels over the heads' outputs, of which a warp computes one sample.
//!
//! The lanes are arranged in two ways. Where a sum runs over actions or branches, lane t holds the atoms t, t + 32, .. and adds
//! in its registers. Where it runs over atoms, eight lanes (an octet) hold one action's distribution, atom k = i + 8 j in
//! register j of the octet's lane i (J registers, K <= 8 J): largest logit, sum and weighted sum then take three shuffles each
//! for four distributions together, where one distribution over all 32 lanes takes five each, and 51 atoms fill 56 places
//! instead of 64. The actions of all branches are one list that the four octets take in turn, so that branches of unequal sizes
//! leave no lanes idle.
//!
//! These kernels are bound by the number of instructions that they issue, and a warp for each sample issues the fewest: what is
//! the same for all atoms (places, sizes, reciprocals) is computed once, nothing waits for a block, and the sum over branches
//! stays in registers. 1024 samples are two warps for each scheduler of 132 multiprocessors, or four for half of them when
//! another kernel has the rest; each warp has seven atoms of four distributions to work on side by side. Two warps for a sample
//! were half as long a chain but half as many instructions again.
//!
//! Dueling, softmax and expectation are those of `distribution`.

use cuda_std::prelude::*;

use super::distribution::Support;
use crate::action::branch;
use crate::logits::pad4;

/// Threads of a block: one warp.
pub const THREADS: u32 = 32;
/// Octets of a warp: actions that it works on at a time.
pub const OCTETS: u32 = 4;

/// The block with the constant `$j` for 0, 1, .. below `$end` (up to 16), written out: a loop of bodies this long stays a loop,
/// and the arrays that it indexes then lie in local memory.
macro_rules! unrolled {
    ($end:expr, $j:ident, $body:block) => { unrolled!(@ $end, $j, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $end:expr, $j:ident, $body:block, $($n:literal)*) => {
        $(
            #[allow(clippy::absurd_extreme_comparisons)]
            {
                let $j: usize = $n;
                if $j < $end $body
            }
        )*
    };
}
pub(crate) use unrolled;

/// Atoms that a lane has where it adds over actions.
pub const fn own(registers: usize) -> usize {
    registers.div_ceil(4)
}

/// Floats from one distribution in shared memory to the next: room for the lanes' own atoms, and eight more, so that the octets
/// of a warp reach different banks.
pub const fn pitch(registers: u32) -> u32 {
    32 * registers.div_ceil(4) + 8
}

/// Words of the list of actions ([`bases`]) with `count` actions.
pub const fn list(count: u32) -> u32 {
    2 * (count + OCTETS)
}

/// One sample's row of a logits buffer: in global memory, or STAGED in shared memory.
#[derive(Clone, Copy)]
pub struct Row<const STAGED: bool> {
    logits: In<f32>,
    first: u32,
    shared: Shared<f32>,
}

impl<const STAGED: bool> Row<STAGED> {
    /// The row of `stride` floats that begins with element `first` of `logits`, and row n of shared memory where it is staged.
    #[inline(always)]
    pub fn new(logits: In<f32>, first: u32, stride: u32, n: u32) -> Self {
        let (at, len) = if STAGED { (4 * n * stride, stride) } else { (0, 0) };
        Self { logits, first, shared: shared::array(at, len) }
    }

    /// The row's column.
    #[inline(always)]
    pub fn get(&self, column: u32) -> f32 {
        if STAGED { self.shared.get(column) } else { self.logits.get(self.first + column) }
    }
}

/// Starts copying the rows' `columns` (a multiple of four) to shared memory, if that is where they are read; the caller waits
/// for the copies and for the warp.
#[inline(always)]
pub fn stage<const N: usize, const STAGED: bool>(rows: &[Row<STAGED>; N], columns: u32) {
    if STAGED {
        let mut column = 4 * thread::lane();
        while column < columns {
            unrolled!(N, n, {
                let row = &rows[n];
                shared::copy_async16(row.shared, column, &row.logits, row.first + column, 16);
            });
            column += 4 * THREADS;
        }
        shared::copy_commit();
    }
}

/// Where [`bases`] writes in shared memory.
#[derive(Clone, Copy)]
pub struct Tables {
    /// Floats.
    pub floats: Shared<f32>,
    /// The same memory as words.
    pub words: Shared<u32>,
    /// The bases: row n's of branch d begins at `bases + (n branches + d) pitch`.
    pub bases: u32,
    /// The list of all actions (words): for each the first column of its advantages and where row 0's base of its branch begins;
    /// behind the last one the value block, something to read for an octet without an action that nobody writes over.
    pub list: u32,
    /// For each branch (words) its first column, its first action in the list, the bits of 1 / n_d, and a free place.
    pub branches: u32,
}

/// v[k] - mean_a adv[a, k] of N rows and every branch, what each action's advantage is added to, and the tables of branches and
/// actions. Beyond K a base is -infinity up to 8 J: such an atom's p is exp(-infinity) = 0 in every sum, and nothing needs to
/// ask which atoms exist. The caller waits for the warp. `OWN` is [`own`] of J.
#[inline(always)]
pub fn bases<const N: usize, const J: usize, const OWN: usize, const STAGED: bool>(
    rows: &[Row<STAGED>; N],
    sizes: u64,
    branches: u32,
    atoms: u32,
    to: &Tables,
) {
    let lane = thread::lane();
    let value = gather::<N, OWN, STAGED>(rows, atoms, 0);
    let (mut column, mut first, mut d) = (pad4(atoms), 0, 0);
    while d < branches {
        let size = branch(sizes, d);
        let mut sums = [[0.0f32; OWN]; N];
        let mut a = 0;
        // Three actions' loads of all rows are under way before the first is added.
        while a + 3 <= size {
            let at = column + a * atoms;
            let one = gather::<N, OWN, STAGED>(rows, atoms, at);
            let two = gather::<N, OWN, STAGED>(rows, atoms, at + atoms);
            let three = gather::<N, OWN, STAGED>(rows, atoms, at + 2 * atoms);
            unrolled!(N, n, {
                unrolled!(OWN, o, {
                    sums[n][o] = sums[n][o] + one[n][o] + two[n][o] + three[n][o];
                });
            });
            a += 3;
        }
        if a < size {
            add(&mut sums, &gather::<N, OWN, STAGED>(rows, atoms, column + a * atoms));
        }
        if a + 1 < size {
            add(&mut sums, &gather::<N, OWN, STAGED>(rows, atoms, column + (a + 1) * atoms));
        }
        let inverse = 1.0 / size as f32;
        let at = to.bases + d * pitch(J as u32);
        unrolled!(N, n, {
            unrolled!(OWN, o, {
                let k = lane + 32 * o as u32;
                let base = if k < atoms { value[n][o] - sums[n][o] * inverse } else { f32::NEG_INFINITY };
                to.floats.set(at + n as u32 * branches * pitch(J as u32) + k, base);
            });
        });
        a = lane;
        while a < size {
            to.words.set2(to.list + 2 * (first + a), [column + a * atoms, at]);
            a += THREADS;
        }
        if lane == 0 {
            to.words.set4(to.branches + 4 * d, [column, first, inverse.to_bits(), 0]);
        }
        first += size;
        column += pad4(size * atoms);
        d += 1;
    }
    if lane < OCTETS {
        to.words.set2(to.list + 2 * (first + lane), [0, to.bases]);
    }
}

/// The lane's own atoms of N rows, 0 beyond K.
#[inline(always)]
fn gather<const N: usize, const OWN: usize, const STAGED: bool>(
    rows: &[Row<STAGED>; N],
    atoms: u32,
    column: u32,
) -> [[f32; OWN]; N] {
    let mut out = [[0.0; OWN]; N];
    unrolled!(N, n, {
        unrolled!(OWN, o, {
            let k = thread::lane() + 32 * o as u32;
            if k < atoms {
                out[n][o] = rows[n].get(column + k);
            }
        });
    });
    out
}

/// Adds to all sums.
#[inline(always)]
fn add<const N: usize, const OWN: usize>(sums: &mut [[f32; OWN]; N], x: &[[f32; OWN]; N]) {
    unrolled!(N, n, {
        unrolled!(OWN, o, {
            sums[n][o] += x[n][o];
        });
    });
}

/// The octet's logits l[a, k] of the action whose advantages begin at `column` and whose base begins at element `base` of
/// `shared`; -infinity beyond K.
#[inline(always)]
pub fn logits<const J: usize, const STAGED: bool>(
    row: &Row<STAGED>,
    column: u32,
    atoms: u32,
    shared: Shared<f32>,
    base: u32,
) -> [f32; J] {
    let i = thread::lane() % 8;
    let mut l = [0.0; J];
    unrolled!(J, j, {
        let k = i + 8 * j as u32;
        // Beyond K the last atom is read again: whatever it is, the base makes it -infinity, or NaN where it shows anyhow.
        let inside = if k < atoms { k } else { atoms - 1 };
        l[j] = row.get(column + inside) + shared.get(base + k);
    });
    l
}

/// z_k of the lane's atoms.
#[inline(always)]
pub fn values<const J: usize>(support: &Support) -> [f32; J] {
    let i = thread::lane() % 8;
    let mut z = [0.0; J];
    unrolled!(J, j, {
        z[j] = support.atom(i + 8 * j as u32);
    });
    z
}

/// Largest of the octet's values; a NaN is passed over, the exponentials show it.
#[inline(always)]
pub fn largest<const J: usize>(l: &[f32; J]) -> f32 {
    let mut top = l[0];
    unrolled!(J, j, {
        top = math::max(top, l[j]);
    });
    octet_max(top)
}

/// Largest value of the octet.
#[inline(always)]
pub fn octet_max(mut top: f32) -> f32 {
    top = math::max(top, warp::shfl_xor(top, 4));
    top = math::max(top, warp::shfl_xor(top, 2));
    math::max(top, warp::shfl_xor(top, 1))
}

/// exp(l - top).
#[inline(always)]
pub fn exponentials<const J: usize>(l: &[f32; J], top: f32) -> [f32; J] {
    let mut e = [0.0; J];
    unrolled!(J, j, {
        e[j] = math::exp_down(l[j] - top);
    });
    e
}

/// Sum of the lane's terms (four at least) in four chains: with the three steps over the octet no term of up to 128 goes
/// through more than eight additions.
#[inline(always)]
pub fn sum<const J: usize>(x: &[f32; J]) -> f32 {
    let mut chains = [x[0], x[1], x[2], x[3]];
    unrolled!(J, j, {
        if j >= 4 {
            chains[j % 4] += x[j];
        }
    });
    (chains[0] + chains[1]) + (chains[2] + chains[3])
}

/// Sum of the lane's products, in the same order.
#[inline(always)]
pub fn dot<const J: usize>(x: &[f32; J], y: &[f32; J]) -> f32 {
    let mut chains = [x[0] * y[0], x[1] * y[1], x[2] * y[2], x[3] * y[3]];
    unrolled!(J, j, {
        if j >= 4 {
            chains[j % 4] = math::fma(x[j], y[j], chains[j % 4]);
        }
    });
    (chains[0] + chains[1]) + (chains[2] + chains[3])
}

/// Sums over the octet, side by side; every lane of it gets the same bits.
#[inline(always)]
pub fn octet_sums<const N: usize>(mut values: [f32; N]) -> [f32; N] {
    let mut mask = 4;
    while mask > 0 {
        let mut n = 0;
        while n < N {
            values[n] += warp::shfl_xor(values[n], mask);
            n += 1;
        }
        mask /= 2;
    }
    values
}
