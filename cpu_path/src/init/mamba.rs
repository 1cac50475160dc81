//! Initial values of the Mamba-2 block that are neither uniform nor zero, as its authors start it: step sizes between
//! 0.001 and 0.1, uniform in their logarithm, of which the bias is the inverse softplus; decay rates uniform between 1 and
//! 16; skip and norm 1.

use rand_chacha::rand_core::RngCore;
use settings::Segment;

use super::{stream, symmetric_unit};

/// Smallest and largest initial step size.
const STEPS: [f64; 2] = [1e-3, 1e-1];
/// Smallest and largest initial decay rate.
const RATES: [f64; 2] = [1.0, 16.0];

/// Fills those tensors of the block's segment. Logarithm and exponential are `libm`'s, the same on every machine.
pub(super) fn fill(segment: &Segment, seed: u64, first: u64, values: &mut [f32]) {
    for (i, tensor) in segment.layout.tensors.iter().enumerate() {
        let mut rng = stream(seed, first + i as u64);
        let mut uniform = || (f64::from(symmetric_unit(rng.next_u32())) + 1.0) / 2.0;
        let values = values[tensor.offset..][..tensor.len()].iter_mut();
        match tensor.name.as_str() {
            "mamba.dt_bias" => values.for_each(|x| {
                let [low, high] = STEPS.map(libm::log);
                let step = libm::exp(low + uniform() * (high - low));
                *x = (step + libm::log(-libm::expm1(-step))) as f32;
            }),
            "mamba.a_log" => {
                values.for_each(|x| *x = libm::log(RATES[0] + uniform() * (RATES[1] - RATES[0])) as f32);
            }
            "mamba.skip" | "mamba.norm" => values.for_each(|x| *x = 1.0),
            _ => {}
        }
    }
}
