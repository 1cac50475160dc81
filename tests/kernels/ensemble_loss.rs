//! Bodies for `ensemble_loss` and `ensemble_loss_wide`.

use gpu::clock;
use gpu::kernels::ensemble_loss::reference::{Loss, ensemble_loss};
use gpu::kernels::ensemble_loss::{EnsembleLoss, EnsembleLossWide, learns};
use gpu::reference::Bounded;
use host::error::ExecError;
use host::exec::Lane;

use super::check::close;
use super::data::Random;
use super::{Backend, Outcome, filled, put};

const SEED: u64 = 77;
const STEP: u64 = 1 << 33 | 5;
/// What the padding of the gradient holds before, and must hold after.
const UNTOUCHED: f32 = -7.0;

/// A batch: K, members' outputs [B][M][K], targets [B][K], weights [B].
struct Problem {
    atoms: usize,
    logits: Vec<Vec<Vec<f32>>>,
    targets: Vec<Vec<f32>>,
    weights: Vec<f32>,
}

impl Problem {
    fn random(random: &mut Random, batch: usize, members: usize, atoms: usize, spread: f64) -> Self {
        let target = |random: &mut Random| {
            let raw: Vec<f64> = (0..atoms).map(|_| random.uniform()).collect();
            let sum: f64 = raw.iter().sum();
            raw.iter().map(|x| (x / sum) as f32).collect::<Vec<f32>>()
        };
        Self {
            atoms,
            logits: (0..batch)
                .map(|_| (0..members).map(|_| random.normals(atoms, spread)).collect())
                .collect(),
            targets: (0..batch).map(|_| target(random)).collect(),
            weights: (0..batch).map(|_| random.uniform() as f32).collect(),
        }
    }

    fn expected(&self, support: [f32; 2], mask: f32, lambda: f32) -> Vec<Loss> {
        (0..self.weights.len())
            .map(|i| {
                let rows = &self.logits[i];
                let on: Vec<bool> =
                    (0..rows.len()).map(|e| learns(SEED, STEP, i as u32, e as u32, mask)).collect();
                let (batch, weight) = (self.weights.len(), self.weights[i]);
                ensemble_loss(batch, support, lambda, weight, &on, &self.targets[i], rows)
            })
            .collect()
    }
}

/// Gradient [B][M][K], loss, uncertainty.
type Written = (Vec<Vec<f32>>, Vec<f32>, Vec<f32>);

fn run<B: Backend>(
    b: &mut B,
    p: &Problem,
    support: [f32; 2],
    (mask, lambda): (f32, f32),
    wide: bool,
) -> Result<Written, ExecError> {
    let (batch, members, block) = (p.weights.len(), p.logits[0].len(), p.atoms.next_multiple_of(4));
    let stride = members * block + 4;
    let mut logits = vec![f32::NAN; batch * stride];
    for (row, outputs) in logits.chunks_exact_mut(stride).zip(&p.logits) {
        for (e, output) in outputs.iter().enumerate() {
            row[e * block..][..p.atoms].copy_from_slice(output);
        }
    }
    let mut words = [0u64; clock::WORDS as usize];
    words[clock::STEP as usize] = STEP;
    let (words, support) = (put(b, "clock", &words)?, put(b, "support", &support)?);
    let (logits, target) = (put(b, "logits", &logits)?, put(b, "target", &p.targets.concat())?);
    let weights = put(b, "weights", &p.weights)?;
    let d_logits = filled(b, "d_logits", batch * stride, UNTOUCHED)?;
    let (loss, uncertainty) =
        (filled(b, "loss", batch, UNTOUCHED)?, filled(b, "variance", batch, UNTOUCHED)?);
    macro_rules! launch {
        ($kernel:ident) => {
            b.launch(
                Lane::MAIN,
                &$kernel {
                    batch: batch as u32,
                    members: members as u32,
                    atoms: p.atoms as u32,
                    stride: stride as u32,
                    mask,
                    lambda,
                    seed: SEED,
                    clock_words: words.into(),
                    support: support.into(),
                    logits: logits.into(),
                    target: target.into(),
                    weights: weights.into(),
                    d_logits: d_logits.into(),
                    loss: loss.into(),
                    uncertainty: uncertainty.into(),
                },
            )
        };
    }
    if wide {
        launch!(EnsembleLossWide)?
    } else {
        launch!(EnsembleLoss)?
    }
    let d_logits = b.download(d_logits)?;
    let rows = d_logits.chunks_exact(stride).map(|row| {
        let is_output = |i: usize| i < members * block && i % block < p.atoms;
        assert!((0..stride).all(|i| is_output(i) || row[i] == UNTOUCHED), "the padding was written");
        (0..stride).filter(|&i| is_output(i)).map(|i| row[i]).collect::<Vec<f32>>()
    });
    let rows = rows.collect();
    Ok((rows, b.download(loss)?, b.download(uncertainty)?))
}

/// Two members to eight, batches that do not fill a block, both widths, variances below and above 1, with and without
/// masks.
pub fn random_batches<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(161);
    let mut shapes = vec![(1, 2, 2), (7, 5, 51), (5, 3, 64), (3, 8, 33), (4, 5, 101)];
    if B::FULL_SIZE {
        shapes.push((1024, 5, 51));
    }
    for (batch, members, atoms) in shapes {
        for (support, spread) in [([-10.0, 10.0], 1.5), ([-1.0, 0.5], 0.5)] {
            for (mask, lambda) in [(0.8, 0.01), (1.0, 0.3)] {
                let p = Problem::random(&mut random, batch, members, atoms, spread);
                let expected = p.expected(support, mask, lambda);
                for wide in [false, true] {
                    if !wide && atoms > 64 {
                        continue;
                    }
                    let (gradient, loss, variance) = run(b, &p, support, (mask, lambda), wide)?;
                    let all = |of: fn(&Loss) -> Bounded| expected.iter().map(of).collect::<Vec<_>>();
                    close("loss", &loss, &all(|l| l.loss));
                    close("variance", &variance, &all(|l| l.variance));
                    let rows: Vec<Bounded> = expected.iter().flat_map(|l| l.gradient.concat()).collect();
                    close("gradient", &gradient.concat(), &rows);
                }
            }
        }
    }
    Ok(())
}

/// A NaN in a member's outputs shows, also where the member does not learn; other samples are not touched.
pub fn nan_shows<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(162);
    let mut p = Problem::random(&mut random, 4, 5, 21, 1.0);
    let mask = 0.5;
    let masked = |i: u32, e: u32| !learns(SEED, STEP, i, e, mask);
    let place = (0..4).flat_map(|i| (0..5).map(move |e| (i, e))).find(|&(i, e)| masked(i, e));
    let (i, e) = place.expect("half of the pairs are masked");
    p.logits[i as usize][e as usize][3] = f32::NAN;
    let (gradient, loss, variance) = run(b, &p, [-10.0, 10.0], (mask, 0.01), false)?;
    for sample in 0..4 {
        let bad = sample == i as usize;
        assert_eq!(loss[sample].is_nan(), bad);
        assert_eq!(variance[sample].is_nan(), bad);
        assert_eq!(gradient[sample].iter().any(|g| g.is_nan()), bad);
    }
    Ok(())
}
