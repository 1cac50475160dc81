//! Bodies for `iql_derive`, `iql_quantiles` and `iql_state`.

use gpu::clock;
use gpu::kernels::iql_derive::reference::{Rates, State, advance, derive, quantiles};
use gpu::kernels::iql_derive::{IqlDerive, IqlQuantiles, IqlState, derived, state};
use gpu::kernels::step_signals::signal;
use gpu::kernels::update_scales::scale;
use gpu::reference::Bounded;
use host::error::ExecError;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// Weights, gap and size, branch scales of a batch.
fn run_derive<B: Backend>(
    b: &mut B,
    beta: f32,
    branches: usize,
    q: &[f32],
    values: &[f32],
    weights: &[f32],
) -> Result<[Vec<f32>; 3], ExecError> {
    let batch = weights.len();
    let (q, values, weights) = (put(b, "q", q)?, put(b, "values", values)?, put(b, "weights", weights)?);
    let loss_weights = filled(b, "loss weights", batch, -7.0f32)?;
    let (means, scales) = (filled(b, "means", 2, -7.0f32)?, filled(b, "scales", 8, -7.0f32)?);
    let mut words = [0u64; clock::WORDS as usize];
    words[clock::STEP as usize] = (1 << 40) + batch as u64;
    let (words, step) = (put(b, "clock", &words)?, filled(b, "step", 1, 0u64)?);
    launch(
        b,
        IqlDerive {
            batch: batch as u32,
            branches: branches as u32,
            beta,
            q: q.into(),
            values: values.into(),
            weights: weights.into(),
            clock_words: words.into(),
            loss_weights: loss_weights.into(),
            means: means.into(),
            branch_scales: scales.into(),
            step: step.into(),
        },
    )?;
    assert_eq!(b.download(step)?, [(1 << 40) + batch as u64]);
    Ok([b.download(loss_weights)?, b.download(means)?, b.download(scales)?])
}

/// Batches below, at and above a block's threads; one branch and eight; weights at the cap and far below it.
pub fn random_batches<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(151);
    let mut shapes = vec![(1, 1), (33, 3), (1024, 8), (2500, 4)];
    if B::FULL_SIZE {
        shapes.push((16_384, 4));
    }
    for (batch, branches) in shapes {
        for (beta, spread) in [(3.0, 1.0), (0.0, 1.0), (3.0, 20.0)] {
            let q = random.normals(batch * branches, spread);
            let values = random.normals(2 * batch, spread);
            let weights: Vec<f32> = (0..batch).map(|_| random.uniform() as f32).collect();
            let (high, low) = values.split_at(batch);
            let want = derive(beta, branches, &q, high, low, &weights);
            let [got, means, scales] = run_derive(b, beta, branches, &q, &values, &weights)?;
            close("loss weights", &got, &want.weights);
            close("gap and size", &means, &[want.gap, want.size]);
            close("branch scales", &scales[..branches], &want.branch_scales);
            same_bits("scales beyond the last branch", &scales[branches..], &vec![1.0; 8 - branches]);
            if weights.len() > 1 {
                let ones = vec![1.0; batch];
                let [omega, ..] = run_derive(b, beta, branches, &q, &values, &ones)?;
                let mean = omega.iter().map(|&x| f64::from(x)).sum::<f64>() / batch as f64;
                // Every weight carries a few roundings, the mean the block's chain of additions.
                let bound = (batch.div_ceil(1024) + 60) as f64 * f64::from(f32::EPSILON);
                assert!((mean - 1.0).abs() < bound, "the weights' mean is {mean}");
            }
        }
    }
    Ok(())
}

/// Exponentials that would all underflow still have a mean; differences that are all zero scale no branch; one that is
/// not a number is not capped away.
pub fn extremes<B: Backend>(b: &mut B) -> Outcome {
    let [weights, ..] = run_derive(b, 3.0, 1, &[0.0, 0.0, -1.0], &[1e3; 6], &[1.0; 3])?;
    let want = derive(3.0, 1, &[0.0, 0.0, -1.0], &[1e3; 3], &[1e3; 3], &[1.0; 3]).weights;
    close("weights far below the cap", &weights, &want);
    let [weights, means, scales] = run_derive(b, 3.0, 2, &[2.0; 4], &[2.0, 2.0, 1.0, 1.0], &[0.5, 1.0])?;
    same_bits("weights of equal advantages", &weights, &[0.5, 1.0]);
    same_bits("gap and size", &means, &[1.0, 2.0]);
    same_bits("scales of zero differences", &scales, &[1.0; 8]);
    let q = [1.0, f32::NAN, 1.0, 1.0];
    let [weights, _, scales] = run_derive(b, 3.0, 2, &q, &[0.0; 4], &[1.0; 2])?;
    assert!(weights.iter().all(|w| w.is_nan()), "{weights:?}");
    assert!(scales[..2].iter().all(|s| s.is_nan()), "{scales:?}");
    Ok(())
}

/// Exactly the elements that sorting finds: of one value, of equal ones, of both signs, of zeros of both signs.
pub fn quantiles_by_rank<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(152);
    let mut sizes = vec![1, 2, 100, 101, 1025];
    if B::FULL_SIZE {
        sizes.push(100_003);
    }
    for batch in sizes {
        for kind in 0..3 {
            let mut values = random.normals(2 * batch, 5.0);
            match kind {
                1 => values.fill(-0.25),
                2 => values.iter_mut().for_each(|x| *x = (*x).round() * 0.0),
                _ => {}
            }
            let buffer = put(b, "values", &values)?;
            let got = filled(b, "quantiles", 2, -7.0f32)?;
            launch(b, IqlQuantiles { batch: batch as u32, values: buffer.into(), quantiles: got.into() })?;
            let (high, low) = values.split_at(batch);
            same_bits("quantiles", &b.download(got)?, &quantiles(high, low));
        }
    }
    Ok(())
}

/// Several steps, accepted and skipped, with the support moving and not.
pub fn averages_over_steps<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(153);
    let rates = Rates { rate: 0.1, epsilon: [0.05, 0.5], support_rate: 0.02, margin: 0.1, floor: 2.0 };
    for adaptive in [false, true] {
        const SIGNALS: usize = signal::COLUMNS as usize;
        let averages = filled(b, "averages", state::WORDS as usize, 0.0f32)?;
        let (epsilon, support) = (put(b, "epsilon", &[0.3f32])?, put(b, "support", &[-10.0f32, 10.0])?);
        let history = filled(b, "history", 4 * SIGNALS, -7.0f32)?;
        let mut want = State {
            averages: None,
            epsilon: Bounded::exact(0.3),
            support: [Bounded::exact(-10.0), Bounded::exact(10.0)],
        };
        for step in 0..6usize {
            let mut means = random.normals(derived::WORDS as usize, 1.0);
            // Sizes are not negative; in the third step the quantiles cross, in the fourth they are far apart.
            means[1] = means[1].abs();
            (means[2], means[3]) = match step {
                2 => (3.0, -3.0),
                3 => (-40.0, 60.0),
                _ => (means[2] - 1.0, means[3] + 1.0),
            };
            let accepted = step % 3 != 1;
            let mut scales = vec![0.0f32; scale::WORDS as usize];
            scales[scale::FINITE as usize] = f32::from(u8::from(accepted));
            let (means_buf, scales) = (put(b, "means", &means)?, put(b, "update scales", &scales)?);
            let number = put(b, "step", &[step as u64])?;
            launch(
                b,
                IqlState {
                    rows: 4,
                    rate: rates.rate,
                    epsilon_min: rates.epsilon[0],
                    epsilon_max: rates.epsilon[1],
                    adaptive_support: adaptive.into(),
                    support_rate: rates.support_rate,
                    support_margin: rates.margin,
                    support_floor: rates.floor,
                    means: means_buf.into(),
                    scales: scales.into(),
                    step: number.into(),
                    averages: averages.into(),
                    epsilon: epsilon.into(),
                    support: support.into(),
                    history: history.into(),
                },
            )?;
            if accepted {
                want = advance(&rates, [means[0], means[1], means[2], means[3]], adaptive, &want);
            }
            let kept = b.download(averages)?;
            if let Some(averages) = want.averages {
                close("averages", &kept[..2], &averages);
            }
            assert_eq!(kept[state::STARTED as usize], f32::from(u8::from(want.averages.is_some())));
            close("epsilon", &b.download(epsilon)?, &[want.epsilon]);
            close("support", &b.download(support)?, &want.support);
            let row = b.download(history)?[step % 4 * SIGNALS..][..SIGNALS].to_vec();
            let first = signal::IQL_GAP as usize;
            let expected = [Bounded::exact(means[0]), want.epsilon, want.support[0], want.support[1]];
            close("history", &row[first..first + 4], &expected);
            assert!(row[..first].iter().chain(&row[first + 4..]).all(|&x| x == -7.0));
        }
    }
    Ok(())
}
