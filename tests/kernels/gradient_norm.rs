//! Bodies for `gradient_norm` and `gradient_reduce`.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::gradient_norm::{GradientNorm, GradientReduce, reference};
use gpu::reference::Bounded;
use host::error::ExecError;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// Elements of a partial sum of squares.
const BLOCK: usize = 1024;

fn lengths<B: Backend>() -> Vec<usize> {
    let mut lengths = vec![4, 252, 1020, 1024, 1028, 3000];
    if B::FULL_SIZE {
        lengths.push(331_264);
    }
    lengths
}

/// The counters of the training in a step, and Adam's own with recognisable values.
fn clocks<B: Backend>(b: &mut B, step: u64) -> Result<[Buf<u64>; 2], ExecError> {
    let mut words = vec![77; clock::WORDS as usize];
    words[clock::STEP as usize] = step;
    Ok([put(b, "clock", &words)?, filled(b, "adam clock", clock::adam::WORDS as usize, 78)?])
}

/// Only the parity changed, and it is that of the step.
fn check_parity<B: Backend>(b: &mut B, adam_words: Buf<u64>, step: u64) -> Outcome {
    let mut expected = vec![78; clock::adam::WORDS as usize];
    expected[clock::adam::PARITY as usize] = step % 2;
    assert_eq!(b.download(adam_words)?, expected, "Adam's counters at step {step}");
    Ok(())
}

/// Launches `gradient_norm` at a step and returns the partial sums; `len` may be less than the gradient's length.
fn square_sums_of<B: Backend>(b: &mut B, len: usize, grad: &[f32], step: u64) -> Result<Vec<f32>, ExecError> {
    let (grad, sums) = (put(b, "grad", grad)?, filled(b, "sums", len.div_ceil(BLOCK) + 1, -7.0f32)?);
    let [words, adam_words] = clocks(b, step)?;
    launch(
        b,
        GradientNorm {
            len: len as u32,
            grad: grad.into(),
            sums: sums.into(),
            clock_words: words.into(),
            adam_words: adam_words.into(),
        },
    )?;
    check_parity(b, adam_words, step)?;
    b.download(sums)
}

fn square_sums(grad: &[Bounded]) -> Vec<Bounded> {
    grad.chunks(BLOCK).map(reference::square_sum).collect()
}

/// Partial sums of squares of a whole gradient, every length around a block.
pub fn whole_gradient<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(11);
    for (step, len) in lengths::<B>().into_iter().enumerate() {
        let mut grad = random.normals(len, 0.3);
        let expected = square_sums(&grad.iter().map(|&g| Bounded::exact(g)).collect::<Vec<_>>());
        grad.extend([f32::NAN; 4]); // behind the gradient: must not count
        let got = square_sums_of(b, len, &grad, step as u64)?;
        close("sums of squares", &got[..expected.len()], &expected);
        same_bits("behind the sums", &got[expected.len()..], &[-7.0]);
    }
    Ok(())
}

/// The same from partial gradients, which are added up in order.
pub fn split_gradient<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(12);
    for (step, len) in lengths::<B>().into_iter().enumerate() {
        for splits in [1usize, 2, 5] {
            let parts = random.normals(splits * len, 0.3);
            let expected: Vec<Bounded> = (0..len)
                .map(|i| reference::reduce(&(0..splits).map(|s| parts[s * len + i]).collect::<Vec<_>>()))
                .collect();
            let sums = filled(b, "sums", len.div_ceil(BLOCK), -7.0f32)?;
            let (parts, grad) = (put(b, "parts", &parts)?, filled(b, "grad", len + 4, -7.0f32)?);
            let [words, adam_words] = clocks(b, step as u64)?;
            launch(
                b,
                GradientReduce {
                    len: len as u32,
                    splits: splits as u32,
                    products: len as u32,
                    scaled: len as u32,
                    parts: parts.into(),
                    factors: parts.into(),
                    grad: grad.into(),
                    sums: sums.into(),
                    clock_words: words.into(),
                    adam_words: adam_words.into(),
                },
            )?;
            let got = b.download(grad)?;
            close("gradient", &got[..len], &expected);
            same_bits("behind the gradient", &got[len..], &[-7.0; 4]);
            close("sums of squares", &b.download(sums)?, &square_sums(&expected));
            check_parity(b, adam_words, step as u64)?;
        }
    }
    Ok(())
}

/// Factors from a parameter on, and parameters (sigma of the last ones) whose gradient is those ones' times theirs.
pub fn factors<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(13);
    let mut shapes = vec![
        (8usize, 4usize, 4usize, 1usize),
        (8, 8, 0, 2),
        (1460, 1024, 1024, 3),
        (2052, 1040, 0, 2),
        (3000, 3000, 1028, 8),
    ];
    if B::FULL_SIZE {
        shapes.push((568_000, 331_264, 331_264, 8));
    }
    for (len, products, scaled, splits) in shapes {
        let mut parts = random.normals(splits * len, 0.3);
        for plane in parts.chunks_exact_mut(len) {
            plane[products..].fill(f32::NAN); // the products write nothing there
        }
        let factors = random.normals(len - scaled + 4, 0.7);
        let of = |i: usize| (0..splits).map(|s| parts[s * len + i]).collect::<Vec<f32>>();
        let sums: Vec<Bounded> = (0..products).map(|i| reference::reduce(&of(i))).collect();
        let expected = reference::with_factors(&sums, len, scaled, &factors);
        let squares = filled(b, "sums", len.div_ceil(BLOCK), -7.0f32)?;
        let (parts, grad) = (put(b, "parts", &parts)?, filled(b, "grad", len + 4, -7.0f32)?);
        let factors = put(b, "factors", &factors)?;
        let [words, adam_words] = clocks(b, 3)?;
        launch(
            b,
            GradientReduce {
                len: len as u32,
                splits: splits as u32,
                products: products as u32,
                scaled: scaled as u32,
                parts: parts.into(),
                factors: factors.into(),
                grad: grad.into(),
                sums: squares.into(),
                clock_words: words.into(),
                adam_words: adam_words.into(),
            },
        )?;
        let got = b.download(grad)?;
        close("gradient", &got[..len], &expected);
        same_bits("behind the gradient", &got[len..], &[-7.0; 4]);
        close("sums of squares", &b.download(squares)?, &square_sums(&expected));
    }
    Ok(())
}

/// NaN, an infinity or a square beyond f32 in any place makes its block's sum, and no other, not finite.
pub fn non_finite_shows<B: Backend>(b: &mut B) -> Outcome {
    let len = 2 * BLOCK;
    for (bad, at) in [(f32::NAN, 0), (f32::INFINITY, 1023), (f32::NEG_INFINITY, 1024), (1e20, 2047)] {
        let mut grad = vec![0.5f32; len];
        grad[at] = bad;
        let got = square_sums_of(b, len, &grad, 0)?;
        assert!(!got[at / BLOCK].is_finite(), "{bad} at {at} gives the sum {}", got[at / BLOCK]);
        assert_eq!(got[1 - at / BLOCK], 256.0, "the other block's sum");
    }
    Ok(())
}
