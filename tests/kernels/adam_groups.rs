//! Bodies for the chain that ends a step with several terms and groups: `term_reduce`, `group_squares`,
//! `update_scales`, `adam_groups`.

use cuda_std::Buf;
use gpu::clock;
use gpu::kernels::adam_ema::hyper;
use gpu::kernels::adam_ema::reference::{Hyper, State, adam_ema};
use gpu::kernels::adam_groups::AdamGroups;
use gpu::kernels::adam_groups::reference::total;
use gpu::kernels::term_reduce::{GroupSquares, PAIRS, TermReduce};
use gpu::kernels::update_scales::{UpdateScales, scale};
use gpu::reference::Bounded;
use host::error::ExecError;

use super::adam_ema::{USUAL, hyper_words};
use super::check::{close, same_bits};
use super::data::Random;
use super::{Backend, Outcome, filled, launch, put};

const MAIN: usize = 2052;
const TRUNK: usize = 1024;
/// Main, two groups with a copy in the target, one without; each from a block's beginning.
const STARTS: [usize; 5] = [0, 3072, 4096, 6144, 6200];
const LEN: usize = STARTS[4];

/// All buffers of the chain, with two full terms and one of the trunk.
pub struct Update {
    ends: Buf<u32>,
    ranges: Buf<u32>,
    hypers: Buf<f64>,
    adam_words: Buf<u64>,
    parts: Buf<f32>,
    trunk_parts: Buf<f32>,
    grads: Buf<f32>,
    trunk_grads: Buf<f32>,
    group_grads: Buf<f32>,
    sums: Buf<f32>,
    squares: Buf<f32>,
    budgets: Buf<f32>,
    /// What `update_scales` wrote.
    pub scales: Buf<f32>,
    state: [Buf<f32>; 4],
}

impl Update {
    /// Random parameters and target, zero moments.
    pub fn new<B: Backend>(
        b: &mut B,
        h: &Hyper,
        schedule: [f64; 3],
        budgets: [f32; 4],
        random: &mut Random,
    ) -> Result<Self, ExecError> {
        let ends: Vec<u32> = STARTS[1..].iter().map(|&end| end.div_ceil(1024) as u32).collect();
        // The groups' sums of squares lie where their blocks of 1024 floats do.
        let ranges: Vec<u32> =
            STARTS.windows(2).flat_map(|w| [w[0] / 1024, w[1].div_ceil(1024)]).map(|x| x as u32).collect();
        let mut words = hyper_words(h);
        words[hyper::WARMUP as usize] = schedule[0];
        words[hyper::DECAY as usize] = schedule[1];
        words[hyper::LR_END as usize] = schedule[2];
        Ok(Self {
            ends: put(b, "ends", &ends)?,
            ranges: put(b, "ranges", &ranges)?,
            hypers: put(b, "hypers", &words)?,
            adam_words: filled(b, "adam clock", clock::adam::WORDS as usize, 0u64)?,
            parts: filled(b, "parts", 2 * MAIN, 0.0f32)?,
            trunk_parts: filled(b, "trunk parts", TRUNK, 0.0f32)?,
            grads: filled(b, "grads", 2 * MAIN, 0.0f32)?,
            trunk_grads: filled(b, "trunk grads", TRUNK, 0.0f32)?,
            group_grads: filled(b, "group grads", LEN, 0.0f32)?,
            sums: filled(b, "sums", PAIRS as usize * MAIN.div_ceil(1024), 0.0f32)?,
            squares: filled(b, "squares", LEN.div_ceil(1024), f32::NAN)?,
            budgets: put(b, "budgets", &budgets)?,
            scales: filled(b, "scales", scale::WORDS as usize, -7.0f32)?,
            state: [
                put(b, "params", &random.normals(LEN, 0.5))?,
                filled(b, "m", LEN, 0.0f32)?,
                filled(b, "v", LEN, 0.0f32)?,
                put(b, "target", &random.normals(STARTS[3], 0.5))?,
            ],
        })
    }

    /// Whether the rate falls on a line.
    pub fn set_linear<B: Backend>(&self, b: &mut B, linear: bool) -> Outcome {
        let mut words = b.download(self.hypers)?;
        words[hyper::LINEAR as usize] = f64::from(u8::from(linear));
        b.upload(self.hypers, &words)
    }

    /// One update with these gradients: two terms of the main parameters, one of the trunk, the groups' own.
    pub fn step<B: Backend>(&self, b: &mut B, terms: &[Vec<f32>; 3], groups: &[f32]) -> Outcome {
        b.upload(self.parts, &[terms[0].clone(), terms[1].clone()].concat())?;
        b.upload(self.trunk_parts, &terms[2])?;
        b.upload(self.group_grads, groups)?;
        launch(
            b,
            TermReduce {
                len: MAIN as u32,
                trunk: TRUNK as u32,
                full: 2,
                partial: 1,
                splits: 1,
                products: MAIN as u32,
                scaled: MAIN as u32,
                factors: self.parts.into(),
                parts: self.parts.into(),
                trunk_parts: self.trunk_parts.into(),
                grads: self.grads.into(),
                trunk_grads: self.trunk_grads.into(),
                sums: self.sums.into(),
            },
        )?;
        for g in 1..4 {
            let (first, end) = (STARTS[g], STARTS[g + 1]);
            let squares = self.squares.slice(first / 1024, (end - first).div_ceil(1024));
            launch(
                b,
                GroupSquares {
                    len: (end - first) as u32,
                    grad: self.group_grads.slice(first, end - first).into(),
                    squares: squares.into(),
                },
            )?;
        }
        launch(
            b,
            UpdateScales {
                blocks: MAIN.div_ceil(1024) as u32,
                total: LEN.div_ceil(1024) as u32,
                groups: 4,
                ranges: self.ranges.into(),
                sums: self.sums.into(),
                squares: self.squares.into(),
                budgets: self.budgets.into(),
                hypers: self.hypers.into(),
                adam_words: self.adam_words.into(),
                scales: self.scales.into(),
            },
        )?;
        let [params, m, v, target] = self.state;
        launch(
            b,
            AdamGroups {
                len: LEN as u32,
                main: MAIN as u32,
                trunk: TRUNK as u32,
                full: 2,
                partial: 1,
                with_target: STARTS[3] as u32,
                groups: 4,
                ends: self.ends.into(),
                hypers: self.hypers.into(),
                scales: self.scales.into(),
                grads: self.grads.into(),
                trunk_grads: self.trunk_grads.into(),
                group_grads: self.group_grads.into(),
                params: params.into(),
                m: m.into(),
                v: v.into(),
                target: target.into(),
            },
        )
    }

    /// Parameters, moments, target.
    pub fn state<B: Backend>(&self, b: &mut B) -> Result<[Vec<f32>; 4], ExecError> {
        let [p, m, v, target] = self.state;
        Ok([b.download(p)?, b.download(m)?, b.download(v)?, b.download(target)?])
    }

    /// Adam's updates so far; both words agree.
    pub fn updates<B: Backend>(&self, b: &mut B) -> Result<u64, ExecError> {
        let words = b.download(self.adam_words)?;
        assert_eq!(words[0], words[1]);
        Ok(words[0])
    }
}

/// Gradients of two terms, one term of the trunk, and all groups; what lies between two groups is zero, as padding is.
pub fn gradients(random: &mut Random, spread: [f64; 3], group: f64) -> ([Vec<f32>; 3], Vec<f32>) {
    let terms =
        [random.normals(MAIN, spread[0]), random.normals(MAIN, spread[1]), random.normals(TRUNK, spread[2])];
    let mut groups = random.normals(LEN, group);
    groups[..STARTS[1]].fill(0.0);
    (terms, groups)
}

/// Three updates against the reference: every parameter of every group, with decay, budgets and clips in use.
pub fn three_updates<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(121);
    let h = Hyper { weight_decay: 0.01, lr: 3e-3, tau: 0.3, ..USUAL };
    let update = Update::new(b, &h, [0.0; 3], [6.0, 2.5, 1.0, f32::INFINITY], &mut random)?;
    for t in 1..=3 {
        let (terms, groups) = gradients(&mut random, [0.1, 3.0, 0.2], 0.3);
        let before = update.state(b)?;
        update.step(b, &terms, &groups)?;
        let (after, scales) = (update.state(b)?, b.download(update.scales)?);
        for i in 0..LEN {
            let group = (1..4).rev().find(|&g| i >= STARTS[g]).unwrap_or(0);
            let g = if group > 0 {
                total(&[scales[scale::GROUP as usize + group]], &[groups[i]])
            } else if i < TRUNK {
                total(&scales[..3], &[terms[0][i], terms[1][i], terms[2][i]])
            } else if i < MAIN {
                total(&scales[..2], &[terms[0][i], terms[1][i]])
            } else {
                Bounded::ZERO
            };
            // The last group has no copy in the target network.
            let at = |part: usize| before[part].get(i).copied().unwrap_or(0.0);
            let [p, m, v, target] = [0, 1, 2, 3].map(|part: usize| Bounded::exact(at(part)));
            let one = Bounded::exact(1.0);
            let expected = adam_ema(&h, t, one, g, State { p, m, v, target });
            let wanted = [expected.p, expected.m, expected.v, expected.target];
            let parts = if i < STARTS[3] { 4 } else { 3 };
            let named = ["p", "m", "v", "target"].iter().zip(&after).zip(wanted).take(parts);
            for ((what, after), expected) in named {
                let got = after[i];
                assert!(expected.accepts(got), "{what}[{i}] after {t}: {got} instead of {expected:?}");
            }
        }
        assert_eq!(update.updates(b)?, t);
    }
    close("learning rate", &[b.download(update.scales)?[scale::LR as usize]], &[Bounded::rounded(3e-3)]);
    Ok(())
}

/// A value that is not finite in any term or group skips everything; the next update goes on.
pub fn any_group_skips_all<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(122);
    let update = Update::new(b, &USUAL, [0.0; 3], [6.0, 2.5, 1.0, 0.5], &mut random)?;
    let (terms, groups) = gradients(&mut random, [0.1, 0.1, 0.1], 0.1);
    update.step(b, &terms, &groups)?;
    let before = update.state(b)?;
    for (place, bad) in [(0, f32::NAN), (1, f32::INFINITY), (2, 1e30), (3, f32::NAN)] {
        let (mut terms, mut groups) = (terms.clone(), groups.clone());
        if place < 3 {
            terms[place][77] = bad;
        } else {
            groups[STARTS[3] + 1] = bad;
        }
        update.step(b, &terms, &groups)?;
        for (before, after) in before.iter().zip(&update.state(b)?) {
            same_bits("a skipped step's state", after, before);
        }
        assert_eq!(update.updates(b)?, 1, "place {place}");
        assert_eq!(b.download(update.scales)?[scale::FINITE as usize], 0.0);
    }
    update.step(b, &terms, &groups)?;
    assert_eq!(update.updates(b)?, 2);
    assert_ne!(update.state(b)?[0], before[0]);
    Ok(())
}
