//! Choice of an algorithm by its time, measured the way it will run: in replays of a graph.

use std::rc::Rc;

use super::key::PlanKey;
use super::library::Handle;
use super::plan::{Addresses, Candidate, Descriptors, WORKSPACE_BYTES};
use crate::cuda::capture::{Capture, time_replays};
use crate::cuda::device::Gpu;
use crate::cuda::driver::{self, check};
use crate::cuda::stream::Stream;
use crate::error::{CudaError, ExecError};

/// Products in one graph: a single one (2 to 10 us) would be lost beside the time of an event.
const CHAIN: usize = 16;
/// Replays before the timed ones.
const WARMUP: usize = 2;
/// Timed replays.
const REPLAYS: usize = 9;

/// Scratch memory outside the executor's arena, freed when the choice is made.
struct Scratch {
    address: u64,
    bytes: usize,
}

impl Scratch {
    fn new(bytes: usize) -> Result<Self, CudaError> {
        let (mut address, bytes) = (0, bytes.max(256));
        // SAFETY: `address` is a live out-parameter.
        let code = unsafe { driver::cuMemAlloc_v2(&mut address, bytes) };
        check(code, "cuMemAlloc", || format!("{bytes} bytes of scratch to choose an algorithm"))?;
        Ok(Self { address, bytes })
    }

    /// `floats` random numbers in [-1, 1): zeros would run faster than real data does.
    fn random(floats: usize, seed: u64) -> Result<Self, CudaError> {
        const BLOCK: usize = 1 << 16;
        let scratch = Self::new(4 * floats)?;
        let mut state = seed;
        let block: Vec<f32> = (0..BLOCK.min(scratch.bytes / 4)).map(|_| uniform(&mut state)).collect();
        let filled = 4 * block.len();
        let subject = || format!("{} bytes of scratch", scratch.bytes);
        // SAFETY: `block` has `filled` bytes and the scratch at least as many.
        let code = unsafe { driver::cuMemcpyHtoD_v2(scratch.address, block.as_ptr().cast(), filled) };
        check(code, "cuMemcpyHtoD", subject)?;
        let mut done = filled;
        while done < scratch.bytes {
            let bytes = done.min(scratch.bytes - done);
            // SAFETY: both ranges, [0, bytes) and [done, done + bytes), are inside the scratch and, as bytes is at
            // most done, apart.
            let code =
                unsafe { driver::cuMemcpyDtoD_v2(scratch.address + done as u64, scratch.address, bytes) };
            check(code, "cuMemcpyDtoD", subject)?;
            done += bytes;
        }
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once; `choose` has waited for the work that uses it.
        let code = unsafe { driver::cuMemFree_v2(self.address) };
        if let Err(error) = check(code, "cuMemFree", || format!("{} bytes of scratch", self.bytes)) {
            tracing::warn!("{error}");
        }
    }
}

/// Next number in [-1, 1) of the SplitMix64 sequence (Steele, Lea, Flood 2014).
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The fastest candidate and its time in microseconds. Candidates that fail to run are passed over with a debug
/// message; an error if all do.
pub fn choose(
    gpu: &Rc<Gpu>,
    handle: &Handle,
    descriptors: &Descriptors,
    key: &PlanKey,
    candidates: &[Candidate],
) -> Result<(Candidate, f64), ExecError> {
    let [a, b, c] = key.spans();
    let (a, b, c) = (Scratch::random(a, 1)?, Scratch::random(b, 2)?, Scratch::new(4 * c)?);
    let (bias, workspace) = (Scratch::random(key.bias_len(), 3)?, Scratch::new(WORKSPACE_BYTES)?);
    let stream = Stream::new(gpu, "stream for choosing algorithms")?;
    gpu.synchronize()?;
    let addresses = Addresses { a: a.address, b: b.address, c: c.address, bias: bias.address };
    let time = |candidate: &Candidate| -> Result<f64, ExecError> {
        let run = || {
            // SAFETY: the scratch buffers have the key's spans and the workspace's size; only `stream` uses them.
            unsafe { descriptors.run(handle, key, candidate, addresses, workspace.address, stream.raw()) }
        };
        // The first run loads the kernel, which would otherwise happen inside the capture.
        run()?;
        stream.synchronize()?;
        let capture = Capture::begin(&stream)?;
        for _ in 0..CHAIN {
            run()?;
        }
        let exec = capture.finish()?.instantiate()?;
        let timing = time_replays(gpu, &stream, &exec, WARMUP, REPLAYS)?;
        Ok(timing.median() / CHAIN as f64)
    };
    let mut best: Option<(Candidate, f64)> = None;
    let mut failure = None;
    for candidate in candidates {
        match time(candidate) {
            Ok(microseconds) if best.is_none_or(|(_, least)| microseconds < least) => {
                best = Some((*candidate, microseconds));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!("candidate passed over: {error}");
                failure = Some(error);
            }
        }
    }
    gpu.synchronize()?;
    match (best, failure) {
        (Some(best), _) => Ok(best),
        (None, Some(error)) => Err(error),
        (None, None) => unreachable!("`Descriptors::candidates` returns at least one candidate"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_data_is_spread_over_the_interval() {
        let mut state = 1;
        let values: Vec<f32> = (0..10_000).map(|_| uniform(&mut state)).collect();
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        // Standard deviation of the mean: sqrt(1/3) / 100 = 0.0058.
        assert!(mean.abs() < 0.03, "{mean}");
        assert_ne!(values[..100], values[100..200]);
    }
}
