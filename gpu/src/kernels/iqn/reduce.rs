//! Adds the blocks' planes in order and puts each number where its parameter's gradient is.
//!
//! A block adds 64 groups of four floats; its four groups of threads take a quarter of the planes each, and their sums are
//! added in order. Reads follow the planes' own order.

use cuda_std::prelude::*;

use super::plane::{Plane, fragment_place};
use super::size::{GradEmbed, GradHide, GradOut, OUTPUTS, Size};

/// Floats of a plane that one block adds.
pub const FLOATS_PER_BLOCK: u32 = 256;
/// Threads that share the planes of one group of floats.
const SHARES: u32 = 4;

/// Sizes of the head, and where the gradients go.
#[derive(Clone, Copy)]
pub struct Gradients {
    /// H2.
    pub trunk: u32,
    /// E.
    pub cosines: u32,
    /// Hq.
    pub hidden: u32,
    /// A.
    pub outputs: u32,
    /// dWc [H2, E].
    pub cos_weight: Out<f32>,
    /// dbc [H2].
    pub cos_bias: Out<f32>,
    /// dWh [Hq, H2].
    pub hid_weight: Out<f32>,
    /// dbh [Hq].
    pub hid_bias: Out<f32>,
    /// dWo [A, Hq].
    pub out_weight: Out<f32>,
    /// dbo [A].
    pub out_bias: Out<f32>,
}

/// One block's floats: of `blocks` planes in the output layer's part, else of `parts`, whose order is `C`'s.
#[inline(always)]
pub fn run<S: Size, C: Size>(planes: &In<f32>, blocks: u32, parts: u32, to: &Gradients) {
    let plane = Plane::new::<S>(to.trunk, to.outputs);
    let shares = shared::array::<f32>(0, FLOATS_PER_BLOCK * SHARES);
    let (share, group) = (thread::thread_idx() / 64, thread::thread_idx() % 64);
    let first = thread::block_idx() * FLOATS_PER_BLOCK;
    let at = first + 4 * group;
    if at < plane.len {
        let of_outputs = (at >= plane.out_weight && at < plane.hid_bias) || at >= plane.out_bias;
        let count = if of_outputs { blocks } else { parts };
        let each = count.div_ceil(SHARES);
        let from = share * each;
        let end = if from + each < count { from + each } else { count };
        let mut sum = [0.0f32; 4];
        let mut add = |four: [f32; 4]| {
            sum = [sum[0] + four[0], sum[1] + four[1], sum[2] + four[2], sum[3] + four[3]];
        };
        let get = |p: u32| planes.get4(p * plane.len + at);
        let mut p = from;
        while p + 4 <= end {
            // Loaded before the first is added: their latencies overlap.
            let four = [get(p), get(p + 1), get(p + 2), get(p + 3)];
            unroll4!(n < 4 => {
                add(four[n]);
            });
            p += 4;
        }
        while p < end {
            add(get(p));
            p += 1;
        }
        shares.set4(share * FLOATS_PER_BLOCK + 4 * group, sum);
    }
    thread::sync(); // all shares' sums are there
    let index = thread::thread_idx();
    if first + index < plane.len {
        let get = |share: u32| shares.get(share * FLOATS_PER_BLOCK + index);
        let sum = ((get(0) + get(1)) + get(2)) + get(3);
        to.store::<S, C>(&plane, first + index, sum);
    }
}

impl Gradients {
    /// Puts the float that is at `at` in a plane where it belongs. Padding belongs nowhere.
    #[inline(always)]
    fn store<S: Size, C: Size>(&self, plane: &Plane, at: u32, sum: f32) {
        if at < plane.cos_weight {
            let size = S::HIDDEN * S::CHUNK;
            let (chunk, offset) = (at / size, at % size);
            let (row, column) = fragment_place::<GradHide<C>>(offset);
            let (unit, column) = if C::CHUNKS { (column, row) } else { (row, column) };
            let feature = chunk * S::CHUNK + column;
            if unit < self.hidden && feature < self.trunk {
                self.hid_weight.set(unit * self.trunk + feature, sum);
            }
        } else if at < plane.out_weight {
            let size = S::CHUNK * S::COSINES;
            let (chunk, offset) = ((at - plane.cos_weight) / size, (at - plane.cos_weight) % size);
            let (row, cosine) = fragment_place::<GradEmbed<C>>(offset);
            let feature = chunk * S::CHUNK + row;
            if feature < self.trunk && cosine < self.cosines {
                self.cos_weight.set(feature * self.cosines + cosine, sum);
            }
        } else if at < plane.hid_bias {
            let size = OUTPUTS * S::HIDDEN;
            let (group, offset) = ((at - plane.out_weight) / size, (at - plane.out_weight) % size);
            let (row, unit) = fragment_place::<GradOut<S>>(offset);
            let (row, unit) = if S::GROUPS { (unit, row) } else { (row, unit) };
            let output = group * OUTPUTS + row;
            if output < self.outputs && unit < self.hidden {
                self.out_weight.set(output * self.hidden + unit, sum);
            }
        } else if at < plane.cos_bias {
            if at - plane.hid_bias < self.hidden {
                self.hid_bias.set(at - plane.hid_bias, sum);
            }
        } else if at < plane.out_bias {
            if at - plane.cos_bias < self.trunk {
                self.cos_bias.set(at - plane.cos_bias, sum);
            }
        } else if at - plane.out_bias < self.outputs {
            self.out_bias.set(at - plane.out_bias, sum);
        }
    }
}
