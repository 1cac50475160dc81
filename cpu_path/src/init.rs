//! Initial parameters: one function for the GPU and the CPU run, the same bits on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use settings::noisy::SIGMA0;
use settings::{Flat, Group, Layout, ModelShape, Parts};

mod mamba;

/// Initial parameters of all networks in the flat layout; padding is zero.
///
/// Weights and biases are uniform on (-1/sqrt(fan_in), 1/sqrt(fan_in)), fan_in the input width of the layer:
/// PyTorch's default for `Linear` (kaiming_uniform with a = sqrt(5), and its bias rule). The attention's positions are
/// drawn like a weight with its width as input width; its gate is 0. The sigma of a noisy layer is 0.5/sqrt(fan_in), for
/// weights and biases ([`SIGMA0`]). The Mamba-2 block starts as its authors start it: step sizes uniform in their logarithm
/// from 0.001 to 0.1, decay rates uniform from 1 to 16, skip and norm 1; its gate is 0.
///
/// Bits: ChaCha8 with the 32-byte key `seed` (little-endian) followed by zeros, stream number = index of the tensor in
/// its network's layout + 2^32 * number of the network in [`Group`] (so that a network starts from the same
/// values whichever others there are), one u32 word per element in row-major order. With k = word >> 8 (24 bits) the element is
/// ((2k + 1 - 2^24) * 2^-24) * bound in f32: the first factor is exact, `bound` and the product are each one IEEE
/// operation, so there is nothing a platform could round differently. The grid is symmetric and has no zero.
pub fn init_parameters(flat: &Flat, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; flat.len];
    for segment in &flat.segments {
        let first = (segment.group as u64) << 32;
        let values = &mut values[segment.offset..][..segment.len];
        init_layout(&segment.layout, seed, first, values);
        if segment.group == Group::Mamba {
            mamba::fill(segment, seed, first, values);
        }
    }
    values
}

/// Initial parameters of the main network alone: the beginning of [`init_parameters`].
pub fn init_flat(shape: &ModelShape, seed: u64) -> Vec<f32> {
    init_parameters(&Flat::new(shape, &Parts::default()), seed)
}

/// Initial vectors of the spectral norm's power iterations, one per trunk matrix: [H1] and [H2], of length 1.
///
/// Uniform on (-1, 1) by the streams behind those of all networks, then divided by their length in f64.
pub fn init_spectral(shape: &ModelShape, seed: u64) -> [Vec<f32>; 2] {
    let mut i = 0;
    [shape.trunk1, shape.trunk2].map(|rows| {
        let mut rng = stream(seed, ((Group::ALL.len() as u64) << 32) + i);
        i += 1;
        let u: Vec<f64> = (0..rows).map(|_| symmetric_unit(rng.next_u32()).into()).collect();
        let length = u.iter().map(|x| x * x).sum::<f64>().sqrt();
        u.iter().map(|x| (x / length) as f32).collect()
    })
}

fn init_layout(layout: &Layout, seed: u64, first: u64, values: &mut [f32]) {
    for (i, tensor) in layout.tensors.iter().enumerate().filter(|(_, t)| t.fan_in > 0) {
        if tensor.is_sigma() {
            let sigma = SIGMA0 / (tensor.fan_in as f32).sqrt();
            values[tensor.offset..tensor.offset + tensor.len()].fill(sigma);
            continue;
        }
        let mut rng = stream(seed, first + i as u64);
        let bound = 1.0 / (tensor.fan_in as f32).sqrt();
        for x in &mut values[tensor.offset..tensor.offset + tensor.len()] {
            *x = symmetric_unit(rng.next_u32()) * bound;
        }
    }
}

fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(number);
    rng
}

/// Maps a random word to the middle of one of 2^24 equal cells of (-1, 1); exact in f32.
fn symmetric_unit(word: u32) -> f32 {
    let odd = 2 * (word >> 8) as i32 + 1 - (1 << 24);
    odd as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ModelShape {
        ModelShape { state: 13, trunk1: 33, branches: vec![2, 5], atoms: 21, ..Default::default() }
    }

    #[test]
    fn the_grid_is_symmetric_and_open() {
        assert_eq!(symmetric_unit(0), -symmetric_unit(u32::MAX));
        assert!(symmetric_unit(u32::MAX) < 1.0);
        assert_eq!(symmetric_unit(1 << 31), 1.0 / (1 << 24) as f32);
    }

    #[test]
    fn values_fill_the_documented_range_and_padding_stays_zero() {
        let (shape, layout) = (shape(), Layout::main(&shape()));
        let flat = init_flat(&shape, 7);
        let mut is_parameter = vec![false; layout.len];
        for t in &layout.tensors {
            let values = &flat[t.offset..t.offset + t.len()];
            is_parameter[t.offset..t.offset + t.len()].fill(true);
            let bound = 1.0 / (t.fan_in as f64).sqrt();
            assert!(values.iter().all(|&x| f64::from(x).abs() < bound), "{}", t.name);
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let square = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
            // Uniform: variance bound^2/3, fourth moment bound^4/5. Five standard errors.
            assert!(mean.abs() < 5.0 * bound / (3.0 * n).sqrt(), "{}: mean {mean}", t.name);
            let error = 5.0 * bound * bound * (4.0 / 45.0 / n).sqrt();
            assert!((square - bound * bound / 3.0).abs() < error, "{}: mean square {square}", t.name);
        }
        assert!(flat.iter().zip(&is_parameter).all(|(&x, &p)| p || x.to_bits() == 0));
        assert!(is_parameter.contains(&false), "this shape is meant to have padding");
    }

    #[test]
    fn seeds_and_tensors_have_streams_of_their_own() {
        let (shape, layout) = (shape(), Layout::main(&shape()));
        assert_eq!(init_flat(&shape, 7), init_flat(&shape, 7));
        let (a, b) = (init_flat(&shape, 7), init_flat(&shape, 8));
        let differing = a.iter().zip(&b).filter(|(x, y)| x != y).count();
        assert!(differing as f64 > 0.999 * layout.count() as f64);
        // a1.0 and a1.1 have the same shape and range: equal values would mean a shared stream.
        let head = |d: usize| layout.offset(&format!("a1.{d}.weight"));
        assert_ne!(a[head(0)..head(0) + 8], a[head(1)..head(1) + 8]);
    }

    /// Computed from the definition of ChaCha by a separate program that was itself checked against the ECRYPT
    /// vector for 8 rounds and a zero key. A change here changes every run that starts from a seed.
    #[test]
    fn the_first_values_are_pinned() {
        let flat = init_flat(&ModelShape { state: 4, ..Default::default() }, 1);
        let layout = Layout::main(&ModelShape { state: 4, ..Default::default() });
        let bits =
            |name: &str| flat[layout.offset(name)..][..3].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits("trunk1.weight"), TRUNK1_WEIGHT);
        assert_eq!(bits("trunk1.bias"), TRUNK1_BIAS);
    }

    #[test]
    fn networks_start_from_the_same_values_whichever_others_there_are() {
        let shape = ModelShape { state: 13, window: 2, bar_features: 4, ..shape() };
        let mut all = Parts::default();
        all.iqn.enabled = true;
        all.iql.enabled = true;
        all.attention.enabled = true;
        all.mamba.enabled = true;
        let everything = Flat::new(&shape, &all);
        let values = init_parameters(&everything, 7);
        assert_eq!(values[..Layout::main(&shape).len], init_flat(&shape, 7));
        let alone = Parts { iql: all.iql.clone(), ..Parts::default() };
        let alone = Flat::new(&shape, &alone);
        let part = |flat: &Flat, values: &[f32]| {
            let s = flat.segment(Group::IqlHigh).unwrap();
            values[s.offset..s.offset + s.len].to_vec()
        };
        assert_eq!(part(&everything, &values), part(&alone, &init_parameters(&alone, 7)));
        // The two value networks have the same shapes: equal values would mean a shared stream.
        let at = |name: &str| &values[everything.offset(name)..][..8];
        assert_ne!(at("iql.hi.0.weight"), at("iql.lo.0.weight"));
        assert_eq!(values[everything.offset("att.gate")].to_bits(), 0);
        assert_eq!(values[everything.offset("mamba.gate")].to_bits(), 0);
        assert!(at("mamba.norm").iter().all(|x| *x == 1.0) && at("mamba.skip")[..4] == [1.0; 4]);
        let logs = &at("mamba.a_log")[..4];
        assert!(logs.iter().all(|x| *x > 0.0 && *x < 16.0_f32.ln()) && logs[0] != logs[1]);
        let steps: Vec<f32> = at("mamba.dt_bias")[..4].iter().map(|x| x.exp().ln_1p()).collect();
        assert!(steps.iter().all(|s| *s > 0.9e-3 && *s < 0.11) && steps[0] != steps[1], "{steps:?}");
        assert!(at("att.pos").iter().all(|x| *x != 0.0 && x.abs() < 1.0 / 256.0_f32.sqrt()));
    }

    #[test]
    fn the_vectors_of_the_spectral_norm_have_length_one() {
        let [u1, u2] = init_spectral(&shape(), 7);
        assert_eq!((u1.len(), u2.len()), (33, 256));
        for u in [&u1, &u2] {
            let square: f64 = u.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            // Each of at most 256 elements is off by half an ulp of itself.
            assert!((square - 1.0).abs() < 2.0 * f64::from(f32::EPSILON));
        }
        assert_ne!(u1[..8], u2[..8]);
    }

    const TRUNK1_WEIGHT: [u32; 3] = [0x3e03_a57a, 0xbdf2_b5ac, 0x3edb_aa0b];
    const TRUNK1_BIAS: [u32; 3] = [0x3d46_fea8, 0xbeca_fdb5, 0x3e31_2646];
}
