//! Bodies for the fill kernels, and with them Philox itself: the reference is held against the published vectors, the
//! kernels against the reference bit for bit.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::philox_fill::{PhiloxBernoulli, PhiloxNormal, PhiloxUniform, reference};
use gpu::reference::Bounded;
use host::error::ExecError;

use super::check::{close, same_bits};
use super::{Backend, Outcome, filled, launch, put};

/// Number of the stream that the fill kernels draw from.
const STREAM: u32 = 4;
/// Seeds and steps that use all 64 bits of both.
const KEYS: [(u64, u64); 3] = [(0, 0), (1, 2), (0xfedc_ba98_7654_3210, 0x0123_4567_89ab_cdef)];
/// One vector, a part of a block, more than one block.
const LENGTHS: [usize; 4] = [4, 60, 1024, 1032];

/// What a kernel fills a buffer with at a step, and that it stops at its end.
fn fill<B: Backend, K: cuda_std::Kernel>(
    b: &mut B,
    len: usize,
    step: u64,
    kernel: impl Fn(u32, Buf<u64>, Buf<f32>) -> K,
) -> Result<Vec<f32>, ExecError> {
    let mut words = vec![99u64; clock::WORDS as usize];
    words[clock::STEP as usize] = step;
    let (words, out) = (put(b, "clock", &words)?, filled(b, "out", len + 4, -7.0f32)?);
    launch(b, kernel(len as u32, words, out))?;
    let mut got = b.download(out)?;
    same_bits("behind the buffer", &got[len..], &[-7.0; 4]);
    got.truncate(len);
    Ok(got)
}

fn uniform(seed: u64) -> impl Fn(u32, Buf<u64>, Buf<f32>) -> PhiloxUniform {
    move |len, words, out| PhiloxUniform { len, seed, clock_words: words.into(), out: out.into() }
}

fn normal(seed: u64) -> impl Fn(u32, Buf<u64>, Buf<f32>) -> PhiloxNormal {
    move |len, words, out| PhiloxNormal { len, seed, clock_words: words.into(), out: out.into() }
}

fn bernoulli(seed: u64, p: f32) -> impl Fn(u32, Buf<u64>, Buf<f32>) -> PhiloxBernoulli {
    move |len, words, out| PhiloxBernoulli { len, seed, p, clock_words: words.into(), out: out.into() }
}

/// Words of the reference for a whole buffer.
fn words(seed: u64, step: u64, len: usize) -> Vec<u32> {
    (0..len.div_ceil(4) as u32).flat_map(|i| reference::words(seed, step, STREAM, i, 0)).collect()
}

/// Uniform numbers are the reference's bits.
pub fn uniform_bits<B: Backend>(b: &mut B) -> Outcome {
    for (seed, step) in KEYS {
        for len in LENGTHS {
            let expected: Vec<f32> =
                words(seed, step, len).iter().map(|&w| reference::uniform(w) as f32).collect();
            same_bits("uniform", &fill(b, len, step, uniform(seed))?, &expected);
        }
    }
    Ok(())
}

/// Bernoulli draws are 1 exactly where the uniform number is below p: never for 0, always for 1.
pub fn bernoulli_bits<B: Backend>(b: &mut B) -> Outcome {
    for (seed, step) in KEYS {
        for p in [0.0f32, 0.3, 0.8, 1.0] {
            let hit = |w: &u32| f32::from(u8::from(reference::uniform(*w) < f64::from(p)));
            let expected: Vec<f32> = words(seed, step, 1032).iter().map(hit).collect();
            same_bits("bernoulli", &fill(b, 1032, step, bernoulli(seed, p))?, &expected);
        }
    }
    Ok(())
}

/// Normal numbers agree with Box and Muller's formula in f64.
pub fn normal_values<B: Backend>(b: &mut B) -> Outcome {
    for (seed, step) in KEYS {
        for len in LENGTHS {
            let expected: Vec<Bounded> = words(seed, step, len)
                .chunks(2)
                .flat_map(|pair| reference::normal_pair(pair[0], pair[1]))
                .collect();
            close("normal", &fill(b, len, step, normal(seed))?, &expected);
        }
    }
    Ok(())
}

/// Mean of `power`s of the values must be within five standard errors of `expected`; `variance` is the power's.
#[track_caller]
fn moment(what: &str, values: &[f32], power: i32, expected: f64, variance: f64) {
    let mean = values.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / values.len() as f64;
    let error = (variance / values.len() as f64).sqrt();
    assert!((mean - expected).abs() < 5.0 * error, "{what}: {mean}, expected {expected} +- {error}");
}

/// Moments of the three distributions over several steps.
pub fn moments<B: Backend>(b: &mut B) -> Outcome {
    let (steps, len) = if B::FULL_SIZE { (64, 1 << 16) } else { (8, 4096) };
    let (mut u, mut z, mut hits) = (vec![], vec![], vec![]);
    for step in 0..steps {
        u.extend(fill(b, len, step, uniform(5))?);
        z.extend(fill(b, len, step, normal(6))?);
        hits.extend(fill(b, len, step, bernoulli(7, 0.8))?);
    }
    assert!(u.iter().all(|u| (0.0..1.0).contains(u)));
    // Raw moments of U(0, 1) are 1 / (k + 1), those of N(0, 1) 0, 1, 0, 3, and 105 of order 8.
    moment("mean of uniform", &u, 1, 1.0 / 2.0, 1.0 / 12.0);
    moment("square of uniform", &u, 2, 1.0 / 3.0, 4.0 / 45.0);
    moment("mean of normal", &z, 1, 0.0, 1.0);
    moment("square of normal", &z, 2, 1.0, 2.0);
    moment("cube of normal", &z, 3, 0.0, 15.0);
    moment("fourth power of normal", &z, 4, 3.0, 96.0);
    moment("frequency of bernoulli", &hits, 1, 0.8, 0.16);
    // Neighbours, elements of one block of four among them, are uncorrelated.
    let products: Vec<f32> = z.windows(2).map(|pair| pair[0] * pair[1]).collect();
    moment("product of neighbours", &products, 1, 0.0, 1.0);
    Ok(())
}

/// Another step or another seed gives other numbers, the same step the same.
pub fn steps_differ<B: Backend>(b: &mut B) -> Outcome {
    let first = fill(b, 256, 10, uniform(1))?;
    same_bits("the same step again", &fill(b, 256, 10, uniform(1))?, &first);
    for (step, seed) in [(11, 1), (10, 2), (10 + (1 << 32), 1), (10, 1 + (1 << 32))] {
        let other = fill(b, 256, step, uniform(seed))?;
        let equal = first.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(equal < 3, "step {step}, seed {seed}: {equal} of 256 numbers are the same");
    }
    Ok(())
}
