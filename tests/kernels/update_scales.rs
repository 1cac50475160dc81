//! Bodies for `update_scales`, launched as the chain of `adam_groups` launches it.

use gpu::kernels::update_scales::reference::{Scales, learning_rate, scales};
use gpu::kernels::update_scales::scale;

use super::adam_ema::USUAL;
use super::adam_groups::{Update, gradients};
use super::data::Random;
use super::{Backend, Outcome};

/// Sums of up to 4096 squares of rounded numbers and a square root: relative error below 40 units, and through
/// cancelling terms of the sum's norm no more than a few times that.
const RELATIVE: f64 = 1e-5;

fn near(what: &str, got: f32, expected: f64) {
    let error = (f64::from(got) - expected).abs();
    assert!(error <= RELATIVE * expected.abs(), "{what}: {got} instead of {expected}");
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Norms, budgets and clips below and above their limits, with and without a budget.
pub fn norms_budgets_and_clips<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(131);
    for (spread, group) in [([0.01, 0.01, 0.01], 0.01), ([5.0, 3.0, 2.0], 4.0), ([0.1, 9.0, 0.001], 0.3)] {
        for budgets in [[6.0, 2.5, 1.0, 0.5], [f32::INFINITY; 4], [30.0, 20.0, 10.0, 5.0]] {
            let update = Update::new(b, &USUAL, [0.0; 3], budgets, &mut random)?;
            let (terms, groups) = gradients(&mut random, spread, group);
            update.step(b, &terms, &groups)?;
            let own = [&groups[3072..4096], &groups[4096..6144], &groups[6144..]];
            let expected: Scales = scales(
                &[wide(&terms[0]), wide(&terms[1]), wide(&terms[2]), vec![]],
                &own.map(wide),
                budgets.map(f64::from),
                USUAL.max_norm,
            );
            let got = b.download(update.scales)?;
            let at = |word: u32, i: usize| got[word as usize + i];
            for t in 0..4 {
                near(&format!("norm of term {t}"), at(scale::TERM_NORM, t), expected.term_norms[t]);
                near(&format!("factor of term {t}"), at(scale::TERM, t), expected.terms[t]);
            }
            for g in 0..4 {
                near(&format!("norm of group {g}"), at(scale::GROUP_NORM, g), expected.group_norms[g]);
                near(&format!("clip of group {g}"), at(scale::GROUP, g), expected.groups[g]);
            }
            assert_eq!(at(scale::FINITE, 0), 1.0);
        }
    }
    Ok(())
}

/// Bias corrections and the learning rate's schedule over warm-up, decay and beyond it.
pub fn schedule<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(132);
    let [warmup, decay, end] = [3.0, 5.0, 0.1];
    for (schedule, constant, linear) in [
        ([warmup, decay, end], false, false),
        ([warmup, decay, end], false, true),
        ([0.0; 3], true, false),
        ([0.0; 3], true, true),
    ] {
        let update = Update::new(b, &USUAL, schedule, [f32::INFINITY; 4], &mut random)?;
        update.set_linear(b, linear)?;
        let (terms, groups) = gradients(&mut random, [0.1; 3], 0.1);
        for t in 1..=10 {
            update.step(b, &terms, &groups)?;
            let got = b.download(update.scales)?;
            let lr = if constant {
                USUAL.lr
            } else {
                learning_rate(USUAL.lr, warmup, decay, end, linear, t.into())
            };
            near(&format!("rate of update {t}"), got[scale::LR as usize], lr);
            for (word, beta) in [(scale::INVERSE1, USUAL.beta1), (scale::INVERSE2, USUAL.beta2)] {
                near("bias correction", got[word as usize], 1.0 / (1.0 - beta.powi(t)));
            }
        }
    }
    Ok(())
}
