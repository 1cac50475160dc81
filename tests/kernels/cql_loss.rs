//! Bodies for `cql_loss` and `cql_loss_wide`.

use gpu::kernels::cql_loss::reference::{Loss, cql_loss};
use gpu::kernels::cql_loss::{CqlLoss, CqlLossWide, is_narrow};
use gpu::kernels::distribution::reference::Heads;
use gpu::reference::Bounded;
use host::error::ExecError;
use host::exec::Lane;

use super::check::{close, same_bits};
use super::data::Random;
use super::rows::{Shape, pack};
use super::{Backend, Outcome, filled, put};

/// What the padding holds before, and must hold after.
const UNTOUCHED: f32 = -7.0;

/// What the kernel wrote.
struct Written {
    gradient: Vec<Heads>,
    loss: Vec<f32>,
    per_branch: Vec<f32>,
}

/// Padding of the logits is NaN and must not be read.
fn run<B: Backend>(
    b: &mut B,
    shape: &Shape,
    support: [f32; 2],
    alpha: f32,
    samples: &[(Heads, Vec<usize>)],
    wide: bool,
) -> Result<Written, ExecError> {
    let (batch, branches, stride) = (samples.len(), shape.sizes.len(), shape.columns() + 4);
    let heads: Vec<Heads> = samples.iter().map(|s| s.0.clone()).collect();
    let actions: Vec<u64> = samples.iter().map(|s| pack(&s.1)).collect();
    let support = put(b, "support", &support)?;
    let logits = put(b, "logits", &shape.flat(&heads, stride, f32::NAN))?;
    let actions = put(b, "actions", &actions)?;
    let gradient = filled(b, "gradient", batch * stride, UNTOUCHED)?;
    let loss = filled(b, "loss", batch, UNTOUCHED)?;
    let per_branch = filled(b, "per branch", batch * branches, UNTOUCHED)?;
    macro_rules! launch {
        ($kernel:ident) => {
            b.launch(
                Lane::MAIN,
                &$kernel {
                    batch: batch as u32,
                    branches: branches as u32,
                    sizes: shape.packed(),
                    atoms: shape.atoms as u32,
                    stride: stride as u32,
                    alpha,
                    support: support.into(),
                    logits: logits.into(),
                    actions: actions.into(),
                    gradient: gradient.into(),
                    loss: loss.into(),
                    per_branch: per_branch.into(),
                },
            )
        };
    }
    if wide {
        launch!(CqlLossWide)?
    } else {
        launch!(CqlLoss)?
    }
    let gradient = b.download(gradient)?;
    let gradient = gradient.chunks(stride).map(|row| {
        let (heads, padding) = shape.split(row);
        same_bits("padding of the gradient", &padding, &vec![UNTOUCHED; padding.len()]);
        heads
    });
    Ok(Written { gradient: gradient.collect(), loss: b.download(loss)?, per_branch: b.download(per_branch)? })
}

fn flatten<T: Copy>(value: &[T], advantage: &[Vec<Vec<T>>]) -> Vec<T> {
    value.iter().copied().chain(advantage.iter().flatten().flatten().copied()).collect()
}

fn compare(what: &str, got: &Written, expected: &[Loss]) {
    let all = |of: fn(&Loss) -> Vec<Bounded>| expected.iter().flat_map(of).collect::<Vec<Bounded>>();
    close(&format!("{what}: loss"), &got.loss, &all(|l| vec![l.loss]));
    close(&format!("{what}: per branch"), &got.per_branch, &all(|l| l.per_branch.clone()));
    let gradient: Vec<f32> = got.gradient.iter().flat_map(|g| flatten(&g.value, &g.advantage)).collect();
    close(&format!("{what}: gradient"), &gradient, &all(|l| flatten(&l.value, &l.advantage)));
}

/// Loss and gradients against the reference: one branch and eight, two actions and sixty-four, action counts that do and
/// do not fill a round of eight, both widths.
pub fn random_batches<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(71);
    let mut shapes = vec![
        (1, Shape::new(&[2], 2)),
        (19, Shape::new(&[3], 21)),
        (7, Shape::new(&[9, 3, 3], 51)),
        (3, Shape::new(&[64, 2, 33], 21)),
        (3, Shape::new(&[2, 3, 4, 5, 6, 7, 8, 9], 64)),
        (5, Shape::new(&[5, 2], 101)),
        (3, Shape::new(&[3], 128)),
    ];
    if B::FULL_SIZE {
        shapes.extend([(1024, Shape::new(&[9, 3, 3], 51)), (333, Shape::new(&[9, 3, 3, 5], 101))]);
    }
    for (batch, shape) in shapes {
        for (support, alpha) in [([-10.0, 10.0], 0.1), ([-2.0, 6.5], 0.7)] {
            let samples: Vec<(Heads, Vec<usize>)> = (0..batch)
                .map(|i| {
                    let spread = if i % 5 == 3 { 8.0 } else { 1.5 };
                    let taken = shape.sizes.iter().map(|&n| random.below(n)).collect();
                    (shape.random(&mut random, spread), taken)
                })
                .collect();
            let expected: Vec<Loss> =
                samples.iter().map(|s| cql_loss(batch, support, alpha, &s.0, &s.1)).collect();
            for wide in [false, true] {
                if wide || is_narrow(shape.atoms, shape.columns() + 4) {
                    let got = run(b, &shape, support, alpha, &samples, wide)?;
                    compare(&format!("{shape:?}, wide {wide}"), &got, &expected);
                }
            }
        }
    }
    Ok(())
}

/// Equal values of all actions: the excess is the logarithm of their number. A far support overflows no exponential.
pub fn large_values_do_not_overflow<B: Backend>(b: &mut B) -> Outcome {
    for n in [2usize, 9, 64] {
        let shape = Shape::new(&[n], 51);
        let samples = [(shape.constant(0.25), vec![n - 1])];
        let got = run(b, &shape, [900.0, 1100.0], 1.0, &samples, false)?;
        let expected = (n as f64).ln();
        let error = (f64::from(got.loss[0]) - expected).abs();
        // Q near 1000 is rounded to 6e-5, and the excess is the difference of two of them.
        assert!(error < 2e-4, "{n} actions: {} instead of {expected}", got.loss[0]);
    }
    Ok(())
}

/// A NaN among the outputs is seen in the loss and in the gradient.
pub fn nan_shows<B: Backend>(b: &mut B) -> Outcome {
    let shape = Shape::new(&[3, 2], 21);
    let mut random = Random::new(72);
    let mut heads = shape.random(&mut random, 1.0);
    heads.advantage[0][2][5] = f32::NAN;
    let got = run(b, &shape, [-10.0, 10.0], 0.1, &[(heads, vec![0, 1])], false)?;
    assert!(got.loss[0].is_nan() && got.gradient[0].value[0].is_nan());
    Ok(())
}
