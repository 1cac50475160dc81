//! Bodies for `adam_ema`, and the chain gradient norm, Adam, signals that a training step ends with.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::adam_ema::reference::{Hyper, State, adam_ema, clip};
use gpu::kernels::adam_ema::{AdamEma, hyper};
use gpu::kernels::c51_loss::stat;
use gpu::kernels::gradient_norm::{GradientNorm, partials, reference as norm_reference};
use gpu::kernels::step_signals::{StepSignals, signal};
use gpu::kernels::update_scales::reference::learning_rate;
use gpu::reference::Bounded;
use host::error::ExecError;

use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

/// The configuration's defaults with a moving average fast enough to see.
pub const USUAL: Hyper =
    Hyper { lr: 1e-4, beta1: 0.9, beta2: 0.999, eps: 1.5e-4, weight_decay: 0.0, max_norm: 10.0, tau: 0.005 };

/// The hyper-parameter buffer of these values.
pub fn hyper_words(h: &Hyper) -> Vec<f64> {
    let mut words = vec![f64::NAN; hyper::WORDS as usize];
    for (at, value) in [
        (hyper::LR, h.lr),
        (hyper::BETA1, h.beta1),
        (hyper::BETA2, h.beta2),
        (hyper::EPS, h.eps),
        (hyper::WEIGHT_DECAY, h.weight_decay),
        (hyper::MAX_NORM, h.max_norm),
        (hyper::TAU, h.tau),
        (hyper::LN_BETA1, h.beta1.ln()),
        (hyper::LN_BETA2, h.beta2.ln()),
    ] {
        words[at as usize] = value;
    }
    words
}

/// An optimizer's buffers, everything that a resumed run needs.
pub struct Optimizer {
    len: usize,
    /// Hyper-parameters, f64 [16].
    pub hypers: Buf<f64>,
    /// Counters of the training, u64 [4].
    pub words: Buf<u64>,
    /// Adam's own counters, u64 [4].
    pub adam_words: Buf<u64>,
    grad: Buf<f32>,
    sums: Buf<f32>,
    /// Parameters [len].
    pub params: Buf<f32>,
    /// First moments [len].
    pub m: Buf<f32>,
    /// Second moments [len].
    pub v: Buf<f32>,
    /// Target network's parameters [len].
    pub target: Buf<f32>,
    stats: Buf<f32>,
    history: Buf<f32>,
}

/// Rows of the history.
const HISTORY: usize = 4;

impl Optimizer {
    /// Buffers for these parameters, rounded up to a multiple of 4 by zeros, with zero moments.
    pub fn new<B: Backend>(b: &mut B, h: &Hyper, params: &[f32], target: &[f32]) -> Result<Self, ExecError> {
        let len = params.len().next_multiple_of(4);
        let padded = |values: &[f32]| [values, &vec![0.0; len - values.len()]].concat();
        Ok(Self {
            len,
            hypers: put(b, "hypers", &hyper_words(h))?,
            words: filled(b, "clock", clock::WORDS as usize, 0u64)?,
            adam_words: filled(b, "adam clock", clock::adam::WORDS as usize, 0u64)?,
            grad: filled(b, "grad", len, 0.0f32)?,
            sums: filled(b, "sums", partials(len as u32) as usize, 0.0f32)?,
            params: put(b, "params", &padded(params))?,
            m: filled(b, "m", len, 0.0f32)?,
            v: filled(b, "v", len, 0.0f32)?,
            target: put(b, "target", &padded(target))?,
            stats: filled(b, "stats", stat::COLUMNS as usize, 0.0f32)?,
            history: filled(b, "history", HISTORY * signal::COLUMNS as usize, 0.0f32)?,
        })
    }

    /// The end of a training step with this gradient.
    pub fn step<B: Backend>(&self, b: &mut B, grad: &[f32]) -> Outcome {
        let mut whole = vec![0.0; self.len];
        whole[..grad.len()].copy_from_slice(grad);
        b.upload(self.grad, &whole)?;
        self.repeat(b)
    }

    /// The same with the gradient that is already there.
    pub fn repeat<B: Backend>(&self, b: &mut B) -> Outcome {
        launch(
            b,
            GradientNorm {
                len: self.len as u32,
                grad: self.grad.into(),
                sums: self.sums.into(),
                clock_words: self.words.into(),
                adam_words: self.adam_words.into(),
            },
        )?;
        launch(
            b,
            AdamEma {
                len: self.len as u32,
                hypers: self.hypers.into(),
                adam_words: self.adam_words.into(),
                sums: self.sums.into(),
                grad: self.grad.into(),
                params: self.params.into(),
                m: self.m.into(),
                v: self.v.into(),
                target: self.target.into(),
            },
        )?;
        launch(
            b,
            StepSignals {
                batch: 1,
                len: self.len as u32,
                rows: HISTORY as u32,
                stats: self.stats.into(),
                sums: self.sums.into(),
                history: self.history.into(),
                clock_words: self.words.into(),
            },
        )
    }

    /// Parameters, moments and target.
    pub fn state<B: Backend>(&self, b: &mut B) -> Result<[Vec<f32>; 4], ExecError> {
        Ok([b.download(self.params)?, b.download(self.m)?, b.download(self.v)?, b.download(self.target)?])
    }

    /// Adam's number of updates so far, before the next step.
    pub fn updates<B: Backend>(&self, b: &mut B) -> Result<u64, ExecError> {
        let steps = b.download(self.words)?[clock::STEP as usize];
        // Two words take turns, the word of an even step first.
        Ok(b.download(self.adam_words)?[(steps % 2) as usize])
    }
}

/// The reference's state after update `t`, from the device's state before it: each step's rounding by itself.
fn expected_after(h: &Hyper, t: u64, grad: &[f32], before: &[Vec<f32>; 4]) -> [Vec<Bounded>; 4] {
    let exact: Vec<Bounded> = grad.iter().map(|&g| Bounded::exact(g)).collect();
    let sums: Vec<Bounded> = exact.chunks(1024).map(norm_reference::square_sum).collect();
    let factor = clip(norm_reference::norm(&sums), h.max_norm);
    let mut after: [Vec<Bounded>; 4] = Default::default();
    for i in 0..grad.len() {
        let [p, m, v, target] = [0, 1, 2, 3].map(|part: usize| Bounded::exact(before[part][i]));
        let state = adam_ema(h, t, factor, exact[i], State { p, m, v, target });
        for (column, x) in after.iter_mut().zip([state.p, state.m, state.v, state.target]) {
            column.push(x);
        }
    }
    after
}

/// Several updates over lengths around a block, gradients below and above the clip, decay, and a late update.
pub fn one_step<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(31);
    let decayed = Hyper { weight_decay: 0.01, lr: 3e-3, tau: 0.3, ..USUAL };
    let mut shapes = vec![(4, 0.1, USUAL), (1020, 3.0, USUAL), (1024, 0.1, decayed), (2052, 1e-6, decayed)];
    if B::FULL_SIZE {
        shapes.push((331_264, 0.1, USUAL));
    }
    for (len, spread, h) in shapes {
        let (p, target) = (random.normals(len, 0.5), random.normals(len, 0.5));
        let optimizer = Optimizer::new(b, &h, &p, &target)?;
        for start in [0u64, 12_344] {
            // A counter far ahead, as after a resume: bias corrections near one. The steps go on from three, which is odd.
            b.upload(optimizer.adam_words, &[start, start, 0, 0])?;
            for t in start + 1..=start + 3 {
                let (grad, before) = (random.normals(len, spread), optimizer.state(b)?);
                optimizer.step(b, &grad)?;
                let after = optimizer.state(b)?;
                let expected = expected_after(&h, t, &grad, &before);
                for (what, i) in [("params", 0), ("m", 1), ("v", 2), ("target", 3)] {
                    close(&format!("{what} of {len} after update {t}"), &after[i], &expected[i]);
                }
                assert_eq!(optimizer.updates(b)?, t);
            }
        }
    }
    Ok(())
}

/// The rate of every update of a schedule, cosine and line, a skipped step among them: from the reference's own formula
/// in the reference's update.
pub fn schedule<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(34);
    let len = 1028;
    let h = Hyper { lr: 3e-2, tau: 0.3, ..USUAL };
    let [warmup, decay, end] = [3.0, 6.0, 0.25];
    for linear in [false, true] {
        let (p, target) = (random.normals(len, 0.5), random.normals(len, 0.5));
        let optimizer = Optimizer::new(b, &h, &p, &target)?;
        let mut words = hyper_words(&h);
        words[hyper::WARMUP as usize] = warmup;
        words[hyper::DECAY as usize] = decay;
        words[hyper::LR_END as usize] = end;
        words[hyper::LINEAR as usize] = f64::from(u8::from(linear));
        b.upload(optimizer.hypers, &words)?;
        for t in 1..=12 {
            if t == 5 {
                optimizer.step(b, &vec![f32::NAN; len])?; // no update, so the schedule stands still
            }
            let (grad, before) = (random.normals(len, 0.1), optimizer.state(b)?);
            optimizer.step(b, &grad)?;
            let after = optimizer.state(b)?;
            let lr = learning_rate(h.lr, warmup, decay, end, linear, t as f64);
            let expected = expected_after(&Hyper { lr, ..h }, t, &grad, &before);
            close(&format!("params after update {t}"), &after[0], &expected[0]);
            close(&format!("target after update {t}"), &after[3], &expected[3]);
        }
    }
    Ok(())
}

/// A gradient that is not finite changes nothing but the counters, for as many steps as it lasts; the next finite one
/// continues with the next update number.
pub fn skips_and_recovers<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(32);
    let len = 1100;
    let (p, target) = (random.normals(len, 0.5), random.normals(len, 0.5));
    let optimizer = Optimizer::new(b, &USUAL, &p, &target)?;
    let undisturbed = Optimizer::new(b, &USUAL, &p, &target)?;
    let mut skipped = 0;
    // Runs of one, two and three bad steps start at even and at odd steps.
    for (bad, at) in [
        (None, 0),
        (Some(f32::NAN), 0),
        (None, 0),
        (None, 0),
        (Some(f32::INFINITY), 1099),
        (Some(f32::NAN), 1023),
        (None, 0),
        (Some(f32::NEG_INFINITY), 1024),
        (Some(1e30), 5),
        (Some(f32::NAN), 6),
        (None, 0),
    ] {
        let mut grad = random.normals(len, 1.0);
        match bad {
            None => {
                optimizer.step(b, &grad)?;
                undisturbed.step(b, &grad)?;
            }
            Some(bad) => {
                let (before, updates) = (optimizer.state(b)?, optimizer.updates(b)?);
                grad[at] = bad;
                optimizer.step(b, &grad)?;
                skipped += 1;
                for (before, after) in before.iter().zip(&optimizer.state(b)?) {
                    same_bits("a skipped step's state", after, before);
                }
                assert_eq!(optimizer.updates(b)?, updates, "updates after a skipped step");
            }
        }
        assert_eq!(b.download(optimizer.words)?[clock::SKIPPED as usize], skipped);
    }
    assert_eq!(b.download(optimizer.words)?[clock::STEP as usize], 11);
    for (got, expected) in optimizer.state(b)?.iter().zip(&undisturbed.state(b)?) {
        same_bits("the run without the bad steps", got, expected);
    }
    assert_eq!(optimizer.updates(b)?, 5);
    Ok(())
}

/// Zero parameters with zero gradient (the layout's padding) stay zero under decay, and what lies behind `len` is not
/// touched.
pub fn leaves_the_rest_alone<B: Backend>(b: &mut B) -> Outcome {
    let h = Hyper { weight_decay: 0.1, lr: 0.1, ..USUAL };
    let len = 1028;
    let behind = |values: Vec<f32>| [values, vec![-7.0; 8]].concat();
    let mut params = vec![0.5f32; len];
    params[100..200].fill(0.0);
    let grad: Vec<f32> = params.iter().map(|&p| 3.0 * p).collect();
    let buffers = [behind(params.clone()), behind(vec![0.0; len]), behind(vec![0.0; len]), behind(params)];
    let [p, m, v, target] = [0, 1, 2, 3].map(|i: usize| put(b, "state", &buffers[i]));
    let state = [p?, m?, v?, target?];
    let (grad, sums) = (put(b, "grad", &behind(grad))?, filled(b, "sums", 2, 0.0f32)?);
    let (hypers, words) = (put(b, "hypers", &hyper_words(&h))?, filled(b, "clock", 4, 0u64)?);
    let adam_words = filled(b, "adam clock", 4, 0u64)?;
    for _ in 0..2 {
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
        launch(
            b,
            AdamEma {
                len: len as u32,
                hypers: hypers.into(),
                adam_words: adam_words.into(),
                sums: sums.into(),
                grad: grad.into(),
                params: state[0].into(),
                m: state[1].into(),
                v: state[2].into(),
                target: state[3].into(),
            },
        )?;
    }
    for (buffer, before) in state.into_iter().zip(&buffers) {
        let got = b.download(buffer)?;
        same_bits("padding", &got[100..200], &[0.0; 100]);
        same_bits("behind the buffer", &got[len..], &[-7.0; 8]);
        assert!((0..100).chain(200..len).all(|i| got[i] != before[i]), "every other element moved");
    }
    Ok(())
}

/// The same steps give the same bits, whatever the order in which threads run.
pub fn is_reproducible<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(33);
    let len = 3000;
    let (p, grad) = (random.normals(len, 0.5), random.normals(len, 1.0));
    let mut runs = vec![];
    for _ in 0..2 {
        let optimizer = Optimizer::new(b, &USUAL, &p, &p)?;
        optimizer.step(b, &grad)?;
        optimizer.repeat(b)?;
        runs.push(optimizer.state(b)?);
    }
    for (first, second) in runs[0].iter().zip(&runs[1]) {
        same_bits("the second run", second, first);
    }
    Ok(())
}
